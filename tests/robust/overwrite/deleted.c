/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that deletes a file which it has copied to the device: a small disk holds one shard at
 * a time. The device must hold what was copied, and the file's space must be free. Runs the same
 * alone and under the shim.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/robust/overwrite/checkpoint.h"

extern char **environ;

/* --- one row for each way; it removes the file's only link */

static int parent = AT_FDCWD;

static void by_unlink(void)
{
    CHECK_EQ(unlink(path), 0);
}

static void by_unlinkat(void)
{
    CHECK_EQ(unlinkat(AT_FDCWD, path, 0), 0);
}

static void by_unlinkat_in_folder(void)
{
    CHECK_EQ(unlinkat(parent, "checkpoint", 0), 0);
}

static void by_remove(void)
{
    CHECK_EQ(remove(path), 0);
}

static void by_rename(void)
{
    write_file(other, scratch, WRITTEN);
    CHECK_EQ(rename(other, path), 0);
}

static void by_renameat(void)
{
    write_file(other, scratch, WRITTEN);
    CHECK_EQ(renameat(parent, "other", parent, "checkpoint"), 0);
}

static void by_renameat2(void)
{
    write_file(other, scratch, WRITTEN);
    CHECK_EQ(renameat2(AT_FDCWD, other, parent, "checkpoint", 0), 0);
}

/* The last of two links. */
static void by_both_links(void)
{
    CHECK_EQ(link(path, other), 0);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(remove(other), 0);
}

typedef void way(void);
static const struct {
    const char *name;
    way *run;
} ways[] = {
    {"unlink", by_unlink},
    {"unlinkat", by_unlinkat},
    {"unlinkat in a folder", by_unlinkat_in_folder},
    {"remove", by_remove},
    {"rename over it", by_rename},
    {"renameat over it", by_renameat},
    {"renameat2 over it", by_renameat2},
    {"both links", by_both_links},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* --- who has the file */

static struct stat checkpoint;

static bool thread_has_it(const char *thread)
{
    char name[300];
    snprintf(name, sizeof(name), "/proc/self/task/%s/fd", thread);
    DIR *descriptors = opendir(name);
    bool has = false;
    struct dirent *entry;
    while (descriptors != NULL && (entry = readdir(descriptors)) != NULL) {
        struct stat stat_;
        has |= fstatat(dirfd(descriptors), entry->d_name, &stat_, 0) == 0 &&
               stat_.st_ino == checkpoint.st_ino && stat_.st_dev == checkpoint.st_dev;
    }
    if (descriptors != NULL)
        closedir(descriptors);
    return has;
}

/* A descriptor of some thread, in whichever table. */
static bool is_held(void)
{
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    bool is_held = false;
    CHECK(threads != NULL);
    while ((entry = readdir(threads)) != NULL)
        is_held |= entry->d_name[0] != '.' && thread_has_it(entry->d_name);
    closedir(threads);
    return is_held;
}

static void start(void)
{
    make_files();
    CHECK_EQ(stat(path, &checkpoint), 0);
    parent = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    device_start();
}

static void expect_in_memory(bool is_expected)
{
    if (device_has_shim())
        CHECK_EQ(backed_bytes(), is_expected ? BYTES : 0);
}

/* In a child, so that one way says nothing of the next. */
static void run_way(const char *name, way *run, way *check)
{
    const pid_t child = fork();
    if (child == 0) {
        start();
        const CUdeviceptr block = load();
        errno = 77;
        run();
        CHECK(run == by_both_links || errno == 77);
        check();
        check_device(block);
        CHECK(!is_held());
        exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (status != 0)
        ms_test_fail(__FILE__, __LINE__, "%s: status %d", name, status);
}

static void expect_let_go(void)
{
    CHECK(!is_held());
    expect_in_memory(true);
}

MS_TEST(each_call_that_deletes)
{
    for (int i = 0; i < WAYS; i++)
        run_way(ways[i].name, ways[i].run, expect_let_go);
}

/* --- a small disk, one shard at a time */

enum { SHARDS = 6, SHARD_BYTES = 8 << 20 };

static void write_text(const char *name, const char *text)
{
    const int file = open(name, O_WRONLY | O_CLOEXEC);
    CHECK(file >= 0);
    CHECK_EQ(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
}

/* A folder with room for three shards, which ends with the process. */
static void make_small_folder(void)
{
    char map[64];
    const bool is_root = geteuid() == 0;
    snprintf(map, sizeof(map), "0 %u 1", geteuid());
    strcpy(folder, "/tmp/deleted-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    if (unshare(CLONE_NEWNS | (is_root ? 0 : CLONE_NEWUSER)) != 0) {
        rmdir(folder);
        ms_test_skip("no mounts of a test's own here");
    }
    if (!is_root)
        write_text("/proc/self/uid_map", map);
    const bool is_mounted = mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                            mount("none", folder, "tmpfs", 0, "size=25m") == 0;
    if (!is_mounted) {
        rmdir(folder);
        ms_test_skip("no mounts here");
    }
    snprintf(path, sizeof(path), "%s/checkpoint", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    parent = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static void remove_small_folder(void)
{
    close(parent);
    umount2(folder, MNT_DETACH);
    rmdir(folder);
}

static void fill_shard(unsigned char *shard, int number)
{
    memset(shard, number + 1, SHARD_BYTES);
    for (size_t i = 0; i < SHARD_BYTES; i += 4096)
        shard[i] = (unsigned char)(i / 4096);
}

static CUdeviceptr load_shard(const unsigned char *shard)
{
    const CUdeviceptr block = device_allocate(SHARD_BYTES);
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(write(file, shard, SHARD_BYTES), SHARD_BYTES);
    close(file);
    const int reader = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, SHARD_BYTES, PROT_READ, MAP_PRIVATE, reader, 0);
    CHECK(mapped != MAP_FAILED);
    close(reader);
    CHECK_EQ(cuMemcpyHtoD(block, mapped, SHARD_BYTES), CUDA_SUCCESS);
    CHECK_EQ(munmap(mapped, SHARD_BYTES), 0);
    return block;
}

MS_TEST(shards_that_follow_each_other_on_a_small_disk)
{
    static unsigned char shard[SHARD_BYTES], read_back[SHARD_BYTES];
    CUdeviceptr blocks[SHARDS];
    make_small_folder();
    device_start();
    for (int i = 0; i < SHARDS; i++) {
        fill_shard(shard, i);
        blocks[i] = load_shard(shard);
        ways[i % WAYS].run();
        unlink(path); /* what was renamed over it */
    }
    for (int i = 0; i < SHARDS; i++) {
        fill_shard(shard, i);
        CHECK_EQ(cuMemcpyDtoH(read_back, blocks[i], SHARD_BYTES), CUDA_SUCCESS);
        CHECK_BYTES(read_back, shard, SHARD_BYTES);
    }
    remove_small_folder();
}

/* The command goes on once the lease is given up, and the descriptor is closed then. */
static void unmount_soon(void)
{
    for (int i = 0; i < 1000 && umount(folder) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    CHECK_EQ(umount(folder), -1);
    CHECK_EQ(errno, EINVAL);
}

/* docs/troubleshooting.md has the command. */
MS_TEST(a_file_system_that_is_unmounted)
{
    char command[200];
    make_small_folder();
    write_file(path, scratch, sizeof(scratch));
    CHECK_EQ(truncate(path, BYTES), 0);
    device_start();
    const CUdeviceptr block = load();
    close(parent);
    CHECK_EQ(umount(folder), device_has_shim() ? -1 : 0);
    if (device_has_shim()) {
        CHECK_EQ(errno, EBUSY);
        snprintf(command, sizeof(command), "LD_PRELOAD= sh -c ': >> %s'", path);
        CHECK_EQ(system(command), 0);
        unmount_soon();
    }
    rmdir(folder);
    memset(original, 0, sizeof(original));
    memcpy(original, scratch, sizeof(scratch));
    check_device(block);
}

/* --- what deletes nothing brings in nothing */

MS_TEST(calls_that_leave_a_link)
{
    start();
    const CUdeviceptr block = load();
    CHECK_EQ(link(path, other), 0);
    CHECK_EQ(rename(path, other), 0); /* both are links to the file: nothing is done */
    CHECK_EQ(access(path, F_OK), 0);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rename(other, path), 0);
    CHECK_EQ(rename(path, path), 0);
    CHECK_EQ(symlink(path, other), 0);
    CHECK_EQ(unlink(other), 0);
    write_file(other, scratch, WRITTEN);
    if (renameat2(parent, "other", parent, "checkpoint", RENAME_EXCHANGE) == 0) {
        CHECK_EQ(renameat2(parent, "other", parent, "checkpoint", RENAME_EXCHANGE), 0);
        CHECK_EQ(renameat2(parent, "other", parent, "checkpoint", RENAME_NOREPLACE), -1);
        CHECK_EQ(errno, EEXIST);
    }
    expect_in_memory(false);
    check_device(block);
}

MS_TEST(calls_that_fail)
{
    start();
    const CUdeviceptr block = load();
    CHECK_EQ(unlink(folder), -1);
    CHECK_EQ(errno, EISDIR);
    CHECK_EQ(unlinkat(parent, "checkpoint", AT_REMOVEDIR), -1);
    CHECK_EQ(errno, ENOTDIR);
    CHECK_EQ(unlink(other), -1);
    CHECK_EQ(errno, ENOENT);
    CHECK_EQ(remove(other), -1);
    CHECK_EQ(errno, ENOENT);
    CHECK_EQ(rename(other, path), -1);
    CHECK_EQ(errno, ENOENT);
    CHECK_EQ(rename(folder, path), -1);
    CHECK_EQ(errno, EINVAL);
    CHECK_EQ(renameat(AT_FDCWD, "/nonexistent/file", parent, "checkpoint"), -1);
    CHECK_EQ(errno, ENOENT);
    expect_in_memory(false);
    check_device(block);
}

MS_TEST(a_freed_allocation_of_a_deleted_file_is_not_read)
{
    start();
    const CUdeviceptr block = load();
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    by_unlink();
    expect_in_memory(false);
    CHECK(!is_held());
}

/* Its name is gone when it is copied: no descriptor of the shim takes the place of the mapping. */
MS_TEST(a_file_that_was_deleted_before)
{
    start();
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    close(file);
    by_unlink();
    const CUdeviceptr block = device_allocate(BYTES);
    CHECK_EQ(cuMemcpyHtoD(block, mapped, BYTES), CUDA_SUCCESS);
    CHECK_EQ(munmap(mapped, BYTES), 0);
    CHECK(!is_held());
    check_device(block);
}

/* More of it is copied after it was deleted, since it is still mapped. */
MS_TEST(a_file_that_is_deleted_between_two_copies)
{
    start();
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    close(file);
    const CUdeviceptr before = device_allocate(BYTES), after = device_allocate(BYTES);
    CHECK_EQ(cuMemcpyHtoD(before, mapped, BYTES), CUDA_SUCCESS);
    by_unlink();
    CHECK_EQ(cuMemcpyHtoD(after, mapped, BYTES), CUDA_SUCCESS);
    CHECK_EQ(munmap(mapped, BYTES), 0);
    CHECK(!is_held());
    check_device(before);
    check_device(after);
}

/* --- somebody else deletes it */

static void wait_until_let_go(void)
{
    for (int i = 0; i < 2000 && is_held(); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    CHECK(!is_held());
}

static void by_system_call(void)
{
    CHECK_EQ(syscall(SYS_unlinkat, AT_FDCWD, path, 0), 0);
}

static void wait_for(pid_t child)
{
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void by_child(void)
{
    const pid_t child = fork();
    if (child == 0)
        _exit(unlink(path) == 0 ? 0 : 1);
    wait_for(child);
}

static void by_program(void)
{
    pid_t child;
    char *arguments[] = {"rm", path, NULL};
    CHECK_EQ(posix_spawnp(&child, "rm", NULL, NULL, arguments, environ), 0);
    wait_for(child);
}

static const struct {
    const char *name;
    way *run;
} other_ways[] = {{"a system call", by_system_call}, {"a child", by_child}, {"rm", by_program}};
enum { OTHER_WAYS = sizeof(other_ways) / sizeof(other_ways[0]) };

static void run_other_way(int number, bool are_leases_on)
{
    const pid_t child = fork();
    if (child == 0) {
        setenv("METASHARD_LEASES", are_leases_on ? "on" : "off", 1);
        start();
        const CUdeviceptr block = load();
        other_ways[number].run();
        if (!are_leases_on) /* a check shows it */
            CHECK_EQ(cuMemcpyDtoH(seen, block, 1), CUDA_SUCCESS);
        wait_until_let_go();
        expect_in_memory(true);
        check_device(block);
        exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (status != 0)
        ms_test_fail(__FILE__, __LINE__, "%s: status %d", other_ways[number].name, status);
}

MS_TEST(others_that_delete)
{
    for (int i = 0; i < OTHER_WAYS; i++)
        run_other_way(i, true);
}

MS_TEST(others_that_delete_a_file_without_a_lease)
{
    for (int i = 0; i < OTHER_WAYS; i++)
        run_other_way(i, false);
}

/* --- there is no room */

static char log_path[128];

static void start_with_log(void)
{
    char setting[160];
    make_files();
    CHECK_EQ(stat(path, &checkpoint), 0);
    snprintf(log_path, sizeof(log_path), "%s.log", folder);
    snprintf(setting, sizeof(setting), "warn:%s", log_path);
    setenv("METASHARD_LOG", setting, 1);
    setenv("SIMCUDA_MEMORY_MIB", "16", 1);
    device_start();
}

static int count_lines(const char *with)
{
    char line[2048];
    int count = 0;
    FILE *file = fopen(log_path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        count += strstr(line, with) != NULL;
    if (file != NULL)
        fclose(file);
    return count;
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

/* Host copies take the place of device memory. */
MS_TEST(no_room_on_the_device)
{
    expect_shim();
    start_with_log();
    const CUdeviceptr block = load(), filler = fill_device(14 * MIB);
    by_unlink();
    CHECK(!is_held());
    CHECK_EQ(count_lines("checkpoint"), 0);
    CHECK_EQ(cuMemFree(filler), CUDA_SUCCESS);
    check_device(block);
}

/* The call succeeds, the file is kept, and one line says so. */
static void keep(way *delete)
{
    expect_shim();
    setenv("METASHARD_SNAPSHOT_BYTES", "1M", 1);
    start_with_log();
    const CUdeviceptr block = load(), filler = fill_device(14 * MIB);
    delete ();
    CHECK_EQ(access(path, F_OK), -1);
    for (int i = 0; i < 2000 && count_lines("keeps its space") == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL); /* four looks for leases */
    CHECK_EQ(count_lines("keeps its space"), 1);
    CHECK(is_held());
    CHECK_EQ(cuMemFree(filler), CUDA_SUCCESS);
    check_device(block);
    CHECK_EQ(cuMemFree(block), CUDA_SUCCESS);
    CHECK(!is_held());
    CHECK_EQ(count_lines("keeps its space"), 1);
    unlink(log_path);
}

MS_TEST(no_room_at_all)
{
    keep(by_unlink);
}

MS_TEST(no_room_when_another_process_deletes)
{
    keep(by_child);
}

/* --- another thread copies meanwhile, and other files are deleted */

enum { COPIES = 24 };

static CUdeviceptr first, copies[COPIES];
static _Atomic int copied;

static void *copy_on(void *context)
{
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int i = 0; i < COPIES; i++) {
        CHECK_EQ(cuMemcpyDtoD(copies[i], i == 0 ? first : copies[i - 1], BYTES), CUDA_SUCCESS);
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
        CHECK_EQ(stat(path, &checkpoint), 0);
        first = load();
        for (int i = 0; i < COPIES; i++)
            copies[i] = device_allocate(BYTES);
        copied = 0;
        CHECK_EQ(pthread_create(&thread, NULL, copy_on, context), 0);
        while (copied < 2)
            usleep(10);
        by_unlink();
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK(!is_held());
        for (int i = 0; i < COPIES; i++) {
            check_device(copies[i]);
            CHECK_EQ(cuMemFree(copies[i]), CUDA_SUCCESS);
        }
        CHECK_EQ(cuMemFree(first), CUDA_SUCCESS);
    }
}

/* --- the program's own write lease */

typedef int set_lease(int file, int command, ...);

static bool are_leases_here(void)
{
    write_file(other, scratch, WRITTEN);
    const int file = open(other, O_RDONLY | O_CLOEXEC);
    const bool are_here = fcntl(file, F_SETLEASE, F_WRLCK) == 0;
    close(file);
    return are_here;
}

static void take_lease(set_lease *set, bool is_loaded_first)
{
    make_files();
    CHECK_EQ(stat(path, &checkpoint), 0);
    if (!are_leases_here())
        ms_test_skip("no leases here");
    device_start();
    CUdeviceptr block = is_loaded_first ? load() : 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK_EQ(set(file, F_SETLEASE, F_WRLCK), 0);
    CHECK_EQ(fcntl(file, F_GETLEASE), F_WRLCK);
    if (!is_loaded_first) {
        void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
        block = device_allocate(BYTES);
        CHECK_EQ(cuMemcpyHtoD(block, mapped, BYTES), CUDA_SUCCESS);
        CHECK_EQ(munmap(mapped, BYTES), 0);
    }
    CHECK_EQ(fcntl(file, F_GETLEASE), F_WRLCK);
    check_device(block);
    CHECK_EQ(set(file, F_SETLEASE, F_UNLCK), 0);
    close(file);
}

MS_TEST(a_write_lease)
{
    take_lease(fcntl, true);
}

MS_TEST(a_write_lease_by_fcntl64)
{
    take_lease(fcntl64, true);
}

/* Opening the file would break it: the kernel's signal ends the program. */
MS_TEST(a_write_lease_that_is_there_before)
{
    take_lease(fcntl, false);
}

MS_TEST(a_read_lease)
{
    start();
    const bool are_here = are_leases_here();
    const CUdeviceptr block = load();
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (!are_here)
        ms_test_skip("no leases here");
    CHECK_EQ(fcntl(file, F_SETLEASE, F_RDLCK), 0);
    expect_in_memory(false);
    close(file);
    check_device(block);
}

/* Ours is given up, and what the kernel says is the program's. */
MS_TEST(a_write_lease_without_room)
{
    expect_shim();
    setenv("METASHARD_SNAPSHOT_BYTES", "1M", 1);
    start_with_log();
    if (!are_leases_here())
        ms_test_skip("no leases here");
    const CUdeviceptr block = load(), filler = fill_device(14 * MIB);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fcntl(file, F_SETLEASE, F_WRLCK) == 0 || errno == EAGAIN);
    CHECK_EQ(count_lines("lease is given up"), 1);
    CHECK_EQ(cuMemFree(filler), CUDA_SUCCESS);
    check_device(block);
    unlink(log_path);
}

/* All other commands get what the program gives. */
MS_TEST(other_commands_of_fcntl)
{
    start();
    const CUdeviceptr block = load();
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK_EQ(fcntl(file, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(fcntl(file, F_SETFD, 0), 0);
    CHECK_EQ(fcntl64(file, F_GETFD), 0);
    const int duplicate = fcntl(file, F_DUPFD_CLOEXEC, 100);
    CHECK(duplicate >= 100);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK_EQ(fcntl(file, F_SETLK, &lock), 0);
    CHECK_EQ(fcntl64(file, F_GETLK, &lock), 0);
    CHECK_EQ(lock.l_type, F_UNLCK);
    CHECK_EQ(fcntl(-1, F_GETFD), -1);
    CHECK_EQ(errno, EBADF);
    close(duplicate);
    close(file);
    check_device(block);
}
