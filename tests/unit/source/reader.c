/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/reader.h"

#include "tests/unit/between.h"
#include "tests/unit/source/files.h"

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
        *range = (struct ms_file_range){.source = file.source, .offset = at};
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

static struct ms_reader *create(size_t batch_count, unsigned threads)
{
    const struct ms_reading reading = {.ranges = ranges,
                                       .batches = batches,
                                       .batch_count = batch_count,
                                       .slots = slots,
                                       .slot_bytes = SLOT,
                                       .slot_count = SLOTS,
                                       .threads = threads,
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
        if (bytes >= 65536) {
            CHECK_EQ(place % BLOCK, offset % BLOCK);
            CHECK(place / BLOCK * BLOCK >= before);
            CHECK_EQ(used % BLOCK, 0);
        }
    }
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

MS_TEST_AFTER(start, what_is_cancelled_ends)
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
