/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/backing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/device_memory.h"
#include "runtime/driver/peers.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/addresses.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { GRANULES = 24, BYTES = GRANULES * FAKE_GRANULE };

static struct ms_backing backing;

static void reserve(size_t bytes)
{
    fake_start();
    CHECK_EQ(ms_addresses_reserve_backing(&backing, 0, bytes), CUDA_SUCCESS);
}

static void start(void)
{
    reserve(BYTES);
}

static void release(void)
{
    ms_backing_release(&backing);
    fake_check_empty();
    CHECK_EQ(live, 0);
}

static CUdeviceptr address_of(size_t granule)
{
    return backing.address + granule * FAKE_GRANULE;
}

static CUresult cover(size_t first, size_t end)
{
    return ms_backing_cover(&backing, first * FAKE_GRANULE, end * FAKE_GRANULE);
}

static unsigned char *byte_at(size_t granule)
{
    return (unsigned char *)(uintptr_t)address_of(granule);
}

/* The backing's sums are the driver's: of chunks alone, or with `sink` granules under the sink
 * beside them. */
static void check_sums(size_t sink)
{
    size_t bytes = 0;
    uint64_t before = 0;
    const struct ms_chunk *chunk;
    for (struct ms_position at = {0, 0}; (chunk = ms_sorted_item(&backing.chunks, at)) != NULL;
         at = ms_sorted_next(&backing.chunks, at)) {
        CHECK(chunk->begin < chunk->end && chunk->end <= backing.bytes);
        CHECK(before <= chunk->begin);
        before = chunk->end;
        CHECK(fake_memory_at(backing.address + chunk->begin) > 0);
        CHECK_EQ(fake_memory_at(backing.address + chunk->end - 1),
                 fake_memory_at(backing.address + chunk->begin));
        bytes += chunk->end - chunk->begin;
    }
    CHECK_EQ(backing.backed_bytes, bytes);
    CHECK_EQ(fake.mappings, backing.chunks.count + sink);
    CHECK_EQ(ms_backing_device_bytes(0), fake.physical_bytes);
}

/* --- reserving */

MS_TEST(reserves_whole_granules_between_guards)
{
    reserve(2 * FAKE_GRANULE + 1);
    CHECK_EQ(backing.bytes, 3 * FAKE_GRANULE);
    CHECK_EQ(ms_device_memory_rounded(0, 2 * FAKE_GRANULE + 1), 3 * FAKE_GRANULE);
    CHECK_EQ(cover(0, 3), CUDA_SUCCESS);
    CHECK_EQ(fake_memory_at(backing.address - 1), 0);
    CHECK_EQ(fake_memory_at(address_of(3)), 0);
    CHECK(ms_backing_is_one_chunk(&backing, 0, backing.bytes));
    release();
}

MS_TEST(nothing_is_reserved_when_a_call_fails)
{
    fake_start();
    fake_fail(FAKE_mem_get_granularity, 1, CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(ms_addresses_reserve_backing(&backing, 0, BYTES), CUDA_ERROR_INVALID_DEVICE);
    fake_fail(FAKE_mem_address_reserve, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_addresses_reserve_backing(&backing, 0, BYTES),
             CUDA_SUCCESS); /* anywhere, without a wish */
    release();
    CHECK_EQ(ms_addresses_reserve_backing(&backing, 0, SIZE_MAX - 1), CUDA_ERROR_OUT_OF_MEMORY);
    fake_check_empty();
}

/* --- covering */

MS_TEST_BETWEEN(start, release, covers_the_gaps_and_nothing_twice)
{
    CHECK_EQ(cover(2, 4), CUDA_SUCCESS);
    CHECK_EQ(cover(6, 7), CUDA_SUCCESS);
    byte_at(3)[0] = 9;
    CHECK_EQ(ms_backing_cover(&backing, FAKE_GRANULE + 1, 7 * FAKE_GRANULE + 1), CUDA_SUCCESS);
    CHECK_EQ(backing.chunks.count, 5); /* 1, 2-3, 4-5, 6, 7 */
    CHECK_EQ(backing.backed_bytes, 7 * FAKE_GRANULE);
    CHECK_EQ(byte_at(3)[0], 9);
    check_sums(0);
    const unsigned created = fake.calls[FAKE_mem_create];
    CHECK_EQ(cover(1, 8), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_mem_create], created);
}

MS_TEST(a_cover_that_fails_leaves_nothing_half_mapped)
{
    for (unsigned nth = 1;; nth++) {
        reserve(BYTES);
        CHECK_EQ(cover(4, 5), CUDA_SUCCESS);
        CHECK_EQ(cover(8, 9), CUDA_SUCCESS);
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_OUT_OF_MEMORY);
        const CUresult result = cover(2, 12);
        check_sums(0);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(backing.backed_bytes == 10 * FAKE_GRANULE, result == CUDA_SUCCESS);
        CHECK(fake_memory_at(address_of(4)) > 0 && fake_memory_at(address_of(8)) > 0);
        const bool has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        CHECK_EQ(cover(2, 12), CUDA_SUCCESS);
        CHECK_EQ(backing.backed_bytes, 10 * FAKE_GRANULE);
        release();
        if (!has_failed)
            return;
    }
}

MS_TEST(a_call_that_gives_memory_back_is_tried_once_more)
{
    static const enum fake_call calls[] = {FAKE_mem_unmap, FAKE_mem_release, FAKE_mem_address_free};
    for (size_t i = 0; i < 3; i++) {
        reserve(BYTES);
        fake_fail(calls[i], 1, CUDA_ERROR_UNKNOWN);
        CHECK_EQ(cover(0, 3), CUDA_SUCCESS);
        release();
        CHECK(fake_has_failed());
    }
}

MS_TEST_BETWEEN(start, release, uncovers_whole_chunks_only)
{
    CHECK_EQ(cover(0, 2), CUDA_SUCCESS);
    CHECK_EQ(cover(2, 5), CUDA_SUCCESS);
    CHECK_EQ(cover(5, 6), CUDA_SUCCESS);
    CHECK_EQ(ms_backing_uncover(&backing, 1, 6 * FAKE_GRANULE, false), 4 * FAKE_GRANULE);
    CHECK_EQ(backing.chunks.count, 1);
    CHECK_EQ(backing.backed_bytes, 2 * FAKE_GRANULE);
    check_sums(0);
}

/* --- a slow, obvious twin: a chunk's number by granule, 0: none */

static int twin[GRANULES];

static void twin_cover(size_t first, size_t end)
{
    static int last;
    bool is_new = false; /* the granule before */
    for (size_t i = first; i < end; i++) {
        const bool was_backed = twin[i] != 0;
        if (!was_backed)
            twin[i] = is_new ? last : ++last;
        is_new = !was_backed;
    }
}

static void twin_uncover(size_t first, size_t end)
{
    for (size_t i = first; i < end;) {
        size_t stop = i + 1;
        while (stop < GRANULES && twin[stop] == twin[i])
            stop++;
        const bool is_whole = stop <= end && (i == 0 || twin[i - 1] != twin[i]);
        for (; i < stop; i++)
            twin[i] = is_whole ? 0 : twin[i];
    }
}

static void check_twin(void)
{
    struct ms_range range = {0, BYTES};
    size_t at = 0, backed = 0;
    for (; ms_backing_next(&backing, &range); range = (struct ms_range){range.end, BYTES}) {
        for (; at < range.begin / FAKE_GRANULE; at++)
            CHECK_EQ(twin[at], 0);
        for (; at < range.end / FAKE_GRANULE; at++, backed++)
            CHECK(twin[at] == twin[range.begin / FAKE_GRANULE] && twin[at] > 0);
    }
    for (; at < GRANULES; at++)
        CHECK_EQ(twin[at], 0);
    CHECK_EQ(backing.backed_bytes, backed * FAKE_GRANULE);
    check_sums(0);
}

MS_TEST_BETWEEN(start, release, is_as_a_list_of_granules)
{
    const unsigned seed = 20261123;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 2000; round++) {
        const size_t first = (size_t)rand() % GRANULES;
        const size_t end = first + 1 + (size_t)rand() % (GRANULES - first);
        if (rand() % 2 == 0) {
            CHECK_EQ(cover(first, end), CUDA_SUCCESS);
            twin_cover(first, end);
        } else {
            ms_backing_uncover(&backing, first * FAKE_GRANULE, end * FAKE_GRANULE, false);
            twin_uncover(first, end);
        }
        check_twin();
    }
}

/* --- the sink */

MS_TEST_BETWEEN(start, release, the_sink_lies_under_what_is_not_backed)
{
    CHECK_EQ(cover(2, 4), CUDA_SUCCESS);
    CHECK_EQ(ms_backing_sink_map(&backing, FAKE_GRANULE + 5, 6 * FAKE_GRANULE - 5), CUDA_SUCCESS);
    const int sink = fake_memory_at(address_of(1));
    CHECK(sink > 0 && sink != fake_memory_at(address_of(2)));
    CHECK_EQ(fake_memory_at(address_of(4)), sink);
    CHECK_EQ(fake_memory_at(address_of(5)), sink);
    CHECK_EQ(fake_memory_at(address_of(0)), 0);
    CHECK_EQ(fake_memory_at(address_of(6)), 0);
    CHECK_EQ(backing.backed_bytes, 2 * FAKE_GRANULE);
    CHECK_EQ(fake.physical_bytes, 3 * FAKE_GRANULE);
    check_sums(3);
    ms_backing_sink_unmap(&backing, FAKE_GRANULE + 5, 6 * FAKE_GRANULE - 5);
    check_sums(0);

    /* It is made once, and again when it was given back. */
    CHECK_EQ(ms_backing_sink_map(&backing, 0, FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake_memory_at(address_of(0)), sink);
    ms_backing_sink_unmap(&backing, 0, FAKE_GRANULE);
    CHECK(ms_backing_drop_sink(0) && !ms_backing_drop_sink(0));
    check_sums(0);
    CHECK_EQ(ms_backing_sink_map(&backing, 0, FAKE_GRANULE), CUDA_SUCCESS);
    check_sums(1);
    ms_backing_sink_unmap(&backing, 0, FAKE_GRANULE);
}

MS_TEST(no_sink_stays_when_a_call_fails)
{
    for (unsigned nth = 1;; nth++) {
        reserve(BYTES);
        CHECK_EQ(cover(2, 4), CUDA_SUCCESS);
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_OUT_OF_MEMORY);
        const CUresult result = ms_backing_sink_map(&backing, 0, 8 * FAKE_GRANULE);
        check_sums(result == CUDA_SUCCESS ? 6 : 0);
        if (result == CUDA_SUCCESS)
            ms_backing_sink_unmap(&backing, 0, 8 * FAKE_GRANULE);
        const bool has_failed = fake_has_failed();
        release();
        if (!has_failed)
            return;
    }
}

static CUresult (*real_create)(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *prop, unsigned long long flags);
static CUresult (*real_map)(CUdeviceptr address, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags);
static struct ms_backing faster;

/* Another thread makes the sink meanwhile. */
static CUresult create_late(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    const CUresult result = real_create(handle, bytes, prop, flags);
    ms_driver.mem_create = real_create;
    CHECK_EQ(ms_backing_sink_map(&faster, 0, FAKE_GRANULE), CUDA_SUCCESS);
    return result;
}

STORY_BETWEEN(start, release, the_first_of_two_sinks_is_kept,
              EQUALS(ms_addresses_reserve_backing(&faster, 0, FAKE_GRANULE), CUDA_SUCCESS),
              real_create = ms_driver.mem_create, ms_driver.mem_create = create_late,
              EQUALS(ms_backing_sink_map(&backing, 0, FAKE_GRANULE), CUDA_SUCCESS),
              EQUALS(fake_memory_at(backing.address), fake_memory_at(faster.address)),
              EQUALS(fake.physical_bytes, FAKE_GRANULE),
              EQUALS(ms_backing_device_bytes(0), FAKE_GRANULE),
              ms_backing_sink_unmap(&backing, 0, FAKE_GRANULE),
              ms_backing_sink_unmap(&faster, 0, FAKE_GRANULE), ms_backing_release(&faster))

/* Another thread wants memory meanwhile. */
static CUresult map_under_pressure(CUdeviceptr address, size_t bytes, size_t offset,
                                   CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CHECK(!ms_backing_drop_sink(0));
    return real_map(address, bytes, offset, handle, flags);
}

STORY_BETWEEN(start, release, a_sink_that_is_about_to_be_mapped_is_not_dropped,
              real_map = ms_driver.mem_map, ms_driver.mem_map = map_under_pressure,
              EQUALS(ms_backing_sink_map(&backing, 0, 2 * FAKE_GRANULE), CUDA_SUCCESS),
              ms_driver.mem_map = real_map, ms_backing_sink_unmap(&backing, 0, 2 * FAKE_GRANULE),
              IS(ms_backing_drop_sink(0)))

MS_TEST_BETWEEN(start, release, memory_behind_a_handle_of_the_program_is_not_uncovered)
{
    CUmemGenericAllocationHandle handle;
    CHECK_EQ(cover(0, 2), CUDA_SUCCESS);
    CHECK_EQ(cover(2, 3), CUDA_SUCCESS);
    CHECK_EQ(ms_backing_make_real(&backing, 0, 2 * FAKE_GRANULE, &handle), CUDA_SUCCESS);
    CHECK_EQ(ms_backing_uncover(&backing, 0, BYTES, false), FAKE_GRANULE);
    CHECK_EQ(backing.backed_bytes, 2 * FAKE_GRANULE);
    ms_backing_uncover(&backing, 0, 2 * FAKE_GRANULE, true);
    CHECK_EQ(backing.backed_bytes, 0);
    CHECK_EQ(ms_driver.mem_release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, release, a_backing_tells_which_chunks_are_pinned)
{
    static const struct {
        size_t offset, end, wanted_end;
        bool is_pinned;
    } rows[] = {{0, 16, 2, false},  {1, 2, 2, false},  {2, 16, 4, true}, {3, 16, 4, true},
                {2, 3, 3, true},    {4, 16, 5, false}, {5, 6, 6, false}, {5, 16, 7, false},
                {7, 16, 16, false}, {6, 7, 7, false}};
    CHECK_EQ(cover(2, 4), CUDA_SUCCESS);
    CHECK_EQ(cover(5, 7), CUDA_SUCCESS);
    ms_backing_chunk(&backing, 2 * FAKE_GRANULE)->is_pinned = true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        size_t end = rows[i].end * FAKE_GRANULE;
        CHECK_EQ(ms_evict_is_pinned(&backing, rows[i].offset * FAKE_GRANULE, &end),
                 rows[i].is_pinned);
        CHECK_EQ(end, rows[i].wanted_end * FAKE_GRANULE);
    }
    size_t end = BYTES;
    CHECK(ms_evict_is_pinned(&backing, 4 * FAKE_GRANULE - 1, &end)); /* the last byte */
    CHECK_EQ(end, 4 * FAKE_GRANULE);
}

/* --- the sink for queued work */

static const struct ms_range two[] = {{FAKE_GRANULE, 3 * FAKE_GRANULE},
                                      {5 * FAKE_GRANULE, 6 * FAKE_GRANULE}};

static CUevent new_event(void)
{
    CUevent event;
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.event_record(event, FAKE_STREAM), CUDA_SUCCESS);
    return event;
}

static struct ms_sink_mapping *sink_two(void)
{
    struct ms_sink_mapping *sink;
    CHECK_EQ(ms_backing_lend(&backing, NULL, two, 2, FAKE_CONTEXT, &sink), CUDA_SUCCESS);
    check_sums(3);
    CHECK_EQ(fake_memory_at(address_of(1)), fake_memory_at(address_of(5)));
    return sink;
}

MS_TEST_BETWEEN(start, release, memory_for_a_sunk_range_waits_for_its_work)
{
    struct ms_sink_mapping *sink = sink_two();
    CHECK_EQ(cover(2, 4), CUDA_ERROR_NOT_PERMITTED); /* nothing is queued yet */
    CHECK_EQ(ms_backing_sink_wait(&backing, 0, BYTES), CUDA_ERROR_NOT_PERMITTED);
    check_sums(3);
    ms_backing_lent(&backing, sink, new_event());

    CHECK_EQ(cover(8, 9), CUDA_SUCCESS); /* beside it: no wait */
    CHECK_EQ(ms_backing_sink_wait(&backing, 3 * FAKE_GRANULE, 5 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 0);
    check_sums(3);

    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(cover(2, 4), CUDA_ERROR_LAUNCH_FAILED);
    check_sums(3);
    fake.wait_result = CUDA_SUCCESS;
    CHECK_EQ(cover(2, 4), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 2);
    check_sums(0);
    CHECK_EQ(fake.events, 0);
}

MS_TEST_BETWEEN(start, release, a_sink_over_what_is_sunk_waits_for_its_work)
{
    struct ms_sink_mapping *sink = sink_two();
    CHECK_EQ(ms_backing_sink_map(&backing, 2 * FAKE_GRANULE, 4 * FAKE_GRANULE),
             CUDA_ERROR_NOT_PERMITTED);
    ms_backing_lent(&backing, sink, new_event());
    CHECK_EQ(ms_backing_sink_map(&backing, 2 * FAKE_GRANULE, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    check_sums(2);
    ms_backing_sink_unmap(&backing, 2 * FAKE_GRANULE, 4 * FAKE_GRANULE);
    check_sums(0);
}

MS_TEST_BETWEEN(start, release, a_sink_mapping_goes_with_its_backing)
{
    ms_backing_lent(&backing, sink_two(), new_event());
}

MS_TEST_BETWEEN(start, release, work_that_was_not_queued_leaves_nothing_sunk)
{
    struct ms_sink_mapping *sink = sink_two();
    ms_backing_lent(&backing, NULL, NULL);
    check_sums(3);
    ms_backing_lent(&backing, sink, NULL);
    check_sums(0);
    ms_backing_lent(&backing, sink, NULL); /* it is gone */
    ms_backing_lent(&backing, sink, new_event());
    CHECK_EQ(fake.events, 0);
}

MS_TEST(nothing_is_sunk_for_work_when_a_call_fails)
{
    for (unsigned nth = 1;; nth++) {
        struct ms_sink_mapping *sink = NULL;
        reserve(BYTES);
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_OUT_OF_MEMORY);
        const CUresult result = ms_backing_lend(&backing, NULL, two, 2, FAKE_CONTEXT, &sink);
        CHECK_EQ(sink != NULL, result == CUDA_SUCCESS);
        CHECK_EQ(backing.sinks != NULL, result == CUDA_SUCCESS);
        check_sums(result == CUDA_SUCCESS ? 3 : 0);
        const bool has_failed = fake_has_failed();
        release();
        if (!has_failed)
            return;
    }
}

/* --- lending */

static struct ms_pieces lent[2];
static CUmemGenericAllocationHandle handles[2];

static void make_pieces(void)
{
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(ms_backing_create_pieces(0, two[i].end - two[i].begin, &lent[i]), CUDA_SUCCESS);
        handles[i] = lent[i].all[0].handle;
    }
}

static void end_lent_pieces(void)
{
    ms_backing_end_pieces(&lent[0], 0);
    ms_backing_end_pieces(&lent[1], 0);
}

MS_TEST_BETWEEN(start, release, a_lent_range_is_the_memory_of_its_piece)
{
    struct ms_sink_mapping *sink;
    make_pieces();
    CHECK_EQ(ms_backing_lend(&backing, handles, two, 2, FAKE_CONTEXT, &sink), CUDA_SUCCESS);
    CHECK(fake_memory_at(address_of(1)) != 0 && fake_memory_at(address_of(5)) != 0);
    CHECK(fake_memory_at(address_of(1)) != fake_memory_at(address_of(5)));
    CHECK_EQ(backing.backed_bytes, 0);
    CHECK_EQ(fake.physical_bytes, 3 * FAKE_GRANULE);
    ms_backing_lent(&backing, sink, new_event());
    CHECK_EQ(ms_backing_sink_wait(&backing, 0, FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.mappings, 2);
    CHECK_EQ(ms_backing_sink_wait(&backing, 0, 2 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK(fake.mappings == 0 && fake.physical_bytes == 3 * FAKE_GRANULE);
    end_lent_pieces();
    CHECK_EQ(fake.physical_bytes, 0);
}

MS_TEST(nothing_is_lent_when_a_call_fails)
{
    for (unsigned nth = 1;; nth++) {
        struct ms_sink_mapping *sink = NULL;
        reserve(BYTES);
        make_pieces();
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_NOT_SUPPORTED);
        const CUresult result = ms_backing_lend(&backing, handles, two, 2, FAKE_CONTEXT, &sink);
        CHECK_EQ(sink != NULL, result == CUDA_SUCCESS);
        CHECK_EQ(fake.mappings, result == CUDA_SUCCESS ? 2 : 0);
        const bool has_failed = fake_has_failed();
        end_lent_pieces();
        release();
        if (!has_failed)
            return;
    }
}

/* --- peers */

MS_TEST_BETWEEN(start, release, peers_reach_what_is_mapped_now_and_later)
{
    CHECK_EQ(cover(0, 1), CUDA_SUCCESS);
    ms_peers_set(0, 3, true);
    ms_peers_set(0, MS_MAX_DEVICES, true); /* there is none */
    CHECK_EQ(ms_backing_apply_access(&backing, 3, true), CUDA_SUCCESS);
    CHECK_EQ(cover(1, 2), CUDA_SUCCESS);
    CHECK_EQ(fake_access_at(address_of(0)), 1 | 1 << 3);
    CHECK_EQ(fake_access_at(address_of(1)), 1 | 1 << 3);
    ms_peers_set(0, 3, false);
    CHECK_EQ(ms_backing_apply_access(&backing, 3, false), CUDA_SUCCESS);
    CHECK_EQ(cover(2, 3), CUDA_SUCCESS);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(fake_access_at(address_of(i)), 1);
}

MS_TEST_BETWEEN(start, release, each_pair_of_devices_is_told_apart)
{
    enum { LAST = MS_MAX_DEVICES - 1 };
    static const CUdevice none[][2] = {
        {-1, 0}, {0, -1}, {MS_MAX_DEVICES, 0}, {0, MS_MAX_DEVICES}, {-1, -1}};
    CHECK(ms_peers_reach(0, 0) && ms_peers_reach(LAST, LAST));
    CHECK(!ms_peers_reach(1, 0) && !ms_peers_reach(0, LAST));
    ms_peers_set(1, 0, true);
    ms_peers_set(0, LAST, true);
    ms_peers_set(LAST, 5, true);
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++)
        ms_peers_set(none[i][0], none[i][1], true);
    CHECK(ms_peers_reach(1, 0) && !ms_peers_reach(0, 1));
    CHECK(ms_peers_reach(0, LAST) && !ms_peers_reach(LAST, 0));
    CHECK(ms_peers_reach(LAST, 5));
    ms_peers_set(0, 2, true);
    ms_peers_set(0, LAST, false);
    CHECK(ms_peers_reach(0, 2) && !ms_peers_reach(0, LAST));
    ms_peers_set(0, 2, false);
}

/* Enabled peers cannot reach a pool's memory, nor what the program maps itself. */
STORY_BETWEEN(start, release, peers_reach_no_pool, ms_peers_set(0, 3, true),
              backing.is_pooled = true, EQUALS(cover(0, 1), CUDA_SUCCESS),
              EQUALS(fake_access_at(address_of(0)), 1), ms_peers_set(0, 3, false))

MS_TEST_BETWEEN(start, release, access_is_given_up_to_the_first_failure)
{
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(cover(i, i + 1), CUDA_SUCCESS);
    fake_fail(FAKE_mem_set_access, 2, CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(ms_backing_apply_access(&backing, 3, true), CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(fake_access_at(address_of(0)), 1 | 1 << 3);
    CHECK_EQ(fake_access_at(address_of(1)), 1);
    CHECK_EQ(fake_access_at(address_of(2)), 1);
}

/* --- addresses of the program */

static const CUdeviceptr programs = (CUdeviceptr)FAKE_GRANULE << 20;

static CUresult adopt(CUdeviceptr address, size_t bytes)
{
    return ms_backing_adopt(&backing, 5, address, bytes);
}

MS_TEST(whole_granules_of_the_program_are_adopted)
{
    fake_start();
    backing = (struct ms_backing){0};
    CHECK_EQ(adopt(programs + 1, BYTES), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQ(adopt(programs, BYTES + 1), CUDA_ERROR_NOT_SUPPORTED);
    fake_fail(FAKE_mem_get_granularity, 1, CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(adopt(programs + 1, BYTES + 1), CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQ(backing.bytes, 0);
    CHECK_EQ(adopt(programs, BYTES), CUDA_SUCCESS);
    CHECK(backing.address == programs && backing.bytes == BYTES && backing.device == 5);
    CHECK(backing.granule == FAKE_GRANULE && backing.is_programs && backing.mapped_bytes == 0);
    CHECK_EQ(cover(0, 1), CUDA_ERROR_INVALID_VALUE); /* nothing is mapped there */
    release();                                       /* the addresses stay */
    CHECK_EQ(fake.calls[FAKE_mem_address_free], 0);
}

/* --- pieces */

static void check_bytes_of(size_t granule, unsigned char byte)
{
    CHECK(byte_at(granule)[0] == byte && byte_at(granule)[FAKE_GRANULE - 1] == byte);
}

static void cover_with(size_t first, size_t end, int byte)
{
    CHECK_EQ(cover(first, end), CUDA_SUCCESS);
    memset(byte_at(first), byte, (end - first) * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, release, pieces_keep_memory_that_is_mapped_nowhere)
{
    struct ms_pieces pieces;
    cover_with(1, 2, 1);
    cover_with(2, 5, 2);
    cover_with(6, 8, 3);
    cover_with(9, 10, 4);
    CHECK_EQ(ms_backing_take_pieces(&backing, FAKE_GRANULE, 8 * FAKE_GRANULE, &pieces),
             CUDA_SUCCESS);
    CHECK_EQ(pieces.count, 3);
    CHECK_EQ(ms_backing_device_bytes(0), 13 * FAKE_GRANULE); /* counted twice meanwhile */
    ms_backing_uncover(&backing, 0, 9 * FAKE_GRANULE, false);
    CHECK_EQ(fake.physical_bytes, 7 * FAKE_GRANULE);
    CHECK_EQ(ms_backing_put_pieces(&backing, 11 * FAKE_GRANULE, &pieces, false), CUDA_SUCCESS);
    check_bytes_of(11, 1);
    check_bytes_of(12, 2);
    check_bytes_of(14, 2);
    check_bytes_of(17, 3);
    CHECK_EQ(fake_memory_at(address_of(15)), 0);
    CHECK_EQ(backing.backed_bytes, 7 * FAKE_GRANULE);
    ms_backing_end_pieces(&pieces, 0);
    CHECK(pieces.all == NULL && pieces.count == 0);
    check_sums(0);
}

MS_TEST(nothing_stays_when_pieces_cannot_be_taken_or_put)
{
    for (unsigned nth = 1;; nth++) {
        struct ms_pieces pieces;
        reserve(BYTES);
        cover_with(1, 2, 1);
        cover_with(2, 5, 2);
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_UNKNOWN);
        CUresult result = ms_backing_take_pieces(&backing, 0, 8 * FAKE_GRANULE, &pieces);
        if (result == CUDA_SUCCESS) {
            result = ms_backing_put_pieces(&backing, 10 * FAKE_GRANULE, &pieces, false);
            CHECK_EQ(backing.backed_bytes, (result == CUDA_SUCCESS ? 8 : 4) * FAKE_GRANULE);
            ms_backing_end_pieces(&pieces, 0);
        }
        const bool has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        CHECK_EQ(fake.handles, 0);
        CHECK_EQ(fake.physical_bytes, 4 * FAKE_GRANULE);
        release();
        if (!has_failed)
            return;
    }
}

/* --- joining */

static CUresult copy_result[3]; /* to the host, and back; on the device */
static unsigned copies_back;

static CUresult memcpy_dtoh(void *to, CUdeviceptr from, size_t bytes)
{
    if (copy_result[0] == CUDA_SUCCESS)
        memcpy(to, (const void *)(uintptr_t)from, bytes);
    return copy_result[0];
}

static CUresult memcpy_htod(CUdeviceptr to, const void *from, size_t bytes)
{
    copies_back++;
    if (copy_result[1] == CUDA_SUCCESS)
        memcpy((void *)(uintptr_t)to, from, bytes);
    return copy_result[1];
}

static CUresult memcpy_dtod_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    CHECK(fake_memory_at(to) > 0 && fake_memory_at(from) > 0);
    if (copy_result[2] == CUDA_SUCCESS)
        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return copy_result[2];
}

static unsigned char *joined; /* room for a copy */
static bool is_lost;

static void start_join(void)
{
    start();
    ms_driver.memcpy_dtoh = memcpy_dtoh;
    ms_driver.memcpy_htod = memcpy_htod;
    ms_driver.memcpy_dtod_async = memcpy_dtod_async;
    memset(copy_result, 0, sizeof(copy_result));
    joined = malloc(BYTES);
    cover_with(1, 2, 1);
    cover_with(2, 4, 2);
    cover_with(4, 5, 3);
    is_lost = true;
}

static void end_join(void)
{
    free(joined);
    release();
}

static CUresult join(bool may_give_up)
{
    return ms_backing_join(&backing, FAKE_GRANULE, 4 * FAKE_GRANULE, joined, may_give_up, &is_lost);
}

static void check_joined(bool is_joined)
{
    CHECK_EQ(ms_backing_is_one_chunk(&backing, FAKE_GRANULE, 4 * FAKE_GRANULE), is_joined);
    CHECK(!is_lost);
    check_bytes_of(1, 1);
    check_bytes_of(2, 2);
    check_bytes_of(3, 2);
    check_bytes_of(4, 3);
    CHECK_EQ(fake.handles, 0);
    CHECK_EQ(fake.physical_bytes, 4 * FAKE_GRANULE);
    check_sums(0);
}

MS_TEST_BETWEEN(start_join, end_join, chunks_are_joined_with_their_bytes)
{
    CHECK_EQ(join(false), CUDA_SUCCESS);
    check_joined(true);
    CHECK_EQ(copies_back, 0); /* nothing is sent to the device */
}

STORY_BETWEEN(start_join, end_join, a_device_that_cannot_copy_gets_the_bytes_from_the_host,
              copy_result[2] = CUDA_ERROR_UNKNOWN, EQUALS(join(false), CUDA_SUCCESS),
              check_joined(true), EQUALS(copies_back, 1))

MS_TEST_BETWEEN(start_join, end_join, chunks_without_addresses_beside_get_the_bytes_from_the_host)
{
    fake_fail(FAKE_mem_address_reserve, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(join(false), CUDA_SUCCESS);
    CHECK(fake_has_failed());
    check_joined(true);
    CHECK_EQ(copies_back, 1);
}

STORY_BETWEEN(start_join, end_join, a_backing_that_cannot_be_read_is_not_joined,
              copy_result[0] = CUDA_ERROR_LAUNCH_FAILED,
              EQUALS(join(true), CUDA_ERROR_LAUNCH_FAILED), check_joined(false),
              EQUALS(fake.calls[FAKE_mem_create], 3))

MS_TEST_BETWEEN(start_join, end_join, a_join_fails_without_memory_for_both)
{
    fake.total_bytes = 6 * FAKE_GRANULE;
    CHECK_EQ(join(false), CUDA_ERROR_OUT_OF_MEMORY);
    check_joined(false);
    CHECK_EQ(fake.calls[FAKE_mem_create], 4); /* it is asked for once */
}

STORY_BETWEEN(start_join, end_join, a_join_that_may_give_up_the_old_memory_has_room,
              fake.total_bytes = 6 * FAKE_GRANULE, EQUALS(join(true), CUDA_SUCCESS),
              check_joined(true))

MS_TEST_BETWEEN(start_join, end_join, joining_is_tried_three_times)
{
    copy_result[1] = copy_result[2] = CUDA_ERROR_UNKNOWN;
    CHECK_EQ(join(true), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(copies_back, 3);
    check_joined(false); /* it is under its old handles */
}

STORY_BETWEEN(start_join, end_join, a_single_failure_does_not_end_a_join,
              fake_fail(FAKE_mem_map, 1, CUDA_ERROR_UNKNOWN), EQUALS(join(false), CUDA_SUCCESS),
              IS(fake_has_failed()), check_joined(true))

static CUresult map_nothing(CUdeviceptr address, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)address, (void)bytes, (void)offset, (void)handle, (void)flags;
    return CUDA_ERROR_UNKNOWN;
}

/* Nothing can be mapped any more: what was there is lost, and that is told. */
STORY_BETWEEN(start_join, end_join, a_join_that_cannot_put_memory_back_says_it_is_lost,
              real_map = ms_driver.mem_map, ms_driver.mem_map = map_nothing,
              EQUALS(join(true), CUDA_ERROR_UNKNOWN), IS(is_lost),
              EQUALS(backing.backed_bytes, FAKE_GRANULE), EQUALS(fake.handles, 0), check_sums(0),
              ms_driver.mem_map = real_map)

/* After giving up the old memory: it is tried again, and then lost. */
MS_TEST_BETWEEN(start_join, end_join, a_join_that_gave_memory_up_in_vain_says_it_is_lost)
{
    fake.total_bytes = 6 * FAKE_GRANULE;
    copy_result[1] = CUDA_ERROR_UNKNOWN;
    CHECK_EQ(join(true), CUDA_ERROR_UNKNOWN);
    CHECK(is_lost);
    CHECK_EQ(copies_back, 3);
    CHECK_EQ(backing.backed_bytes, FAKE_GRANULE);
    check_sums(0);
}

MS_TEST_BETWEEN(start_join, end_join, only_one_chunk_has_a_handle_to_name)
{
    CUmemGenericAllocationHandle handle;
    CHECK_EQ(ms_backing_make_real(&backing, FAKE_GRANULE, 4 * FAKE_GRANULE, &handle),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(ms_backing_make_real(&backing, 0, FAKE_GRANULE, &handle), CUDA_ERROR_INVALID_VALUE);
    fake_fail(FAKE_mem_retain, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_backing_make_real(&backing, FAKE_GRANULE, 2 * FAKE_GRANULE, &handle),
             CUDA_ERROR_UNKNOWN);
    size_t end = BYTES;
    CHECK(!ms_evict_is_pinned(&backing, FAKE_GRANULE, &end));
}

/* --- without host memory */

MS_TEST_BETWEEN(start, release, a_backing_without_host_memory_lends_and_keeps_nothing)
{
    struct ms_sink_mapping *sink;
    struct ms_pieces pieces;
    const CUmemGenericAllocationHandle one = 1;
    cover_with(0, 1, 1);
    may_make = 0;
    CHECK_EQ(ms_backing_lend(&backing, NULL, two, 2, FAKE_CONTEXT, &sink),
             CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_backing_lend(&backing, &one, two, 1, FAKE_CONTEXT, &sink),
             CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_backing_take_pieces(&backing, 0, BYTES, &pieces), CUDA_ERROR_OUT_OF_MEMORY);
    may_make = 1000000;
    CHECK_EQ(fake.calls[FAKE_mem_retain], 0);
    check_sums(0);
}

/* Until then, as many chunks as there is room for. */
MS_TEST_BETWEEN(start, release, a_chunk_that_cannot_be_recorded_is_not_mapped)
{
    size_t granule = 0;
    may_make = 1;
    while (cover(granule, granule + 1) == CUDA_SUCCESS)
        granule += 2;
    CHECK(granule > 0 && granule < GRANULES);
    check_sums(0);
    may_make = 0;
    CHECK_EQ(ms_backing_add_real(&backing, granule * FAKE_GRANULE, (granule + 1) * FAKE_GRANULE),
             CUDA_ERROR_OUT_OF_MEMORY);
    may_make = 1000000;
    check_sums(0);
    CHECK_EQ(cover(granule, granule + 1), CUDA_SUCCESS);
}

/* --- what cannot be given back */

static CUresult fail_always(CUdeviceptr address, size_t bytes)
{
    (void)address, (void)bytes;
    return CUDA_ERROR_UNKNOWN;
}

static CUresult fail_to_release(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return CUDA_ERROR_UNKNOWN;
}

STORY_AFTER(start, the_log_tells_of_memory_that_cannot_be_given_back, open_log(MS_WARN),
            ms_driver.mem_release = fail_to_release, EQUALS(cover(0, 1), CUDA_SUCCESS),
            EQUALS(count_log_lines("cannot give device memory back: CUDA error 999"), 1),
            ms_driver.mem_unmap = fail_always, ms_driver.mem_address_free = fail_always,
            ms_backing_release(&backing),
            EQUALS(count_log_lines("cannot unmap 65536 bytes at 0x"), 1),
            EQUALS(count_log_lines("cannot free the addresses at 0x"), 1),
            EQUALS(count_log_lines("CUDA error 999"), 3))

/* --- the end of the process */

static CUresult (*real_unmap)(CUdeviceptr address, size_t bytes);
static unsigned unmaps;

static CUresult unmap_too_late(CUdeviceptr address, size_t bytes)
{
    unmaps++;
    CHECK_EQ(real_unmap(address, bytes), CUDA_SUCCESS);
    return CUDA_ERROR_DEINITIALIZED;
}

STORY_BETWEEN(start, release, a_driver_that_has_shut_down_is_asked_once,
              EQUALS(cover(0, 1), CUDA_SUCCESS), real_unmap = ms_driver.mem_unmap,
              ms_driver.mem_unmap = unmap_too_late,
              EQUALS(ms_backing_uncover(&backing, 0, FAKE_GRANULE, false), FAKE_GRANULE),
              EQUALS(unmaps, 1), ms_driver.mem_unmap = real_unmap)
