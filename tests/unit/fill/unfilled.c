/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/unfilled.h"

#include <string.h>

#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/examining.h"
#include "runtime/memory/order.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { GRANULES = 80, BYTES = GRANULES * FAKE_GRANULE, HALF = FAKE_GRANULE / 2 };

static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static struct ms_allocation *allocation;

static void start(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &sevens);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    ms_access_unfilled(); /* of memory that is gone */
    CHECK(!ms_has_unfilled());
    fake_check_empty();
}

static void write_bytes(size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise_for_copy(allocation, begin, behind), CUDA_SUCCESS);
    ms_space_release(allocation);
    memset((char *)(uintptr_t)allocation->address + begin, 1, behind - begin);
}

static bool is_present(size_t begin, size_t behind)
{
    return !ms_lineage_any(&allocation->lineage, begin, behind, MS_MISSING);
}

static void check_bytes(size_t at, size_t behind, unsigned char byte)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    for (; at < behind; at++)
        CHECK_EQ(bytes[at], byte);
}

MS_TEST_BETWEEN(start, end, what_the_next_copy_overwrites_is_not_brought_in)
{
    const size_t work = fake.work_count;
    write_bytes(0, HALF);
    CHECK(ms_has_unfilled() && !is_present(HALF, FAKE_GRANULE));
    write_bytes(HALF, 2 * FAKE_GRANULE);
    CHECK(!ms_has_unfilled());
    CHECK_EQ(fake.work_count, work);
}

MS_TEST_BETWEEN(start, end, the_rest_is_there_before_a_launch)
{
    write_bytes(HALF, 2 * FAKE_GRANULE + HALF);
    CHECK(!is_present(0, HALF));
    ms_access_unfilled();
    CHECK(!ms_has_unfilled() && is_present(0, 3 * FAKE_GRANULE));
    check_bytes(0, HALF, 7);
    check_bytes(HALF, 2 * FAKE_GRANULE + HALF, 1);
    check_bytes(2 * FAKE_GRANULE + HALF, 3 * FAKE_GRANULE, 7);
    CHECK_EQ(allocation->backing.backed_bytes, 3 * FAKE_GRANULE);
}

/* In whichever way it comes. */
MS_TEST_BETWEEN(start, end, what_is_there_is_not_noted_any_more)
{
    write_bytes(0, HALF);
    CHECK_EQ(ms_access(allocation->address + HALF, 1, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
}

MS_TEST_BETWEEN(start, end, where_nothing_would_be_filled_nothing_is_noted)
{
    fake_set(allocation, HALF, FAKE_GRANULE, &absent);
    write_bytes(0, HALF);
    CHECK(!ms_has_unfilled());
}

MS_TEST_BETWEEN(start, end, beside_a_kernel_that_is_queued_it_is_filled_at_once)
{
    ms_examining_launched();
    fake.is_busy = true;
    write_bytes(0, HALF);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
    fake.is_busy = false;
    write_bytes(2 * FAKE_GRANULE, 2 * FAKE_GRANULE + HALF);
    CHECK(ms_has_unfilled());
}

MS_TEST_BETWEEN(start, end, in_a_capture_it_is_filled_at_once)
{
    ms_order_set_capture(true);
    write_bytes(0, HALF);
    ms_order_set_capture(false);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
}

MS_TEST_BETWEEN(start, end, of_more_than_are_noted_the_rest_is_filled_at_once)
{
    CUdeviceptr granules[MS_MAX_UNFILLED];
    for (size_t i = 0; i < GRANULES; i++)
        write_bytes(i * FAKE_GRANULE, i * FAKE_GRANULE + HALF);
    CHECK_EQ(ms_unfilled_list(granules), MS_MAX_UNFILLED);
    CHECK(!is_present(HALF, FAKE_GRANULE));
    CHECK(is_present(MS_MAX_UNFILLED * FAKE_GRANULE, BYTES));
    ms_access_unfilled();
    CHECK(is_present(0, BYTES));
}
