/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/range.h"
#include "runtime/calls/move.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/order.h"
#include "runtime/memory/parked.h"
#include "runtime/shard/placement_query.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/snapshot_of.h"
#include "tests/unit/source/files.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x04030201};
static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content nines = {.kind = MS_FILL, .pattern = 0x09090909};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static struct ms_allocation *source, *destination;
static CUdeviceptr program;
static unsigned char host[FAKE_GRANULE];

static void start(void)
{
    fake_start();
    source = fake_allocation(BYTES);
    destination = fake_allocation(BYTES);
    program = fake_program_memory(BYTES);
    ms_source_set_snapshot_limit(16 * BYTES);
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
    return ms_lineage_at(&allocation->lineage, granule * FAKE_GRANULE).content;
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
    CHECK_EQ(spare->backing.backed_bytes, 0);
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
    CHECK_EQ(source->backing.backed_bytes + destination->backing.backed_bytes, 0);
    CHECK_EQ(at(destination, 1).pattern, 0x03020104); /* as far as it was moved */
    CHECK_EQ(at(destination, 5).kind, MS_SOURCE);
    check_none_held();
    CHECK_EQ(read_bytes(destination, 0, BYTES), CUDA_SUCCESS);
    for (size_t i = 0; i < 4 * FAKE_GRANULE; i++)
        CHECK_EQ(bytes_of(destination)[1 + i], 1 + i % 4);
    CHECK_BYTES(bytes_of(destination) + 1 + 4 * FAKE_GRANULE, host, sizeof(host));
}

MS_TEST_BETWEEN(start, end, what_was_never_written_is_zero_in_both_places_once_it_is_copied)
{
    must_copy_all();
    CHECK(at(source, 0).kind == MS_FILL && at(source, 0).pattern == 0);
    CHECK(at(destination, 0).kind == MS_FILL && at(destination, 0).pattern == 0);
}

MS_TEST_BETWEEN(start, end, what_a_plan_said_of_the_source_is_not_said_of_the_copy)
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
    CHECK_EQ(source->backing.backed_bytes, 0);
    CHECK_EQ(destination->backing.backed_bytes, 2 * FAKE_GRANULE);
    CHECK(at(destination, 0).kind == MS_FILL && at(destination, 2).kind == MS_RESIDENT);

    must_copy(program, source->address, BYTES);
    CHECK_EQ(((unsigned char *)(uintptr_t)program)[BYTES - 1], 7);
    CHECK_EQ(source->backing.backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_piece_is_cut_where_the_destination_changes)
{
    set(source, 0, 4, &sevens);
    set(destination, 0, 1, &resident);
    set(destination, 2, 3, &resident);
    must_copy(destination->address, source->address, 4 * FAKE_GRANULE);
    CHECK_EQ(fake.work_count, 2);
    CHECK_EQ(destination->lineage.kind_bytes[MS_FILL], 2 * FAKE_GRANULE);
    CHECK_EQ(read_bytes(destination, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(bytes_of(destination)[4 * FAKE_GRANULE - 1], 7);
}

/* No granule is in memory for a part of its bytes alone. */
MS_TEST_BETWEEN(start, end, what_is_recorded_in_a_granule_with_memory_is_played_at_once)
{
    set_snapshot(source, 0, FAKE_GRANULE);
    fake_set(destination, 0, 1000, &resident);
    fake_set(destination, 2000, 3000, &resident);
    must_copy(destination->address, source->address, FAKE_GRANULE);
    CHECK_EQ(fake.work_count, 4);
    CHECK(!ms_lineage_any(&destination->lineage, 0, FAKE_GRANULE, MS_MISSING));
    CHECK_BYTES(bytes_of(destination), host, sizeof(host));
}

/* Without a plan, too; whole or a part of it. */
MS_TEST_BETWEEN(start, end, what_was_read_is_copied_and_not_read_twice)
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

MS_TEST_BETWEEN(start, end, what_is_in_memory_is_for_the_driver_and_held)
{
    set(source, 0, 8, &resident);
    set(destination, 0, 8, &pattern);
    check_forwarded(destination->address, source->address, BYTES);
    CHECK(!ms_lineage_any(&destination->lineage, 0, BYTES, MS_NOT_RESIDENT));
    CHECK_EQ(fake.work_count, 0); /* what is overwritten is not replayed */
    struct ms_allocation *spare = fake_allocation(FAKE_GRANULE);
    fake_set(spare, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .cached = true});
    int attempts = 0;
    CHECK(!ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts));
    fake_allocation_free(spare);
    ms_evict_let_go();
    check_none_held();
}

MS_TEST_BETWEEN(start, end, of_no_bytes_or_of_the_programs_memory_the_driver_makes_it)
{
    set(destination, 0, 8, &pattern);
    check_forwarded(destination->address, source->address, 0);
    CHECK_EQ(at(destination, 0).kind, MS_FILL);
    check_forwarded(destination->address, program, BYTES);
    ms_evict_let_go();
    CHECK(!ms_lineage_any(&destination->lineage, 0, BYTES, MS_NOT_RESIDENT));
    CHECK_EQ(fake.work_count, 0);
    check_none_held();
}

/* A call that the driver refuses changes nothing. */
MS_TEST_BETWEEN(start, end, what_the_driver_may_refuse_keeps_what_it_would_overwrite)
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

MS_TEST_BETWEEN(start, end, what_goes_beyond_an_allocation_is_refused_and_changes_nothing)
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

MS_TEST(behind_work_that_may_wait_and_in_a_capture_the_driver_copies)
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
        CHECK(!ms_lineage_any(&destination->lineage, 0, BYTES, MS_NOT_RESIDENT));
        if (way == 0)
            ms_order_set_capture(false);
        be_busy(false);
        end();
    }
}

/* --- what other ranks have, and what is stored */

MS_TEST_BETWEEN(start, end, what_is_absent_is_absent_in_the_copy_and_is_not_given_to_the_driver)
{
    CUresult result;
    set(source, 2, 4, &absent);
    set(destination, 0, 8, &resident);
    must_copy_all();
    CHECK(at(destination, 2).kind == MS_ABSENT && at(destination, 2).locality == MS_REMOTE);
    CHECK_EQ(at(destination, 4).kind, MS_RESIDENT);
    CHECK(copy(program, source->address, BYTES, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);

    /* Also behind work that may wait. */
    be_busy(true);
    set(destination, 0, 8, &resident);
    must_copy_all();
    CHECK(at(destination, 2).kind == MS_ABSENT && at(destination, 4).kind == MS_RESIDENT);
    be_busy(false);
}

/* Granules [0, 4) of the source are in a store of nines. */
static void set_stored(void)
{
    CUevent event;
    struct ms_content content = {.kind = MS_PARKED};
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, 4 * FAKE_GRANULE, false, &content.parked),
             CUDA_SUCCESS);
    memset((void *)(uintptr_t)ms_parked_backing(content.parked)->address, 9, 4 * FAKE_GRANULE);
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.event_record(event, FAKE_STREAM), CUDA_SUCCESS);
    ms_parked_attach_event(content.parked, event);
    set(source, 0, 4, &content);
    ms_parked_drop(content.parked);
}

MS_TEST_BETWEEN(start, end, what_is_stored_moves_by_lineage_or_goes_straight_to_its_place)
{
    set_stored();
    must_copy(destination->address, source->address, 4 * FAKE_GRANULE);
    CHECK(at(destination, 0).kind == MS_PARKED);
    CHECK_EQ(fake.work_count, 0);
    must_copy(program, destination->address, 4 * FAKE_GRANULE);
    CHECK_EQ(((unsigned char *)(uintptr_t)program)[4 * FAKE_GRANULE - 1], 9);
    CHECK_EQ(destination->backing.backed_bytes, 0);
    CHECK(fake.calls[FAKE_stream_synchronize] > 0); /* the store may go */

    /* A little of it is brought into its place first. */
    must_copy(program, destination->address, FAKE_GRANULE);
    CHECK(at(destination, 0).kind == MS_RESIDENT);
    CHECK_EQ(bytes_of(destination)[0], 9);
}

MS_TEST_BETWEEN(start, end, what_is_stored_on_one_device_does_not_move_to_another)
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

MS_TEST_BETWEEN(start, end, what_a_kernel_has_put_behind_other_tensors_says_so)
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
MS_TEST_BETWEEN(start, end, what_is_stored_is_in_no_sequence)
{
    set_stored();
    must_put_first();
    CHECK(at(destination, 0).kind == MS_PARKED && !at(destination, 0).is_in_sequence);
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
