/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/receive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/config/config.h"
#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/parked.h"
#include "runtime/order/order.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/snapshot_of.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE, HALF = BYTES / 2 };

static struct ms_allocation *allocation;
static struct ms_receive receive;

/* A plan by which rank 0 of 2 keeps the first half of the tensor that the allocation is. */
static void start_with(size_t bytes)
{
    fake_start();
    allocation = fake_allocation(bytes);
    use_plan(0, bytes);
}

static void start(void)
{
    start_with(BYTES);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static CUresult prepare_range(CUdeviceptr address, size_t bytes, int ranks, bool is_root)
{
    const struct ms_receive_role role = {.sends = is_root, .ranks = ranks};
    return ms_receive_prepare(address, bytes, &role, &receive);
}

static CUresult prepare(void)
{
    return prepare_range(allocation->address, allocation->bytes, 2, false);
}

/* Writes all bytes, as the broadcast does. */
static void write_all(void)
{
    memset((void *)(uintptr_t)allocation->address, 6, allocation->bytes);
}

static void queue_and_write(void)
{
    write_all();
    ms_receive_queued(&receive, FAKE_STREAM);
}

static unsigned char byte_at(size_t offset)
{
    return ((unsigned char *)(uintptr_t)allocation->address)[offset];
}

static enum ms_kind kind_at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset).content.kind;
}

static CUresult read_bytes(size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result = ms_materialise(allocation, begin, behind, MS_NEED_READ);
    ms_space_release(allocation);
    return result;
}

/* A caching allocator has handed out all of it. */
static void carve(void)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_carve_take(allocation, 0, allocation->bytes), MS_CARVED);
    ms_space_release(allocation);
}

static bool is_memory(size_t offset)
{
    return fake_memory_at(allocation->address + offset) != 0;
}

/* --- into the sink */

MS_TEST_BETWEEN(start, end, a_receive_gets_memory_for_the_part_of_this_rank_alone)
{
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, HALF);
    CHECK_EQ(fake.physical_bytes, HALF + FAKE_GRANULE);
    queue_and_write();
    CHECK(!is_memory(HALF) && !is_memory(BYTES - 1)); /* it has run */
    CHECK(kind_at(0) == MS_RESIDENT && kind_at(HALF - 1) == MS_RESIDENT);
    CHECK(kind_at(HALF) == MS_ABSENT && kind_at(BYTES - 1) == MS_ABSENT);
    CHECK(byte_at(0) == 6 && byte_at(HALF - 1) == 6);
    CHECK_EQ(ms_counter_get(MS_COUNT_SINK_BYTES), HALF);
    CHECK_EQ(read_bytes(0, HALF), CUDA_SUCCESS);
    CHECK_EQ(read_bytes(0, HALF + 1), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(fake.events, 0);
}

MS_TEST_BETWEEN(start, end, a_receive_without_a_sink_is_whole)
{
    ms_facts_set_unmet(0, MS_FACT_BIT(MS_FACT_ALIAS));
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
    CHECK_EQ(fake.physical_bytes, BYTES);
    queue_and_write();
    CHECK(kind_at(0) == MS_RESIDENT && kind_at(BYTES - 1) == MS_RESIDENT);
}

STORY_ALONE(a_granule_that_is_shared_is_kept_whole, start_with(5 * FAKE_GRANULE),
            EQUALS(prepare(), CUDA_SUCCESS),
            EQUALS(ms_allocation_backing(allocation)->backed_bytes, 3 * FAKE_GRANULE),
            queue_and_write(),
            IS(kind_at(3 * FAKE_GRANULE - 1) == MS_RESIDENT &&
               kind_at(3 * FAKE_GRANULE) == MS_ABSENT),
            end())

MS_TEST_BETWEEN(start, end, a_receive_goes_to_memory_that_is_there)
{
    CHECK_EQ(read_bytes(6 * FAKE_GRANULE, 7 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    queue_and_write();
    CHECK(kind_at(6 * FAKE_GRANULE) == MS_RESIDENT && byte_at(6 * FAKE_GRANULE) == 6);
    CHECK(kind_at(5 * FAKE_GRANULE) == MS_ABSENT && kind_at(7 * FAKE_GRANULE) == MS_ABSENT);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, HALF + FAKE_GRANULE);
}

/* Two broadcasts: what is in the other part is no business of theirs. */
MS_TEST_BETWEEN(start, end, a_part_of_an_allocation_is_received_alone)
{
    enum { FIRST = 3 * FAKE_GRANULE, SECOND = 6 * FAKE_GRANULE };
    name_tensor(allocation->address, BYTES, "w");
    CHECK_EQ(prepare_range(allocation->address + FIRST, SECOND - FIRST, 2, false), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, HALF - FIRST);
    CHECK_EQ(fake.physical_bytes, HALF - FIRST + FAKE_GRANULE);
    memset((void *)(uintptr_t)(allocation->address + FIRST), 6, SECOND - FIRST);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(ms_counter_get(MS_COUNT_SINK_BYTES), SECOND - HALF);
    CHECK(kind_at(FIRST) == MS_RESIDENT && kind_at(HALF) == MS_ABSENT);
    CHECK(kind_at(FIRST - 1) != MS_RESIDENT && kind_at(SECOND) != MS_ABSENT);
    CHECK(!is_memory(SECOND) && !is_memory(0));
}

/* Three tensors, of which the second one is received. */
MS_TEST(a_receive_of_one_tensor_of_several_uses_the_sink_there_alone)
{
    enum { G = FAKE_GRANULE };
    static const char *const names[] = {"a", "b", "c"};
    start_with(12 * G);
    for (size_t i = 0; i < 3; i++)
        name_tensor(allocation->address + i * 4 * G, 4 * G, names[i]);
    CHECK_EQ(prepare_range(allocation->address + 4 * G, 4 * G, 2, false), CUDA_SUCCESS);
    CHECK(receive.sink != NULL && receive.context == FAKE_CONTEXT);
    for (size_t i = 0; i < 12; i++)
        CHECK_EQ(is_memory(i * G), i / 4 == 1);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * G);
    ms_receive_queued(&receive, FAKE_STREAM);
    end();
}

/* Nothing is left of the one before. */
MS_TEST_BETWEEN(start, end, a_receive_that_needs_no_wait_says_so)
{
    memset(&receive, 0x77, sizeof(receive));
    CHECK_EQ(prepare_range(allocation->address, BYTES, 3, false), CUDA_SUCCESS);
    CHECK(receive.address == 0 && receive.sink == NULL && receive.lent == NULL);
    CHECK(receive.park.count == 0 && receive.park.parked == NULL);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(fake.calls[FAKE_event_create], 0);
}

MS_TEST_BETWEEN(start, end, whoever_uses_the_granules_waits_for_a_broadcast_that_has_not_run)
{
    fake.is_busy = true;
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    queue_and_write();
    CHECK(is_memory(HALF) && is_memory(BYTES - 1));
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 0);
    CHECK_EQ(ms_backing_sink_wait(ms_allocation_memory(allocation), 0, HALF), CUDA_SUCCESS);
    CHECK(is_memory(HALF)); /* beside it */
    CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), HALF, HALF + 1), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    CHECK(is_memory(HALF) && !is_memory(BYTES - 1));
    CHECK_EQ(fake.events, 0);
}

/* Bytes that a kernel writes to the sink would be lost with the sink. */
MS_TEST_BETWEEN(start, end, a_kernel_meets_no_sink)
{
    fake.is_busy = true;
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    queue_and_write();
    CHECK(is_memory(HALF));
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise(allocation, HALF, BYTES, MS_NEED_REACH), CUDA_SUCCESS);
    ms_space_release(allocation);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    CHECK(!is_memory(HALF) && !is_memory(BYTES - 1));
}

STORY_AFTER(start, the_allocation_may_go_before_the_broadcast_is_queued,
            EQUALS(prepare(), CUDA_SUCCESS), fake_allocation_free(allocation),
            ms_receive_queued(&receive, FAKE_STREAM), fake_check_empty())

MS_TEST_BETWEEN(start, end, the_event_of_a_broadcast_is_for_the_allocation_that_received)
{
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    allocation->id++; /* another one lies there, whose sink may have the record's address */
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK(ms_allocation_backing(allocation)->sinks == receive.sink && receive.sink->event == NULL);
    CHECK_EQ(fake.events, 0);
    allocation->id--;
    ms_backing_lent(ms_allocation_memory(allocation), receive.sink, NULL);
}

/* A caching allocator takes a part from a segment of 2 MiB at least. */
MS_TEST(a_part_too_small_to_be_deferred_needs_all_bytes)
{
    enum { MIB = 1 << 20, ALL = 5 * MIB, OURS = ALL / 2 };
    static const struct {
        size_t begin, end, least; /* that is deferred */
        bool is_carved, is_whole;
    } cases[] = {{0, ALL, OURS, false, false},
                 {0, ALL, OURS + 1, false, true},
                 {2 * MIB, ALL, 3 * MIB / 2, false, false}, /* a rank's part of it */
                 {2 * MIB, ALL, 3 * MIB / 2 + 1, false, true},
                 {0, 4 * MIB, OURS, false, false},
                 {0, 4 * MIB, OURS + 1, false, true},
                 {2 * MIB, ALL, 2 * MIB, true, false},
                 {2 * MIB, ALL, 2 * MIB + 1, true, true},
                 {0, ALL, OURS, true, false},
                 {0, ALL, OURS + 1, true, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const size_t begin = cases[i].begin, bytes = cases[i].end - begin;
        start_with(ALL);
        name_tensor(allocation->address, ALL, "w");
        if (cases[i].is_carved)
            carve();
        ms_config.min_bytes = cases[i].least;
        const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
        CHECK_EQ(prepare_range(allocation->address + begin, bytes, 2, false), CUDA_SUCCESS);
        const size_t kept = cases[i].is_whole ? bytes : OURS - begin;
        CHECK_EQ(receive.sink == NULL, cases[i].is_whole);
        CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, kept);
        CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before, kept);
        CHECK_EQ(kind_at(OURS), cases[i].is_whole ? MS_RESIDENT : MS_ABSENT);
        ms_receive_queued(&receive, FAKE_STREAM);
        end();
    }
}

/* --- like any other write */

MS_TEST(all_is_kept_where_the_plan_has_no_say)
{
    for (int way = 0; way < 5; way++) {
        start();
        CUdeviceptr address = allocation->address;
        size_t bytes = BYTES;
        int ranks = 2;
        if (way == 0)
            ranks = 3;
        else if (way == 1)
            ms_config.receive_parts = false;
        else if (way == 2)
            ms_order_set_capture(true);
        else if (way == 3)
            bytes++; /* it is in no one allocation */
        else
            bytes = HALF, address += FAKE_GRANULE; /* no tensor */
        CHECK_EQ(prepare_range(address, bytes, ranks, false), CUDA_SUCCESS);
        CHECK(receive.sink == NULL && receive.lent == NULL && receive.park.count == 0);
        CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, way == 4 ? HALF : BYTES);
        CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_ABSENT], 0);
        ms_receive_queued(&receive, FAKE_STREAM);
        if (way == 2)
            ms_order_set_capture(false);
        end();
    }
}

/* --- into a store */

static void set_remote_copy(struct ms_content *content)
{
    content->is_remote_copy = true;
}

/* The allocation was put together of tensors, of which granules [first, behind) are other
 * ranks'. */
static void start_put_together(size_t first, size_t behind)
{
    const struct ms_range range = {first * FAKE_GRANULE, behind * FAKE_GRANULE};
    fake_start();
    allocation = fake_allocation(BYTES);
    use_plan(0, 1); /* none of them by its size */
    static const struct ms_content zero = {.kind = MS_FILL};
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, range.begin, range.end, &zero));
    CHECK(ms_lineage_change(&MS_OWN(allocation)->lineage, &range, 1, set_remote_copy));
}

static void start_passing(void)
{
    start_put_together(GRANULES / 2, GRANULES);
}

MS_TEST(a_receive_of_bytes_that_only_pass_goes_to_a_store)
{
    start_passing();
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    CHECK(receive.park.count > 0);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
    CHECK_EQ(fake.physical_bytes, HALF + FAKE_GRANULE);
    queue_and_write();
    CHECK(kind_at(0) == MS_PARKED && kind_at(HALF) == MS_ABSENT);
    CHECK(!is_memory(0) && !is_memory(HALF));
    CHECK_EQ(fake.physical_bytes, HALF + FAKE_GRANULE);
    CHECK_EQ(read_bytes(FAKE_GRANULE, HALF), CUDA_SUCCESS);
    CHECK(byte_at(FAKE_GRANULE) == 6 && byte_at(HALF - 1) == 6);
    CHECK_EQ(read_bytes(0, FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.physical_bytes, HALF + FAKE_GRANULE); /* the store has gone */
    end();
}

MS_TEST(each_range_has_its_own_place_in_the_store)
{
    start_put_together(2, 4);
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    for (size_t i = 0; i < GRANULES; i++)
        memset((void *)(uintptr_t)(allocation->address + i * FAKE_GRANULE), (int)i, FAKE_GRANULE);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED], 6 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_ABSENT], 2 * FAKE_GRANULE);
    CHECK_EQ(read_bytes(0, 2 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(read_bytes(4 * FAKE_GRANULE, BYTES), CUDA_SUCCESS);
    for (size_t i = 0; i < GRANULES; i++)
        CHECK(i / 2 == 1 ||
              (byte_at(i * FAKE_GRANULE) == i && byte_at((i + 1) * FAKE_GRANULE - 1) == i));
    end();
}

STORY_ALONE(a_receive_that_cannot_be_lent_memory_gets_its_own, start_passing(),
            fake_fail(FAKE_mem_map, 1, CUDA_ERROR_NOT_SUPPORTED), EQUALS(prepare(), CUDA_SUCCESS),
            IS(receive.park.count == 0 && receive.sink != NULL),
            EQUALS(ms_allocation_backing(allocation)->backed_bytes, HALF), queue_and_write(),
            IS(kind_at(0) == MS_RESIDENT && kind_at(HALF) == MS_ABSENT), end())

/* --- without a plan */

/* A kernel has put tensors that nobody has written in the allocation. */
static void start_in_sequence(void)
{
    static const struct ms_content zero = {.kind = MS_FILL, .is_in_sequence = true};
    fake_start();
    allocation = fake_allocation(BYTES);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 0, BYTES, &zero));
}

MS_TEST_BETWEEN(start_in_sequence, end, a_receive_of_a_sequence_is_parked_and_goes_piece_by_piece)
{
    static const struct ms_content zero = {.kind = MS_FILL};
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    CHECK(receive.sink == NULL && receive.lent != NULL);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
    CHECK_EQ(fake.physical_bytes, BYTES); /* and no sink */
    queue_and_write();
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED], BYTES);
    CHECK(!is_memory(0) && !is_memory(BYTES - 1));
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, FAKE_GRANULE, HALF, &zero));
    CHECK_EQ(fake.physical_bytes, HALF + FAKE_GRANULE);
    CHECK_EQ(read_bytes(HALF, BYTES), CUDA_SUCCESS);
    CHECK(byte_at(HALF) == 6 && byte_at(BYTES - 1) == 6);
    CHECK_EQ(fake.physical_bytes, HALF + FAKE_GRANULE); /* one place for each byte */
}

MS_TEST_BETWEEN(start_in_sequence, end, a_receive_parks_nothing_that_has_memory)
{
    CHECK_EQ(read_bytes(FAKE_GRANULE, 2 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(prepare(), CUDA_SUCCESS);
    queue_and_write();
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED], BYTES - FAKE_GRANULE);
    CHECK(kind_at(FAKE_GRANULE) == MS_RESIDENT && byte_at(FAKE_GRANULE) == 6);
}

MS_TEST(a_receive_that_may_be_reached_is_not_parked)
{
    for (int way = 0; way < 4; way++) {
        static const struct ms_content zero = {.kind = MS_FILL};
        start_in_sequence();
        if (way == 0)
            CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 0, BYTES, &zero));
        else if (way == 1)
            ms_config.receive_parts = false;
        else if (way == 2)
            ms_facts_set_unmet(0, MS_FACT_BIT(MS_FACT_ALIAS));
        else
            atomic_fetch_add(&ms_hot.late_payloads, 1);
        CHECK_EQ(prepare(), CUDA_SUCCESS);
        CHECK_EQ(receive.address, 0); /* nobody waits for it */
        CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, BYTES);
        ms_receive_queued(&receive, FAKE_STREAM);
        if (way == 3)
            atomic_fetch_sub(&ms_hot.late_payloads, 1);
        end();
    }
}

/* --- failures */

static void (*const starts[])(void) = {start, start_passing, start_in_sequence};

static void check_undone(void)
{
    CHECK(receive.sink == NULL && receive.lent == NULL && receive.park.count == 0);
    CHECK(ms_allocation_backing(allocation)->sinks == NULL);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_ABSENT], 0);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED], 0);
    ms_backing_drop_sink(0);
    CHECK_EQ(fake.physical_bytes, ms_allocation_backing(allocation)->backed_bytes);
    CHECK_EQ(fake.events, 0);
    CHECK_EQ(fake.pushed_contexts, 0);
    fake_check_allocation(allocation);
}

MS_TEST(nothing_is_left_under_the_allocation_when_a_call_fails)
{
    for (int way = 0; way < 3; way++) {
        bool has_failed = true;
        for (unsigned nth = 1; has_failed; nth++) {
            starts[way]();
            fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
            const CUresult result = prepare();
            has_failed = fake_has_failed();
            fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
            if (result != CUDA_SUCCESS) {
                CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
                check_undone();
                CHECK_EQ(prepare(), CUDA_SUCCESS);
            }
            write_all();
            ms_receive_queued(&receive, FAKE_STREAM);
            CHECK_EQ(kind_at(HALF) == MS_ABSENT, way < 2);
            CHECK_EQ(read_bytes(0, HALF), CUDA_SUCCESS);
            CHECK(byte_at(0) == 6 && byte_at(HALF - 1) == 6);
            end();
        }
    }
}

/* Queued work cannot be waited for then; all notes of that work go with the allocation. */
MS_TEST(nothing_is_lost_when_a_call_fails_after_the_broadcast)
{
    for (int way = 0; way < 3; way++) {
        bool has_failed = true;
        for (unsigned nth = 1; has_failed; nth++) {
            starts[way]();
            CHECK_EQ(prepare(), CUDA_SUCCESS);
            write_all();
            fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
            ms_receive_queued(&receive, FAKE_STREAM);
            has_failed = fake_has_failed();
            fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
            end();
        }
    }
}

/* --- on the root */

static unsigned char host[HALF];

/* A kernel has put a tensor of nines and a host copy in the allocation. */
static void start_sending(void)
{
    fake_start();
    ms_host_snapshot_set_limit(BYTES);
    for (size_t i = 0; i < sizeof(host); i++)
        host[i] = (unsigned char)(i * 13);
    const struct ms_content nines = {.kind = MS_FILL,
                                     .pattern = 0x09090909,
                                     .is_in_sequence = true};
    const struct ms_content copied = {.kind = MS_SOURCE,
                                      .source = snapshot_of(host, HALF),
                                      .is_in_sequence = true};
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, HALF, &nines);
    fake_set(allocation, HALF, BYTES, &copied);
    ms_source_drop(copied.source);
}

static bool prepare_to_send(void)
{
    return prepare_range(allocation->address, BYTES, 2, true) == CUDA_SUCCESS &&
           receive.address != 0;
}

static bool holds_all(void)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    return bytes[0] == 9 && bytes[HALF - 1] == 9 && memcmp(bytes + HALF, host, HALF) == 0;
}

static size_t parked_bytes(void)
{
    return ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED];
}

MS_TEST_BETWEEN(start_sending, end, a_send_of_a_root_stands_in_its_place_meanwhile)
{
    CHECK(prepare_to_send());
    CHECK(holds_all());
    CHECK_EQ(parked_bytes(), BYTES);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
    CHECK_EQ(fake.physical_bytes, BYTES);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK(fake_memory_at(allocation->address) == 0);
    CHECK_EQ(read_bytes(0, BYTES), CUDA_SUCCESS);
    CHECK(holds_all());
    CHECK_EQ(fake.physical_bytes, BYTES); /* one place for each byte */
}

/* NCCL only reads them. */
MS_TEST_BETWEEN(start_sending, end, a_copy_of_a_send_waits_for_nothing)
{
    CHECK(prepare_to_send());
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), HALF);
    CUdeviceptr address;
    CHECK_EQ(ms_parked_read(extent.content.parked, &address), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 0);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(ms_parked_read(extent.content.parked, &address), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start_sending, end, a_send_leaves_bytes_with_memory_in_their_place)
{
    CHECK_EQ(read_bytes(FAKE_GRANULE, 2 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK(prepare_to_send());
    CHECK_EQ(parked_bytes(), BYTES - FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes,
             FAKE_GRANULE); /* it is not evicted */
    CHECK(holds_all());
    ms_receive_queued(&receive, FAKE_STREAM);
}

MS_TEST_AFTER(start_sending, the_allocation_may_go_before_it_is_queued)
{
    CHECK(prepare_to_send());
    fake_allocation_free(allocation);
    CHECK(fake.physical_bytes > 0); /* NCCL will read it */
    ms_receive_queued(&receive, FAKE_STREAM);
    fake_check_empty();
}

MS_TEST(other_bytes_are_like_all_that_is_read)
{
    static const struct ms_content plain = {.kind = MS_FILL},
                                   absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    for (int way = 0; way < 5; way++) {
        start_sending();
        if (way == 0)
            fake_set(allocation, 0, BYTES, &plain); /* no kernel has put it there */
        else if (way == 1)
            fake_set(allocation, 0, FAKE_GRANULE, &absent);
        else if (way == 2)
            ms_config.receive_parts = false;
        else if (way == 3)
            atomic_fetch_add(&ms_hot.late_payloads, 1);
        else
            ms_order_set_capture(true);
        CHECK(!prepare_to_send());
        CHECK_EQ(parked_bytes(), 0);
        CHECK_EQ(fake.physical_bytes, 0);
        if (way == 3)
            atomic_fetch_sub(&ms_hot.late_payloads, 1);
        if (way == 4)
            ms_order_set_capture(false);
        end();
    }
}

MS_TEST(a_call_that_fails_leaves_the_bytes_where_they_were)
{
    bool has_failed = true;
    for (unsigned nth = 1; has_failed; nth++) {
        start_sending();
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
        const bool is_parked = prepare_to_send();
        has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        if (is_parked) {
            CHECK(holds_all());
            ms_receive_queued(&receive, FAKE_STREAM);
        } else {
            CHECK(ms_allocation_backing(allocation)->sinks == NULL);
            CHECK_EQ(parked_bytes(), 0);
            CHECK_EQ(fake.events, 0);
            CHECK_EQ(fake.pushed_contexts, 0);
        }
        CHECK_EQ(read_bytes(0, BYTES), CUDA_SUCCESS);
        CHECK(holds_all());
        end();
    }
}

/* It can be sent from memory of its own instead. */
MS_TEST_BETWEEN(start_sending, end, a_send_of_a_root_frees_no_other_memory)
{
    struct ms_allocation *other = fake_allocation(FAKE_GRANULE);
    fake_set(other, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_FILL, .pattern = 1});
    CHECK(ms_space_claim(other->address) == other);
    CHECK_EQ(ms_materialise(other, 0, FAKE_GRANULE, MS_NEED_READ), CUDA_SUCCESS);
    ms_space_release(other);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(!prepare_to_send());
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, FAKE_GRANULE);
    fake_allocation_free(other);
}

/* --- what all ranks gather */

static struct ms_lineage sent; /* 0 bytes: not known */
static size_t sent_begin;

static void start_gathering(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    CHECK(ms_lineage_init(&sent, 2 * FAKE_GRANULE));
    sent_begin = 2 * FAKE_GRANULE;
}

static void end_gathering(void)
{
    ms_lineage_cleanup(&sent);
    end();
}

static CUresult gather(size_t begin, size_t behind, struct ms_receive *receive_out)
{
    struct ms_receive_own own = {.begin = sent_begin};
    const struct ms_receive_role role = {.gathers = true, .own = &own};
    if (sent.bytes > 0)
        own.extents = ms_lineage_copy(&sent, 0, sent.bytes, &own.count);
    const CUresult result =
        ms_receive_prepare(allocation->address + begin, behind - begin, &role, receive_out);
    ms_lineage_free_copy(own.extents, own.count);
    return result;
}

/* The granule in which two tensors meet has memory once, and the second one may be gathered before
 * the first one is queued, as in a group. */
MS_TEST_BETWEEN(start_gathering, end_gathering, tensors_side_by_side_share_the_granule_of_both)
{
    enum { MIDDLE = 3 * FAKE_GRANULE + 512, LAST = BYTES - 512 };
    struct ms_receive second;
    sent.bytes = 0; /* nothing of it is this rank's */
    CHECK_EQ(gather(512, MIDDLE, &receive), CUDA_SUCCESS);
    CHECK_EQ(gather(MIDDLE, LAST, &second), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_PARKED], 5 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 3 * FAKE_GRANULE);
    write_all();
    ms_receive_queued(&receive, FAKE_STREAM);
    ms_receive_queued(&second, FAKE_STREAM);
    CHECK(kind_at(MIDDLE - 1) == MS_RESIDENT && kind_at(MIDDLE) == MS_RESIDENT);
    CHECK(kind_at(0) == MS_UNDEFINED && kind_at(BYTES - 1) == MS_UNDEFINED);
    CHECK_EQ(read_bytes(512, LAST), CUDA_SUCCESS);
    for (size_t i = 512; i < LAST; i += FAKE_GRANULE / 2)
        CHECK_EQ(byte_at(i), 6);
    CHECK_EQ(fake.physical_bytes, BYTES); /* one place for each byte */
    sent.bytes = 2 * FAKE_GRANULE;
}

/* Without a whole granule it comes to its place, and nobody waits. */
MS_TEST_BETWEEN(start_gathering, end_gathering, a_small_gather_comes_to_its_place)
{
    CHECK_EQ(gather(512, FAKE_GRANULE + 512, &receive), CUDA_SUCCESS);
    CHECK(receive.address == 0 && receive.park.count == 0);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, FAKE_GRANULE);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(fake.calls[FAKE_event_create], 0);
}

/* Bytes of a file are received as all others: they would be read twice. */
MS_TEST_BETWEEN(start_gathering, end_gathering, a_gather_leaves_out_bytes_that_need_no_memory_alone)
{
    enum { G = FAKE_GRANULE };
    ms_host_snapshot_set_limit(BYTES);
    const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x04030201};
    const struct ms_content file = {.kind = MS_SOURCE, .source = snapshot_of(host, 64)};
    CHECK(ms_lineage_set(&sent, 1, G, &pattern));
    CHECK(ms_lineage_set(&sent, G, 2 * G, &file));
    ms_source_drop(file.source);
    sent_begin = 3 * G + 2;
    CHECK_EQ(gather(2 * G, BYTES, &receive), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
    memset((void *)(uintptr_t)(allocation->address + 2 * G), 6, BYTES - 2 * G);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK(kind_at(5 * G + 2) == MS_PARKED && kind_at(5 * G + 3) == MS_FILL);
    CHECK(kind_at(6 * G + 1) == MS_FILL && kind_at(6 * G + 2) == MS_PARKED);
    CHECK_EQ(read_bytes(2 * G, BYTES), CUDA_SUCCESS);
    CHECK(byte_at(5 * G + 2) == 6 && byte_at(6 * G + 2) == 6);
    /* as it stands where it was sent: at 1 is the byte of offset 1 */
    CHECK(byte_at(5 * G + 3) == 2 && byte_at(5 * G + 4) == 3 && byte_at(5 * G + 6) == 1);
}

/* Its memory goes as a whole when the gathering has run. Bytes of a snapshot stay received, in
 * pieces of two granules; so does a granule with a byte that another rank has sent. */
MS_TEST(a_pattern_that_this_rank_gathers_is_one_piece)
{
    enum { G = FAKE_GRANULE };
    const struct {
        bool is_snapshot;
        size_t begin, pieces;
    } ways[] = {{false, G, 1 + 1 + (GRANULES - 3 + 1) / 2},
                {true, G, GRANULES / 2},
                {false, G + 2, 1 + 1 + (GRANULES - 3 + 1) / 2}};
    for (int i = 0; i < 3; i++) {
        start_gathering();
        ms_host_snapshot_set_limit(BYTES);
        struct ms_content content = {.kind = MS_FILL, .pattern = 1};
        if (ways[i].is_snapshot)
            content = (struct ms_content){.kind = MS_SOURCE, .source = snapshot_of(host, 2 * G)};
        CHECK(ms_lineage_set(&sent, 0, 2 * G, &content));
        if (ways[i].is_snapshot)
            ms_source_drop(content.source);
        sent_begin = ways[i].begin;
        CHECK_EQ(gather(0, BYTES, &receive), CUDA_SUCCESS);
        CHECK_EQ(receive.park.count, ways[i].pieces);
        write_all();
        ms_receive_queued(&receive, FAKE_STREAM);
        CHECK_EQ(fake.physical_bytes, i == 0 ? BYTES - 2 * G : i == 1 ? BYTES : BYTES - G);
        end_gathering();
    }
}

MS_TEST_BETWEEN(start_gathering, end_gathering, a_pattern_that_is_sent_to_be_gathered_is_one_piece)
{
    const struct ms_receive_role role = {.sends = true, .gathers = true};
    const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x06060606};
    fake_set(allocation, 0, BYTES, &pattern);
    CHECK_EQ(ms_receive_prepare(allocation->address, BYTES, &role, &receive), CUDA_SUCCESS);
    CHECK(receive.park.count == 1 && fake.calls[FAKE_mem_create] == 1);
    CHECK(byte_at(0) == 6 && byte_at(BYTES - 1) == 6);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK(kind_at(0) == MS_FILL && fake.physical_bytes == 0);
    CHECK_EQ(fake.calls[FAKE_mem_map], 1); /* nobody has read it elsewhere */
}

MS_TEST(a_failed_gathering_leaves_nothing)
{
    bool has_failed = true;
    for (unsigned nth = 1; has_failed; nth++) {
        start_gathering();
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
        const CUresult result = gather(0, BYTES, &receive);
        has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        if (result == CUDA_SUCCESS) {
            write_all();
            ms_receive_queued(&receive, FAKE_STREAM);
            CHECK_EQ(read_bytes(0, BYTES), CUDA_SUCCESS);
            CHECK(byte_at(0) == 6 && byte_at(BYTES - 1) == 6);
        } else {
            check_undone();
        }
        end_gathering();
    }
}

/* --- out of a file */

MS_TEST(a_send_of_a_file_is_read_to_its_place)
{
    static struct test_file file;
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    allocation = fake_allocation(BYTES);
    const struct ms_content nines = {.kind = MS_FILL,
                                     .pattern = 0x09090909,
                                     .is_in_sequence = true};
    struct ms_content content = {
        .kind = MS_SOURCE, .source = file.source, .source_offset = 100, .is_in_sequence = true};
    fake_set(allocation, 0, BYTES, &nines);
    fake_set(allocation, 1000, HALF, &content);
    content.source_offset = HALF;
    fake_set(allocation, HALF + 5, BYTES - 7, &content);
    CHECK(prepare_to_send());
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    CHECK(bytes[0] == 9 && bytes[999] == 9 && bytes[HALF] == 9 && bytes[BYTES - 7] == 9);
    CHECK_BYTES(bytes + 1000, file.data + 100, HALF - 1000);
    CHECK_BYTES(bytes + HALF + 5, file.data + HALF, HALF - 12);
    CHECK_EQ(parked_bytes(), BYTES);
    ms_receive_queued(&receive, FAKE_STREAM);
    ms_source_drop(file.source);
    end();
}

MS_TEST_BETWEEN(start_sending, end, a_part_of_an_allocation_is_sent_alone)
{
    const size_t first = FAKE_GRANULE + 100, bytes = HALF + 200;
    CHECK_EQ(prepare_range(allocation->address + first, bytes, 2, true), CUDA_SUCCESS);
    CHECK(receive.address == allocation->address && parked_bytes() == bytes);
    CHECK_EQ(kind_at(first - 1), MS_FILL);
    CHECK_EQ(kind_at(first + bytes), MS_SOURCE);
    CHECK(byte_at(first) == 9 && byte_at(HALF - 1) == 9 && byte_at(HALF) == host[0]);
    CHECK_EQ(byte_at(first + bytes - 1), host[first + bytes - 1 - HALF]);
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(read_bytes(0, BYTES), CUDA_SUCCESS);
    CHECK(holds_all());
}

/* --- without heap */

static bool receive_without(void (*begin)(void), int pieces)
{
    begin();
    const bool is_root = begin == start_sending;
    may_make = pieces;
    fails_once = true;
    const CUresult result = prepare_range(allocation->address, BYTES, 2, is_root);
    const bool has_failed = may_make < 0;
    may_make = 1000000;
    if (result != CUDA_SUCCESS)
        CHECK(receive.sink == NULL && receive.lent == NULL && receive.park.count == 0);
    if (!is_root && result == CUDA_SUCCESS)
        write_all();
    ms_receive_queued(&receive, FAKE_STREAM);
    CHECK_EQ(read_bytes(0, is_root ? BYTES : HALF), CUDA_SUCCESS);
    CHECK(is_root ? holds_all() : result != CUDA_SUCCESS || byte_at(HALF - 1) == 6);
    end();
    return has_failed;
}

MS_TEST(a_receive_without_host_memory_leaves_nothing)
{
    void (*const begins[])(void) = {start, start_passing, start_in_sequence, start_sending};
    for (int way = 0; way < 4; way++) {
        receive_without(begins[way], 1000000);
        receive_without(begins[way], 1000000); /* what is kept */
        const int before = live;
        for (int pieces = 0; receive_without(begins[way], pieces); pieces++) {
            receive_without(begins[way], 1000000); /* what is kept is there again */
            CHECK_EQ(live, before);
        }
    }
}
