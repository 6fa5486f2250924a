/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/facts.h"

#include "tools/simcuda/harness/test.h"

enum { LAST = MS_MAX_DEVICES - 1 };

/* Checks the facts of that device, or of all devices together. */
static void check(CUdevice device, uint32_t unmet)
{
    bool may_go_on = true;
    for (int fact = 0; fact < MS_FACT_COUNT; fact++) {
        const bool is_unmet = (unmet >> fact & 1) != 0;
        CHECK_EQ(ms_fact_holds(device, (enum ms_fact)fact), !is_unmet);
        may_go_on = may_go_on && !(is_unmet && ms_facts[fact].steps_aside);
    }
    CHECK_EQ(ms_facts_allow(device), may_go_on);
}

MS_TEST(all_facts_hold_until_one_is_found_otherwise)
{
    for (CUdevice device = 0; device <= MS_EVERY_DEVICE; device++)
        check(device, 0);
}

/* New findings replace the device's; all devices together keep what was ever found of any. */
MS_TEST(a_fact_is_unmet_of_one_device_and_of_all_together)
{
    uint32_t any = 0;
    for (int fact = 0; fact < MS_FACT_COUNT; fact++) {
        any |= MS_FACT_BIT(fact);
        ms_facts_set_unmet(LAST, MS_FACT_BIT(fact));
        check(LAST, MS_FACT_BIT(fact));
        check(LAST - 1, 0);
        check(0, 0);
        check(MS_EVERY_DEVICE, any);
    }
    ms_facts_set_unmet(0, 0);
    check(0, 0);
    check(MS_EVERY_DEVICE, any);
}

/* Without some the shim steps aside, without others it goes on. */
MS_TEST(each_fact_has_a_name_and_says_what_is_wrong)
{
    bool some_step_aside = false, some_go_on = false;
    for (int fact = 0; fact < MS_FACT_COUNT; fact++) {
        CHECK(ms_facts[fact].name[0] != '\0' && ms_facts[fact].fault[0] != '\0');
        some_step_aside = some_step_aside || ms_facts[fact].steps_aside;
        some_go_on = some_go_on || !ms_facts[fact].steps_aside;
    }
    CHECK(some_step_aside && some_go_on);
}
