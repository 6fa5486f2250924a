/* SPDX-License-Identifier: Apache-2.0 */
/* Files with a known content, as sources; removed when the test ends. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/file_thread.h"
#include "runtime/files/mapping.h"
#include "runtime/files/trust.h"
#include "tools/simcuda/harness/range_access.h"
#include "tools/simcuda/harness/test.h"

struct test_file {
    char path[64];
    int descriptor;
    size_t bytes;
    unsigned char *data;
    struct ms_file *opened;
    struct ms_source *source; /* the same, as contents have it */
};

enum { MAX_TEST_FILES = 8 };
static struct test_file test_files[MAX_TEST_FILES]; /* copies, which outlive a test */

static inline void remove_files(void)
{
    for (int i = 0; i < MAX_TEST_FILES; i++) {
        if (test_files[i].path[0] != '\0')
            unlink(test_files[i].path);
    }
}

static inline uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

RANGE_ACCESS static inline void fill_randomly(unsigned char *data, size_t bytes, uint64_t seed)
{
    size_t i = 0;
    range_write(data, bytes);
    for (; i + 4 <= bytes; i += 4) {
        const uint32_t word = (uint32_t)next_random(&seed);
        memcpy(data + i, &word, 4);
    }
    for (; i < bytes; i++)
        data[i] = (unsigned char)next_random(&seed);
}

/* Written, and older than a tick of the file system's clock. */
static inline void make_test_file(struct test_file *file, const char *folder, size_t bytes)
{
    int number = 0;
    while (test_files[number].path[0] != '\0')
        number++;
    if (number == 0)
        atexit(remove_files);

    snprintf(file->path, sizeof(file->path), "%s/metashard-file-XXXXXX", folder);
    file->descriptor = mkstemp(file->path);
    CHECK(file->descriptor >= 0);
    file->bytes = bytes;
    file->data = malloc(bytes);
    test_files[number] = *file;
    fill_randomly(file->data, bytes, (uint64_t)number + 1);
    for (size_t done = 0; done < bytes;) {
        const ssize_t written = write(file->descriptor, file->data + done, bytes - done);
        CHECK(written > 0);
        done += (size_t)written;
    }

    close(file->descriptor); /* nobody writes */
    file->descriptor = open(file->path, O_RDONLY);
    struct stat stat;
    CHECK_EQ(fstat(file->descriptor, &stat), 0);
    struct ms_mapping mapping = {.device = stat.st_dev, .inode = stat.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", file->path);
    file->opened = ms_trust_open(&mapping, bytes);
    CHECK(file->opened != NULL);
    file->source = ms_file_source(file->opened);
}

/* How many pages of it are in the page cache. */
static inline size_t count_cached(const struct test_file *file)
{
    const size_t pages = (file->bytes + 4095) / 4096;
    unsigned char *states = malloc(pages);
    void *mapped = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->descriptor, 0);
    CHECK(mapped != MAP_FAILED);
    CHECK_EQ(mincore(mapped, file->bytes, states), 0);
    munmap(mapped, file->bytes);
    size_t count = 0;
    for (size_t i = 0; i < pages; i++)
        count += states[i] & 1;
    free(states);
    return count;
}

/* Out of the page cache, of which the kernel may still use a page for a moment. False where that
 * cannot be had. */
static inline bool make_cold(const struct test_file *file)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        CHECK_EQ(fdatasync(file->descriptor), 0);
        CHECK_EQ(posix_fadvise(file->descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
        if (count_cached(file) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    return false;
}

/* Whether the kernel tells what is cached, one way or the other; of a file that is not. Emulators
 * may not. */
static inline bool can_tell_cold(const struct test_file *file)
{
    uint64_t range[2] = {0, 1};
    uint64_t pages[5];
    char byte;
    const struct iovec vector = {&byte, 1};
    return syscall(451, (unsigned)file->descriptor, range, pages, 0U) == 0 ||
           (preadv2(file->descriptor, &vector, 1, 0, RWF_NOWAIT) < 0 && errno == EAGAIN);
}

/* Counts this process's reads, by proc(5): "rchar" are bytes, "syscr" calls, past the page cache
 * too. 0 where the kernel does not count. */
static inline uint64_t count_io(const char *what)
{
    char name[32];
    unsigned long long count = 0, told = 0;
    FILE *all = fopen("/proc/self/io", "r");
    while (all != NULL && fscanf(all, "%31s %llu", name, &told) == 2) {
        if (strncmp(name, what, strlen(what)) == 0)
            count = told;
    }
    if (all != NULL)
        fclose(all);
    return count;
}

static int descriptors_there;

/* How many the file thread has open. */
static inline void count_there(void *argument)
{
    DIR *all = opendir("/proc/thread-self/fd");
    CHECK(all != NULL);
    for (descriptors_there = 0; readdir(all) != NULL;)
        descriptors_there++;
    closedir(all);
    (void)argument;
}

static inline int count_open_there(void)
{
    CHECK(ms_file_thread_call(count_there, NULL));
    return descriptors_there;
}

/* The log goes to a file of its own; how many lines it has by now. */
static char log_path[] = "/tmp/metashard-log-XXXXXX";

static inline void remove_log(void)
{
    unlink(log_path);
}

static inline void open_log(enum ms_log_level level)
{
    close(mkstemp(log_path));
    atexit(remove_log);
    ms_log_open(level, log_path);
}

static inline int count_log_lines(const char *with)
{
    FILE *file = fopen(log_path, "r");
    CHECK(file != NULL);
    char line[2048];
    int count = 0;
    while (fgets(line, sizeof(line), file) != NULL)
        count += strstr(line, with) != NULL;
    fclose(file);
    return count;
}
