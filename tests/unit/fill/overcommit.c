/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/overcommit.h"

#include "runtime/config/config.h"
#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"

enum { GRANULES = 64 }; /* of the device */

static bool allows(size_t granules)
{
    bool is_tight;
    return ms_overcommit_allows(0, granules * FAKE_GRANULE, &is_tight);
}

static void start(void)
{
    fake_start();
    fake.total_bytes = GRANULES * FAKE_GRANULE;
    ms_config.overcommit = 3;
}

MS_TEST(what_is_allocated_is_a_few_times_the_device_at_most)
{
    start();
    CHECK(allows(3 * GRANULES));
    CHECK(!allows(3 * GRANULES + 3));
    bool is_tight;
    CHECK(!ms_overcommit_allows(0, SIZE_MAX, &is_tight));
    struct ms_allocation *allocation = fake_allocation(2 * GRANULES * FAKE_GRANULE);
    CHECK(allows(GRANULES));
    CHECK(!allows(GRANULES + 3));
    fake_allocation_free(allocation);
    ms_config.overcommit = 0; /* once at least */
    CHECK(allows(GRANULES));
    fake_check_empty();
}

MS_TEST(a_program_that_computes_gets_what_fits)
{
    start();
    struct ms_allocation *allocation = fake_allocation(GRANULES / 2 * FAKE_GRANULE);
    CHECK(allows(GRANULES));
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0); /* it looks for what fits now */
    CHECK(!allows(GRANULES));
    CHECK(!allows(GRANULES / 2 + 1));
    CHECK(allows(GRANULES / 2));
    CHECK(ms_overcommit_take_failed() && !ms_overcommit_take_failed());
    fake_allocation_free(allocation);
    fake_check_empty();
}
