/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/range.h"
#include "runtime/calls/move.h"
#include "runtime/calls/write.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/reuse.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/shard/placement_query.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/parked_of.h"
#include "tests/unit/files/files.h"
#include "tests/unit/snapshot_of.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x04030201};
static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content nines = {.kind = MS_FILL, .pattern = 0x09090909};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static struct ms_allocation *source, *destination;
static CUdeviceptr program;
static unsigned char host[FAKE_GRANULE];

/* --- what it tells others, which see it too unless the test has an answer */

struct told {
    int count;
    const struct ms_allocation *of;
    size_t begin, end;
};
static struct told read_remote, asked_plan, later, bound, shadow_written, shadow_copied, compared,
    noted;
static struct told uses[2]; /* the last two */
static CUresult remote_result, bound_result;
static bool is_compared_plain;

static void tell(struct told *told, const struct ms_allocation *of, size_t begin, size_t end)
{
    *told = (struct told){told->count + 1, of, begin, end};
}

static void check_told(const struct told *told, int count, const struct ms_allocation *of,
                       size_t begin, size_t end)
{
    CHECK_EQ(told->count, count);
    CHECK(told->of == of);
    CHECK_EQ(told->begin, begin);
    CHECK_EQ(told->end, end);
}

#define SEES(result, name, parameters) \
    result __real_##name parameters;   \
    result __wrap_##name parameters;   \
    result __wrap_##name parameters

SEES(CUresult, ms_placement_query_read_remote,
     (const struct ms_allocation *allocation, size_t begin, size_t end))
{
    tell(&read_remote, allocation, begin, end);
    return remote_result != CUDA_SUCCESS
               ? remote_result
               : __real_ms_placement_query_read_remote(allocation, begin, end);
}

SEES(void, ms_placement_query, (struct ms_allocation * allocation, size_t begin, size_t end))
{
    tell(&asked_plan, allocation, begin, end);
    __real_ms_placement_query(allocation, begin, end);
}

SEES(void, ms_materialise_granules_later,
     (struct ms_allocation * allocation, size_t begin, size_t end))
{
    tell(&later, allocation, begin, end);
    __real_ms_materialise_granules_later(allocation, begin, end);
}

SEES(CUresult, ms_write_bound, (struct ms_allocation * allocation, size_t offset))
{
    tell(&bound, allocation, offset, offset);
    return bound_result != CUDA_SUCCESS ? bound_result : __real_ms_write_bound(allocation, offset);
}

SEES(void, ms_carve_add_use, (struct ms_allocation * allocation, size_t begin, size_t end))
{
    uses[0] = uses[1];
    tell(&uses[1], allocation, begin, end);
    __real_ms_carve_add_use(allocation, begin, end);
}

SEES(void, ms_state_event, (const struct ms_event *happened))
{
    if (happened->kind == MS_EVENT_RECORD)
        tell(&noted, NULL, happened->address, happened->address + happened->bytes);
    __real_ms_state_event(happened);
}

/* There are shadows where the test says so. */
SEES(void, ms_shadow_write,
     (struct ms_allocation * allocation, struct ms_extent *written, const void *host_bytes,
      CUstream stream))
{
    CHECK(written->content.kind == MS_FILL && host_bytes == NULL && stream == FAKE_STREAM);
    tell(&shadow_written, allocation, written->begin, written->end);
    written->content.is_shadowed = true;
}

SEES(void, ms_shadow_copy,
     (const struct ms_copied *copied, struct ms_content *moved, CUstream stream))
{
    CHECK(copied->copy == destination && copied->source == source && stream == FAKE_STREAM);
    CHECK(copied->content->kind == MS_FILL && moved->kind == MS_FILL && !moved->is_shadowed);
    tell(&shadow_copied, copied->copy, copied->to, copied->from + copied->bytes);
    moved->is_shadowed = copied->content->is_shadowed;
}

SEES(void, ms_compare_copy,
     (struct ms_allocation * from, const struct ms_extent *extent, CUdeviceptr at, bool is_plain,
      CUstream stream))
{
    const size_t bytes = extent->end - extent->begin;
    if (!extent->content.is_shadowed)
        return;
    CHECK(stream == FAKE_STREAM && ((const unsigned char *)(uintptr_t)at)[bytes - 1] == 7);
    tell(&compared, from, extent->begin, at + bytes);
    is_compared_plain = is_plain;
}

static void start(void)
{
    fake_start();
    source = fake_allocation(BYTES);
    destination = fake_allocation(BYTES);
    program = fake_program_memory(BYTES);
    ms_host_snapshot_set_limit(16 * BYTES);
    for (size_t i = 0; i < sizeof(host); i++)
        host[i] = (unsigned char)(i * 13);
}

static void end(void)
{
    fake_check_allocation(source);
    fake_check_allocation(destination);
    fake_allocation_free(source);
    fake_allocation_free(destination);
    fake_program_memory_free(program);
    fake_check_empty();
}

static void set(struct ms_allocation *allocation, size_t first, size_t behind,
                const struct ms_content *content)
{
    fake_set(allocation, first * FAKE_GRANULE, behind * FAKE_GRANULE, content);
}

static void set_snapshot(struct ms_allocation *allocation, size_t begin, size_t behind)
{
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = snapshot_of(host, behind - begin)};
    fake_set(allocation, begin, behind, &content);
    ms_source_drop(content.source);
}

static unsigned char *bytes_of(const struct ms_allocation *allocation)
{
    return (unsigned char *)(uintptr_t)allocation->address;
}

static CUresult read_bytes(struct ms_allocation *allocation, size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result = ms_materialise(allocation, begin, behind, MS_NEED_READ);
    ms_space_release(allocation);
    return result;
}

static struct ms_content at(const struct ms_allocation *allocation, size_t granule)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), granule * FAKE_GRANULE).content;
}

static struct ms_movement row(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (struct ms_movement){.kind = MS_COPY_ON_DEVICE,
                                .stream = FAKE_STREAM,
                                .width = bytes,
                                .height = 1,
                                .depth = 1,
                                .to = ms_side_of_device(to),
                                .from = ms_side_of_device(from)};
}

/* True if it is answered; otherwise what it reads is held. */
static bool copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUresult *result_out)
{
    bool is_held;
    const struct ms_movement movement = row(to, from, bytes);
    const bool is_answered = ms_move_begin(&movement, &is_held, result_out) == MS_ANSWERED;
    CHECK_EQ(is_held, !is_answered && bytes > 0);
    return is_answered;
}

static CUresult run(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    const struct ms_movement movement = row(to, from, bytes);
    return ms_move_run(&movement);
}

/* It is answered: recorded or played. */
static void must_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUresult result;
    CHECK(copy(to, from, bytes, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
}

static void must_copy_all(void)
{
    must_copy(destination->address, source->address, BYTES);
}

/* The driver is to make it. */
static void check_forwarded(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUresult result;
    CHECK(!copy(to, from, bytes, &result));
}

/* Nothing is held for a call that has been made, or was never to be made: what is cached can be
 * taken. */
static void check_none_held(void)
{
    int attempts = 0;
    struct ms_allocation *spare = fake_allocation(FAKE_GRANULE);
    fake_set(spare, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .cached = true});
    ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts);
    CHECK_EQ(ms_allocation_backing(spare)->backed_bytes, 0);
    fake_allocation_free(spare);
}

/* Work is queued that may wait for something, and is not done. */
static void be_busy(bool is_busy)
{
    atomic_store(&ms_hot.gated, is_busy);
    fake.is_busy = is_busy;
}

/* --- what is recorded */

MS_TEST_BETWEEN(start, end, lineage_moves_without_memory_and_without_work)
{
    set(source, 0, 4, &pattern);
    set_snapshot(source, 4 * FAKE_GRANULE, 5 * FAKE_GRANULE);
    must_copy(destination->address + 1, source->address, 5 * FAKE_GRANULE);
    CHECK_EQ(fake.work_count, 0);
    CHECK_EQ(ms_allocation_backing(source)->backed_bytes +
                 ms_allocation_backing(destination)->backed_bytes,
             0);
    CHECK_EQ(at(destination, 1).pattern, 0x03020104); /* as far as it was moved */
    CHECK_EQ(at(destination, 5).kind, MS_SOURCE);
    check_none_held();
    CHECK_EQ(read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
    for (size_t i = 0; i < 4 * FAKE_GRANULE; i++)
        CHECK_EQ(bytes_of(destination)[1 + i], 1 + i % 4);
    CHECK_BYTES(bytes_of(destination) + 1 + 4 * FAKE_GRANULE, host, sizeof(host));
}

MS_TEST_BETWEEN(start, end, a_copy_of_unwritten_bytes_makes_both_sides_zero)
{
    must_copy(destination->address + 3, source->address + 5, FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(source)->kind_bytes[MS_FILL], FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(destination)->kind_bytes[MS_FILL], FAKE_GRANULE);
    const struct ms_content there = ms_lineage_at(ms_allocation_lineage(source), 5).content;
    const struct ms_content here = ms_lineage_at(ms_allocation_lineage(destination), 3).content;
    CHECK(there.kind == MS_FILL && there.pattern == 0 && !there.is_shadowed);
    CHECK(here.kind == MS_FILL && here.pattern == 0);
}

MS_TEST_BETWEEN(start, end, a_copy_of_unwritten_bytes_to_other_memory_copies_them)
{
    must_copy(program, source->address, FAKE_GRANULE);
    CHECK(at(source, 0).kind == MS_RESIDENT && at(source, 1).kind == MS_UNDEFINED);
    CHECK_EQ(fake.work_count, 1);
    CHECK_EQ(fake.work[0].call, FAKE_memcpy_dtod_async);
}

MS_TEST_BETWEEN(start, end, a_copy_takes_no_locality_from_its_source)
{
    set(source, 0, 8,
        &(struct ms_content){
            .kind = MS_FILL, .pattern = 1, .locality = MS_REMOTE, .is_remote_copy = true});
    must_copy_all();
    CHECK(at(destination, 0).locality == MS_UNKNOWN && !at(destination, 0).is_remote_copy);
}

/* --- what is replayed */

MS_TEST_BETWEEN(start, end, into_memory_lineage_is_played_in_the_order_of_the_stream)
{
    set(source, 0, 8, &sevens);
    set(destination, 2, 4, &resident);
    must_copy_all();
    CHECK_EQ(fake.work_count, 1);
    CHECK_EQ(fake.work[0].address, destination->address + 2 * FAKE_GRANULE);
    CHECK_EQ(fake.work[0].bytes, 2 * FAKE_GRANULE);
    CHECK(fake.work[0].stream == FAKE_STREAM);
    CHECK_EQ(ms_allocation_backing(source)->backed_bytes, 0);
    CHECK_EQ(ms_allocation_backing(destination)->backed_bytes, 2 * FAKE_GRANULE);
    CHECK(at(destination, 0).kind == MS_FILL && at(destination, 2).kind == MS_RESIDENT);

    must_copy(program, source->address, BYTES);
    CHECK_EQ(((unsigned char *)(uintptr_t)program)[BYTES - 1], 7);
    CHECK_EQ(ms_allocation_backing(source)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_piece_is_cut_where_the_destination_changes)
{
    set(source, 0, 4, &sevens);
    set(destination, 0, 1, &resident);
    set(destination, 2, 3, &resident);
    must_copy(destination->address, source->address, 4 * FAKE_GRANULE);
    CHECK_EQ(fake.work_count, 2);
    CHECK_EQ(ms_allocation_lineage(destination)->kind_bytes[MS_FILL], 2 * FAKE_GRANULE);
    CHECK_EQ(read_bytes(destination, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(bytes_of(destination)[4 * FAKE_GRANULE - 1], 7);
}

/* No granule is in memory for a part of its bytes alone. */
MS_TEST_BETWEEN(start, end, a_copy_into_a_granule_with_memory_is_played_at_once)
{
    set_snapshot(source, 0, FAKE_GRANULE);
    fake_set(destination, 0, 1000, &resident);
    fake_set(destination, 2000, 3000, &resident);
    must_copy(destination->address, source->address, FAKE_GRANULE);
    CHECK_EQ(fake.work_count, 4);
    CHECK(!ms_lineage_any(ms_allocation_lineage(destination), 0, FAKE_GRANULE, MS_MISSING));
    CHECK_BYTES(bytes_of(destination), host, sizeof(host));
}

/* Without a plan, too; whole or a part of it. */
MS_TEST_BETWEEN(start, end, a_copy_of_cached_bytes_reads_no_file_twice)
{
    static struct test_file file; /* removed when the process ends */
    struct ms_allocation *block = fake_allocation(FAKE_GRANULE);
    make_test_file(&file, "/tmp", FAKE_GRANULE);
    fake_set(block, 0, FAKE_GRANULE,
             &(struct ms_content){.kind = MS_SOURCE, .source = file.source, .cached = true});
    ms_source_drop(file.source);
    must_copy(destination->address, block->address, FAKE_GRANULE);
    CHECK_EQ(at(destination, 0).kind, MS_RESIDENT);
    CHECK_EQ(fake.work_count, 1);
    CHECK_EQ(fake.work[0].call, FAKE_memcpy_dtod_async);
    must_copy(destination->address + FAKE_GRANULE, block->address, FAKE_GRANULE / 2);
    CHECK_EQ(at(destination, 1).kind, MS_RESIDENT);
    CHECK_EQ(fake.work_count, 2);
    CHECK_EQ(fake.work[1].call, FAKE_memcpy_dtod_async);
    CHECK(at(block, 0).cached);
    fake_allocation_free(block);
}

/* Where the destination has memory, a copy sends the bytes: the first time to it alone. */
MS_TEST_BETWEEN(start, end, a_second_copy_into_memory_brings_its_source_into_memory)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", BYTES);
    set(source, 0, GRANULES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    set(destination, 0, GRANULES, &resident);
    for (int time = 0; time < 3; time++) {
        const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
        memset(bytes_of(destination), 1, BYTES);
        must_copy_all();
        CHECK_BYTES(bytes_of(destination), file.data, BYTES);
        CHECK_EQ(ms_allocation_lineage(source)->cached_bytes, time == 0 ? 0 : BYTES);
        CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - before, time < 2 ? BYTES : 0);
    }
    set(source, 0, GRANULES, &sevens);
    ms_source_drop(file.source);
}

/* The copy that is recorded is known as one of the source. */
MS_TEST_BETWEEN(start, end, the_original_of_a_recorded_copy_is_known)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", BYTES);
    set(source, 0, GRANULES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    must_copy(destination->address, source->address + FAKE_GRANULE, FAKE_GRANULE);
    CHECK(ms_space_claim(destination->address) == destination);
    ms_reuse_originals(destination, 0, FAKE_GRANULE, MS_NEED_CONTRIBUTE);
    ms_space_release(destination);
    CHECK(ms_allocation_lineage(source)->cached_bytes == FAKE_GRANULE && at(source, 1).cached);
    CHECK_BYTES(bytes_of(destination), file.data + FAKE_GRANULE, FAKE_GRANULE);
    set(source, 0, GRANULES, &sevens);
    set(destination, 0, GRANULES, &sevens);
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(start, end, a_recorded_copy_is_known_as_made_of_its_source)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", BYTES);
    set(source, 0, GRANULES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    must_copy(destination->address, source->address + FAKE_GRANULE, FAKE_GRANULE);
    ms_reuse_make_dependents(source->address, FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(destination)->cached_bytes, 0);
    ms_reuse_make_dependents(source->address, FAKE_GRANULE + 1);
    CHECK_EQ(ms_allocation_lineage(destination)->cached_bytes, FAKE_GRANULE);
    CHECK_BYTES(bytes_of(destination), file.data + FAKE_GRANULE, FAKE_GRANULE);
    set(source, 0, GRANULES, &sevens);
    set(destination, 0, GRANULES, &sevens);
    ms_source_drop(file.source);
}

/* This rank will use the bytes that the plan left here; other bytes are as easily made again. */
MS_TEST_BETWEEN(start, end, a_copy_copies_cached_bytes_of_the_plans_own_part_alone)
{
    for (size_t way = 0; way < 2; way++) {
        struct ms_content content = sevens;
        content.locality = way == 0 ? MS_LOCAL : MS_UNKNOWN;
        content.cached = true;
        set(source, 0, 8, &content);
        must_copy(destination->address + way * FAKE_GRANULE, source->address, FAKE_GRANULE);
        CHECK_EQ(at(destination, way).kind, way == 0 ? MS_RESIDENT : MS_FILL);
        CHECK(!at(destination, way).cached);
    }
}

MS_TEST_BETWEEN(start, end, a_copy_of_bytes_in_memory_is_forwarded_and_holds_them)
{
    set(source, 0, 8, &resident);
    set(destination, 0, 8, &pattern);
    check_forwarded(destination->address, source->address, BYTES);
    CHECK(!ms_lineage_any(ms_allocation_lineage(destination), 0, BYTES, MS_NOT_RESIDENT));
    CHECK_EQ(fake.work_count, 0); /* what is overwritten is not replayed */
    struct ms_allocation *spare = fake_allocation(FAKE_GRANULE);
    fake_set(spare, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .cached = true});
    int attempts = 0;
    CHECK(!ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    fake_allocation_free(spare);
    ms_evict_let_go();
    check_none_held();
}

MS_TEST_BETWEEN(start, end, a_copy_of_no_bytes_or_of_other_memory_is_forwarded)
{
    set(destination, 0, 8, &pattern);
    check_forwarded(destination->address, source->address, 0);
    CHECK_EQ(at(destination, 0).kind, MS_FILL);
    check_forwarded(destination->address, program, BYTES);
    ms_evict_let_go();
    CHECK(!ms_lineage_any(ms_allocation_lineage(destination), 0, BYTES, MS_NOT_RESIDENT));
    CHECK_EQ(fake.work_count, 0);
    check_none_held();
}

/* A call that the driver refuses changes nothing. */
MS_TEST_BETWEEN(start, end, a_copy_the_driver_may_refuse_keeps_its_destination)
{
    set(destination, 0, 8, &sevens);
    check_forwarded(destination->address, program + FAKE_GRANULE, BYTES); /* its end is nowhere */
    ms_evict_let_go();
    CHECK_EQ(bytes_of(destination)[BYTES - 1], 7);

    set(source, 0, 8, &resident);
    set(destination, 0, 8, &nines);
    fake.refused_stream = FAKE_STREAM;
    check_forwarded(destination->address, source->address, BYTES);
    ms_evict_let_go();
    CHECK_EQ(bytes_of(destination)[BYTES - 1], 9);
}

MS_TEST_BETWEEN(start, end, a_copy_beyond_an_allocation_is_refused)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_movement movement;
    set(source, 0, 8, &sevens);
    movement = row(destination->address, source->address + 1, BYTES);
    CHECK(ms_copy_on_device(&movement, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    movement = row(destination->address + 1, source->address, BYTES);
    CHECK(ms_copy_on_device(&movement, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(at(destination, 0).kind, MS_UNDEFINED);
    check_none_held();
}

/* --- when nothing may be recorded */

MS_TEST(the_driver_copies_behind_held_up_work_and_in_a_capture)
{
    for (int way = 0; way < 2; way++) {
        start();
        set(source, 0, 8, &sevens);
        if (way == 0)
            ms_order_set_capture(true);
        else
            be_busy(true);
        check_forwarded(destination->address, source->address, BYTES);
        ms_evict_let_go();
        CHECK_EQ(bytes_of(source)[BYTES - 1], 7);
        CHECK(!ms_lineage_any(ms_allocation_lineage(destination), 0, BYTES, MS_NOT_RESIDENT));
        if (way == 0)
            ms_order_set_capture(false);
        be_busy(false);
        end();
    }
}

/* --- what other ranks have, and what is stored */

MS_TEST_BETWEEN(start, end, a_copy_of_absent_bytes_is_absent_or_refused)
{
    CUresult result;
    set(source, 2, 4, &absent);
    set(destination, 0, 8, &resident);
    must_copy_all();
    CHECK(at(destination, 2).kind == MS_ABSENT && at(destination, 2).locality == MS_REMOTE);
    CHECK_EQ(at(destination, 4).kind, MS_RESIDENT);
    CHECK(copy(program, source->address, BYTES, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);

    /* Also behind work that may wait, and nothing else is recorded there. */
    be_busy(true);
    set(source, 5, 6, &sevens);
    set(source, 6, 8, &(struct ms_content){.kind = MS_UNDEFINED});
    set(destination, 0, 8, &nines);
    must_copy_all();
    CHECK(at(destination, 2).kind == MS_ABSENT && at(destination, 4).kind == MS_RESIDENT);
    CHECK(at(destination, 5).kind == MS_RESIDENT && bytes_of(destination)[5 * FAKE_GRANULE] == 7);
    CHECK(at(source, 6).kind == MS_RESIDENT && at(destination, 6).kind == MS_RESIDENT);
    be_busy(false);
}

MS_TEST_BETWEEN(start, end, absence_is_copied_to_the_byte)
{
    fake_set(source, 2 * FAKE_GRANULE + 3, 4 * FAKE_GRANULE, &absent);
    must_copy(destination->address + 7, source->address + FAKE_GRANULE, 5 * FAKE_GRANULE);
    const struct ms_extent extent =
        ms_lineage_at(ms_allocation_lineage(destination), FAKE_GRANULE + 10);
    CHECK_EQ(extent.content.kind, MS_ABSENT);
    CHECK_EQ(ms_allocation_lineage(destination)->kind_bytes[MS_ABSENT], 2 * FAKE_GRANULE - 3);
    CHECK_EQ(extent.end, 3 * FAKE_GRANULE + 7);
}

/* Granules [0, 4) of the source are in a store of nines. */
static void set_stored(void)
{
    CUevent event;
    struct ms_content content = {.kind = MS_PARKED};
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, 4 * FAKE_GRANULE, false, &content.parked),
             CUDA_SUCCESS);
    memset(bytes_of_parked(content.parked), 9, 4 * FAKE_GRANULE);
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.event_record(event, FAKE_STREAM), CUDA_SUCCESS);
    ms_parked_attach_event(content.parked, event);
    set(source, 0, 4, &content);
    ms_parked_drop(content.parked);
}

MS_TEST_BETWEEN(start, end, a_copy_of_stored_bytes_moves_lineage_or_goes_to_its_place)
{
    set_stored();
    must_copy(destination->address, source->address, 4 * FAKE_GRANULE);
    CHECK(at(destination, 0).kind == MS_PARKED);
    CHECK_EQ(fake.work_count, 0);
    must_copy(program, destination->address, 4 * FAKE_GRANULE);
    CHECK_EQ(((unsigned char *)(uintptr_t)program)[4 * FAKE_GRANULE - 1], 9);
    CHECK_EQ(ms_allocation_backing(destination)->backed_bytes, 0);
    CHECK(fake.calls[FAKE_stream_synchronize] > 0); /* the store may go */

    /* A little of it is brought into its place first. */
    must_copy(program, destination->address, FAKE_GRANULE);
    CHECK(at(destination, 0).kind == MS_RESIDENT);
    CHECK_EQ(bytes_of(destination)[0], 9);
}

MS_TEST_BETWEEN(start, end, a_copy_to_another_device_moves_no_stored_lineage)
{
    set_stored();
    destination->device = 1;
    must_copy(destination->address, source->address, 4 * FAKE_GRANULE);
    destination->device = 0;
    CHECK(at(destination, 0).kind == MS_RESIDENT);
    CHECK_EQ(bytes_of(destination)[4 * FAKE_GRANULE - 1], 9);
}

/* --- in sequence */

/* The first of two tensors that one kernel puts one behind the other. */
static void must_put_first(void)
{
    static const size_t sizes[] = {4 * FAKE_GRANULE, FAKE_GRANULE};
    static const struct ms_sequence sequence = {.bytes = sizes, .count = 2};
    struct ms_movement movement = row(destination->address, source->address, 4 * FAKE_GRANULE);
    movement.sequence = &sequence;
    CHECK_EQ(ms_move_run(&movement), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_copy_by_a_kernel_of_tensors_in_a_row_says_so)
{
    set(source, 0, 4, &sevens);
    must_put_first();
    CHECK(at(destination, 3).kind == MS_FILL && at(destination, 3).is_in_sequence);
    must_copy(source->address, destination->address, 4 * FAKE_GRANULE);
    CHECK(!at(source, 0).is_in_sequence);
    CHECK_EQ(read_bytes(destination, 0, FAKE_GRANULE), CUDA_SUCCESS);
    CHECK(!at(destination, 0).is_in_sequence && at(destination, 1).is_in_sequence);
}

/* It is copied on already. */
MS_TEST_BETWEEN(start, end, a_copy_of_stored_bytes_is_in_no_sequence)
{
    set_stored();
    must_put_first();
    CHECK(at(destination, 0).kind == MS_PARKED && !at(destination, 0).is_in_sequence);
}

/* --- in memory that can be restored */

enum { G = FAKE_GRANULE };

static bool copy_row(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUresult *result_out)
{
    const struct ms_movement movement = row(to, from, bytes);
    return ms_copy_on_device(&movement, result_out);
}

/* Granules [1, 5) of the source are in a store of bytes that differ, and sevens are around it. */
static void set_store_inside(void)
{
    set(source, 0, 8, &sevens);
    set_stored();
    const struct ms_content content = at(source, 0);
    unsigned char *bytes = bytes_of_parked(content.parked);
    for (size_t i = 0; i < 4 * G; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 251);
    ms_counted_take(content.owned);
    set(source, 0, 8, &sevens);
    set(source, 1, 5, &content);
    ms_counted_drop(content.owned);
}

static void set_filled(void)
{
    set(source, 0, 8, &sevens);
    fake_set(source, 0, 3, &pattern);
}

static void set_cached(void)
{
    set_filled();
    CHECK_EQ(read_bytes(source, 0, BYTES), CUDA_SUCCESS);
    CHECK(at(source, 0).cached);
}

/* The destination loses its lineage, and all bytes beside the destination keep theirs. */
MS_TEST(a_copy_over_cached_bytes_ends_their_lineage_there_alone)
{
    static void (*const sets[])(void) = {set_store_inside, set_filled, set_cached};
    static unsigned char wanted[BYTES];
    for (size_t way = 0; way < sizeof(sets) / sizeof(sets[0]); way++) {
        int attempts = 0;
        start();
        sets[way]();
        set(destination, 0, 8, &nines);
        for (size_t i = 0; i < GRANULES; i++) /* each has memory of its own */
            CHECK_EQ(read_bytes(destination, i * G, (i + 1) * G), CUDA_SUCCESS);
        CHECK(at(destination, 7).cached);
        must_copy(destination->address + G, source->address, 6 * G);
        CHECK_EQ(ms_allocation_lineage(destination)->kind_bytes[MS_RESIDENT], 6 * G);
        CHECK(at(destination, 1).kind == MS_RESIDENT && at(destination, 6).kind == MS_RESIDENT);
        ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts);
        CHECK_EQ(ms_allocation_backing(destination)->backed_bytes, 6 * G);
        CHECK_EQ(read_bytes(source, 0, BYTES) | read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
        memset(wanted, 9, BYTES);
        memcpy(wanted + G, bytes_of(source), 6 * G);
        CHECK_BYTES(bytes_of(destination), wanted, BYTES);
        end();
    }
}

/* --- what a launch made */

static int launches;

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    CHECK(function == (CUfunction)1 && stream != NULL && params != NULL && extra == NULL);
    CHECK_EQ(grid_x + grid_y + grid_z + block_x + block_y + block_z + shared, 6);
    launches++;
    return CUDA_SUCCESS;
}

/* All of the source is by a launch that has left its sevens. */
static void set_launched(void)
{
    static char name[] = "kernel";
    static struct ms_param_layout layout = {.counted = {.references = 1000}, .name = name};
    static const struct ms_packed packed = {.count = 0};
    const struct ms_call call = {
        .function = (CUfunction)1, .grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = FAKE_STREAM};
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    recorded->launch = ms_call_record(&call, &layout, &packed, NULL, 0);
    recorded->allocation_id = source->id;
    recorded->address = source->address;
    recorded->context = FAKE_CONTEXT;
    recorded->depth = 1;
    CHECK(ms_lineage_init(&recorded->before, BYTES));
    CHECK(ms_lineage_set(&recorded->before, 0, BYTES, &sevens));
    set(source, 0, 8, &(struct ms_content){.kind = MS_LAUNCHED, .recorded = recorded});
    ms_recorded_launch_drop(recorded);
    ms_driver.launch_kernel = launch_kernel;
    launches = 0;
}

MS_TEST_BETWEEN(start, end, a_copy_of_launched_bytes_moves_lineage_in_its_context_alone)
{
    set_launched();
    must_copy(destination->address, source->address + G, 4 * G);
    CHECK(at(destination, 0).kind == MS_LAUNCHED && at(destination, 0).source_offset == G);
    CHECK(launches == 0 && fake.work_count == 0);
    destination->context = (CUcontext)2;
    must_copy(destination->address, source->address + G, 4 * G);
    destination->context = FAKE_CONTEXT;
    CHECK_EQ(launches, 1);
    CHECK(at(destination, 3).kind == MS_RESIDENT && at(source, 1).cached);
    CHECK(bytes_of(destination)[0] == 7 && bytes_of(destination)[4 * G - 1] == 7);
}

/* Who unloads it may have looked at the destination already. */
MS_TEST_BETWEEN(start, end, no_lineage_of_launched_bytes_moves_while_code_is_unloaded)
{
    set_launched();
    atomic_fetch_add(&ms_parameters_unloads, 1);
    must_copy(destination->address, source->address + G, 4 * G);
    atomic_fetch_sub(&ms_parameters_unloads, 1);
    CHECK_EQ(launches, 1);
    CHECK(at(destination, 3).kind == MS_RESIDENT && at(source, 1).cached);
    CHECK(bytes_of(destination)[0] == 7 && bytes_of(destination)[4 * G - 1] == 7);
}

/* So that it is launched once for all copies. */
MS_TEST_BETWEEN(start, end, a_copy_of_launched_bytes_to_memory_launches_once)
{
    set_launched();
    must_copy(program, source->address, BYTES);
    must_copy(program, source->address, BYTES);
    CHECK_EQ(launches, 1);
    CHECK(at(source, 0).kind == MS_LAUNCHED && at(source, 7).cached);
    CHECK_EQ(fake.work[fake.work_count - 1].call, FAKE_memcpy_dtod_async);
    CHECK_EQ(fake.work[fake.work_count - 1].from, source->address);
    CHECK_EQ(((unsigned char *)(uintptr_t)program)[BYTES - 1], 7);
}

/* It is copied as it is there, and not played once more. */
MS_TEST_BETWEEN(start, end, the_driver_copies_cached_bytes_to_memory)
{
    set_cached();
    const size_t before = fake.work_count;
    must_copy(program + 5, source->address + G + 1, 2 * G);
    CHECK_EQ(fake.work_count, before + 1);
    const struct fake_work work = fake.work[before];
    CHECK(work.call == FAKE_memcpy_dtod_async && work.stream == FAKE_STREAM);
    CHECK(work.address == program + 5 && work.from == source->address + G + 1 &&
          work.bytes == 2 * G);
    CHECK_EQ(ms_counter_get(MS_COUNT_FORWARDED_BYTES), 0);
}

/* --- what others are told */

MS_TEST_BETWEEN(start, end, a_copy_is_told_as_a_whole)
{
    const CUdeviceptr to = destination->address + 2 * G + 20, from = source->address + G + 10;
    set(source, 0, 2, &sevens);
    set_snapshot(source, 2 * G, 3 * G);
    must_copy(to, from, 2 * G);
    check_told(&uses[0], 1, source, G + 10, 3 * G + 10);
    check_told(&uses[1], 2, destination, 2 * G + 20, 4 * G + 20);
    check_told(&bound, 1, destination, 2 * G + 20, 2 * G + 20);
    check_told(&asked_plan, 1, source, G + 10, 3 * G + 10);
    check_told(&later, 1, destination, 2 * G + 20, 4 * G + 20);
    check_told(&noted, 1, NULL, from, from + 2 * G);
    CHECK_EQ(ms_counter_get(MS_COUNT_FORWARDED_BYTES), 2 * G);
    CHECK_EQ(read_remote.count, 0);
    must_copy(program, from, 2 * G);
    CHECK(later.count == 1 && noted.count == 2 && bound.count == 1 && uses[1].of == source);
    CHECK_EQ(ms_counter_get(MS_COUNT_FORWARDED_BYTES), 4 * G);
}

MS_TEST_BETWEEN(start, end, a_copy_of_one_row_of_several_tells_its_use_alone)
{
    CUresult result;
    struct ms_movement movement = row(destination->address, source->address, G);
    movement.is_row = true;
    set(source, 0, 2, &sevens);
    CHECK(ms_copy_on_device(&movement, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(at(destination, 0).kind, MS_FILL);
    CHECK(later.count == 0 && noted.count == 0 && uses[1].of == destination);
}

MS_TEST_BETWEEN(start, end, a_block_of_too_many_pieces_that_fails_is_the_answer)
{
    CUresult result;
    set(source, 0, 2, &sevens);
    bound_result = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(copy_row(destination->address, source->address, G, &result));
    CHECK_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(at(destination, 0).kind == MS_UNDEFINED && noted.count == 0);
}

/* Nothing is copied of what the plan gives to others, if that is an error. */
MS_TEST_BETWEEN(start, end, a_copy_of_remote_bytes_into_memory_asks_the_plan_first)
{
    const CUdeviceptr from = source->address + G + 10;
    CUresult result;
    struct ms_content remote = sevens;
    remote.locality = MS_REMOTE;
    set(source, 0, 8, &remote);
    set(destination, 0, 8, &nines);
    CHECK_EQ(read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
    set(destination, 3, 4, &resident);
    const size_t before = fake.work_count;
    read_remote.count = 0;
    remote_result = CUDA_ERROR_NOT_PERMITTED;
    CHECK(copy_row(destination->address + 2 * G, from, 2 * G, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);
    check_told(&read_remote, 1, source, G + 10, 2 * G + 10); /* the first piece, and no other */
    CHECK(at(destination, 2).cached && fake.work_count == before);
    CHECK(later.count == 0 && ms_counter_get(MS_COUNT_FORWARDED_BYTES) == 0);
    remote_result = CUDA_SUCCESS;
    CHECK(copy_row(destination->address + 2 * G, from, 2 * G, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    check_told(&read_remote, 3, source, 2 * G + 10, 3 * G + 10);
    CHECK_EQ(bytes_of(destination)[4 * G - 1], 7);
}

/* Where it is deferred it need not be asked for, unless the plan is enforced. */
MS_TEST_BETWEEN(start, end, a_copy_of_remote_bytes_is_refused_by_an_enforced_plan_alone)
{
    CUresult result;
    struct ms_content remote = sevens;
    remote.locality = MS_REMOTE;
    set(source, 0, 8, &remote);
    must_copy(destination->address, source->address, G);
    CHECK_EQ(read_remote.count, 0);
    use_plan(0, BYTES);
    ms_config.plan_mode = MS_ENFORCE;
    remote_result = CUDA_ERROR_NOT_PERMITTED;
    CHECK(copy_row(destination->address + 2 * G, source->address + G, 2 * G, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);
    check_told(&read_remote, 1, source, G, 3 * G);
    CHECK_EQ(at(destination, 2).kind, MS_UNDEFINED);
    remote.locality = MS_LOCAL;
    set(source, 0, 8, &remote);
    CHECK(copy_row(destination->address + 2 * G, source->address + G, 2 * G, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(at(destination, 2).kind, MS_FILL);
}

/* The second half of the source is another rank's, by a plan. */
MS_TEST_BETWEEN(start, end, a_copy_of_remote_bytes_says_so_where_it_lies)
{
    CUresult result;
    set(source, 0, 8, &sevens);
    set(destination, 4, 5, &resident);
    use_plan(0, BYTES);
    name_tensor(source->address, BYTES, "w");
    must_copy(destination->address + G, source->address + 2 * G, 5 * G); /* to [1, 6) */
    CHECK(!at(destination, 2).is_remote_copy && at(destination, 3).is_remote_copy);
    CHECK(!at(destination, 4).is_remote_copy && !at(destination, 6).is_remote_copy);
    CHECK(at(destination, 5).is_remote_copy);
    CHECK(ms_lineage_at(ms_allocation_lineage(destination), 6 * G - 1).content.is_remote_copy);
    CHECK(!at(source, 5).is_remote_copy);
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_LAUNCH_FAILED); /* the present granule's */
    CHECK(copy_row(destination->address + G, source->address + 2 * G, 5 * G, &result));
    CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
    CHECK(fake_has_failed());
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    struct ms_movement movement = row(destination->address + 6 * G, source->address + 5 * G, G);
    movement.is_row = true;
    CHECK(ms_copy_on_device(&movement, &result) && result == CUDA_SUCCESS);
    CHECK(!at(destination, 6).is_remote_copy);
}

/* A stream's host function may write pinned memory, which may be the destination. */
MS_TEST_BETWEEN(start, end, a_copy_to_what_is_not_ours_may_have_to_wait)
{
    ms_hot.started = 1;
    set(source, 0, 8, &sevens);
    must_copy(destination->address, source->address, G);
    CHECK_EQ(ms_hot.gated_copies, 0);
    must_copy(program, source->address, G);
    CHECK_EQ(ms_hot.gated_copies, 1);
}

/* --- refusals */

MS_TEST_BETWEEN(start, end, a_captured_copy_of_absent_bytes_is_refused)
{
    CUresult result;
    set(source, 2, 4, &absent);
    ms_order_set_capture(true);
    CHECK(copy_row(destination->address, source->address, BYTES, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(ms_allocation_lineage(destination)->kind_bytes[MS_ABSENT], 0);
    ms_order_set_capture(false);
}

/* The driver refuses memory that the program has not mapped. */
MS_TEST_BETWEEN(start, end, a_copy_beyond_the_programs_mappings_is_the_drivers)
{
    CUresult result;
    set(source, 0, 8, &sevens);
    source->is_programs = true;
    CHECK(!copy_row(destination->address, source->address + 1, BYTES, &result));
    source->is_programs = false;
    destination->is_programs = true;
    CHECK(!copy_row(destination->address + 1, source->address, BYTES, &result));
    destination->is_programs = false;
    CHECK(uses[1].count == 0 && at(destination, 0).kind == MS_UNDEFINED);
}

/* The driver decides what a copy between overlapping ranges does. */
MS_TEST(only_ranges_without_a_common_byte_are_recorded)
{
    static const struct {
        size_t from, to;
        bool is_recorded;
    } cases[] = {{0, 2 * G, true},
                 {2 * G, 0, true},
                 {0, 2 * G - 1, false},
                 {2 * G - 1, 0, false},
                 {G, G, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CUresult result;
        start();
        set(source, 0, 8, &sevens);
        CHECK_EQ(copy_row(source->address + cases[i].to, source->address + cases[i].from, 2 * G,
                          &result),
                 cases[i].is_recorded);
        CHECK_EQ(result, CUDA_SUCCESS);
        CHECK_EQ(ms_allocation_backing(source)->backed_bytes == 0, cases[i].is_recorded);
        end();
    }
}

/* A copy whose source the driver cannot refuse need not keep the bytes that it overwrites. */
MS_TEST(a_copy_keeps_its_destination_unless_its_source_is_sure)
{
    static const struct {
        size_t offset, bytes;
        CUdevice device;
        unsigned failing; /* question */
        bool is_sure;
    } cases[] = {{0, 2 * G, 0, 0, true},
                 {BYTES - 2 * G, 2 * G, 0, 0, true},
                 {BYTES - 2 * G + 1, 2 * G, 0, 0, false},
                 {0, 2 * G, 1, 0, false},
                 {0, 2 * G, 0, 1, false},
                 {0, 2 * G, 0, 2, false},
                 {0, 2 * G, 0, 3, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CUresult result;
        start();
        set(destination, 0, 8, &nines);
        destination->device = cases[i].device;
        fake_fail(FAKE_pointer_get_attribute, cases[i].failing, CUDA_ERROR_INVALID_VALUE);
        CHECK(!copy_row(destination->address + G, program + cases[i].offset, cases[i].bytes,
                        &result));
        CHECK_EQ(result, CUDA_SUCCESS);
        destination->device = 0;
        CHECK_EQ(fake.work_count == 0, cases[i].is_sure);
        CHECK_EQ(ms_allocation_lineage(destination)->kind_bytes[MS_RESIDENT], cases[i].bytes);
        end();
    }
}

/* A range that ends before the address. */
static CUresult tell_strange_range(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = 0;
    else
        *(uint64_t *)value = attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ? 9 : address - 10;
    return CUDA_SUCCESS;
}

MS_TEST_BETWEEN(start, end, a_source_is_not_sure_by_a_range_that_it_does_not_lie_in)
{
    CUresult result;
    set(destination, 0, 8, &nines);
    ms_driver.pointer_get_attribute = tell_strange_range;
    CHECK(!copy_row(destination->address, program, G, &result));
    CHECK_EQ(fake.work_count, 1); /* the nines are kept */
}

/* --- where it is verified */

static void start_verified(void)
{
    start();
    struct ms_content shadowed = sevens;
    shadowed.is_shadowed = true;
    ms_config.mode = MS_VERIFY;
    set(source, 0, 4, &shadowed);
    set(source, 4, 8, &sevens);
}

/* Shadows are the test's own, which nobody else may look for. */
static void end_verified(void)
{
    set(source, 0, 8, &sevens);
    set(destination, 0, 8, &nines);
    ms_config.mode = MS_ON;
    end();
}

MS_TEST_BETWEEN(start_verified, end_verified, a_shadow_goes_with_what_is_recorded)
{
    must_copy(destination->address + 2 * G, source->address + G + 8, 2 * G);
    check_told(&shadow_copied, 1, destination, 2 * G, 3 * G + 8);
    CHECK(at(destination, 2).is_shadowed);
    must_copy(destination->address + 2 * G, source->address + 5 * G, G);
    check_told(&shadow_copied, 2, destination, 2 * G, 6 * G);
    CHECK(!at(destination, 2).is_shadowed && shadow_written.count == 0);
    ms_config.mode = MS_ON;
    must_copy(destination->address + 2 * G, source->address + G, G);
    CHECK(!at(destination, 2).is_shadowed && shadow_copied.count == 2);
}

MS_TEST_BETWEEN(start_verified, end_verified, a_copy_of_unwritten_bytes_shadows_its_source)
{
    struct ms_movement movement = row(source->address + 4, destination->address + G + 8, G);
    CUresult result;
    fake_set(destination, 0, 8 * G, &(struct ms_content){.kind = MS_UNDEFINED});
    movement.from = ms_side_of_device(source->address + G + 8);
    movement.to = ms_side_of_device(destination->address + 4);
    fake_set(source, 0, 8 * G, &(struct ms_content){.kind = MS_UNDEFINED});
    CHECK(ms_copy_on_device(&movement, &result) && result == CUDA_SUCCESS);
    check_told(&shadow_written, 1, source, G + 8, 2 * G + 8);
    CHECK(ms_lineage_at(ms_allocation_lineage(source), G + 8).content.is_shadowed);
    check_told(&shadow_copied, 1, destination, 4, 2 * G + 8);
}

MS_TEST_BETWEEN(start_verified, end_verified, a_copy_played_elsewhere_is_compared_with_the_shadow)
{
    set(destination, 0, 8, &resident);
    must_copy(destination->address + 2 * G, source->address + G + 8, 2 * G);
    check_told(&compared, 1, source, G + 8, destination->address + 4 * G);
    CHECK(is_compared_plain); /* a kernel reaches both */
    must_copy(destination->address + 2 * G, source->address + 5 * G, G);
    CHECK_EQ(compared.count, 1);
    must_copy(program, source->address, G);
    check_told(&compared, 2, source, 0, program + G);
    CHECK(!is_compared_plain);
    destination->device = 1;
    must_copy(destination->address + 2 * G, source->address, G);
    destination->device = 0;
    CHECK(compared.count == 3 && !is_compared_plain);
    CUresult result;
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_LAUNCH_FAILED);
    CHECK(copy_row(program, source->address, G, &result));
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    CHECK(result == CUDA_ERROR_LAUNCH_FAILED && compared.count == 3);
}

/* --- failures */

static bool fail_nth(unsigned nth, bool is_busy)
{
    start();
    set(source, 0, 2, &sevens);
    set_snapshot(source, 2 * FAKE_GRANULE, 3 * FAKE_GRANULE);
    set(source, 3, 4, &resident);
    memset(bytes_of(source) + 3 * FAKE_GRANULE, 3, FAKE_GRANULE);
    set(source, 4, 5, &sevens);
    CHECK_EQ(read_bytes(source, 4 * FAKE_GRANULE, 5 * FAKE_GRANULE), CUDA_SUCCESS);
    set(destination, 0, 8, &nines);
    set(destination, 1, 6, &resident);
    memset(bytes_of(destination) + FAKE_GRANULE, 5, 5 * FAKE_GRANULE);
    be_busy(is_busy);
    ms_config.idle_ms = 0; /* each query of a wait would be a case of its own */
    fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
    const CUresult result =
        run(destination->address + 100, source->address + 100, 5 * FAKE_GRANULE);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_LAUNCH_FAILED);
    const bool has_failed = fake_has_failed();
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    be_busy(false);
    fake_check_allocation(source);
    fake_check_allocation(destination);
    CHECK_EQ(fake.pushed_contexts, 0);
    CHECK_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    check_none_held();

    /* The source is what it was, and so is all around the range. */
    CHECK_EQ(read_bytes(source, 0, BYTES), CUDA_SUCCESS);
    CHECK(bytes_of(source)[0] == 7 && bytes_of(source)[2 * FAKE_GRANULE - 1] == 7);
    CHECK_BYTES(bytes_of(source) + 2 * FAKE_GRANULE, host, FAKE_GRANULE);
    CHECK(bytes_of(source)[3 * FAKE_GRANULE] == 3 && bytes_of(source)[4 * FAKE_GRANULE] == 7);
    CHECK_EQ(run(destination->address + 100, source->address + 100, 5 * FAKE_GRANULE),
             CUDA_SUCCESS);
    CHECK_EQ(read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(bytes_of(destination)[99], 9);
    CHECK_BYTES(bytes_of(destination) + 100, bytes_of(source) + 100, 5 * FAKE_GRANULE);
    CHECK_EQ(bytes_of(destination)[100 + 5 * FAKE_GRANULE], 5);
    CHECK_EQ(bytes_of(destination)[6 * FAKE_GRANULE], 9);
    end();
    return has_failed;
}

MS_TEST(both_stay_valid_and_nothing_is_held_when_a_call_fails)
{
    for (int is_busy = 0; is_busy < 2; is_busy++) {
        for (unsigned nth = 1; fail_nth(nth, is_busy);)
            nth++;
    }
}

/* Copies sevens, bytes that were never written, and a snapshot; some of them are another rank's. */
static bool copy_without(int pieces)
{
    start();
    set(source, 0, 2, &sevens);
    set_snapshot(source, 2 * G, 3 * G);
    set(source, 4, 8, &sevens);
    set(destination, 3, 5, &resident);
    use_plan(0, BYTES);
    name_tensor(source->address, BYTES, "w");
    may_make = pieces;
    fails_once = true;
    const CUresult result = run(destination->address + 100, source->address + 100, 7 * G);
    const bool has_failed = may_make < 0;
    may_make = 1000000;
    CHECK(result == CUDA_SUCCESS || (has_failed && result == CUDA_ERROR_OUT_OF_MEMORY));
    if (result == CUDA_SUCCESS) {
        CHECK_EQ(read_bytes(source, 0, BYTES) | read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
        CHECK_BYTES(bytes_of(destination) + 100, bytes_of(source) + 100, 7 * G);
    }
    ms_shard_forget(source, 0, BYTES);
    end();
    return has_failed;
}

MS_TEST(a_copy_without_host_memory_fails_or_is_right)
{
    copy_without(1000000);
    copy_without(1000000); /* what is kept */
    const int before = live;
    for (int pieces = 0; copy_without(pieces); pieces++) {
        copy_without(1000000); /* what is kept is there again */
        CHECK_EQ(live, before);
    }
}

/* --- a slow, obvious twin */

enum { AREAS = 3, ROUNDS = 1500 };
static unsigned char twin[AREAS][BYTES];

static CUdeviceptr begin_of(int area)
{
    return area == 0 ? source->address : area == 1 ? destination->address : program;
}

static void set_randomly(struct ms_allocation *allocation, unsigned char *copy)
{
    const size_t begin = (size_t)rand() % BYTES;
    size_t behind = begin + 1 + (size_t)rand() % (BYTES - begin);
    struct ms_content content = {.kind = MS_FILL, .pattern = (uint32_t)rand()};
    if (rand() % 2 == 0) {
        if (behind - begin > sizeof(host))
            behind = begin + sizeof(host);
        set_snapshot(allocation, begin, behind);
        memcpy(copy + begin, host, behind - begin);
        return;
    }
    fake_set(allocation, begin, behind, &content);
    for (size_t i = begin; i < behind; i++)
        copy[i] = (unsigned char)(content.pattern >> (8 * (i % 4)));
}

static void copy_randomly(void)
{
    int from = rand() % AREAS, to = rand() % AREAS;
    if (from == 2 && to == 2)
        from = 0;
    const size_t bytes = 1 + (size_t)rand() % (rand() % 2 == 0 ? BYTES : 1000);
    const size_t begin = (size_t)rand() % (BYTES - bytes + 1);
    const size_t there = (size_t)rand() % (BYTES - bytes + 1);
    CHECK_EQ(run(begin_of(to) + there, begin_of(from) + begin, bytes), CUDA_SUCCESS);
    memmove(twin[to] + there, twin[from] + begin, bytes);
}

static void read_randomly(struct ms_allocation *allocation, const unsigned char *copy)
{
    const size_t begin = (size_t)rand() % BYTES;
    const size_t behind = begin + 1 + (size_t)rand() % (BYTES - begin);
    CHECK_EQ(read_bytes(allocation, begin, behind), CUDA_SUCCESS);
    CHECK_BYTES(bytes_of(allocation) + begin, copy + begin, behind - begin);
}

MS_TEST(bytes_are_those_of_plain_memory)
{
    const unsigned seed = 20261123;
    printf("# seed %u\n", seed);
    srand(seed);
    start();
    for (int round = 0; round < ROUNDS; round++) {
        const int area = rand() % 2;
        struct ms_allocation *allocation = area == 0 ? source : destination;
        const int what = rand() % 10;
        int attempts = 0;
        if (what < 3)
            set_randomly(allocation, twin[area]);
        else if (what < 8)
            copy_randomly();
        else if (what == 8)
            read_randomly(allocation, twin[area]);
        else
            ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts);
        fake_check_allocation(source);
        fake_check_allocation(destination);
    }
    CHECK_EQ(read_bytes(source, 0, BYTES) | read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
    for (int area = 0; area < AREAS; area++)
        CHECK_BYTES((unsigned char *)(uintptr_t)begin_of(area), twin[area], BYTES);
    end();
}
