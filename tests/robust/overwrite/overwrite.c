/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that changes a file which it has copied to the device: a checkpoint is converted in
 * place. Each way to do so that goes through libc is a row below. The device must hold what was
 * copied. Runs the same alone and under the shim.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/robust/overwrite/checkpoint.h"
#include "tools/simcuda/harness/deny.h"

/* --- one row for each way; it leaves the file changed */

static void write_and_close(int file)
{
    CHECK(file >= 0);
    CHECK_EQ(write(file, scratch, WRITTEN), WRITTEN);
    CHECK_EQ(close(file), 0);
}

static void write_and_close_stream(FILE *file)
{
    CHECK(file != NULL);
    CHECK_EQ(fwrite(scratch, 1, WRITTEN, file), WRITTEN);
    CHECK_EQ(fclose(file), 0);
}

enum { TRUNCATING = O_WRONLY | O_TRUNC | O_CLOEXEC };

static void by_open(void)
{
    write_and_close(open(path, TRUNCATING));
}

static void by_open64(void)
{
    write_and_close(open64(path, O_WRONLY | O_CREAT | O_TRUNC, 0600));
}

static void by_openat(void)
{
    const int parent = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    write_and_close(openat(parent, "checkpoint", TRUNCATING));
    close(parent);
}

static void by_openat64(void)
{
    const int parent = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    write_and_close(openat64(parent, "checkpoint", TRUNCATING));
    close(parent);
}

/* Functions that the headers make of open and its kin where _FORTIFY_SOURCE is set. */
extern int __open_2(const char *name, int flags);
extern int __open64_2(const char *name, int flags);
extern int __openat_2(int parent, const char *name, int flags);
extern int __openat64_2(int parent, const char *name, int flags);

static void by_fortified_open(void)
{
    write_and_close(__open_2(path, TRUNCATING));
}

static void by_fortified_open64(void)
{
    write_and_close(__open64_2(path, TRUNCATING));
}

static void by_fortified_openat(void)
{
    write_and_close(__openat_2(AT_FDCWD, path, TRUNCATING));
}

static void by_fortified_openat64(void)
{
    write_and_close(__openat64_2(AT_FDCWD, path, TRUNCATING));
}

static void by_creat(void)
{
    write_and_close(creat(path, 0600));
}

static void by_creat64(void)
{
    write_and_close(creat64(path, 0600));
}

static void by_fopen(void)
{
    write_and_close_stream(fopen(path, "w"));
}

static void by_fopen64(void)
{
    write_and_close_stream(fopen64(path, "wb"));
}

static void by_fopen_to_change(void)
{
    write_and_close_stream(fopen(path, "rb+"));
}

static void by_fopen_to_append(void)
{
    write_and_close_stream(fopen(path, "a"));
}

static void by_freopen(void)
{
    write_and_close_stream(freopen(path, "w", fopen("/dev/null", "r")));
}

static void by_freopen64(void)
{
    write_and_close_stream(freopen64(path, "r+", fopen("/dev/null", "r")));
}

static void by_freopen_of_itself(void)
{
    write_and_close_stream(freopen(NULL, "w", fopen(path, "r")));
}

static void by_truncate(void)
{
    CHECK_EQ(truncate(path, WRITTEN), 0);
}

static void by_truncate64(void)
{
    CHECK_EQ(truncate64(path, WRITTEN), 0);
}

static void by_reading_open(void)
{
    const int file = open(path, O_RDONLY | O_TRUNC | O_CLOEXEC);
    CHECK(file >= 0);
    close(file);
}

static void by_pwrite(void)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK_EQ(pwrite(file, scratch, WRITTEN, BYTES / 2), WRITTEN);
    close(file);
}

static void by_store(void)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);
    unsigned char *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(mapped != MAP_FAILED);
    close(file);
    memset(mapped + BYTES / 2, 1, WRITTEN);
    munmap(mapped, BYTES);
}

static void by_symbolic_link(void)
{
    CHECK_EQ(symlink(path, other), 0);
    by_open();
}

static void by_hard_link(void)
{
    CHECK_EQ(link(path, other), 0);
    write_and_close(open(other, TRUNCATING));
}

static void by_descriptor_link(void)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    char name[64];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", file);
    write_and_close(open(name, TRUNCATING));
    close(file);
}

typedef void change(void);
static const struct {
    const char *name;
    change *run;
} ways[] = {
    {"open", by_open},
    {"open64", by_open64},
    {"openat", by_openat},
    {"openat64", by_openat64},
    {"__open_2", by_fortified_open},
    {"__open64_2", by_fortified_open64},
    {"__openat_2", by_fortified_openat},
    {"__openat64_2", by_fortified_openat64},
    {"creat", by_creat},
    {"creat64", by_creat64},
    {"fopen", by_fopen},
    {"fopen64", by_fopen64},
    {"fopen to change", by_fopen_to_change},
    {"fopen to append", by_fopen_to_append},
    {"freopen", by_freopen},
    {"freopen64", by_freopen64},
    {"freopen of itself", by_freopen_of_itself},
    {"truncate", by_truncate},
    {"truncate64", by_truncate64},
    {"open to read and truncate", by_reading_open},
    {"pwrite", by_pwrite},
    {"a store to a mapping", by_store},
    {"a symbolic link", by_symbolic_link},
    {"a hard link", by_hard_link},
    {"a link in /proc", by_descriptor_link},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* In a child, so that one way says nothing of the next. */
static void run_way(const char *name, change *run)
{
    const pid_t child = fork();
    if (child == 0) {
        make_files();
        device_start();
        const CUdeviceptr block = load();
        run();
        check_device(block);
        exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (status != 0)
        ms_test_fail(__FILE__, __LINE__, "%s: status %d", name, status);
}

MS_TEST(each_call_that_opens)
{
    for (int i = 0; i < WAYS; i++)
        run_way(ways[i].name, ways[i].run);
}

/* --- descriptors that were opened before, and were nobody's when the file was copied: on their way
 * in a socket */

static int send_descriptor(int file)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    char byte = 0;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &file, sizeof(int));
    CHECK_EQ(sendmsg(ends[0], &message, 0), 1);
    close(ends[0]);
    close(file);
    return ends[1];
}

static int receive_descriptor(int socket)
{
    char byte;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    CHECK_EQ(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    close(socket);
    return file;
}

static int open_other(void)
{
    write_file(other, scratch, sizeof(scratch));
    const int file = open(other, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    return file;
}

typedef void change_descriptor(int file);

static void with_ftruncate(int file)
{
    CHECK_EQ(ftruncate(file, WRITTEN), 0);
}

static void with_ftruncate64(int file)
{
    CHECK_EQ(ftruncate64(file, WRITTEN), 0);
}

static void with_fallocate(int file)
{
    CHECK_EQ(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, WRITTEN), 0);
}

static void with_fallocate64(int file)
{
    CHECK_EQ(fallocate64(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, WRITTEN), 0);
}

static void with_posix_fallocate(int file)
{
    CHECK_EQ(posix_fallocate(file, BYTES, WRITTEN), 0);
}

static void with_posix_fallocate64(int file)
{
    CHECK_EQ(posix_fallocate64(file, BYTES, WRITTEN), 0);
}

static void with_copy_file_range(int file)
{
    CHECK_EQ(copy_file_range(open_other(), NULL, file, NULL, WRITTEN, 0), WRITTEN);
}

static void with_sendfile(int file)
{
    CHECK_EQ(sendfile(file, open_other(), NULL, WRITTEN), WRITTEN);
}

static void with_sendfile64(int file)
{
    CHECK_EQ(sendfile64(file, open_other(), NULL, WRITTEN), WRITTEN);
}

static void store(unsigned char *mapped)
{
    CHECK(mapped != MAP_FAILED);
    memcpy(mapped, scratch, WRITTEN);
    munmap(mapped, BYTES);
}

static void with_mmap(int file)
{
    store(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
}

static void with_mmap64(int file)
{
    store(mmap64(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
}

static void with_mprotect(int file)
{
    unsigned char *mapped = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0);
    CHECK_EQ(mprotect(mapped, BYTES, PROT_READ | PROT_WRITE), 0);
    store(mapped);
}

static const struct {
    const char *name;
    change_descriptor *run;
} descriptor_ways[] = {
    {"ftruncate", with_ftruncate},
    {"ftruncate64", with_ftruncate64},
    {"fallocate", with_fallocate},
    {"fallocate64", with_fallocate64},
    {"posix_fallocate", with_posix_fallocate},
    {"posix_fallocate64", with_posix_fallocate64},
    {"copy_file_range", with_copy_file_range},
    {"sendfile", with_sendfile},
    {"sendfile64", with_sendfile64},
    {"mmap", with_mmap},
    {"mmap64", with_mmap64},
    {"mprotect", with_mprotect},
};
enum { DESCRIPTOR_WAYS = sizeof(descriptor_ways) / sizeof(descriptor_ways[0]) };

static change_descriptor *descriptor_way;

static CUdeviceptr load_with_writer_away(int *socket_out)
{
    *socket_out = send_descriptor(open(path, O_RDWR | O_CLOEXEC));
    return load();
}

static void check_descriptor_ways(bool are_writers_known)
{
    for (int i = 0; i < DESCRIPTOR_WAYS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            int socket;
            if (!are_writers_known)
                deny_with(SYS_fcntl, 1, F_SETLEASE, EACCES);
            make_files();
            device_start();
            descriptor_way = descriptor_ways[i].run;
            const CUdeviceptr block = load_with_writer_away(&socket);
            descriptor_way(receive_descriptor(socket));
            check_device(block);
            exit(0);
        }
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (status != 0)
            ms_test_fail(__FILE__, __LINE__, "%s: status %d", descriptor_ways[i].name, status);
    }
}

MS_TEST(each_call_with_a_descriptor)
{
    check_descriptor_ways(true);
}

/* As of another user's file: only the call tells of the descriptor. */
MS_TEST(each_call_with_a_descriptor_that_nobody_knows_of)
{
    check_descriptor_ways(false);
}

/* --- */

/* No call tells of the write: such a file is not taken for what was copied. */
MS_TEST(a_descriptor_that_was_open_before)
{
    make_files();
    const int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    device_start();
    const CUdeviceptr block = load();
    CHECK_EQ(pwrite(file, scratch, WRITTEN, BYTES / 2), WRITTEN);
    check_device(block);
}

/* It is written to before the next copy, and again behind it. */
MS_TEST(a_file_that_is_changed_again)
{
    make_files();
    device_start();
    const CUdeviceptr before = load();
    const int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK_EQ(pwrite(file, scratch, WRITTEN, 0), WRITTEN);
    const CUdeviceptr after = load();
    CHECK_EQ(pwrite(file, scratch, WRITTEN, BYTES / 2), WRITTEN);
    check_device(before);
    memcpy(original, scratch, WRITTEN);
    check_device(after);
}

/* The classical conversion: each tensor is read back while the file is written anew. */
MS_TEST(a_checkpoint_is_converted)
{
    enum { TENSORS = 8, TENSOR = BYTES / TENSORS };
    make_files();
    device_start();
    const CUdeviceptr block = load();
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    for (int i = 0; i < TENSORS; i++) {
        CHECK_EQ(cuMemcpyDtoH(seen, block + (size_t)i * TENSOR, TENSOR), CUDA_SUCCESS);
        for (size_t at = 0; at < TENSOR / 2; at++)
            seen[at] = seen[2 * at];
        CHECK_EQ(fwrite(seen, 1, TENSOR / 2, file), TENSOR / 2);
    }
    CHECK_EQ(fclose(file), 0);
    const int converted = open(path, O_RDONLY | O_CLOEXEC);
    CHECK_EQ(read(converted, seen, BYTES), BYTES / 2);
    for (size_t i = 0; i < BYTES / 2; i++)
        CHECK_EQ(seen[i], original[2 * i]);
}

/* Bytes that the device made of the file's bytes are as good as lost with them. */
MS_TEST(bytes_copied_on_the_device_survive_a_change)
{
    make_files();
    device_start();
    const CUdeviceptr block = load(), slice = device_allocate(BYTES);
    CHECK_EQ(cuMemcpyDtoD(slice, block + BYTES / 2, BYTES / 2), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoD(slice + BYTES / 2, block, BYTES / 2), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    by_open();
    CHECK_EQ(cuMemcpyDtoH(seen + BYTES / 2, slice, BYTES / 2), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(seen, slice + BYTES / 2, BYTES / 2), CUDA_SUCCESS);
    CHECK_BYTES(seen, original, BYTES);
}

/* Bytes that were read lie in memory, and could be taken away and read again; not any more. */
MS_TEST(bytes_read_before_survive_a_change)
{
    make_files();
    device_start();
    const CUdeviceptr block = load();
    check_device(block);
    by_open();
    check_device(block);
}

/* errno is the program's. */
MS_TEST(errno_stays)
{
    make_files();
    device_start();
    const CUdeviceptr block = load();
    errno = 77;
    const int file = open(path, TRUNCATING);
    CHECK_EQ(errno, 77);
    CHECK(file >= 0);
    close(file);
    check_device(block);
    write_file(path, original, BYTES);
    load();
    errno = 77;
    const int made = open(other, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK_EQ(errno, 77); /* it was looked at, and was not there yet */
    CHECK(made >= 0);
    close(made);
    CHECK(open("/nonexistent/file", O_WRONLY) < 0);
    CHECK_EQ(errno, ENOENT);
}

/* A kernel that was recorded, and whose input is gone, is run while there is a file. */
MS_TEST(bytes_a_kernel_made_survive_a_change)
{
    make_files();
    setenv("METASHARD_KERNEL_RULES", getenv("OVERWRITE_RULES"), 1);
    device_start();
    CUmodule module;
    CUfunction copy;
    CHECK_EQ(cuModuleLoad(&module, getenv("OVERWRITE_KERNELS")), CUDA_SUCCESS);
    CHECK_EQ(cuModuleGetFunction(&copy, module, "copy32"), CUDA_SUCCESS);
    CUdeviceptr block = load(), made = device_allocate(BYTES);
    uint64_t count = BYTES / 4;
    void *copy_arguments[] = {&made, &block, &count};
    CHECK_EQ(cuLaunchKernel(copy, 1, 1, 1, 1, 1, 1, 0, NULL, copy_arguments, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    CHECK(!device_has_shim() || backed_bytes() == 0);
    by_open();
    check_device(made);
}

/* --- what only the shim has */

/* Nothing is brought in that stays as it is. */
MS_TEST(calls_that_change_no_file)
{
    expect_shim();
    make_files();
    device_start();
    const CUdeviceptr block = load();
    write_file(other, scratch, sizeof(scratch));
    close(open(path, O_RDONLY | O_CLOEXEC));
    close(open(path, O_PATH | O_RDWR | O_CLOEXEC));
    CHECK_EQ(open(path, O_RDWR | O_CREAT | O_EXCL, 0600), -1);
    CHECK_EQ(errno, EEXIST);
    close(open(folder, O_TMPFILE | O_RDWR, 0600));
    fclose(fopen(path, "rb"));
    fclose(freopen(path, "r", fopen(other, "a")));
    CHECK_EQ(backed_bytes(), 0);
    CHECK_EQ(rename(other, path), 0); /* deletes it (deleted.c) */
    CHECK_EQ(backed_bytes(), BYTES);
    CHECK_EQ(truncate(path, 1), 0);
    CHECK_EQ(unlink(path), 0);
    check_device(block);
    CHECK_EQ(backed_bytes(), BYTES);
}

/* Memory of the device is taken: what is made of it cannot be made again. */
static CUdeviceptr fill_device(size_t bytes)
{
    const CUdeviceptr block = device_allocate(bytes);
    unsigned char *data = calloc(1, bytes);
    for (size_t i = 0; i < bytes; i += 100)
        data[i] = 1;
    CHECK_EQ(cuMemcpyHtoD(block, data, bytes), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(data, block, bytes), CUDA_SUCCESS);
    free(data);
    return block;
}

MS_TEST(no_room_on_the_device)
{
    expect_shim();
    make_files();
    setenv("SIMCUDA_MEMORY_MIB", "16", 1);
    device_start();
    const CUdeviceptr block = load();
    const CUdeviceptr filler = fill_device(14 * MIB);
    by_open();
    CHECK_EQ(cuMemFree(filler), CUDA_SUCCESS);
    check_device(block);
}

/* The call fails, and the file is what it was. */
MS_TEST(no_room_at_all)
{
    expect_shim();
    make_files();
    setenv("SIMCUDA_MEMORY_MIB", "16", 1);
    setenv("METASHARD_SNAPSHOT_BYTES", "1M", 1);
    device_start();
    const CUdeviceptr block = load();
    const CUdeviceptr filler = fill_device(14 * MIB);
    CHECK_EQ(open(path, TRUNCATING), -1);
    CHECK_EQ(errno, ETXTBSY);
    CHECK(fopen(path, "w") == NULL);
    CHECK_EQ(truncate(path, 0), -1);
    struct stat stat_;
    CHECK_EQ(stat(path, &stat_), 0);
    CHECK_EQ(stat_.st_size, BYTES);
    CHECK_EQ(cuMemFree(filler), CUDA_SUCCESS);
    by_open();
    check_device(block);
}

/* --- another thread copies meanwhile, to blocks that the walk over all allocations has behind
 * it */

enum { EMPTY = 24, LOADED = 8 };

static CUdeviceptr blocks[EMPTY + LOADED];
static _Atomic int copied;

static int compare(const void *a, const void *b)
{
    const CUdeviceptr x = *(const CUdeviceptr *)a, y = *(const CUdeviceptr *)b;
    return (x > y) - (x < y);
}

static void *copy_last(void *context)
{
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int i = 0; i < EMPTY; i++) {
        CHECK_EQ(cuMemcpyDtoD(blocks[i], blocks[EMPTY + LOADED - 1], BYTES), CUDA_SUCCESS);
        copied = i + 1;
        usleep(300);
    }
    return NULL;
}

MS_TEST(while_another_thread_copies)
{
    make_files();
    CUcontext context = device_start();
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        write_file(path, original, BYTES);
        for (int i = 0; i < EMPTY + LOADED; i++)
            blocks[i] = device_allocate(BYTES);
        qsort(blocks, EMPTY + LOADED, sizeof(blocks[0]), compare);
        for (int i = 0; i < LOADED; i++)
            load_to(blocks[EMPTY + i]);
        copied = 0;
        CHECK_EQ(pthread_create(&thread, NULL, copy_last, context), 0);
        while (copied == 0)
            usleep(10);
        by_open();
        CHECK_EQ(pthread_join(thread, NULL), 0);
        for (int i = 0; i < EMPTY + LOADED; i++) {
            check_device(blocks[i]);
            CHECK_EQ(cuMemFree(blocks[i]), CUDA_SUCCESS);
        }
    }
}

/* By a thread that changes nothing. */
static _Atomic bool is_over;

static void *open_always(__attribute__((unused)) void *unused)
{
    while (!is_over) {
        const int file = open(path, O_RDWR | O_CLOEXEC);
        CHECK(file >= 0);
        CHECK_EQ(close(file), 0);
    }
    return NULL;
}

MS_TEST(a_file_that_is_opened_again_and_again_while_it_is_copied)
{
    enum { ROUNDS = 100 };
    pthread_t thread;
    make_files();
    device_start();
    CHECK_EQ(pthread_create(&thread, NULL, open_always, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        const CUdeviceptr block = load();
        check_device(block);
        CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    }
    is_over = true;
    pthread_join(thread, NULL);
}
