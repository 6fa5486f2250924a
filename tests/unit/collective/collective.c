/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/collective.h"

#include <string.h>

#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/reuse.h"
#include "runtime/memory/space.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE, HALF = BYTES / 2 };

/* It asks whether kernels are queued, for what comes next. */
static unsigned looks;
WRAPS(ms_examining_no_kernel);
bool __wrap_ms_examining_no_kernel(CUcontext current)
{
    CHECK(current == FAKE_CONTEXT);
    looks++;
    return true;
}

static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static struct ms_allocation *one, *other;

static void start(void)
{
    fake_start();
    one = fake_allocation(BYTES);
    other = fake_allocation(BYTES);
    fake_set(one, 0, BYTES, &sevens);
    fake_set(other, 0, BYTES, &sevens);
}

/* By which this rank keeps the first half of a tensor. */
static void start_with_plan(void)
{
    start();
    use_plan(0, BYTES);
}

static void end(void)
{
    fake_check_allocation(one);
    fake_check_allocation(other);
    fake_allocation_free(one);
    fake_allocation_free(other);
    fake_check_empty();
}

static void *at(const struct ms_allocation *allocation, size_t offset)
{
    return (void *)(uintptr_t)(allocation->address + offset);
}

static void prepare(const struct ms_operation *operation)
{
    CHECK(ms_collective_matters());
    CHECK_EQ(ms_collective_prepare(operation), CUDA_SUCCESS);
}

static void broadcast(struct ms_allocation *into)
{
    prepare(&(struct ms_operation){
        .written = at(into, 0), .written_bytes = BYTES, .receives = true, .ranks = 2});
}

/* True if something of what is cached is held, and cannot be evicted. */
static bool is_held(const struct ms_allocation *allocation)
{
    int attempts = 0;
    const size_t before = ms_allocation_backing(allocation)->backed_bytes;
    ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts);
    return ms_allocation_backing(allocation)->backed_bytes == before;
}

static enum ms_kind kind_at(const struct ms_allocation *allocation, size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset).content.kind;
}

/* --- what is read and written */

MS_TEST_BETWEEN(start, end, a_send_brings_in_and_holds_its_bytes_until_queued)
{
    prepare(&(struct ms_operation){.read = at(one, 0), .read_bytes = HALF, .sends = true});
    CHECK(ms_allocation_lineage(one)->cached_bytes == HALF && is_held(one));
    ms_collective_called(FAKE_STREAM);
    CHECK(!is_held(one));
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
}

STORY_BETWEEN(start, end, a_reduction_makes_its_bytes_resident_and_holds_none,
              prepare(&(struct ms_operation){.read = at(one, 0),
                                             .read_bytes = HALF,
                                             .written = at(other, 0),
                                             .written_bytes = FAKE_GRANULE}),
              IS(ms_allocation_lineage(one)->resident_bytes == HALF &&
                 ms_allocation_lineage(other)->resident_bytes == FAKE_GRANULE),
              ms_collective_called(FAKE_STREAM))

/* Its work comes when nobody knows: it keeps no lineage. */
STORY_BETWEEN(start, end, a_late_send_makes_its_bytes_resident,
              prepare(&(struct ms_operation){
                  .read = at(one, 0), .read_bytes = HALF, .sends = true, .is_late = true}),
              EQUALS(ms_allocation_lineage(one)->resident_bytes, HALF),
              ms_collective_called(FAKE_STREAM))

/* The bytes beside what is read keep their value, though all is written. */
MS_TEST_BETWEEN(start, end, an_operation_in_place_brings_its_bytes_in)
{
    const size_t last = HALF - FAKE_GRANULE;
    prepare(&(struct ms_operation){.read = at(one, last),
                                   .read_bytes = FAKE_GRANULE,
                                   .written = at(one, 0),
                                   .written_bytes = HALF,
                                   .sends = true});
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, HALF);
    CHECK_EQ(*(unsigned char *)at(one, 0), 7);
    ms_collective_called(FAKE_STREAM);
}

/* Its original comes into memory; that of what is sent from elsewhere, or reduced in place, does
 * not. */
MS_TEST_BETWEEN(start, end, a_gather_in_place_copies_its_bytes_from_their_original)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", FAKE_GRANULE);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    const struct ms_content nothing = {.kind = MS_UNDEFINED};
    const struct ms_operation ways[] = {{.read = at(one, FAKE_GRANULE),
                                         .read_bytes = FAKE_GRANULE,
                                         .written = at(one, 0),
                                         .written_bytes = HALF},
                                        {.read = at(one, FAKE_GRANULE),
                                         .read_bytes = FAKE_GRANULE,
                                         .written = at(one, HALF),
                                         .written_bytes = HALF},
                                        {.read = at(one, FAKE_GRANULE),
                                         .read_bytes = FAKE_GRANULE,
                                         .written = at(one, FAKE_GRANULE),
                                         .written_bytes = FAKE_GRANULE}};
    for (int way = 2; way >= 0; way--) {
        fake_set(one, 0, BYTES, &nothing);
        fake_set(other, 0, BYTES, &nothing);
        fake_set(one, FAKE_GRANULE, 2 * FAKE_GRANULE, &content);
        fake_set(other, 0, FAKE_GRANULE, &content);
        struct ms_allocation *original = fake_allocation(FAKE_GRANULE);
        fake_set(original, 0, FAKE_GRANULE, &content);
        ms_reuse_note(&(struct ms_copied){&content, original, 0, one, FAKE_GRANULE, FAKE_GRANULE});
        prepare(&ways[way]);
        ms_collective_called(FAKE_STREAM);
        CHECK_EQ(ms_allocation_lineage(original)->cached_bytes, way == 0 ? FAKE_GRANULE : 0);
        CHECK_BYTES(at(one, FAKE_GRANULE), file.data, FAKE_GRANULE);
        fake_allocation_free(original);
    }
    fake_set(other, 0, BYTES, &nothing);
    ms_source_drop(file.source);
}

/* They meet in no byte: what is written was not brought in before. */
STORY_BETWEEN(start, end, side_by_side_they_do_not_overlap,
              prepare(&(struct ms_operation){.read = at(one, HALF),
                                             .read_bytes = HALF,
                                             .written = at(one, 0),
                                             .written_bytes = HALF,
                                             .sends = true}),
              IS(ms_allocation_lineage(one)->cached_bytes == HALF &&
                 ms_allocation_lineage(one)->resident_bytes == HALF),
              EQUALS(*(unsigned char *)at(one, 0), 0), ms_collective_called(FAKE_STREAM))

MS_TEST_BETWEEN(start, end, an_operation_that_fails_holds_nothing)
{
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_INVALID_HANDLE);
    const struct ms_operation send = {.read = at(one, 0), .read_bytes = HALF, .sends = true};
    CHECK_EQ(ms_collective_prepare(&send), CUDA_ERROR_INVALID_HANDLE);
    ms_collective_called(FAKE_STREAM);
    CHECK_EQ(ms_collective_prepare(&send), CUDA_SUCCESS);
    ms_collective_called(FAKE_STREAM);
    CHECK(!is_held(one));
}

/* --- groups */

MS_TEST_BETWEEN(start, end, a_group_holds_all_until_the_outermost_ends)
{
    CHECK(!ms_collective_is_in_group());
    ms_collective_group(true);
    ms_collective_group(true);
    prepare(&(struct ms_operation){.read = at(one, 0), .read_bytes = HALF, .sends = true});
    ms_collective_called(FAKE_STREAM);
    ms_collective_group(false);
    CHECK(is_held(one) && ms_collective_is_in_group());
    ms_collective_group(false);
    CHECK(!ms_collective_is_in_group() && !is_held(one));
    ms_collective_group(false); /* one too many, which NCCL refuses */
    CHECK(!ms_collective_is_in_group());
}

/* --- with a plan */

STORY_BETWEEN(start_with_plan, end, a_broadcast_gets_memory_for_the_part_of_this_rank_alone,
              broadcast(one), EQUALS(ms_allocation_backing(one)->backed_bytes, HALF),
              ms_collective_called(FAKE_STREAM),
              IS(kind_at(one, 0) == MS_RESIDENT && kind_at(one, HALF) == MS_ABSENT))

MS_TEST_BETWEEN(start_with_plan, end, a_broadcast_in_a_group_is_received_when_the_group_ends)
{
    ms_collective_group(true);
    broadcast(one);
    ms_collective_called(FAKE_STREAM);
    broadcast(other);
    ms_collective_called(FAKE_STREAM);
    CHECK(fake_memory_at(one->address + HALF) != 0); /* the sink */
    ms_collective_group(false);
    CHECK(fake_memory_at(one->address + HALF) == 0 && fake_memory_at(other->address + HALF) == 0);
    CHECK(kind_at(one, HALF) == MS_ABSENT && kind_at(other, HALF) == MS_ABSENT);
}

STORY_BETWEEN(start_with_plan, end, a_late_broadcast_is_received_whole,
              prepare(&(struct ms_operation){.written = at(one, 0),
                                             .written_bytes = BYTES,
                                             .receives = true,
                                             .ranks = 2,
                                             .is_late = true}),
              EQUALS(ms_allocation_backing(one)->backed_bytes, BYTES),
              ms_collective_called(FAKE_STREAM), EQUALS(kind_at(one, HALF), MS_RESIDENT))

STORY_BETWEEN(start_with_plan, end, a_gather_is_received_whole,
              prepare(&(struct ms_operation){
                  .written = at(one, 0), .written_bytes = BYTES, .ranks = 2}),
              EQUALS(ms_allocation_backing(one)->backed_bytes, BYTES),
              ms_collective_called(FAKE_STREAM), EQUALS(kind_at(one, HALF), MS_RESIDENT))

/* In the order of the calls, each in its stream. */
static CUstream streams[16];
static size_t stream_count;
static CUresult (*record)(CUevent event, CUstream stream);

static CUresult event_record(CUevent event, CUstream stream)
{
    CHECK(stream_count < 16);
    streams[stream_count++] = stream;
    return record(event, stream);
}

MS_TEST_BETWEEN(start_with_plan, end, each_operation_of_a_group_is_waited_for_in_its_own_stream)
{
    record = ms_driver.event_record;
    ms_driver.event_record = event_record;
    ms_collective_group(true);
    broadcast(one);
    ms_collective_called((CUstream)11);
    broadcast(other);
    ms_collective_called((CUstream)12);
    CHECK_EQ(stream_count, 0);
    ms_collective_group(false);
    CHECK(stream_count > 0 && stream_count % 2 == 0);
    for (size_t i = 0; i < stream_count; i++)
        CHECK_EQ((uintptr_t)streams[i], i < stream_count / 2 ? 11 : 12);
}

MS_TEST_BETWEEN(start_with_plan, end, a_call_of_several_is_one_stream)
{
    record = ms_driver.event_record;
    ms_driver.event_record = event_record;
    broadcast(one);
    broadcast(other);
    ms_collective_called((CUstream)11);
    CHECK(stream_count > 0);
    for (size_t i = 0; i < stream_count; i++)
        CHECK_EQ((uintptr_t)streams[i], 11);
    const size_t before = stream_count;
    ms_collective_called((CUstream)12); /* it has none */
    CHECK_EQ(stream_count, before);
}

/* More than are kept of a group are received whole. */
MS_TEST(sixteen_broadcasts_of_a_group_are_received_in_parts)
{
    enum { MOST = 16 };
    struct ms_allocation *many[MOST + 1];
    fake_start();
    use_plan(0, BYTES);
    ms_collective_group(true);
    for (int i = 0; i <= MOST; i++) {
        many[i] = fake_allocation(BYTES);
        broadcast(many[i]);
        CHECK_EQ(ms_allocation_backing(many[i])->backed_bytes, i < MOST ? HALF : BYTES);
        ms_collective_called(FAKE_STREAM);
    }
    ms_collective_group(false);
    for (int i = 0; i <= MOST; i++) {
        CHECK_EQ(kind_at(many[i], HALF), i < MOST ? MS_ABSENT : MS_RESIDENT);
        fake_allocation_free(many[i]);
    }
    fake_check_empty();
}

STORY_BETWEEN(start_with_plan, end, a_captured_broadcast_is_received_whole,
              ms_order_set_capture(true), broadcast(one), ms_order_set_capture(false),
              EQUALS(ms_allocation_backing(one)->backed_bytes, BYTES),
              ms_collective_called(FAKE_STREAM))

MS_TEST_BETWEEN(start_with_plan, end, a_broadcast_in_place_is_received_whole)
{
    prepare(&(struct ms_operation){.read = at(one, 0),
                                   .read_bytes = BYTES,
                                   .written = at(one, 0),
                                   .written_bytes = BYTES,
                                   .receives = true,
                                   .sends = true,
                                   .ranks = 2});
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes, BYTES);
    CHECK_EQ(*(unsigned char *)at(one, BYTES - 1), 7);
    ms_collective_called(FAKE_STREAM);
    CHECK_EQ(kind_at(one, HALF), MS_RESIDENT);
}

/* --- what a kernel has put together is sent */

static void start_in_sequence(void)
{
    const struct ms_content put = {.kind = MS_FILL, .pattern = 0x09090909, .is_in_sequence = true};
    start();
    fake_set(one, 0, BYTES, &put);
    looks = 0;
}

static struct ms_operation sending(void)
{
    return (struct ms_operation){
        .read = at(one, 0), .read_bytes = BYTES, .sends = true, .receives = true, .ranks = 2};
}

MS_TEST_BETWEEN(start_in_sequence, end, a_broadcast_of_bytes_that_only_pass_is_sent_from_a_store)
{
    const struct ms_operation operation = sending();
    prepare(&operation);
    CHECK(kind_at(one, 0) == MS_PARKED && ms_allocation_backing(one)->backed_bytes == 0);
    CHECK_EQ(*(unsigned char *)at(one, BYTES - 1), 9);
    CHECK_EQ(looks, 1);
    ms_collective_called(FAKE_STREAM);
    CHECK_EQ(fake_memory_at(one->address), 0);
}

MS_TEST(other_sends_are_sent_from_their_place)
{
    for (int i = 0; i < 5; i++) {
        start_in_sequence();
        struct ms_operation operation = sending();
        if (i == 0) /* as a broadcast of which the root has another copy */
            operation.written = at(other, 0), operation.written_bytes = 1;
        else if (i == 1)
            operation.receives = false;
        else if (i == 2)
            operation.is_late = true;
        else if (i == 3)
            operation.read_bytes = 0;
        else
            ms_order_set_capture(true);
        prepare(&operation);
        CHECK(kind_at(one, 0) == (i == 2 || i == 4 ? MS_RESIDENT : MS_FILL));
        CHECK_EQ(ms_allocation_lineage(one)->cached_bytes, i < 2 ? BYTES : 0);
        CHECK_EQ(looks, i < 2);
        ms_order_set_capture(false);
        ms_collective_called(FAKE_STREAM);
        end();
    }
}

/* Nothing has come into memory: a kernel may be queued as before. */
MS_TEST_BETWEEN(start, end, a_send_of_bytes_in_memory_asks_no_more)
{
    const struct ms_operation operation = {.read = at(one, 0), .read_bytes = HALF, .sends = true};
    looks = 0;
    prepare(&operation);
    CHECK_EQ(looks, 1);
    ms_collective_called(FAKE_STREAM);
    prepare(&operation);
    CHECK_EQ(looks, 1);
    CHECK(is_held(one));
    ms_collective_called(FAKE_STREAM);
    CHECK(!is_held(one));
}

/* --- what all ranks gather while a model is loaded */

/* Half of it is this rank's, the second of two. */
static struct ms_operation gathering(void)
{
    return (struct ms_operation){.read = at(one, 0),
                                 .read_bytes = HALF,
                                 .written = at(other, 0),
                                 .written_bytes = BYTES,
                                 .sends = true,
                                 .gathers = true,
                                 .ranks = 2,
                                 .rank = 1};
}

static size_t memory_of_both(void)
{
    return ms_allocation_backing(one)->backed_bytes + ms_allocation_backing(other)->backed_bytes;
}

/* Bytes from the other rank take memory, which is parked. Bytes that this rank has sent are a
 * pattern in both places. */
MS_TEST_BETWEEN(start, end, a_gather_keeps_each_byte_once)
{
    const struct ms_operation operation = gathering();
    prepare(&operation);
    CHECK(*(unsigned char *)at(one, HALF - 1) == 7 && fake_memory_at(other->address + BYTES - 1));
    ms_collective_called(FAKE_STREAM);
    CHECK_EQ(ms_allocation_lineage(other)->kind_bytes[MS_PARKED], HALF);
    CHECK(kind_at(other, 0) == MS_PARKED && kind_at(other, HALF) == MS_FILL);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(other), HALF).content.pattern, 0x07070707);
    CHECK(kind_at(one, 0) == MS_FILL && memory_of_both() == 0);
    CHECK_EQ(fake.physical_bytes, HALF);
    CHECK(!fake_memory_at(one->address) && !fake_memory_at(other->address + HALF));
}

/* A program that computes uses it where it comes, and sends what is in memory. */
MS_TEST(other_gathers_come_to_their_place)
{
    for (int i = 0; i < 5; i++) {
        start();
        struct ms_operation operation = gathering();
        if (i == 0) /* a kernel may have used it */
            CHECK_EQ(ms_access(one->address, HALF, MS_NEED_REACH), CUDA_SUCCESS);
        else if (i == 1)
            operation.gathers = false;
        else if (i == 2)
            operation.is_late = true;
        else if (i == 3)
            operation.read = at(other, HALF); /* it is in its place already */
        else
            ms_order_set_capture(true);
        prepare(&operation);
        CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, BYTES);
        ms_order_set_capture(false);
        ms_collective_called(FAKE_STREAM);
        end();
    }
}

/* Another operation of the group may send it too. */
MS_TEST_BETWEEN(start, end, a_gather_in_a_group_sends_from_its_place)
{
    const struct ms_operation operation = gathering();
    ms_collective_group(true);
    prepare(&operation);
    ms_collective_called(FAKE_STREAM);
    CHECK_EQ(ms_allocation_lineage(one)->cached_bytes, HALF);
    prepare(&(struct ms_operation){.read = at(one, 0), .read_bytes = HALF, .sends = true});
    ms_collective_called(FAKE_STREAM);
    ms_collective_group(false);
    CHECK(kind_at(other, 0) == MS_PARKED && kind_at(other, HALF) == MS_FILL);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
}

/* --- what is captured */

static int capture(const struct ms_operation *operation)
{
    ms_order_set_capture(true);
    CHECK_EQ(ms_collective_prepare(operation), CUDA_SUCCESS);
    ms_order_set_capture(false);
    ms_collective_called(FAKE_STREAM);
    return count_log_lines("materialised in pieces");
}

/* NCCL does not register it. */
MS_TEST_BETWEEN(start, end, the_log_tells_of_captured_memory_in_pieces_once)
{
    struct ms_operation operation = {.written = at(one, 0), .written_bytes = BYTES};
    open_log(MS_WARN);
    CHECK_EQ(capture(&operation), 0); /* it comes as one */
    prepare(&(struct ms_operation){.written = at(other, 0), .written_bytes = FAKE_GRANULE});
    prepare(&(struct ms_operation){.written = at(other, FAKE_GRANULE), .written_bytes = HALF});
    operation = (struct ms_operation){.written = at(one, 0), .written_bytes = BYTES};
    CHECK_EQ(capture(&operation), 0);
    operation.read = at(other, 0); /* which is none of it */
    CHECK_EQ(capture(&operation), 0);
    operation.read_bytes = 8;
    CHECK_EQ(capture(&operation), 1);
    CHECK_EQ(capture(&operation), 1);
}

MS_TEST_BETWEEN(start, end, the_log_tells_of_written_memory_in_pieces_as_well)
{
    const struct ms_operation operation = {.written = at(other, 0), .written_bytes = 8};
    open_log(MS_WARN);
    prepare(&(struct ms_operation){.written = at(other, 0), .written_bytes = FAKE_GRANULE});
    prepare(&(struct ms_operation){.written = at(other, FAKE_GRANULE), .written_bytes = HALF});
    CHECK_EQ(ms_collective_prepare(&operation), CUDA_SUCCESS); /* it is not captured */
    CHECK_EQ(count_log_lines("materialised in pieces"), 0);
    CHECK_EQ(capture(&operation), 1);
}

/* --- of no bytes */

STORY_BETWEEN(start_with_plan, end, an_operation_that_reads_nothing_overlaps_nothing,
              prepare(&(struct ms_operation){.read = at(one, FAKE_GRANULE),
                                             .written = at(one, 0),
                                             .written_bytes = BYTES,
                                             .receives = true,
                                             .ranks = 2}),
              EQUALS(ms_allocation_backing(one)->backed_bytes, HALF),
              ms_collective_called(FAKE_STREAM))

STORY_BETWEEN(
    start_with_plan, end, an_operation_of_no_bytes_does_nothing,
    prepare(&(struct ms_operation){
        .read = at(one, 0), .written = at(one, 0), .receives = true, .sends = true, .ranks = 2}),
    ms_collective_called(FAKE_STREAM),
    IS(ms_allocation_backing(one)->backed_bytes == 0 && fake.work_count == 0))
