/* SPDX-License-Identifier: Apache-2.0 */
/* More files than descriptors: those that are not kept open are opened again for each use. */
#include "runtime/files/descriptor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/files/change.h"
#include "runtime/files/file.h"
#include "runtime/finding/find.h"
#include "runtime/loading/reader.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/between.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

enum { FILES = 200, DESCRIPTORS = 64, BYTES = 96 << 10 };

static char folder[] = "/tmp/metashard-descriptor-XXXXXX";
static char log_path[] = "/tmp/metashard-descriptor-log-XXXXXX";
static struct ms_file *sources[FILES];

static const char *name_of(int file)
{
    static _Thread_local char name[80];
    snprintf(name, sizeof(name), "%s/shard-%d", folder, file);
    return name;
}

static void clean_up(void)
{
    for (int i = 0; i <= FILES; i++)
        unlink(name_of(i));
    rmdir(folder);
    unlink(log_path);
}

static const unsigned char *bytes_of(int file)
{
    static _Thread_local unsigned char bytes[BYTES];
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 256 * 3 + file);
    return bytes;
}

static void write_file(int number, int bytes_from)
{
    const int file = open(name_of(number), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(write(file, bytes_of(bytes_from), BYTES), BYTES);
    close(file);
}

static void *map(int number)
{
    const int file = open(name_of(number), O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    close(file);
    return mapped;
}

static struct ms_file *find(int number)
{
    uint64_t offset;
    void *mapped = map(number);
    struct ms_file *source = ms_find_file(mapped, BYTES, &offset);
    CHECK(source == NULL || offset == 0);
    CHECK_EQ(munmap(mapped, BYTES), 0);
    return source;
}

static void limit_descriptors(rlim_t count)
{
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = count;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void make_files(void)
{
    CHECK(mkdtemp(folder) != NULL);
    close(mkstemp(log_path));
    atexit(clean_up);
    ms_log_open(MS_WARN, log_path);
    for (int i = 0; i < FILES; i++)
        write_file(i, i);
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
}

static void make_sources(void)
{
    make_files();
    limit_descriptors(DESCRIPTORS);
    for (int i = 0; i < FILES; i++) {
        sources[i] = find(i);
        if (i == 0)
            needs_mappings(sources[i] != NULL, name_of(i));
        CHECK(sources[i] != NULL);
    }
}

static CUresult read_source(int number, unsigned char *buffer)
{
    const void *bytes;
    return ms_source_read(ms_file_source(sources[number]), 0, buffer, BYTES, &bytes);
}

static void check_source(int number)
{
    unsigned char *buffer = malloc(BYTES);
    CHECK_EQ(read_source(number, buffer), CUDA_SUCCESS);
    CHECK_BYTES(buffer, bytes_of(number), BYTES);
    free(buffer);
}

static int count_log_lines(const char *with)
{
    char line[2048];
    int count = 0;
    FILE *file = fopen(log_path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL)
        count += strstr(line, with) != NULL;
    fclose(file);
    return count;
}

MS_TEST_AFTER(make_sources, more_files_than_descriptors)
{
    for (int i = 0; i < FILES; i++)
        check_source(i);
    for (int i = FILES - 1; i >= 0; i--) /* there is one source for each file */
        CHECK(find(i) == sources[i]);
    CHECK_EQ(count_log_lines(""), 0);
}

static void *read_all(__attribute__((unused)) void *argument)
{
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < FILES; i++)
            check_source(i);
    }
    return NULL;
}

MS_TEST_AFTER(make_sources, threads_that_read_many_files_get_right_bytes)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, read_all, NULL), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void read_with(unsigned thread_count)
{
    enum { SLOTS = 8 };
    static unsigned char slots[SLOTS][MS_READER_BLOCK * (BYTES / MS_READER_BLOCK + 2)]
        __attribute__((aligned(MS_READER_BLOCK)));
    static struct ms_file_range ranges[FILES];
    static struct ms_read_batch batches[FILES];
    _Atomic bool is_cancelled = false;
    for (size_t i = 0; i < FILES; i++) {
        ranges[i] = (struct ms_file_range){.file = sources[i], .bytes = BYTES};
        batches[i] = (struct ms_read_batch){.first = i, .count = 1};
    }
    const struct ms_reading reading = {.ranges = ranges,
                                       .batches = batches,
                                       .batch_count = FILES,
                                       .slots = slots[0],
                                       .slot_count = SLOTS,
                                       .slot_bytes = sizeof(slots[0]),
                                       .threads = thread_count,
                                       .busy_threads = thread_count,
                                       .cancelled = &is_cancelled};
    struct ms_reader *reader = ms_reader_create(&reading);
    CHECK(reader != NULL);
    for (int got = 0; got < FILES;) {
        struct ms_read_done done;
        const CUresult result = ms_reader_next(reader, UINT64_C(1000000000), &done);
        if (result == CUDA_ERROR_NOT_READY)
            continue;
        CHECK_EQ(result, CUDA_SUCCESS);
        CHECK_BYTES(slots[done.slot], bytes_of((int)done.batch), BYTES);
        ms_reader_give_back(reader, done.slot);
        got++;
    }
    ms_reader_destroy(reader);
}

/* Those that read past the page cache have a descriptor for each file, too. */
STORY_AFTER(make_sources, readers_past_the_page_cache_get_right_bytes, read_with(1), read_with(16))

MS_TEST_AFTER(make_sources, reads_of_cold_files_get_right_bytes)
{
    for (int i = 0; i < FILES; i++) {
        const int file = open(name_of(i), O_RDONLY | O_CLOEXEC);
        fdatasync(file);
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    read_with(16);
}

/* --- what has changed is told, in all that are kept and all that are not */

static void check_change(void (*change)(int file), bool are_kept_lost)
{
    static unsigned char buffer[BYTES];
    make_sources();
    int lost = 0;
    for (int i = 0; i < FILES; i++) {
        change(i);
        const CUresult result = read_source(i, buffer);
        lost += result == CUDA_ERROR_OPERATING_SYSTEM;
        if (result == CUDA_SUCCESS)
            CHECK_BYTES(buffer, bytes_of(i), BYTES);
        else
            CHECK_EQ(result, CUDA_ERROR_OPERATING_SYSTEM);
    }
    CHECK(are_kept_lost ? lost == FILES : lost > 0 && lost < FILES);
    CHECK(count_log_lines("shard-") > 0);
}

static void set_time(int number)
{
    const int file = open(name_of(number), O_RDONLY | O_CLOEXEC);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    CHECK_EQ(futimens(file, times), 0);
    close(file);
}

static void replace(int number)
{
    write_file(FILES, number + 1);
    char from[80];
    snprintf(from, sizeof(from), "%s", name_of(FILES));
    CHECK_EQ(rename(from, name_of(number)), 0);
}

static void delete_file(int number)
{
    CHECK_EQ(unlink(name_of(number)), 0);
}

MS_TEST(a_file_with_new_times)
{
    check_change(set_time, true);
}

MS_TEST(a_file_that_was_replaced)
{
    check_change(replace, false);
}

STORY_ALONE(a_file_that_was_deleted, check_change(delete_file, false),
            IS(count_log_lines("ulimit -n") > 0))

/* One that cannot be opened again is kept, while there are descriptors. */
MS_TEST_AFTER(make_sources, a_file_without_a_name_is_kept)
{
    const int shard = FILES - 1;
    ms_file_drop(sources[shard]);
    void *mapped = map(shard);
    delete_file(shard);
    uint64_t offset;
    sources[shard] = ms_find_file(mapped, BYTES, &offset);
    if (sources[shard] == NULL)
        ms_test_skip("a file without a name cannot be opened here");
    check_source(shard);
}

/* One that the program is about to change is copied, and the copy needs no name. */
MS_TEST_AFTER(make_sources, a_copy_of_a_file_without_a_descriptor)
{
    char path[MS_PATH_BYTES];
    for (int i = 0; i < FILES; i += FILES - 1) {
        const struct stat *stat = ms_file_stat(sources[i]);
        CHECK(ms_change_begin(stat->st_dev, stat->st_ino, false, path));
        if (!ms_change_keep(stat->st_dev, stat->st_ino))
            ms_test_skip("no copies can be made here");
        write_file(i, i + 1);
        check_source(i);
        delete_file(i);
        check_source(i);
    }
}

/* --- where there is none for a moment, either */

MS_TEST_AFTER(make_sources, a_line_when_no_descriptor_is_free)
{
    write_file(FILES, FILES);
    const void *mapped = map(FILES);
    limit_descriptors(3);
    for (int i = 0; i < 3; i++)
        CHECK(ms_find_file(mapped, BYTES, &(uint64_t){0}) == NULL);
    limit_descriptors(DESCRIPTORS);
    CHECK_EQ(count_log_lines("no descriptor is free"), 1);
    CHECK_EQ(count_log_lines("ulimit -n"), 1);
    for (int i = 0; i < FILES; i++)
        check_source(i);
}

/* --- what the file system says */

MS_TEST(the_same_as_fstat)
{
    struct stat asked, kept;
    make_files();
    const int file = open(name_of(3), O_RDONLY | O_CLOEXEC);
    CHECK_EQ(ms_descriptor_stat(file, &asked), MS_DESCRIPTOR_ASKED);
    CHECK(ms_descriptor_stat_cached(file, &kept));
    CHECK_EQ(asked.st_dev, kept.st_dev);
    CHECK_EQ(asked.st_ino, kept.st_ino);
    CHECK_EQ(asked.st_mode, kept.st_mode);
    CHECK_EQ(asked.st_nlink, kept.st_nlink);
    CHECK_EQ(asked.st_size, kept.st_size);
    CHECK(memcmp(&asked.st_mtim, &kept.st_mtim, sizeof(kept.st_mtim)) == 0);
    CHECK(memcmp(&asked.st_ctim, &kept.st_ctim, sizeof(kept.st_ctim)) == 0);
    CHECK_EQ(ms_descriptor_stat(-1, &asked), MS_DESCRIPTOR_UNTOLD);
    CHECK_EQ(errno, EBADF);
}

static void check_without_statx(int error)
{
    struct stat kept;
    make_files();
    const int file = open(name_of(3), O_RDONLY | O_CLOEXEC);
    CHECK_EQ(ms_descriptor_stat(file, &kept), MS_DESCRIPTOR_ASKED);
    deny(SYS_statx, error);
    CHECK_EQ(ms_descriptor_stat(file, &kept), MS_DESCRIPTOR_KEPT);
    CHECK_EQ(kept.st_size, BYTES);
    sources[3] = find(3); /* local */
    CHECK(sources[3] != NULL);
    check_source(3);
}

MS_TEST(a_kernel_without_statx)
{
    check_without_statx(ENOSYS);
}

MS_TEST(a_sandbox_without_statx)
{
    check_without_statx(EPERM);
}
