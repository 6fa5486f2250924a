/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/move.h"

#include <string.h>

#include "runtime/calls/copy.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/source.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/snapshot_of.h"

/* --- what it calls */

static struct {
    unsigned extends, events, copies;
    struct ms_event event;
    CUdeviceptr later;
    size_t later_bytes, sizes[8], places[8], counts[8];
    bool is_in_sequence[8];
} seen;

WRAPS(ms_window_extend, ms_state_event, ms_access_granules_later, ms_copy_on_device);
void __wrap_ms_window_extend(void)
{
    seen.extends++;
    __real_ms_window_extend();
}

void __wrap_ms_state_event(const struct ms_event *event)
{
    seen.events++;
    seen.event = *event;
}

void __wrap_ms_access_granules_later(CUdeviceptr address, size_t bytes)
{
    seen.later = address;
    seen.later_bytes = bytes;
}

bool __wrap_ms_copy_on_device(const struct ms_movement *movement, CUresult *result_out)
{
    const struct ms_sequence *sequence = movement->sequence;
    const unsigned at = seen.copies++ % 8;
    seen.is_in_sequence[at] = sequence != NULL;
    seen.places[at] = sequence != NULL ? sequence->at : 0;
    seen.counts[at] = sequence != NULL ? sequence->count : 0;
    seen.sizes[at] = sequence != NULL ? sequence->bytes[sequence->at] : 0;
    return __real_ms_copy_on_device(movement, result_out);
}

enum { GRANULES = 4, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x04030201};
static struct ms_allocation *one, *other;
static CUdeviceptr program;

static void start(void)
{
    fake_start();
    memset(&seen, 0, sizeof(seen));
    one = fake_allocation(BYTES);
    other = fake_allocation(BYTES);
    program = fake_program_memory(BYTES);
    fake_set(one, 0, BYTES, &pattern);
    fake_set(other, 0, BYTES, &pattern);
}

static void end(void)
{
    fake_check_allocation(one);
    fake_check_allocation(other);
    fake_allocation_free(one);
    fake_allocation_free(other);
    fake_program_memory_free(program);
    fake_check_empty();
}

static struct ms_movement row(enum ms_movement_kind kind, struct ms_side to, struct ms_side from,
                              size_t bytes)
{
    return (struct ms_movement){.kind = kind,
                                .stream = FAKE_STREAM,
                                .width = bytes,
                                .height = 1,
                                .depth = 1,
                                .to = to,
                                .from = from};
}

static enum ms_verdict begin(const struct ms_movement *movement, bool *held_out)
{
    CUresult result = CUDA_SUCCESS;
    const enum ms_verdict verdict = ms_move_begin(movement, held_out, &result);
    CHECK_EQ(result, CUDA_SUCCESS);
    return verdict;
}

static size_t resident(const struct ms_allocation *allocation)
{
    return ms_allocation_lineage(allocation)->resident_bytes;
}

MS_TEST_BETWEEN(start, end, a_copy_on_the_device_is_recorded)
{
    bool is_held;
    const struct ms_movement movement = row(MS_COPY_ON_DEVICE, ms_side_of_device(other->address),
                                            ms_side_of_device(one->address), BYTES);
    CHECK_EQ(begin(&movement, &is_held), MS_ANSWERED);
    CHECK(!is_held && resident(one) == 0 && resident(other) == 0);
}

/* The driver derives what it is: out of an allocation to other memory is a copy of it. */
MS_TEST_BETWEEN(start, end, any_copy_is_what_its_addresses_say)
{
    unsigned char host[FAKE_GRANULE];
    bool is_held;
    const struct ms_movement read = row(MS_COPY_ANY, ms_side_of_device((uintptr_t)host),
                                        ms_side_of_device(one->address), FAKE_GRANULE);
    CHECK_EQ(begin(&read, &is_held), MS_FORWARD);
    CHECK(is_held && ms_allocation_lineage(one)->cached_bytes == FAKE_GRANULE);
    ms_evict_let_go();
    const struct ms_movement nothing =
        row(MS_COPY_ANY, ms_side_of_device(one->address), ms_side_of_device(other->address), 0);
    CHECK_EQ(begin(&nothing, &is_held), MS_FORWARD);
    CHECK(!is_held && resident(other) == 0);
}

MS_TEST_BETWEEN(start, end, a_box_makes_both_sides_real_and_nothing_else)
{
    bool is_held;
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = one->address,
                                .srcPitch = FAKE_GRANULE,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = other->address,
                                .dstPitch = FAKE_GRANULE,
                                .dstXInBytes = 16,
                                .WidthInBytes = 16,
                                .Height = 2,
                                .Depth = 1};
    const struct ms_movement movement = ms_movement_of_box(&copy, FAKE_STREAM);
    CHECK_EQ(movement.to.begin, other->address + 16);
    CHECK_EQ(begin(&movement, &is_held), MS_FORWARD);
    CHECK(!is_held && resident(one) > 0 && resident(one) <= 2 * FAKE_GRANULE);
    CHECK(resident(other) > 0 && resident(other) <= 2 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, a_move_that_is_not_modelled_makes_all_real)
{
    bool is_held;
    const struct ms_movement movement =
        row(MS_COPY_UNKNOWN, ms_side_of_device(program), ms_side_of_device(program), FAKE_GRANULE);
    CHECK_EQ(begin(&movement, &is_held), MS_FORWARD);
    CHECK(!is_held && resident(one) == BYTES && resident(other) == BYTES);
}

MS_TEST_BETWEEN(start, end, a_move_that_strays_is_not_looked_at)
{
    bool is_held;
    const struct ms_movement beyond =
        row(MS_COPY_ON_DEVICE, ms_side_of_device(other->address + BYTES - 16),
            ms_side_of_device(one->address), 32);
    CHECK_EQ(begin(&beyond, &is_held), MS_STRAYS);
    CHECK_EQ(ms_move_pass(&beyond), MS_STRAYS);
    CHECK(!is_held && resident(one) == 0 && resident(other) == 0);
    struct ms_movement rows = beyond;
    rows.to = (struct ms_side){.type = CU_MEMORYTYPE_DEVICE,
                               .begin = other->address,
                               .pitch = FAKE_GRANULE};
    rows.height = GRANULES + 1;
    CHECK_EQ(ms_move_pass(&rows), MS_STRAYS);
    rows.height = GRANULES;
    rows.from = (struct ms_side){0};
    CHECK_EQ(ms_move_pass(&rows), MS_FORWARD);
}

/* The driver says what is wrong with it. */
MS_TEST_BETWEEN(start, end, no_struct_is_forwarded)
{
    bool is_held;
    const struct ms_movement box = ms_movement_of_box(NULL, FAKE_STREAM);
    const struct ms_movement plane = ms_movement_of_plane(NULL, FAKE_STREAM);
    const struct ms_movement peers = ms_movement_of_peers(NULL, FAKE_STREAM);
    CHECK_EQ(begin(&box, &is_held), MS_FORWARD);
    CHECK_EQ(begin(&plane, &is_held), MS_FORWARD);
    CHECK_EQ(begin(&peers, &is_held), MS_FORWARD);
    CHECK(resident(one) == 0 && resident(other) == 0);
}

MS_TEST(a_set_of_too_many_elements_is_of_all_bytes)
{
    CHECK_EQ(ms_side_bytes(SIZE_MAX / 2, 4), SIZE_MAX);
    CHECK_EQ(ms_side_bytes(3, 4), 12);
}

/* --- one row of any kind */

static CUdeviceptr strange; /* the driver says of its granule: */
static unsigned strange_type, strange_managed;
static CUresult (*know)(void *value, CUpointer_attribute attribute, CUdeviceptr address);

static CUresult pointer_get_attribute(void *value, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    if (address < strange || address >= strange + FAKE_GRANULE)
        return know(value, attribute, address);
    *(unsigned *)value =
        attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED ? strange_managed : strange_type;
    return CUDA_SUCCESS;
}

/* Lets the driver report this type for memory of the host, or of the program. */
static void say(CUdeviceptr address, unsigned type, unsigned managed)
{
    strange = address;
    strange_type = type;
    strange_managed = managed;
    know = ms_driver.pointer_get_attribute;
    ms_driver.pointer_get_attribute = pointer_get_attribute;
}

static unsigned char bytes[BYTES]; /* of the host */

static CUdeviceptr of_host(void)
{
    return (uintptr_t)bytes;
}

/* Whether it is forwarded, and so what it reads held. */
struct answer {
    enum ms_verdict verdict;
    bool is_held;
    CUresult result;
};

static struct answer move(enum ms_movement_kind kind, CUdeviceptr to, CUdeviceptr from,
                          size_t width)
{
    const CUmemorytype type = kind == MS_COPY_ANY ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;
    const struct ms_movement movement = row(kind, (struct ms_side){.type = type, .begin = to},
                                            (struct ms_side){.type = type, .begin = from}, width);
    struct answer answer = {.result = CUDA_SUCCESS};
    answer.verdict = ms_move_begin(&movement, &answer.is_held, &answer.result);
    ms_move_end(answer.is_held);
    return answer;
}

static void check_answered(struct answer answer)
{
    CHECK_EQ(answer.result, CUDA_SUCCESS);
    CHECK(answer.verdict == MS_ANSWERED && !answer.is_held);
}

static void check_forwarded(struct answer answer, bool is_held)
{
    CHECK_EQ(answer.result, CUDA_SUCCESS);
    CHECK_EQ(answer.verdict, MS_FORWARD);
    CHECK_EQ(answer.is_held, is_held);
}

static void check_refused(struct answer answer, CUresult result)
{
    CHECK_EQ(answer.result, result);
    CHECK(answer.verdict == MS_ANSWERED && !answer.is_held);
}

static enum ms_kind kind_of(const struct ms_allocation *allocation)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind;
}

STORY_BETWEEN(start, end, any_copy_between_allocations_is_recorded,
              fake_set(one, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 9}),
              check_answered(move(MS_COPY_ANY, other->address, one->address, BYTES)),
              IS(resident(one) == 0 && resident(other) == 0),
              EQUALS(ms_lineage_at(ms_allocation_lineage(other), 0).content.pattern, 9))

STORY_BETWEEN(start, end, any_copy_to_other_memory_of_the_device_is_made,
              check_answered(move(MS_COPY_ANY, program, one->address, BYTES)),
              EQUALS(((const unsigned char *)(uintptr_t)program)[BYTES - 1], 4))

STORY_BETWEEN(start, end, any_copy_from_other_memory_of_the_device_is_for_the_driver,
              check_forwarded(move(MS_COPY_ANY, other->address, program, BYTES), true),
              IS(resident(other) == BYTES && resident(one) == 0))

MS_TEST_BETWEEN(start, end, any_copy_from_the_host_is_recorded_pinned_or_not)
{
    bytes[5] = 77;
    for (int is_pinned = 0; is_pinned < 2; is_pinned++) {
        fake_set(one, 0, BYTES, &pattern);
        if (is_pinned)
            say(of_host(), CU_MEMORYTYPE_HOST, 0);
        check_answered(move(MS_COPY_ANY, one->address, of_host(), FAKE_GRANULE));
        CHECK(kind_of(one) == MS_SOURCE && resident(one) == 0);
    }
}

STORY_BETWEEN(start, end, any_copy_of_no_bytes_is_for_the_driver,
              check_forwarded(move(MS_COPY_ANY, one->address, of_host(), 0), false),
              check_forwarded(move(MS_COPY_ANY, program, one->address, 0), false),
              check_forwarded(move(MS_COPY_ANY, of_host(), one->address, 0), true),
              check_forwarded(move(MS_COPY_ON_DEVICE, other->address, one->address, 0), false),
              IS(kind_of(one) == MS_FILL && resident(one) == 0 && fake.work_count == 0))

/* Bytes that are copied to the device may be an address. */
STORY_BETWEEN(start, end, any_copy_past_our_memory_brings_in_what_it_points_to, fake_needs_hints(),
              memcpy(bytes, &one->address, sizeof(one->address)),
              check_forwarded(move(MS_COPY_ANY, of_host() + 64, of_host(), 8), false),
              EQUALS(ms_allocation_backing(one)->backed_bytes, 0),
              check_forwarded(move(MS_COPY_ANY, program, of_host(), 8), false),
              IS(ms_allocation_backing(one)->backed_bytes == BYTES &&
                 ms_allocation_backing(other)->backed_bytes == 0),
              say(program, CU_MEMORYTYPE_DEVICE, 0),
              check_forwarded(move(MS_COPY_ANY, program + FAKE_GRANULE, program, 8), false),
              strange_managed = 1, check_forwarded(move(MS_COPY_ANY, of_host(), program, 8), false),
              EQUALS(ms_allocation_backing(other)->backed_bytes, 0),
              check_forwarded(move(MS_COPY_ANY, program + FAKE_GRANULE, program, 8), false),
              EQUALS(ms_allocation_backing(other)->backed_bytes, BYTES))

MS_TEST_BETWEEN(start, end, a_move_fails_if_memory_it_points_to_cannot_come_in)
{
    say(program, CU_MEMORYTYPE_DEVICE, 1);
    for (int to_block = 0; to_block < 2; to_block++) {
        fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
        check_refused(move(MS_COPY_ANY, to_block ? one->address : program + FAKE_GRANULE, program,
                           8),
                      CUDA_ERROR_UNKNOWN);
    }
    CHECK_EQ(ms_move_run(&(struct ms_movement){.kind = MS_COPY_ON_DEVICE,
                                               .stream = FAKE_STREAM,
                                               .width = 8,
                                               .height = 1,
                                               .depth = 1,
                                               .to = ms_side_of_device(one->address),
                                               .from = ms_side_of_device(program)}),
             CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, BYTES);
}

/* The bytes of pinned memory may change until the stream reads them, also in a copy that the
 * program says is on the device. */
STORY_BETWEEN(start, end, pinned_memory_is_the_hosts_also_where_the_copy_is_on_the_device,
              say(of_host(), CU_MEMORYTYPE_HOST, 0), bytes[5] = 77,
              check_answered(move(MS_COPY_ON_DEVICE, one->address, of_host(), FAKE_GRANULE)),
              IS(kind_of(one) == MS_SOURCE && resident(one) == 0), bytes[5] = 0,
              IS(ms_space_claim(one->address) == one),
              EQUALS(ms_materialise(one, 0, FAKE_GRANULE, MS_NEED_READ), CUDA_SUCCESS),
              ms_space_release(one),
              EQUALS(((const unsigned char *)(uintptr_t)one->address)[5], 77))

MS_TEST_BETWEEN(start, end, a_move_to_the_host_holds_its_source_and_leaves_the_rest)
{
    check_forwarded(move(MS_COPY_TO_HOST, of_host(), one->address, FAKE_GRANULE), true);
    CHECK(ms_allocation_lineage(one)->cached_bytes == FAKE_GRANULE && resident(one) == 0);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
    check_forwarded(move(MS_COPY_TO_HOST, other->address, one->address, FAKE_GRANULE), true);
    CHECK(resident(other) == FAKE_GRANULE && resident(one) == 0);
    CHECK_EQ(*(const unsigned char *)(uintptr_t)other->address, 1); /* if the driver refuses it */
}

MS_TEST_BETWEEN(start, end, a_move_to_the_host_that_cannot_be_read_holds_nothing)
{
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    check_refused(move(MS_COPY_TO_HOST, of_host(), one->address, FAKE_GRANULE), CUDA_ERROR_UNKNOWN);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    check_refused(move(MS_COPY_ANY, of_host(), one->address, FAKE_GRANULE), CUDA_ERROR_UNKNOWN);
    int attempts = 0;
    check_forwarded(move(MS_COPY_TO_HOST, of_host(), one->address, FAKE_GRANULE), true);
    CHECK(ms_evict_try_again(CUDA_ERROR_OUT_OF_MEMORY, &attempts)); /* nothing is held */
    CHECK_EQ(ms_allocation_backing(one)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_set_is_recorded_and_one_of_rows_is_not)
{
    struct ms_movement set =
        row(MS_SET, ms_side_of_device(one->address), (struct ms_side){0}, BYTES);
    bool is_held;
    set.element = 1;
    set.value = 5;
    CHECK_EQ(begin(&set, &is_held), MS_ANSWERED);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(one), 0).content.pattern, 0x05050505);
    set.kind = MS_SET_ROWS;
    set.width = FAKE_GRANULE;
    CHECK_EQ(begin(&set, &is_held), MS_FORWARD);
    CHECK(!is_held && resident(one) == FAKE_GRANULE && resident(other) == 0);
    set.width = 0;
    set.to.begin = other->address;
    CHECK_EQ(begin(&set, &is_held), MS_FORWARD);
    CHECK_EQ(resident(other), 0);
}

/* --- gates */

MS_TEST_BETWEEN(start, end, a_forwarded_or_sealed_move_gates_later_copies)
{
    for (int way = 0; way < 3; way++) {
        atomic_store(&ms_hot.started, 1);
        atomic_store(&ms_hot.gated, 0);
        atomic_store(&ms_hot.gated_copies, 0);
        const struct ms_movement nothing =
            row(MS_COPY_ANY, ms_side_of_device(program), ms_side_of_device(of_host()), 0);
        bool is_held;
        CHECK_EQ(way == 0   ? (int)begin(&nothing, &is_held)
                 : way == 1 ? (int)ms_move_pass(&nothing)
                            : (int)ms_move_seal(),
                 way == 2 ? (int)CUDA_SUCCESS : (int)MS_FORWARD);
        CHECK(ms_is_gated());
        CHECK_EQ(resident(one), way == 2 ? BYTES : 0);
    }
    CHECK_EQ(resident(other), BYTES);
    CHECK_EQ(ms_move_seal(), CUDA_SUCCESS); /* nothing is deferred */
    atomic_store(&ms_hot.gated, 0);
    atomic_store(&ms_hot.gated_copies, 0);
}

STORY_BETWEEN(start, end, a_recorded_copy_sets_no_gate, atomic_store(&ms_hot.started, 1),
              check_answered(move(MS_COPY_ANY, other->address, one->address, BYTES)),
              IS(!ms_is_gated()))

STORY_BETWEEN(start, end, a_move_returns_the_error_of_bringing_all_in,
              fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN),
              EQUALS(ms_move_seal(), CUDA_ERROR_UNKNOWN),
              fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN),
              check_refused(move(MS_COPY_UNKNOWN, program, program, 8), CUDA_ERROR_UNKNOWN))

/* --- bounds */

static enum ms_verdict verdict_of(const struct ms_movement *movement)
{
    CHECK_EQ(ms_move_pass(movement) == MS_STRAYS, ms_move_strays(movement));
    return ms_move_pass(movement);
}

/* On one side or on the other. */
static void check_bounds(struct ms_side side, size_t width, size_t height, size_t depth,
                         enum ms_verdict verdict)
{
    for (int is_to = 0; is_to < 2; is_to++) {
        const struct ms_movement movement = {.kind = MS_COPY_BOX,
                                             .stream = FAKE_STREAM,
                                             .width = width,
                                             .height = height,
                                             .depth = depth,
                                             .to = is_to ? side : (struct ms_side){0},
                                             .from = is_to ? (struct ms_side){0} : side};
        CHECK_EQ(verdict_of(&movement), verdict);
    }
}

MS_TEST_BETWEEN(start, end, the_last_byte_of_the_last_row_decides)
{
    struct ms_side side = ms_side_of_device(one->address + 8);
    check_bounds(side, BYTES - 8, 1, 1, MS_FORWARD);
    check_bounds(side, BYTES - 7, 1, 1, MS_STRAYS);
    side.pitch = FAKE_GRANULE;
    check_bounds(side, FAKE_GRANULE - 8, GRANULES, 1, MS_FORWARD);
    check_bounds(side, FAKE_GRANULE - 7, GRANULES, 1, MS_STRAYS);
    side.pitch = 100;
    side.slice = FAKE_GRANULE;
    check_bounds(side, FAKE_GRANULE - 8 - 200, 3, GRANULES, MS_FORWARD);
    check_bounds(side, FAKE_GRANULE - 7 - 200, 3, GRANULES, MS_STRAYS);
    check_bounds(side, FAKE_GRANULE - 8 - 200, 4, GRANULES, MS_STRAYS);
    side.type = CU_MEMORYTYPE_UNIFIED;
    check_bounds(side, FAKE_GRANULE - 7 - 200, 3, GRANULES, MS_STRAYS);
    side.type = CU_MEMORYTYPE_HOST;
    check_bounds(side, FAKE_GRANULE - 7 - 200, 3, GRANULES, MS_FORWARD);
}

MS_TEST_BETWEEN(start, end, more_bytes_than_there_are_stray_and_none_do_not)
{
    const size_t half = SIZE_MAX / 2 + 1;
    struct ms_side side = ms_side_of_device(one->address + BYTES - 1);
    side.pitch = half;
    check_bounds(side, 1, 3, 1, MS_STRAYS); /* their product is 0 */
    side.slice = half;
    check_bounds(side, 1, 1, 3, MS_STRAYS);
    check_bounds(side, 1, 2, 2, MS_STRAYS); /* their sum */
    side.pitch = SIZE_MAX;
    check_bounds(side, 2, 2, 1, MS_STRAYS);
    for (int i = 0; i < 3; i++)
        check_bounds(side, i == 0 ? 0 : 9, i == 1 ? 0 : 2, i == 2 ? 0 : 2, MS_FORWARD);
}

/* --- rows on the device */

enum { WIDTH = 1024, PITCH = 3 * WIDTH, TO_PITCH = 2 * WIDTH, ROWS = 20 };
static unsigned char wanted[BYTES];

/* One holds bytes of the host, the other one a pattern. */
static void start_rows(void)
{
    start();
    ms_host_snapshot_set_limit(16 * BYTES);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 13 + i / 256);
    const struct ms_content content = {.kind = MS_SOURCE, .source = snapshot_of(bytes, BYTES)};
    fake_set(one, 0, BYTES, &content);
    ms_source_drop(content.source);
    for (size_t i = 0; i < BYTES; i++)
        wanted[i] = (unsigned char)(i % 4 + 1);
}

static void *at(const struct ms_allocation *allocation)
{
    return (void *)(uintptr_t)allocation->address;
}

static CUDA_MEMCPY2D plane(void)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = one->address,
                           .srcXInBytes = 64,
                           .srcPitch = PITCH,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = other->address,
                           .dstXInBytes = 32,
                           .dstPitch = TO_PITCH,
                           .WidthInBytes = WIDTH,
                           .Height = ROWS};
}

static struct answer copy_plane(const CUDA_MEMCPY2D *copy)
{
    const struct ms_movement movement = ms_movement_of_plane(copy, FAKE_STREAM);
    struct answer answer = {.result = CUDA_SUCCESS};
    answer.verdict = ms_move_begin(&movement, &answer.is_held, &answer.result);
    return answer;
}

static void check_content(struct ms_allocation *allocation)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise(allocation, 0, BYTES, MS_NEED_READ), CUDA_SUCCESS);
    ms_space_release(allocation);
    CHECK_BYTES((const unsigned char *)(uintptr_t)allocation->address, wanted, BYTES);
}

MS_TEST_BETWEEN(start_rows, end, a_plane_is_copied_row_by_row_without_memory)
{
    const CUDA_MEMCPY2D copy = plane();
    check_answered(copy_plane(&copy));
    CHECK(ms_allocation_backing(one)->backed_bytes == 0 &&
          ms_allocation_backing(other)->backed_bytes == 0);
    CHECK_EQ(fake.work_count, 0);
    /* As one: it says so once, and what is filled for a launch is all of it. */
    CHECK(seen.later == other->address + 32 && seen.events > 0);
    CHECK_EQ(seen.later_bytes, (ROWS - 1) * TO_PITCH + WIDTH);
    CHECK(seen.event.kind == MS_EVENT_RECORD && seen.event.block == one->id);
    CHECK_EQ(seen.event.address, one->address + 64);
    CHECK_EQ(seen.event.bytes, (ROWS - 1) * PITCH + WIDTH);
    for (size_t i = 0; i < ROWS; i++)
        memcpy(wanted + 32 + i * TO_PITCH, bytes + 64 + i * PITCH, WIDTH);
    check_content(other);
}

/* Its rows lie in [FAKE_GRANULE + shift, 3 * FAKE_GRANULE - 1024 + shift), for shift by side. */
static CUDA_MEMCPY2D inner_plane(size_t to_shift, size_t from_shift)
{
    CUDA_MEMCPY2D copy = plane();
    copy.srcXInBytes = copy.dstXInBytes = 0;
    copy.srcPitch = copy.dstPitch = 2 * WIDTH;
    copy.Height = 2 * FAKE_GRANULE / copy.srcPitch;
    copy.srcDevice += FAKE_GRANULE + from_shift;
    copy.dstDevice += FAKE_GRANULE + to_shift;
    return copy;
}

/* Bytes that the copy does not touch may be in memory. */
MS_TEST(a_plane_is_made_real_if_some_of_one_side_is_in_memory)
{
    static const size_t shifts[] = {(size_t)-1, 0, WIDTH, WIDTH + 1};
    for (int i = 0; i < 8; i++) {
        start_rows();
        struct ms_allocation *const side = i < 4 ? one : other;
        const size_t shift = shifts[i % 4];
        fake_set(side, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
        fake_set(side, 3 * FAKE_GRANULE, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
        const CUDA_MEMCPY2D copy = i < 4 ? inner_plane(0, shift) : inner_plane(shift, 0);
        if (i % 4 == 1 || i % 4 == 2)
            check_answered(copy_plane(&copy));
        else
            check_forwarded(copy_plane(&copy), false);
        end();
    }
}

/* The driver makes it, and says what is wrong with it. */
MS_TEST(a_plane_with_another_side_is_for_the_driver)
{
    for (int i = 0; i < 4; i++) {
        start_rows();
        CUDA_MEMCPY2D copy = plane();
        if (i == 0)
            copy.dstDevice = program;
        else if (i == 1)
            copy.srcPitch = WIDTH; /* refused */
        else if (i == 2)
            copy.dstPitch = WIDTH;
        else
            copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = at(other);
        check_forwarded(copy_plane(&copy), false);
        CHECK_EQ(seen.later_bytes, 0);
        end();
    }
}

MS_TEST_BETWEEN(start_rows, end, a_plane_out_of_other_memory_is_for_the_driver)
{
    CUDA_MEMCPY2D copy = plane();
    copy.srcDevice = program;
    check_forwarded(copy_plane(&copy), false);
    CHECK(resident(other) > 0 && ms_allocation_backing(one)->backed_bytes == 0);
}

MS_TEST_BETWEEN(start_rows, end, an_empty_plane_changes_nothing)
{
    for (int i = 0; i < 2; i++) {
        CUDA_MEMCPY2D copy = plane();
        *(i == 0 ? &copy.WidthInBytes : &copy.Height) = 0;
        check_forwarded(copy_plane(&copy), false);
        CHECK(ms_allocation_backing(one)->backed_bytes == 0 &&
              ms_allocation_backing(other)->backed_bytes == 0);
    }
}

MS_TEST_BETWEEN(start_rows, end, a_side_that_cannot_come_into_memory_is_told)
{
    fake_needs_hints();
    CUDA_MEMCPY2D copy = plane();
    copy.WidthInBytes = 16; /* too short to be rows */
    for (unsigned nth = 1; nth <= 2; nth++) {
        fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
        check_refused(copy_plane(&copy), CUDA_ERROR_UNKNOWN);
        CHECK(ms_allocation_backing(nth == 1 ? one : other)->backed_bytes == 0);
        copy.srcDevice = program;
    }
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = wanted;
    memcpy(wanted + 64, &one->address, 8); /* points there */
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    check_refused(copy_plane(&copy), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
}

/* --- parts of one call */

static struct ms_strided_copy parts[4];

static void find(const void *of, size_t part, struct ms_strided_copy *rows_out)
{
    CHECK(of == parts && part < 4);
    *rows_out = parts[part];
}

static struct ms_strided_copy rows(size_t to, size_t from, size_t width, size_t count)
{
    return (struct ms_strided_copy){.to = other->address + to,
                                    .from = one->address + from,
                                    .width = width,
                                    .dims = 1,
                                    .dim = {{count, 2 * width, 3 * width}}};
}

static struct ms_strided_copy piece(size_t to, size_t from, size_t width)
{
    struct ms_strided_copy one_row = rows(to, from, width, 1);
    one_row.dims = 0;
    return one_row;
}

static bool try(size_t count, CUresult *result_out)
{
    const struct ms_parts all = {count, find, parts};
    return ms_move_try_parts(&all, FAKE_STREAM, result_out);
}

static void check_tried(size_t count)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    CHECK(try(count, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
}

static void check_not_tried(size_t count)
{
    CUresult result;
    CHECK(!try(count, &result));
    CHECK(fake.work_count == 0 && ms_allocation_backing(one)->backed_bytes == 0);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(other), 0).end, BYTES); /* all is as it was */
}

MS_TEST_BETWEEN(start_rows, end, parts_of_one_piece_and_of_rows_are_copied_by_lineage)
{
    parts[0] = piece(0, 500, 4000);
    parts[1] = rows(8192, 8192, 128, 10);
    parts[2] = piece(5000, 5000, 0); /* nothing */
    parts[3] = piece(40000, 123, 777);
    check_tried(4);
    CHECK(ms_allocation_backing(one)->backed_bytes == 0 &&
          ms_allocation_backing(other)->backed_bytes == 0);
    memcpy(wanted, bytes + 500, 4000);
    for (size_t i = 0; i < 10; i++)
        memcpy(wanted + 8192 + i * 256, bytes + 8192 + i * 384, 128);
    memcpy(wanted + 40000, bytes + 123, 777);
    check_content(other);
}

MS_TEST_BETWEEN(start_rows, end, rows_in_several_dimensions_are_copied_in_their_order)
{
    parts[0] = rows(64, 32, 128, 3);
    parts[0].dims = 3;
    parts[0].dim[1].count = 2;
    parts[0].dim[1].to_stride = 5000;
    parts[0].dim[1].from_stride = 7000;
    parts[0].dim[2].count = 4;
    parts[0].dim[2].to_stride = 20000;
    parts[0].dim[2].from_stride = 30000;
    check_tried(1);
    CHECK(ms_allocation_backing(one)->backed_bytes == 0 &&
          ms_allocation_backing(other)->backed_bytes == 0);
    for (size_t i = 0; i < 24; i++)
        memcpy(wanted + 64 + i % 3 * 256 + i / 3 % 2 * 5000 + i / 6 * 20000,
               bytes + 32 + i % 3 * 384 + i / 3 % 2 * 7000 + i / 6 * 30000, 128);
    check_content(other);
}

/* A tensor of a sequence is looked up in the plan with the others: sizes in their order. */
MS_TEST_BETWEEN(start_rows, end, pieces_alone_are_in_sequence)
{
    parts[0] = piece(0, 0, 4096);
    parts[1] = piece(4096, 4096, 0);
    parts[2] = piece(4096, 8192, 4097);
    check_tried(3);
    CHECK_EQ(seen.copies, 2);
    for (unsigned i = 0; i < 2; i++) {
        CHECK(seen.is_in_sequence[i] && seen.places[i] == i && seen.counts[i] == 2);
        CHECK_EQ(seen.sizes[i], 4096 + i);
    }
    CHECK(ms_lineage_at(ms_allocation_lineage(other), 0).content.is_in_sequence);
    CHECK(ms_lineage_at(ms_allocation_lineage(other), 4096).content.is_in_sequence);
    CHECK(!ms_lineage_at(ms_allocation_lineage(other), 8193).content.is_in_sequence);
    parts[1] = rows(20000, 20000, 64, 2);
    check_tried(3);
    CHECK(!ms_lineage_at(ms_allocation_lineage(other), 0).content.is_in_sequence);
    CHECK(!ms_lineage_at(ms_allocation_lineage(other), 4096).content.is_in_sequence);
}

STORY_BETWEEN(start_rows, end, rows_that_are_short_or_empty_or_leave_their_allocation_are_not_tried,
              parts[1] = piece(0, 0, 64), parts[0] = rows(0, 0, 63, 2), check_not_tried(2),
              parts[0] = rows(0, 0, 0, 2), check_not_tried(2),
              parts[0] = rows(BYTES - 3 * 64 + 1, 0, 64, 2), check_not_tried(2),
              parts[0] = rows(0, BYTES - 4 * 64 + 1, 64, 2), check_not_tried(2),
              parts[0] = rows(0, 0, 64, 2), parts[0].from = program, check_not_tried(2),
              parts[0] = rows(0, 0, 64, 2), parts[0].to = program, check_not_tried(2))

STORY_BETWEEN(start_rows, end, rows_up_to_the_end_of_their_allocation_are_tried,
              parts[0] = rows(BYTES - 3 * 64, BYTES - 4 * 64, 64, 2), check_tried(1),
              memcpy(wanted + BYTES - 3 * 64, bytes + BYTES - 4 * 64, 64),
              memcpy(wanted + BYTES - 64, bytes + BYTES - 64, 64), check_content(other))

/* Records are in the order of calls, the work of the stream is not. */
MS_TEST_BETWEEN(start_rows, end, rows_behind_work_that_may_wait_are_not_tried_and_pieces_are)
{
    atomic_store(&ms_hot.gated, 1);
    fake.is_busy = true;
    parts[0] = rows(0, 0, 64, 2);
    check_not_tried(1);
    const CUDA_MEMCPY2D copy = plane();
    check_forwarded(copy_plane(&copy), false);
    parts[0] = piece(0, 0, 4096);
    check_tried(1);
    CHECK(fake.work_count > 0);
    fake.is_busy = false;
    atomic_store(&ms_hot.gated, 0);
}

/* Rows between each other are not told apart. */
MS_TEST_BETWEEN(start_rows, end, rows_within_one_allocation_may_meet_but_not_overlap)
{
    for (int i = 0; i < 4; i++) {
        parts[0] = rows(0, 0, 64, 2);
        parts[0].from = one->address + (i < 2 ? 1000 : 1000 + 192 - i % 2);
        parts[0].to = one->address + (i < 2 ? 1000 + 256 - i % 2 : 1000);
        CUresult result = CUDA_SUCCESS;
        CHECK_EQ(try(1, &result), i % 2 == 0);
        CHECK_EQ(result, CUDA_SUCCESS);
    }
}

MS_TEST_BETWEEN(start_rows, end, a_batch_ends_at_a_move_that_cannot_be_copied)
{
    fake_set(one, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    parts[0] = piece(0, 0, 4096);
    parts[1] = piece(2 * FAKE_GRANULE, 2 * FAKE_GRANULE, 4096);
    parts[1].to = program + FAKE_GRANULE;
    CUresult result = CUDA_SUCCESS;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK(try(2, &result));
    CHECK_EQ(result, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(fake.work_count, 0);
    parts[0] = rows(BYTES / 2, BYTES / 2, 128, 8);
    parts[0].from = one->address + 2 * FAKE_GRANULE;
    ms_host_snapshot_set_limit(0);
    check_tried(2);
}

enum { MOST_ROWS = 8000, WIDE = 32 * FAKE_GRANULE };

/* Starts with large allocations. */
static void start_many(void)
{
    fake_start();
    one = fake_allocation(WIDE);
    other = fake_allocation(WIDE);
    program = fake_program_memory(FAKE_GRANULE);
    fake_set(one, 0, WIDE, &pattern);
    fake_set(other, 0, WIDE, &pattern);
}

MS_TEST_BETWEEN(start_many, end, so_many_rows_are_copied_and_not_one_more)
{
    CUresult result;
    parts[0] = rows(0, 0, 64, MOST_ROWS / 2);
    parts[1] = rows(64, 64, 64, MOST_ROWS / 2 + 1);
    CHECK(!try(2, &result));
    parts[1].dim[0].count--;
    check_tried(2);
    parts[0].dim[0].count = MOST_ROWS + 1;
    CHECK(!try(1, &result));
    parts[0] = rows(0, 0, 64, MOST_ROWS / 10 + 1);
    parts[0].dims = 2;
    parts[0].dim[1].count = 10;
    parts[0].dim[1].to_stride = parts[0].dim[1].from_stride = 128;
    CHECK(!try(1, &result));
}

MS_TEST_BETWEEN(start_many, end, a_plane_has_so_many_rows_and_not_one_more)
{
    CUDA_MEMCPY2D copy = plane();
    copy.srcXInBytes = copy.dstXInBytes = 0;
    copy.WidthInBytes = 64;
    copy.srcPitch = copy.dstPitch = 128;
    copy.Height = MOST_ROWS;
    check_answered(copy_plane(&copy));
    copy.Height = MOST_ROWS + 1;
    check_forwarded(copy_plane(&copy), false);
}

MS_TEST_BETWEEN(start_many, end, more_rows_than_can_be_counted_are_not_copied_one_by_one)
{
    CUresult result;
    parts[0] = rows(0, 0, 64, MOST_ROWS);
    parts[0].dims = 2;
    parts[0].dim[1].count = 2;
    CHECK(!try(1, &result));
    parts[0].dim[0].count = (size_t)1 << 33;
    parts[0].dim[1].count = (size_t)1 << 31;
    parts[0].dim[0].to_stride = parts[0].dim[0].from_stride = 0;
    CHECK(!try(1, &result));
}

/* --- the window of deferral, and what is not looked at */

MS_TEST_BETWEEN(start, end, a_recorded_move_keeps_the_window_open_unless_recurring)
{
    check_answered(move(MS_COPY_ON_DEVICE, other->address, one->address, BYTES));
    CHECK_EQ(seen.extends, 1);
    other->is_recurring = true;
    check_answered(move(MS_COPY_ON_DEVICE, other->address, one->address, BYTES));
    CHECK_EQ(seen.extends, 1);
    other->is_recurring = false;
    check_answered(move(MS_COPY_ON_DEVICE, program, one->address, BYTES));
    CHECK_EQ(seen.extends, 2); /* it is in no allocation */
    seen.extends = 0;
    check_forwarded(move(MS_COPY_ANY, of_host(), of_host(), 8), false);
    CHECK_EQ(seen.extends, 0);
}

MS_TEST_BETWEEN(start, end, a_move_asks_the_driver_nothing_where_nothing_is_deferred)
{
    CHECK_EQ(ms_move_seal(), CUDA_SUCCESS);
    memset(&seen, 0, sizeof(seen));
    const unsigned questions = fake.calls[FAKE_pointer_get_attribute];
    check_forwarded(move(MS_COPY_ANY, program, of_host(), 8), false);
    check_forwarded(move(MS_COPY_ANY, other->address, of_host(), 8), false);
    CHECK_EQ(fake.calls[FAKE_pointer_get_attribute], questions);
    CHECK(seen.copies == 0 && seen.extends == 0);
}

STORY_BETWEEN(start, end, no_bytes_point_to_nothing, say(program, CU_MEMORYTYPE_DEVICE, 1),
              check_forwarded(move(MS_COPY_ANY, program + FAKE_GRANULE, program, 0), false),
              EQUALS(ms_allocation_backing(one)->backed_bytes, 0))

MS_TEST_BETWEEN(start, end, rows_of_the_host_bring_in_what_they_point_to)
{
    fake_needs_hints();
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = bytes,
                                .srcPitch = 64,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = other->address,
                                .dstPitch = 64,
                                .WidthInBytes = 16,
                                .Height = 2};
    memcpy(bytes + 64, &one->address, 8);
    check_forwarded(copy_plane(&copy), false);
    CHECK(ms_allocation_backing(one)->backed_bytes == BYTES && resident(other) > 0);
}

/* --- what is absent, and launches */

/* The driver must not be asked for it. */
MS_TEST_BETWEEN(start_rows, end, the_first_and_the_last_byte_of_rows_may_be_absent)
{
    const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    parts[0] = rows(0, 100, 20, 2);
    parts[0].to = program;
    for (int i = 0; i < 2; i++) {
        const size_t first = i == 0 ? 100 : 100 + 60 + 19;
        CUresult result = CUDA_SUCCESS;
        fake_set(one, first, first + 1, &absent);
        CHECK(try(1, &result));
        CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);
        fake_set(one, first, first + 1, &pattern);
    }
}

MS_TEST_BETWEEN(start_rows, end, a_move_of_rows_refuses_absent_bytes_in_rows_alone)
{
    const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    fake_set(one, 20, 60, &absent);
    parts[0] = rows(0, 0, 20, 2);
    parts[0].to = program;
    CUresult result = CUDA_ERROR_UNKNOWN;
    CHECK(try(1, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_BYTES((const unsigned char *)(uintptr_t)program + 40, bytes + 60, 20);
    fake_set(one, 79, 80, &absent);
    CHECK(try(1, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_PERMITTED);
}

static void set_launched(size_t first, size_t behind)
{
    const struct ms_content content = {.kind = MS_LAUNCHED,
                                       .recorded = ms_recorded_launch_create()};
    CHECK(content.recorded != NULL);
    content.recorded->context = FAKE_CONTEXT;
    CHECK(ms_lineage_init(&content.recorded->before, BYTES));
    fake_set(one, first, behind, &content);
    ms_recorded_launch_drop(content.recorded);
}

/* Each row of its result would run it again; a launch for each row runs as often as before. */
STORY_BETWEEN(start_rows, end, the_result_of_a_launch_is_not_cut_into_rows,
              parts[0] = rows(0, 0, 64, 3), set_launched(0, 64), check_not_tried(1),
              set_launched(192, 256), check_not_tried(1), set_launched(384, 448), check_tried(1),
              EQUALS(ms_lineage_at(ms_allocation_lineage(other), 256).content.kind, MS_LAUNCHED),
              fake_set(one, 0, BYTES, &pattern), fake_set(other, 0, BYTES, &pattern))
