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
    fake_check_empty();
}

MS_TEST(by_default_it_follows_what_is_written)
{
    const struct ms_content parts[] = {{.kind = MS_FILL}, {.kind = MS_RESIDENT}};
    start();
    ms_config.overcommit = 0;
    CHECK(allows(32 * GRANULES));
    CHECK(!allows(32 * GRANULES + 1));
    CHECK(!allows(SIZE_MAX / FAKE_GRANULE));
    struct ms_allocation *empty = fake_allocation(20 * GRANULES * FAKE_GRANULE);
    CHECK(!allows(12 * GRANULES + 1));
    struct ms_allocation *filled = fake_allocation(20 * GRANULES * FAKE_GRANULE);
    CHECK(!allows(1));
    fake_set(filled, 0, filled->bytes, &parts[0]); /* any program may do so for ever */
    CHECK(!allows(1));
    fake_set(filled, 0, GRANULES * FAKE_GRANULE, &parts[1]);
    CHECK(!allows(1));
    struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    fake_set(filled, GRANULES * FAKE_GRANULE, filled->bytes, &absent);
    CHECK(allows(12 * GRANULES));
    CHECK(allows(13 * GRANULES)); /* what was counted holds for a while */
    CHECK(!allows(20 * GRANULES));
    fake_allocation_free(empty);
    CHECK(allows(32 * GRANULES));
    CHECK(!allows(32 * GRANULES + 2 * GRANULES));
    fake_allocation_free(filled);
    fake_check_empty();
}

/* Whatever it writes. */
MS_TEST(a_program_that_allocates_until_it_fails_fails)
{
    enum { PIECE = 16 * GRANULES };
    struct ms_allocation *all[9];
    size_t count = 0;
    start();
    ms_config.overcommit = 0;
    struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    while (allows(PIECE)) {
        CHECK(count < 9);
        all[count] = fake_allocation(PIECE * FAKE_GRANULE);
        fake_set(all[count], 0, all[count]->bytes, &absent);
        count++;
    }
    CHECK_EQ(count, 8);
    while (count > 0)
        fake_allocation_free(all[--count]);
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
