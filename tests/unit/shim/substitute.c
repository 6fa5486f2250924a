/* SPDX-License-Identifier: Apache-2.0 */
/* Which function a program gets when it looks one up: the shim's, the driver's, or a thunk. */
#include "shim/substitute.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/log.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/real_side.h"

/* Where the shim's functions are: far from here, and in the order of the entries. */
#define WRAPPER_OWN(symbol) (4 * MS_ENTRY_##symbol + 4)
#define WRAPPER_OBSERVE(symbol) WRAPPER_OWN(symbol)
#define WRAPPER_SEAL(symbol) WRAPPER_OWN(symbol)
#define WRAPPER_FORWARD(symbol) 0
const int32_t ms_wrappers[MS_ENTRY_COUNT] = {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) WRAPPER_##class_(symbol),
#include "shim/entries.def"
#undef MS_ENTRY
};
const int32_t ms_spare_thunks[MS_SPARE_COUNT] = {[0] = 4, [1] = 8, [MS_SPARE_COUNT - 1] = 12};

/* --- the driver: an entry's function is a byte of it; behind them is what the table lacks */

enum { MORE = 2000 };
static char driver[MS_ENTRY_COUNT + MORE], elsewhere;
static bool is_loaded = true;

bool ms_real_load(const void *address)
{
    CHECK(address != NULL);
    return is_loaded;
}

bool ms_is_own(const void *address)
{
    return address == &is_loaded;
}

bool ms_is_driver(const void *address)
{
    return (const char *)address >= driver && (const char *)address < driver + sizeof(driver);
}

static void start(void)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i++)
        ms_real[i] = &driver[i];
    ms_log_open(MS_WARN, "/dev/null");
}

static void *wrapper(enum ms_entry entry)
{
    CHECK(ms_has_wrapper(entry));
    return (void *)((uintptr_t)ms_wrappers + (uintptr_t)ms_wrappers[entry]);
}

static void *thunk(int number)
{
    return (void *)((uintptr_t)ms_spare_thunks + (uintptr_t)ms_spare_thunks[number]);
}

/* --- by name */

MS_TEST_AFTER(start, each_entry_is_found_by_its_symbol_and_by_its_base)
{
    char base[256];
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        const enum ms_entry entry = (enum ms_entry)i;
        void *expected = ms_has_wrapper(entry) ? wrapper(entry) : &driver[i];
        snprintf(base, sizeof(base), "%.*s", ms_entries[i].base_length, ms_entry_symbol(entry));
        CHECK(ms_substitute(&driver[i], ms_entry_symbol(entry), 0, false) == expected);
        CHECK(ms_substitute(&driver[i], base, 0, false) == expected);
    }
}

MS_TEST_AFTER(start, functions_not_of_the_driver_or_of_the_shim_stay)
{
    void *alloc = &driver[MS_ENTRY_cuMemAlloc_v2];
    CHECK(ms_substitute(&elsewhere, "cuMemAlloc_v2", 3020, false) == &elsewhere);
    CHECK(ms_substitute(&is_loaded, "cuMemAlloc_v2", 3020, false) == &is_loaded);
    is_loaded = false;
    CHECK(ms_substitute(alloc, "cuMemAlloc_v2", 3020, false) == alloc);
}

/* --- by address */

MS_TEST_AFTER(start, a_function_is_known_by_its_address_whatever_its_name)
{
    CHECK(ms_substitute(&driver[MS_ENTRY_cuMemAlloc_v2], "cuNew", 3020, false) ==
          wrapper(MS_ENTRY_cuMemAlloc_v2));
    CHECK(ms_substitute(&driver[MS_ENTRY_cuDriverGetVersion], "cuNew", 3020, false) ==
          &driver[MS_ENTRY_cuDriverGetVersion]);
    for (int i = 0; i < MS_ENTRY_COUNT; i += 7) {
        const enum ms_entry entry = (enum ms_entry)i;
        CHECK(ms_substitute(&driver[i], "cuNew", 0, false) ==
              (ms_has_wrapper(entry) ? wrapper(entry) : (void *)&driver[i]));
    }
}

MS_TEST_AFTER(start, the_first_name_of_a_function_with_a_wrapper_counts)
{
    void *const one = &driver[MS_ENTRY_COUNT];
    ms_real[MS_ENTRY_cuDriverGetVersion] = ms_real[MS_ENTRY_cuMemAlloc_v2] =
        ms_real[MS_ENTRY_cuMemFree_v2] = one;
    const enum ms_entry first = MS_ENTRY_cuMemAlloc_v2 < MS_ENTRY_cuMemFree_v2
                                    ? MS_ENTRY_cuMemAlloc_v2
                                    : MS_ENTRY_cuMemFree_v2;
    CHECK(ms_substitute(one, "cuNew", 0, false) == wrapper(first));
}

MS_TEST_AFTER(start, a_function_the_driver_does_not_have_has_no_address)
{
    for (int i = 0; i < MS_ENTRY_COUNT; i += 2)
        ms_real[i] = (void *)ms_missing;
    CHECK(ms_substitute((void *)ms_missing, "cuNew", 0, false) == (void *)ms_missing);
}

/* --- by base, version and stream: where the driver has it at an address that it does not export */

static void must_be(const char *base, int version, bool per_thread, enum ms_entry entry)
{
    static int unknown = MS_ENTRY_COUNT + 100;
    if (ms_substitute(&driver[unknown++], base, version, per_thread) != wrapper(entry))
        ms_test_fail(__FILE__, __LINE__, "%s of %d is not %s", base, version,
                     ms_entry_symbol(entry));
}

MS_TEST_AFTER(start, the_newest_that_the_version_allows_is_meant)
{
    must_be("cuCtxCreate", 3020, false, MS_ENTRY_cuCtxCreate_v2);
    must_be("cuCtxCreate", 11039, false, MS_ENTRY_cuCtxCreate_v2);
    must_be("cuCtxCreate", 11040, false, MS_ENTRY_cuCtxCreate_v3);
    must_be("cuCtxCreate", 12050, false, MS_ENTRY_cuCtxCreate_v4);
    must_be("cuCtxCreate", MS_TABLE_VERSION - 1, false, MS_ENTRY_cuCtxCreate_v4);
    must_be("cuMemcpyHtoDAsync", 12000, false, MS_ENTRY_cuMemcpyHtoDAsync_v2);
    must_be("cuMemcpyHtoDAsync", 12000, true, MS_ENTRY_cuMemcpyHtoDAsync_v2_ptsz);
    must_be("cuMemAlloc", 12000, true, MS_ENTRY_cuMemAlloc_v2); /* it has no twin */
}

/* --- what is not known is sealed */

MS_TEST_AFTER(start, an_unknown_function_gets_a_thunk_of_its_own)
{
    void *const one = &driver[MS_ENTRY_COUNT], *const other = &driver[MS_ENTRY_COUNT + 1];
    CHECK(ms_substitute(one, "cuNew", 12000, false) == thunk(0));
    CHECK(ms_real[MS_ENTRY_COUNT] == one);
    CHECK(ms_substitute(other, "cuNewer", 12000, false) == thunk(1));
    CHECK(ms_substitute(one, "cuNew", 12000, false) == thunk(0));
    CHECK(ms_real[MS_ENTRY_COUNT + 1] == other && ms_real[MS_ENTRY_COUNT + 2] == NULL);
}

MS_TEST_AFTER(start, a_function_newer_than_the_table_is_sealed)
{
    int at = MS_ENTRY_COUNT;
    CHECK(ms_substitute(&driver[at], "cuCtxCreate", MS_TABLE_VERSION, false) == thunk(0));
    CHECK(ms_substitute(&driver[at + 1], "cuCtxCreate", 1, false) == thunk(1));
    ms_real[MS_ENTRY_COUNT] = ms_real[MS_ENTRY_COUNT + 1] = NULL;
    ms_real[MS_ENTRY_cuCtxCreate_v4] = (void *)ms_missing;
    CHECK(ms_substitute(&driver[at + 2], "cuCtxCreate", 12050, false) == thunk(0));
}

MS_TEST_AFTER(start, functions_beyond_the_spare_thunks_are_not_watched)
{
    void *last = NULL;
    for (int i = 0; i < MS_SPARE_COUNT; i++)
        last = ms_substitute(&driver[MS_ENTRY_COUNT + i], "cuNew", 12000, false);
    CHECK(last == thunk(MS_SPARE_COUNT - 1));
    void *const one_more = &driver[MS_ENTRY_COUNT + MS_SPARE_COUNT];
    CHECK(ms_substitute(one_more, "cuNew", 12000, false) == one_more);
}
