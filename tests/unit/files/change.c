/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are about to change: a copy of a whole file stands for it from then on. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/files/change.h"
#include "runtime/files/file_read.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/trust.h"
#include "runtime/finding/find.h"
#include "runtime/loading/source_read.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"
#include "tools/simcuda/harness/test.h"

enum { BYTES = 1 << 20 };

static char path[] = "/tmp/metashard-close-XXXXXX";
static unsigned char original[BYTES], seen[BYTES];

static void remove_file(void)
{
    unlink(path);
}

/* The file behind a mapping of it. */
static struct ms_file *make_source(void)
{
    uint64_t offset;
    const int file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    for (size_t i = 0; i < BYTES; i++)
        original[i] = (unsigned char)(i * 7 + i / 256);
    CHECK_EQ(write(file, original, BYTES), BYTES);
    CHECK_EQ(close(file), 0);
    const int again = open(path, O_RDONLY);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, again, 0);
    CHECK(mapped != MAP_FAILED);
    close(again);
    struct ms_file *source = ms_find_file(mapped, BYTES, &offset);
    CHECK(source != NULL);
    CHECK_EQ(munmap(mapped, BYTES), 0);
    return source;
}

static bool is_closed(const struct ms_file *source)
{
    return ms_file_state(source) == MS_FILE_IS_CLOSED;
}

static void close_source(const struct ms_file *source)
{
    char name[MS_PATH_BYTES];
    const struct stat *stat = ms_file_stat(source);
    CHECK(ms_change_begin(stat->st_dev, stat->st_ino, false, name));
    CHECK(strcmp(name, path) == 0);
    CHECK(is_closed(source));
}

static bool keep(const struct ms_file *source)
{
    const struct stat *stat = ms_file_stat(source);
    const bool is_kept = ms_change_keep(stat->st_dev, stat->st_ino);
    ms_change_end(stat->st_dev, stat->st_ino, is_kept);
    return is_kept;
}

static void change(void)
{
    const int file = open(path, O_WRONLY | O_TRUNC);
    CHECK(file >= 0);
    CHECK_EQ(write(file, "new", 3), 3);
    CHECK_EQ(close(file), 0);
}

static CUresult read_into(struct ms_file *source, unsigned char *buffer)
{
    const void *bytes;
    memset(buffer, 0, BYTES);
    const CUresult result = ms_source_read(ms_file_source(source), 0, buffer, BYTES, &bytes);
    CHECK(result != CUDA_SUCCESS || bytes == buffer);
    return result;
}

MS_TEST(a_kept_source_is_read_from_its_copy)
{
    struct ms_file *source = make_source();
    close_source(source);
    CHECK(keep(source));
    CHECK(!is_closed(source));
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), BYTES);
    change();
    CHECK_EQ(read_into(source, seen), CUDA_SUCCESS);
    CHECK_BYTES(seen, original, BYTES);
    CHECK(ms_source_read_is_current(ms_file_source(source)));
    ms_file_drop(source);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
}

MS_TEST(a_changed_source_without_a_copy_fails)
{
    struct ms_file *source = make_source();
    change();
    CHECK_EQ(read_into(source, seen), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
}

static bool close_deleted(const struct ms_file *source)
{
    char name[MS_PATH_BYTES];
    const struct stat *stat = ms_file_stat(source);
    return ms_change_begin(stat->st_dev, stat->st_ino, true, name);
}

/* Somebody answers the deletion of a file that had this one's inode before. */
MS_TEST(only_a_file_without_links_is_deleted)
{
    struct ms_file *source = make_source();
    CHECK(!close_deleted(source));
    CHECK_EQ(ms_file_state(source), MS_FILE_IS_OPEN);
    CHECK_EQ(read_into(source, seen), CUDA_SUCCESS);
    CHECK_EQ(unlink(path), 0);
    CHECK(close_deleted(source));
    CHECK(is_closed(source));
    ms_file_drop(source);
}

/* Too late for a copy. */
MS_TEST(a_changed_file_is_not_kept)
{
    struct ms_file *source = make_source();
    close_source(source);
    usleep(30000);
    const int file = open(path, O_WRONLY);
    CHECK_EQ(pwrite(file, "new", 3, 5), 3);
    close(file);
    CHECK(!keep(source));
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    CHECK_EQ(read_into(source, seen), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
}

MS_TEST(copies_have_the_limit_of_snapshots)
{
    struct ms_file *source = make_source();
    ms_host_snapshot_set_limit(BYTES - 1);
    close_source(source);
    CHECK(!keep(source));
    CHECK_EQ(read_into(source, seen), CUDA_SUCCESS); /* as before */
    ms_host_snapshot_set_limit(BYTES);
    close_source(source);
    CHECK(keep(source));
    CHECK_EQ(read_into(source, seen), CUDA_SUCCESS);
    CHECK_BYTES(seen, original, BYTES);
    ms_file_drop(source);
}

static bool is_own_table = true;

WRAPS(ms_file_thread_has_own_table);

bool __wrap_ms_file_thread_has_own_table(void)
{
    return is_own_table;
}

/* The program could close the copy. */
MS_TEST(a_file_thread_without_a_table_of_its_own_keeps_nothing)
{
    struct ms_file *source = make_source();
    is_own_table = false;
    close_source(source);
    CHECK(!keep(source));
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    ms_file_drop(source);
}

/* A file that nobody closes is left alone. */
MS_TEST(nothing_else_is_kept)
{
    struct ms_file *source = make_source();
    const struct stat *stat = ms_file_stat(source);
    CHECK(ms_change_keep(stat->st_dev, stat->st_ino));
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    ms_file_drop(source);
}

struct short_read {
    struct ms_file *source;
    struct ms_file_failure failure;
    int error; /* of an earlier call */
    bool is_read;
};

static void read_beyond(void *argument)
{
    static unsigned char buffer[BYTES];
    struct short_read *read = argument;
    errno = read->error;
    read->is_read = ms_file_read_now(read->source, BYTES / 2, buffer, BYTES, &read->failure);
}

/* An error of an earlier call is not one of this read. */
MS_TEST(a_file_that_ends_too_early_has_no_error)
{
    static const int errors[] = {EIO, EINTR};
    struct short_read read = {.source = make_source()};
    for (int i = 0; i < 2; i++) {
        read.error = errors[i];
        CHECK(ms_file_thread_call(read_beyond, &read));
        CHECK(!read.is_read);
        CHECK_EQ(read.failure.error, 0);
        CHECK_EQ(read.failure.offset, BYTES);
        CHECK_EQ(read.failure.bytes, BYTES / 2);
    }
    ms_file_drop(read.source);
}

/* --- one of several files */

static struct test_file first, second;

static void make_two(void)
{
    make_test_file(&first, "/tmp", BYTES);
    make_test_file(&second, "/tmp", (64 << 10) + 1);
}

static const struct stat *stat_of(const struct test_file *file)
{
    return ms_file_stat(file->opened);
}

static bool close_one(const struct test_file *file, bool is_deleted)
{
    return ms_change_begin(stat_of(file)->st_dev, stat_of(file)->st_ino, is_deleted, NULL);
}

static void end_one(const struct test_file *file, bool is_lost)
{
    ms_change_end(stat_of(file)->st_dev, stat_of(file)->st_ino, is_lost);
}

static void check_states(enum ms_file_state of_first, enum ms_file_state of_second)
{
    CHECK_EQ(ms_file_state(first.opened), of_first);
    CHECK_EQ(ms_file_state(second.opened), of_second);
}

MS_TEST_AFTER(make_two, a_close_closes_the_file_it_names_alone)
{
    const struct stat *stat = stat_of(&first);
    const int before = count_open_there();
    CHECK(!ms_change_begin(stat->st_dev + 1, stat->st_ino, false, NULL));
    CHECK(!ms_change_begin(stat->st_dev, stat->st_ino + 1000000, false, NULL));
    check_states(MS_FILE_IS_OPEN, MS_FILE_IS_OPEN);
    CHECK(close_one(&first, false));
    check_states(MS_FILE_IS_CLOSED, MS_FILE_IS_OPEN);
    CHECK(!close_one(&first, false)); /* it is, already */
    end_one(&second, true);           /* it was not closed */
    check_states(MS_FILE_IS_CLOSED, MS_FILE_IS_OPEN);
    end_one(&first, false);
    check_states(MS_FILE_IS_OPEN, MS_FILE_IS_OPEN);
    CHECK_EQ(count_open_there(), before);
    CHECK(close_one(&first, false) && close_one(&second, false));
    end_one(&first, true);
    check_states(MS_FILE_IS_LOST, MS_FILE_IS_CLOSED);
    CHECK_EQ(count_open_there(), before - 1); /* nobody reads it any more */
    end_one(&first, true);
    CHECK_EQ(count_open_there(), before - 1);
    end_one(&second, false);
    CHECK_EQ(read_into(second.opened, seen), CUDA_ERROR_OPERATING_SYSTEM); /* it is shorter */
    ms_file_drop(first.opened);
    ms_file_drop(second.opened);
    CHECK_EQ(count_open_there(), before - 2);
}

MS_TEST_AFTER(make_two, a_copy_has_all_bytes_and_others_have_none)
{
    static const unsigned char *bytes;
    const int before = count_open_there();
    CHECK(close_one(&second, false));
    CHECK(ms_change_keep(stat_of(&second)->st_dev, stat_of(&second)->st_ino));
    check_states(MS_FILE_IS_OPEN, MS_FILE_IS_KEPT);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), second.bytes);
    CHECK_EQ(count_open_there(), before + 1);
    end_one(&second, true);
    check_states(MS_FILE_IS_OPEN, MS_FILE_IS_KEPT);
    CHECK_EQ(count_open_there(), before); /* the file itself is let go */
    CHECK_EQ(truncate(second.path, 0), 0);
    CHECK_EQ(ms_source_read(second.source, 0, seen, second.bytes, (const void **)&bytes),
             CUDA_SUCCESS);
    CHECK_BYTES(bytes, second.data, second.bytes);
    ms_file_drop(second.opened);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    CHECK_EQ(count_open_there(), before - 1);
    ms_file_drop(first.opened);
}

/* A file that was given up before: the copy is for the source that is there now. */
MS_TEST_AFTER(make_two, all_sources_of_a_file_are_kept)
{
    struct ms_mapping mapping = {.device = stat_of(&first)->st_dev,
                                 .inode = stat_of(&first)->st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", first.path);
    atomic_store(&first.opened->state, MS_FILE_IS_LOST);
    struct ms_file *again = ms_trust_open(&mapping, BYTES);
    CHECK(again != NULL && again != first.opened);
    atomic_store(&first.opened->state, MS_FILE_IS_OPEN);
    CHECK(close_one(&first, false));
    CHECK_EQ(ms_file_state(again), MS_FILE_IS_CLOSED);
    CHECK(ms_change_keep(mapping.device, mapping.inode));
    CHECK_EQ(ms_file_state(first.opened), MS_FILE_IS_KEPT);
    CHECK_EQ(ms_file_state(again), MS_FILE_IS_KEPT);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 2 * BYTES);
    ms_file_drop(again);
    ms_file_drop(first.opened);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    ms_file_drop(second.opened);
}

static void check_denied(int call)
{
    make_two();
    const int before = count_open_there();
    CHECK(close_one(&first, false));
    deny(call, EPERM);
    CHECK(!ms_change_keep(stat_of(&first)->st_dev, stat_of(&first)->st_ino));
    check_states(MS_FILE_IS_CLOSED, MS_FILE_IS_OPEN);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    CHECK_EQ(count_open_there(), before);
    ms_file_drop(first.opened);
    ms_file_drop(second.opened);
}

MS_TEST(a_source_has_no_copy_without_a_file_in_memory)
{
    check_denied(SYS_memfd_create);
}

MS_TEST(a_copy_that_cannot_be_written_is_none)
{
    check_denied(SYS_pwrite64);
}

/* --- files without links */

static bool find_deleted(const struct test_file *file)
{
    dev_t device;
    ino_t inode;
    const bool is_found = ms_lease_thread_find_deleted(&device, &inode);
    if (is_found) {
        CHECK_EQ(device, stat_of(file)->st_dev);
        CHECK_EQ(inode, stat_of(file)->st_ino);
    }
    return is_found;
}

MS_TEST_AFTER(make_two, a_deleted_file_is_answered_once)
{
    CHECK(!find_deleted(&second));
    CHECK_EQ(unlink(second.path), 0);
    CHECK(!find_deleted(&second)); /* files without a lease are not asked */
    atomic_store(&second.opened->is_deleted, true);
    CHECK(find_deleted(&second));
    CHECK(!close_one(&first, true)); /* it has its link */
    CHECK(close_one(&second, true));
    check_states(MS_FILE_IS_OPEN, MS_FILE_IS_CLOSED);
    CHECK(!find_deleted(&second));
    end_one(&second, false);
    CHECK(!find_deleted(&second)); /* it has had its answer */
    CHECK(close_one(&second, true));
    end_one(&second, true);
    CHECK(!find_deleted(&second));
    CHECK(!close_one(&second, true));
    ms_file_drop(first.opened);
    ms_file_drop(second.opened);
}

static void make_leased(void)
{
    ms_config.leases = true;
    make_two();
    needs_lease(atomic_load(&first.opened->lease.is_taken), first.path);
}

MS_TEST_AFTER(make_leased, a_deleted_file_with_a_lease_is_found)
{
    CHECK(!find_deleted(&first));
    CHECK_EQ(unlink(first.path), 0);
    CHECK(find_deleted(&first));
    ms_lease_thread_give_back(stat_of(&first)->st_dev, stat_of(&first)->st_ino);
    CHECK(!find_deleted(&first));
    ms_file_drop(first.opened);
    ms_file_drop(second.opened);
}

MS_TEST_AFTER(make_leased, the_lease_of_one_file_is_dropped)
{
    const struct stat *stat = stat_of(&first);
    ms_lease_thread_give_back(stat->st_dev + 1, stat->st_ino);
    ms_lease_thread_give_back(stat->st_dev, stat->st_ino + 1000000);
    CHECK(atomic_load(&first.opened->lease.is_taken) &&
          atomic_load(&second.opened->lease.is_taken));
    ms_lease_thread_give_back(stat->st_dev, stat->st_ino);
    CHECK(!atomic_load(&first.opened->lease.is_taken));
    CHECK(atomic_load(&second.opened->lease.is_taken));
    close(open(first.path, O_WRONLY)); /* nobody waits */
    ms_file_drop(second.opened);
    CHECK(!ms_lease_any());
    ms_file_drop(first.opened);
}

/* --- the thread that answers */

static void answer(dev_t device, ino_t inode)
{
    (void)device, (void)inode;
}

static int count_threads(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/task");
    CHECK(all != NULL);
    while (readdir(all) != NULL)
        count++;
    closedir(all);
    return count;
}

static void *end_at_once(void *argument)
{
    return argument;
}

MS_TEST(a_thread_answers_once_there_is_a_file)
{
    pthread_t first_one; /* with it a sanitizer starts one of its own */
    CHECK_EQ(pthread_create(&first_one, NULL, end_at_once, NULL), 0);
    CHECK_EQ(pthread_join(first_one, NULL), 0);
    const int before = count_threads();
    ms_lease_thread_serve(true); /* nobody has started it */
    CHECK_EQ(count_threads(), before);
    ms_lease_thread_start(answer, answer);
    ms_lease_thread_serve(false);
    CHECK_EQ(count_threads(), before);
    ms_lease_thread_serve(true);
    CHECK_EQ(count_threads(), before + 1);
    ms_lease_thread_serve(true);
    CHECK_EQ(count_threads(), before + 1);
}

/* --- threads read meanwhile, as those of a transfer do */

static _Atomic bool is_over;
static _Atomic unsigned wrong, read_count;

/* All of the file is wanted, so the kernel may read what follows; where its disk reads ahead. */
MS_TEST(a_file_that_is_kept_is_read_ahead)
{
    enum { STEP = 64 << 10, PAGE = 4096 };
    struct ms_file *source = make_source();
    const int file = open(path, O_RDONLY);
    const struct test_file cold = {.descriptor = file, .bytes = BYTES};
    close_source(source);
    CHECK_EQ(posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL), 0);
    const bool is_cold = make_cold(&cold);
    CHECK_EQ(pread(file, seen, STEP, 0), STEP);
    if (!is_cold || count_cached(&cold) <= STEP / PAGE || !make_cold(&cold))
        ms_test_skip("nothing is read ahead here");
    deny(SYS_pwrite64, ENOSPC); /* it ends behind the first step */
    CHECK(!keep(source));
    CHECK(count_cached(&cold) > STEP / PAGE);
    close(file);
    ms_file_drop(source);
}

static void *read_again_and_again(void *source)
{
    struct ms_file_failure failure;
    static _Thread_local unsigned char buffer[BYTES];
    while (!atomic_load(&is_over)) {
        memset(buffer, 0, sizeof(buffer));
        if (!ms_file_read_now(source, 0, buffer, BYTES, &failure) ||
            !ms_trust_check(source, &failure) || memcmp(buffer, original, BYTES) != 0)
            atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&read_count, 1);
    }
    return NULL;
}

MS_TEST(reads_that_are_under_way_are_waited_for)
{
    enum { READERS = 3, READS = 30 };
    pthread_t readers[READERS];
    struct ms_file *source = make_source();
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(ms_file_thread_create(&readers[i], read_again_and_again, source), 0);
    while (atomic_load(&read_count) < READS)
        usleep(100);
    close_source(source);
    CHECK(keep(source));
    change();
    while (atomic_load(&read_count) < 2 * READS)
        usleep(100);
    atomic_store(&is_over, true);
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(pthread_join(readers[i], NULL), 0);
    CHECK_EQ(wrong, 0);
    ms_file_drop(source);
}
