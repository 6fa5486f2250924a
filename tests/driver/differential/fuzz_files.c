/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that a block comes from, and what is done to it: by a child of fork or vfork, by a host
 * function, or by the program, which may delete it.
 */
#include "tests/driver/differential/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES_MOST = 192 << 10, BLOCK = 4096, CHILD_SECONDS = 30 };

static struct {
    char path[4096], other[4096];
    size_t bytes;
    unsigned char *mapping; /* NULL: unmapped */
    unsigned char *read;    /* or read, and not mapped */
    struct fuzz_block *block;
} source;

/* --- the file, which is loaded */

static void write_file(const char *path, size_t bytes)
{
    unsigned char *content = malloc(bytes);
    uint64_t word = fuzz_random();
    for (size_t i = 0; i < bytes; i++)
        content[i] = (unsigned char)((word = word * UINT64_C(6364136223846793005) + 1) >> 56);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(content, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(2);
    }
    free(content);
    /* So old that a later write would show; or not. */
    const struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    if (!fuzz_one_in(4))
        utimensat(AT_FDCWD, path, times, 0);
}

static void unmap(void)
{
    if (source.mapping != NULL)
        munmap(source.mapping, source.bytes);
    free(source.read);
    source.mapping = source.read = NULL;
}

/* --- ways to read it: large reads are noted, small ones are not */

static void must_read(bool has_read)
{
    if (has_read)
        return;
    perror(source.path);
    exit(2);
}

static void by_pread_and_read(int file)
{
    const size_t first = fuzz_one_in(2) ? source.bytes : fuzz_below(source.bytes);
    must_read(pread(file, source.read, first, 0) == (ssize_t)first &&
              lseek(file, (off_t)first, SEEK_SET) == (off_t)first &&
              read(file, source.read + first, source.bytes - first) ==
                  (ssize_t)(source.bytes - first));
}

static void by_parts(int file)
{
    const size_t first = fuzz_below(source.bytes);
    const struct iovec parts[] = {{source.read, first},
                                  {source.read + first, source.bytes - first}};
    const ssize_t got = fuzz_one_in(2) ? preadv(file, parts, 2, 0) : readv(file, parts, 2);
    must_read(got == (ssize_t)source.bytes);
}

static void by_stream(int file)
{
    FILE *stream = fdopen(dup(file), "rb");
    must_read(stream != NULL && fread(source.read, 1, source.bytes, stream) == source.bytes);
    fclose(stream);
}

/* As io_uring and libaio: by no function of libc. */
static void by_system_call(int file)
{
    must_read(syscall(SYS_pread64, file, source.read, source.bytes, 0L) == (long)source.bytes);
}

/* Past the page cache, where the file system has that. Reads whole blocks. */
static bool by_blocks(int file)
{
    const size_t blocks = (source.bytes + BLOCK - 1) / BLOCK * BLOCK;
    const bool is_seen = fuzz_one_in(2);
    const int direct = open(source.path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    const int from = direct >= 0 ? direct : file;
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    must_read((is_seen
                   ? pread(from, source.read, blocks, 0)
                   : syscall(SYS_pread64, from, source.read, blocks, 0L)) == (ssize_t)source.bytes);
    if (direct >= 0)
        close(direct);
    return is_seen;
}

/* Bytes that were read may change before the copy, unless the shim compares only a sample of them
 * and so could not serve the program. */
static void read_file(int file)
{
    static void (*const ways[])(int) = {by_pread_and_read, by_parts, by_stream, by_system_call};
    enum { WAYS = sizeof(ways) / sizeof(ways[0]) };
    bool may_change = true;
    must_read(posix_memalign((void **)&source.read, BLOCK, BYTES_MOST + BLOCK) == 0);
    if (fuzz_one_in(6))
        may_change = by_blocks(file);
    else
        ways[fuzz_below(WAYS)](file);
    if (may_change && fuzz_one_in(3))
        source.read[fuzz_below(source.bytes)] ^= 1;
}

static void load(void)
{
    static unsigned number; /* one that a child has deleted may stay for a while */
    snprintf(source.path, sizeof(source.path), "%s/source-%06u%s", fuzz_folder, number++,
             fuzz_one_in(2) ? ".safetensors" : "");
    snprintf(source.other, sizeof(source.other), "%s/other", fuzz_folder);
    source.bytes = 4096 + fuzz_below(BYTES_MOST - 4096);
    write_file(source.path, source.bytes);
    write_file(source.other, 4096);
    const int file = open(source.path, O_RDONLY | O_CLOEXEC);
    if (fuzz_one_in(2))
        read_file(file);
    else
        source.mapping =
            mmap(NULL, source.bytes, PROT_READ, fuzz_one_in(4) ? MAP_SHARED : MAP_PRIVATE, file, 0);
    close(file);
    const unsigned char *bytes = source.mapping != NULL ? source.mapping : source.read;
    source.block = fuzz_new_block(source.bytes);
    fuzz_default_stream(false);
    SEE(CALL(cuMemcpyHtoD_v2)(source.block->at, bytes, source.bytes));
    if (fuzz_one_in(2))
        unmap();
    if (fuzz_one_in(4))
        fuzz_read(source.block->at, 1 + fuzz_below(source.bytes));
}

/* --- what is done to it; no more than a child of vfork may do */

enum deed { READ, TRUNCATE, OVERWRITE, SHORTEN, UNLINK, REMOVE, UNLINK_AT, REPLACE, DEEDS };

static int write_to(int flags)
{
    const int file = open(source.path, flags | O_CLOEXEC, 0600);
    if (file < 0)
        return errno;
    const int error = (flags & O_ACCMODE) == O_RDONLY || write(file, "new", 3) == 3 ? 0 : errno;
    close(file);
    return error;
}

static int error_of(int result)
{
    return result == 0 ? 0 : errno;
}

/* 0 or an error number */
static int act(enum deed deed)
{
    switch (deed) {
    case READ:
        return write_to(O_RDONLY);
    case TRUNCATE:
        return write_to(O_WRONLY | O_TRUNC);
    case OVERWRITE:
        return write_to(O_RDWR);
    case SHORTEN:
        return error_of(truncate(source.path, 100));
    case UNLINK:
        return error_of(unlink(source.path));
    case REMOVE:
        return error_of(remove(source.path));
    case UNLINK_AT:
        return error_of(unlinkat(AT_FDCWD, source.path, 0));
    default:
        return error_of(rename(source.other, source.path));
    }
}

/* --- everything is as it was */

/* A plan may arrive before that, which the shim compares with the file as it is now. */
static void end(void)
{
    fuzz_wait();
    fuzz_plan_arrives();
    fuzz_read(source.block->at, source.block->bytes);
    unmap();
    unlink(source.path);
    unlink(source.other);
}

/* --- children */

static int child_acts(enum deed deed, bool executes)
{
    alarm(CHILD_SECONDS); /* one that waits for ever ends */
    const int error = act(deed);
    if (executes && error == 0)
        execl("/bin/true", "true", NULL);
    return error;
}

static void see_child(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    fuzz_say("  the child ends with %#x\n", (unsigned)status);
    fuzz_see((uint64_t)status);
}

static void by_fork(void)
{
    load();
    const enum deed deed = (enum deed)fuzz_below(DEEDS);
    const bool executes = fuzz_one_in(4);
    const pid_t child = fork();
    if (child == 0)
        _exit(child_acts(deed, executes));
    see_child(child);
    end();
}

static void by_vfork(void)
{
    load();
    const enum deed deed = (enum deed)fuzz_below(DEEDS);
    const bool executes = fuzz_one_in(4);
    const pid_t child = vfork();
    if (child == 0)
        _exit(child_acts(deed, executes));
    see_child(child);
    end();
}

/* --- host functions */

static enum deed late_deed;
static int late_error;

static void CUDA_CB host_function(void *unused)
{
    (void)unused;
    late_error = act(late_deed);
}

static void CUDA_CB callback(CUstream stream, CUresult status, void *unused)
{
    (void)stream;
    (void)status;
    host_function(unused);
}

static void by_host_function(void)
{
    const bool twin = fuzz_one_in(2);
    load();
    late_deed = (enum deed)fuzz_below(DEEDS);
    late_error = -1;
    const CUstream stream = fuzz_stream(twin);
    if (fuzz_one_in(3))
        SEE(TWIN(twin, cuStreamAddCallback, cuStreamAddCallback_ptsz)(stream, callback, NULL, 0));
    else
        SEE(TWIN(twin, cuLaunchHostFunc, cuLaunchHostFunc_ptsz)(stream, host_function, NULL));
    fuzz_wait();
    fuzz_say("  the host function: %d\n", late_error);
    fuzz_see((uint64_t)late_error);
    end();
}

/* --- files that the program deletes */

static bool is_deleted_source(const char *line)
{
    const char *found = strstr(line, source.path);
    return found != NULL && strncmp(found + strlen(source.path), " (deleted)", 10) == 0;
}

static bool is_mapped(void)
{
    char line[8192];
    bool is_found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (!is_found && fgets(line, sizeof(line), maps) != NULL)
        is_found = is_deleted_source(line);
    fclose(maps);
    return is_found;
}

static bool is_open_in(const char *path)
{
    bool is_found = false;
    DIR *folder = opendir(path);
    if (folder == NULL) /* the thread has ended */
        return false;
    for (struct dirent *each; !is_found && (each = readdir(folder)) != NULL;) {
        char target[8192];
        const ssize_t length = readlinkat(dirfd(folder), each->d_name, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        is_found = is_deleted_source(target);
    }
    closedir(folder);
    return is_found;
}

/* A thread may have descriptors of its own. */
static bool is_open(void)
{
    bool is_found = false;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *each; !is_found && (each = readdir(threads)) != NULL;) {
        char path[512];
        snprintf(path, sizeof(path), "/proc/self/task/%s/fd", each->d_name);
        is_found = is_open_in(path);
    }
    closedir(threads);
    return is_found;
}

/* Where memory is short the file may be kept. */
static void see_space_given_back(void)
{
    const bool is_short =
        fuzz_driver_has("SIMCUDA_MEMORY_MIB") || fuzz_driver_has("SIMCUDA_OTHERS");
    const bool is_held = is_mapped() || is_open();
    fuzz_say("  the space of the file is %s\n", is_held ? "held" : "given back");
    fuzz_see(is_held && !is_short);
}

static void delete_source(void)
{
    load();
    unmap();
    fuzz_see((uint64_t)act(UNLINK + (enum deed)fuzz_below(DEEDS - UNLINK)));
    see_space_given_back();
    end();
}

const struct fuzz_operation fuzz_files[] = {
    {"a child of fork opens a source", by_fork, 2},
    {"a child of vfork opens a source", by_vfork, 2},
    {"a host function opens a source", by_host_function, 3},
    {"a deleted source", delete_source, 3},
    {NULL, NULL, 0},
};
