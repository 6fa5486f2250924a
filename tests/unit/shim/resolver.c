/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the driver's answers to lookups are right. */
#include <stdio.h>
#include <string.h>

#include "runtime/selfcheck/selfcheck.h"
#include "shim/substitute.h"
#include "tests/unit/shim/real_side.h"
#include "tests/unit/between.h"

static ms_resolver_check *check;

WRAPS(ms_selfcheck_set_resolver);
void __wrap_ms_selfcheck_set_resolver(ms_resolver_check *offered)
{
    check = offered;
}

/* --- the driver: each function is a byte of its library; others are not in it */

static char driver[MS_ENTRY_COUNT], elsewhere;
static int asked, wrapped, wrong = -1, replaced = -1, absent = -1; /* entries */
static bool is_old;                                                /* before CUDA 12 */

static enum ms_entry entry_of(const char *base, int version, bool per_thread)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        const struct ms_entry_facts *facts = &ms_entries[i];
        if (strlen(base) == facts->base_length && facts->version == version &&
            facts->per_thread == per_thread &&
            strncmp(ms_entry_symbol((enum ms_entry)i), base, facts->base_length) == 0)
            return (enum ms_entry)i;
    }
    ms_test_fail(__FILE__, __LINE__, "asked for %s of version %d", base, version);
}

static CUresult resolve(const char *base, void **found, int version, cuuint64_t flags)
{
    CHECK(flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ||
          flags == CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    const int entry =
        entry_of(base, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    asked++;
    *found = entry == wrong || entry == replaced ? &elsewhere : &driver[entry];
    return entry == absent ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

REAL(cuGetProcAddress_v2,
     (const char *base, void **found, int version, cuuint64_t flags,
      CUdriverProcAddressQueryResult *status),
     CHECK(status == NULL);
     return is_old ? CUDA_ERROR_NOT_SUPPORTED : resolve(base, found, version, flags))
REAL(cuGetProcAddress, (const char *base, void **found, int version, cuuint64_t flags),
     CHECK(is_old);
     return resolve(base, found, version, flags))

bool ms_has_wrapper(enum ms_entry entry)
{
    const bool has_one = entry % 3 == 0;
    wrapped += has_one;
    return has_one;
}

bool ms_is_driver(const void *address)
{
    return (const char *)address >= driver && (const char *)address < driver + MS_ENTRY_COUNT;
}

void *ms_substitute(void *real, const char *base, int version, bool per_thread)
{
    const int entry = replaced >= 0 ? replaced : wrong;
    CHECK(real == &elsewhere && strcmp(base, ms_entry_symbol((enum ms_entry)entry)) == 0);
    CHECK(version == ms_entries[entry].version && per_thread == ms_entries[entry].per_thread);
    return replaced >= 0 ? driver : real;
}

/* --- */

static void must_be_right(void)
{
    char seen[256] = "nothing";
    asked = wrapped = 0;
    CHECK(check(seen, sizeof(seen)));
    CHECK(strcmp(seen, "nothing") == 0);
}

MS_TEST(each_function_that_the_shim_handles_is_asked_for)
{
    must_be_right();
    CHECK_EQ(asked, wrapped);
    CHECK_EQ(asked, (MS_ENTRY_COUNT + 2) / 3);
}

STORY_ALONE(a_driver_before_cuda_12_is_asked_in_the_old_way, is_old = true, must_be_right(),
            EQUALS(asked, (MS_ENTRY_COUNT + 2) / 3))

MS_TEST(a_function_that_the_driver_does_not_have_is_right)
{
    absent = wrong = 3; /* whatever it left there */
    must_be_right();
}

STORY_ALONE(a_function_elsewhere_that_the_shim_replaces_is_right, replaced = 3 * 7, must_be_right())

/* Also the first and the last. */
MS_TEST(a_function_that_is_not_the_drivers_is_named)
{
    char seen[256], expected[256];
    const int entries[] = {0, 3 * 9, (MS_ENTRY_COUNT - 1) / 3 * 3};
    for (int i = 0; i < 3; i++) {
        wrong = entries[i];
        CHECK(!check(seen, sizeof(seen)));
        snprintf(expected, sizeof(expected), "%s is %p, which is not in the driver's library",
                 ms_entry_symbol((enum ms_entry)wrong), (void *)&elsewhere);
        CHECK(strcmp(seen, expected) == 0);
    }
}
