/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_ahead FOLDER [MIB]: what advice for a private mapping costs and saves, as a loader would see
 * it. A file that is not in the page cache is mapped, and either every byte is used, or the first
 * of each tensor, as by a loader that hands its tensors to the device. A line each: seconds, and
 * what is in the page cache then. It depends on the disk and its read_ahead_kb.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LINE = 64 };
#define MIB ((size_t)1 << 20)

static void require(int is_so, const char *what)
{
    if (!is_so) {
        perror(what);
        exit(1);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int make_file(const char *folder, size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/read-ahead-XXXXXX", folder);
    const int file = mkstemp(path);
    require(file >= 0, path);
    unlink(path);
    unsigned char *block = malloc(MIB);
    for (size_t at = 0; at < bytes; at += MIB) {
        memset(block, (int)(at / MIB) | 1, MIB);
        require(write(file, block, MIB) == (ssize_t)MIB, "write");
    }
    free(block);
    require(fsync(file) == 0, "fsync");
    return file;
}

static double cached_mib(int file, size_t bytes)
{
    unsigned char *states = malloc(bytes / PAGE);
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    require(mapped != MAP_FAILED && mincore(mapped, bytes, states) == 0, "mincore");
    size_t count = 0;
    for (size_t i = 0; i < bytes / PAGE; i++)
        count += states[i] & 1;
    munmap(mapped, bytes);
    free(states);
    return (double)(count * PAGE) / (double)MIB;
}

/* Uses a byte in each `step`. */
static void run(int file, size_t bytes, const char *name, int advice, size_t step, const char *use)
{
    require(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
    unsigned char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    require(mapped != MAP_FAILED && madvise(mapped, bytes, advice) == 0, "madvise");
    const double begin = seconds();
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i += step)
        sum += mapped[i];
    const double spent = seconds() - begin;
    munmap(mapped, bytes);
    require(sum != 0, "bytes of the file");
    printf("%-16s %-28s s %8.3f  page cache MiB %7.1f of %zu\n", name, use, spent,
           cached_mib(file, bytes), bytes / MIB);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int advice;
    } advices[] = {{"none", MADV_NORMAL},
                   {"MADV_RANDOM", MADV_RANDOM},
                   {"MADV_SEQUENTIAL", MADV_SEQUENTIAL}};
    const size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 512) * MIB;
    const int file = make_file(argc > 1 ? argv[1] : ".", bytes);
    for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]); i++) {
        const char *name = advices[i].name;
        run(file, bytes, name, advices[i].advice, LINE, "every byte");
        run(file, bytes, name, advices[i].advice, 28 * MIB, "one of each 28 MiB");
        run(file, bytes, name, advices[i].advice, MIB, "one of each MiB");
    }
    return 0;
}
