/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/move.h"

#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { GRANULES = 4, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x04030201};
static struct ms_allocation *one, *other;
static CUdeviceptr program;

static void start(void)
{
    fake_start();
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
    return allocation->lineage.resident_bytes;
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
    CHECK(is_held && one->lineage.cached_bytes == FAKE_GRANULE);
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

MS_TEST_BETWEEN(start, end, what_is_not_modelled_makes_all_real)
{
    bool is_held;
    const struct ms_movement movement =
        row(MS_COPY_UNKNOWN, ms_side_of_device(program), ms_side_of_device(program), FAKE_GRANULE);
    CHECK_EQ(begin(&movement, &is_held), MS_FORWARD);
    CHECK(!is_held && resident(one) == BYTES && resident(other) == BYTES);
}

MS_TEST_BETWEEN(start, end, what_strays_is_not_looked_at)
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
