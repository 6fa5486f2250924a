/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/reader.h"

#include <sys/inotify.h>

#include "runtime/files/file_read.h"
#include "runtime/files/kept_threads.h"
#include "runtime/files/page_cache.h"
#include "runtime/files/file_internal.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tools/simcuda/harness/deny.h"

enum { BLOCK = MS_READER_BLOCK, SLOT = 256 << 10, SLOTS = 3, MAX_RANGES = 600 };
#define MIB ((size_t)1 << 20)

static _Atomic bool is_cancelled;
static struct test_file file;
static unsigned char *slots;
static struct ms_file_range ranges[MAX_RANGES];
static struct ms_read_batch batches[MAX_RANGES];

static void start(void)
{
    make_test_file(&file, "/tmp", 3 * MIB + 7);
    slots = aligned_alloc(BLOCK, SLOTS * SLOT);
}

/* [0, bytes) in parts of at most part_bytes. */
static size_t make_batches(size_t bytes, size_t part_bytes)
{
    size_t batch_count = 0;
    size_t range_count = 0;
    size_t used = SLOT;
    for (size_t at = 0; at < bytes;) {
        const size_t left = bytes - at < part_bytes ? bytes - at : part_bytes;
        struct ms_file_range *range = &ranges[range_count];
        *range = (struct ms_file_range){.file = file.opened, .offset = at};
        range->bytes = ms_reader_place(at, left, SLOT, &used, &range->place);
        if (range->bytes == 0) {
            batches[batch_count++] = (struct ms_read_batch){range_count, 0};
            used = 0;
            continue;
        }
        batches[batch_count - 1].count++;
        at += range->bytes;
        range_count++;
    }
    return batch_count;
}

static unsigned busy_threads;

static struct ms_reader *create(size_t batch_count, unsigned threads)
{
    const struct ms_reading reading = {.ranges = ranges,
                                       .batches = batches,
                                       .batch_count = batch_count,
                                       .slots = slots,
                                       .slot_bytes = SLOT,
                                       .slot_count = SLOTS,
                                       .threads = threads,
                                       .busy_threads = busy_threads,
                                       .cancelled = &is_cancelled};
    struct ms_reader *reader = ms_reader_create(&reading);
    CHECK(reader != NULL);
    return reader;
}

static CUresult wait_for_batch(struct ms_reader *reader, struct ms_read_done *done)
{
    CUresult result;
    do
        result = ms_reader_next(reader, 1000 * 1000, done);
    while (result == CUDA_ERROR_NOT_READY);
    return result;
}

static void check_batch(const struct ms_read_done *done)
{
    const struct ms_read_batch *batch = &batches[done->batch];
    for (size_t i = batch->first; i < batch->first + batch->count; i++)
        CHECK_BYTES(slots + done->slot * SLOT + ranges[i].place, file.data + ranges[i].offset,
                    ranges[i].bytes);
}

static void check_all(size_t bytes, size_t part_bytes, unsigned threads)
{
    const size_t count = make_batches(bytes, part_bytes);
    bool seen[MAX_RANGES] = {false};
    struct ms_reader *reader = create(count, threads);
    for (size_t i = 0; i < count; i++) {
        struct ms_read_done done;
        CHECK_EQ(wait_for_batch(reader, &done), CUDA_SUCCESS);
        CHECK(done.batch < count && !seen[done.batch]);
        seen[done.batch] = true;
        check_batch(&done);
        ms_reader_give_back(reader, done.slot);
    }
    ms_reader_destroy(reader);
}

MS_TEST_AFTER(start, every_batch_comes_once)
{
    static const size_t part_bytes[] = {7000, 65535, 65536, 100001, 4 << 20};
    for (size_t i = 0; i < 5; i++) {
        for (unsigned threads = 0; threads < 4; threads++) {
            make_cold(&file);
            check_all(file.bytes, part_bytes[i], threads);
            check_all(file.bytes, part_bytes[i], threads);
        }
    }
}

MS_TEST(places_leave_room_for_whole_blocks)
{
    uint64_t state = 5;
    for (int i = 0; i < 20000; i++) {
        const uint64_t offset = next_random(&state) % 1000000;
        const size_t bytes = 1 + next_random(&state) % (i % 2 == 0 ? 1000 : 600000);
        const size_t before = i % 3 == 0 ? 0 : next_random(&state) % (SLOT + 1);
        size_t used = before;
        size_t place;
        const size_t placed = ms_reader_place(offset, bytes, SLOT, &used, &place);
        if (placed == 0) {
            CHECK_EQ(used, before);
            CHECK(used > 0);
            continue;
        }
        CHECK(placed == bytes || (offset + placed) % BLOCK == 0);
        CHECK(place >= before && place + placed <= used && used <= SLOT);
        CHECK(bytes >= 65536 || (place == before && used == before + bytes));
        if (bytes >= 65536) {
            CHECK_EQ(place % BLOCK, offset % BLOCK);
            CHECK(place / BLOCK * BLOCK >= before);
            CHECK_EQ(used % BLOCK, 0);
        }
    }
}

/* A large range gets at least two times 64 KiB, and a small range all or nothing. */
MS_TEST(places_are_as_large_as_they_can_be)
{
    enum { LARGE = 64 << 10 };
    static const struct {
        uint64_t offset;
        size_t bytes, used, placed, place, used_then;
    } rows[] = {
        {5, 100, SLOT - 100, 100, SLOT - 100, SLOT},
        {5, 101, SLOT - 100, 0, 0, SLOT - 100},
        {5, LARGE - 1, 10, LARGE - 1, 10, LARGE + 9},
        {5, LARGE, 10, LARGE, BLOCK + 5, BLOCK + LARGE + BLOCK},
        {BLOCK, LARGE, BLOCK, LARGE, BLOCK, BLOCK + LARGE},
        {5, MIB, 0, SLOT - 5, 5, SLOT},
        {5, MIB, SLOT - 2 * LARGE, 2 * LARGE - 5, SLOT - 2 * LARGE + 5, SLOT},
        {5, MIB, SLOT - 2 * LARGE + 1, 0, 0, SLOT - 2 * LARGE + 1},
        {0, LARGE, SLOT, 0, 0, SLOT},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t used = rows[i].used, place = 0;
        CHECK_EQ(ms_reader_place(rows[i].offset, rows[i].bytes, SLOT, &used, &place),
                 rows[i].placed);
        CHECK_EQ(place, rows[i].place);
        CHECK_EQ(used, rows[i].used_then);
    }
    size_t used = 0, place = 1;
    CHECK_EQ(ms_reader_place(0, LARGE, LARGE, &used, &place), LARGE); /* into an empty one always */
    CHECK(used == LARGE && place == 0);
}

/* Nothing is written to a slot that was not given back. */
MS_TEST_AFTER(start, slots_are_the_callers_until_they_are_given_back)
{
    for (unsigned threads = 0; threads < 3; threads += 2) {
        struct ms_read_done done[SLOTS];
        struct ms_read_done more;
        struct ms_reader *reader = create(make_batches(file.bytes, MIB), threads);
        for (int i = 0; i < SLOTS; i++)
            CHECK_EQ(wait_for_batch(reader, &done[i]), CUDA_SUCCESS);
        CHECK_EQ(ms_reader_next(reader, 20 * 1000 * 1000, &more), CUDA_ERROR_NOT_READY);
        for (int i = 0; i < SLOTS; i++)
            check_batch(&done[i]);
        ms_reader_give_back(reader, done[1].slot);
        CHECK_EQ(wait_for_batch(reader, &more), CUDA_SUCCESS);
        CHECK_EQ(more.slot, done[1].slot);
        ms_reader_destroy(reader);
    }
}

MS_TEST_AFTER(start, a_cancelled_reader_ends)
{
    for (unsigned threads = 0; threads < 3; threads += 2) {
        struct ms_read_done done;
        struct ms_reader *reader = create(make_batches(file.bytes, MIB), threads);
        CHECK_EQ(wait_for_batch(reader, &done), CUDA_SUCCESS);
        is_cancelled = true;
        ms_reader_give_back(reader, done.slot);
        CUresult result;
        int delivered = 0;
        do {
            result = wait_for_batch(reader, &done);
            delivered++;
        } while (result == CUDA_SUCCESS);
        CHECK_EQ(result, CUDA_ERROR_DEINITIALIZED);
        CHECK(delivered <= SLOTS + 1);
        ms_reader_destroy(reader);
        is_cancelled = false;
    }
}

/* Whoever of the threads sees it first says it. */
MS_TEST_AFTER(start, a_failure_is_told_once)
{
    open_log(MS_WARN);
    const size_t count = make_batches(file.bytes, MIB);
    CHECK_EQ(truncate(file.path, 1), 0);
    for (int i = 1; i <= 100; i++) {
        struct ms_read_done done;
        struct ms_reader *reader = create(count, 8);
        CHECK_EQ(wait_for_batch(reader, &done), CUDA_ERROR_OPERATING_SYSTEM);
        CHECK_EQ(wait_for_batch(reader, &done), CUDA_ERROR_OPERATING_SYSTEM);
        ms_reader_destroy(reader);
        CHECK_EQ(count_log_lines("(size 1, was "), i);
    }
}

/* --- threads */

static unsigned starts, may_start;

WRAPS(ms_kept_threads_start, ms_file_read_by);
bool __wrap_ms_kept_threads_start(struct ms_kept_work *work)
{
    return starts++ < may_start && __real_ms_kept_threads_start(work);
}

static void start_cold(void)
{
    start();
    may_start = 100;
    uint64_t range[2] = {0, 1}, pages[5];
    if (!make_cold(&file) || syscall(451, (unsigned)file.descriptor, range, pages, 0U) != 0)
        ms_test_skip("the page cache cannot be emptied here, or does not tell");
    CHECK_EQ(posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_RANDOM), 0); /* no more than asked */
}

static void cache(size_t offset, size_t bytes)
{
    unsigned char *memory = malloc(bytes);
    CHECK_EQ(pread(file.descriptor, memory, bytes, (off_t)offset), (ssize_t)bytes);
    free(memory);
}

/* For the first MiB, so many are allowed. */
static unsigned count_starts(unsigned threads, unsigned busy)
{
    starts = 0;
    busy_threads = busy;
    ms_reader_destroy(create(make_batches(MIB, 7000), threads));
    return starts;
}

/* The ends of what is read tell. */
MS_TEST_AFTER(start_cold, the_caller_reads_cached_bytes_where_one_thread_may_be_busy)
{
    CHECK_EQ(count_starts(2, 1), 2);
    make_cold(&file);
    cache(0, 1);
    CHECK_EQ(count_starts(2, 1), 2);
    make_cold(&file);
    cache(MIB - 1, 1);
    CHECK_EQ(count_starts(2, 1), 2);
    cache(0, 1);
    CHECK_EQ(count_starts(2, 1), 0);
    CHECK_EQ(count_starts(2, 0), 0);
    CHECK_EQ(count_starts(2, 2), 2);
}

MS_TEST_AFTER(start_cold, threads_are_as_many_as_can_be)
{
    CHECK_EQ(count_starts(0, 2), 0);
    CHECK_EQ(count_starts(100, 2), 64);
    may_start = 1;
    CHECK_EQ(count_starts(3, 2), 2); /* the second cannot be started */
    starts = 0;
    check_all(file.bytes, MIB, 3);
    may_start = starts = 0;
    check_all(file.bytes, MIB, 3);
    CHECK_EQ(starts, 1);
}

/* Before Linux 6.5, too, where the question would make the kernel read. */
MS_TEST_AFTER(start, asking_for_cached_bytes_reads_none_from_the_disk)
{
    static const size_t offsets[] = {0, 5, BLOCK + 5, MIB};
    if (!make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("the page cache cannot be emptied here, or does not tell");
    deny(451, ENOSYS);
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        CHECK(make_cold(&file));
        CHECK(!ms_page_cache_has(file.descriptor, offsets[i], offsets[i] + 1));
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        CHECK_EQ(count_cached(&file), 0);
        cache(offsets[i], 1);
        CHECK(ms_page_cache_has(file.descriptor, offsets[i], offsets[i] + 1));
    }
}

static void check_all_cached(void)
{
    CHECK_EQ(posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_RANDOM), 0);
    CHECK(make_cold(&file));
    cache(0, 1);
    cache(MIB - 1, 1);
    CHECK(!ms_page_cache_has(file.descriptor, 0, MIB));
    CHECK(ms_page_cache_has(file.descriptor, 1, 2));
    cache(0, MIB);
    CHECK(ms_page_cache_has(file.descriptor, 0, MIB));
    CHECK(ms_page_cache_has(file.descriptor, 1, MIB - 1));
    CHECK(!ms_page_cache_has(file.descriptor, MIB - 1, MIB + BLOCK));
}

MS_TEST_AFTER(start, bytes_between_cached_ends_may_not_be_cached)
{
    if (!make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("the page cache cannot be emptied here, or does not tell");
    check_all_cached();
    deny(451, ENOSYS);
    check_all_cached();
}

/* --- past the page cache */

static bool are_noted;         /* by a thread alone */
static char direct_reads[256]; /* "OFFSET+BYTES " of each */
static size_t most_bytes;      /* that one gives */
static int interruptions, direct_error;

ssize_t __wrap_ms_file_read_by(const struct ms_file *source, int descriptor, void *buffer,
                               size_t bytes, uint64_t offset)
{
    CHECK(descriptor != source->descriptor);
    const size_t used = are_noted ? strlen(direct_reads) : 0;
    if (are_noted)
        snprintf(direct_reads + used, sizeof(direct_reads) - used, "%llu+%zu ",
                 (unsigned long long)offset, bytes);
    errno = interruptions > 0 ? EINTR : direct_error;
    if (errno != 0 && (interruptions-- > 0 || direct_error != 0))
        return -1;
    const ssize_t got = __real_ms_file_read_by(source, descriptor, buffer, bytes, offset);
    return got > (ssize_t)most_bytes ? (ssize_t)most_bytes : got;
}

/* One range, by the caller, of a file whose cached pages are as they are. */
static void check_direct(uint64_t offset, size_t bytes, const char *wanted)
{
    unsigned char *memory = aligned_alloc(BLOCK, 4 * MIB);
    const struct ms_file_range range = {file.opened, offset, bytes, (size_t)(offset % BLOCK)};
    const struct ms_read_batch batch = {0, 1};
    const struct ms_reading reading = {.ranges = &range,
                                       .batches = &batch,
                                       .batch_count = 1,
                                       .slots = memory,
                                       .slot_bytes = 4 * MIB,
                                       .slot_count = 1,
                                       .cancelled = &is_cancelled};
    struct ms_read_done done;
    struct ms_reader *reader = ms_reader_create(&reading);
    direct_reads[0] = '\0';
    are_noted = true;
    CHECK_EQ(wait_for_batch(reader, &done), CUDA_SUCCESS);
    are_noted = false;
    CHECK_BYTES(memory + range.place, file.data + offset, bytes);
    ms_reader_destroy(reader);
    free(memory);
    if (strcmp(direct_reads, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "%llu+%zu: expected %s, found %s",
                     (unsigned long long)offset, bytes, wanted, direct_reads);
}

static void start_direct(void)
{
    start_cold();
    most_bytes = SIZE_MAX / 2;
    const int opened = open(file.path, O_RDONLY | O_DIRECT);
    unsigned char *block = aligned_alloc(BLOCK, BLOCK);
    if (opened < 0 || read(opened, block, BLOCK) != BLOCK)
        ms_test_skip("/tmp does not do without the page cache");
    close(opened);
    free(block);
}

MS_TEST_AFTER(start_direct, a_read_past_the_page_cache_goes_on_while_it_gets_whole_blocks)
{
    static const struct {
        uint64_t offset;
        size_t most_bytes;
        int interruptions, error;
        const char *wanted;
    } rows[] = {
        {100, MIB, 0, 0, "0+200704 "},
        {100, 65536, 0, 0, "0+200704 65536+135168 131072+69632 196608+4096 "},
        {100, MIB, 2, 0, "0+200704 0+200704 0+200704 "},
        {100, 65537, 0, 0, "0+200704 "}, /* as at the end of a file; the rest is read otherwise */
        {100, 0, 0, 0, "0+200704 "},
        {100, MIB, 0, EIO, "0+200704 "},
        {5000, 100, 0, 0, "4096+204800 "}, /* it gets nothing of what is wanted */
        {4096, MIB, 0, 0, "4096+200704 "},
        {3 * MIB - 200000 + 7, MIB, 0, 0, "2945024+204800 "}, /* the file ends in a block */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(make_cold(&file));
        most_bytes = rows[i].most_bytes;
        interruptions = rows[i].interruptions;
        direct_error = rows[i].error;
        check_direct(rows[i].offset, 200000, rows[i].wanted);
    }
}

/* All read by one descriptor, which stays with the file. */
MS_TEST_AFTER(start_direct, threads_open_a_file_past_the_page_cache_once)
{
    enum { ROUNDS = 6 };
    for (int round = 0; round < ROUNDS; round++) {
        struct inotify_event told;
        int opens = 0, closes = 0;
        const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        CHECK(inotify_add_watch(events, file.path, IN_OPEN | IN_CLOSE_NOWRITE) >= 0);
        check_all(file.bytes, MIB, 8);
        while (read(events, &told, sizeof(told)) == (ssize_t)sizeof(told)) {
            opens += (told.mask & IN_OPEN) != 0;
            closes += (told.mask & IN_CLOSE_NOWRITE) != 0;
        }
        close(events);
        CHECK_EQ(opens, 1);
        CHECK_EQ(closes, 0);
        start_cold();
    }
}

/* By the first and the last page of each MiB. */
STORY_AFTER(start_direct, a_direct_read_leaves_out_what_is_cached_of_its_range,
            check_direct(100, 3 * MIB - 150, "0+3145728 "), cache(MIB, MIB),
            check_direct(100, 3 * MIB - 150, "0+1048576 2097152+1048576 "),
            check_direct(MIB, MIB, ""), check_direct(MIB - 5000, MIB + 5000, "1040384+8192 "),
            cache(2 * MIB, 1), check_direct(2 * MIB, MIB, "2097152+1048576 "),
            cache(3 * MIB - 1, 1), check_direct(2 * MIB, MIB - BLOCK, "2097152+1044480 "),
            check_direct(2 * MIB, MIB, ""), check_direct(MIB, 2 * MIB, ""))
