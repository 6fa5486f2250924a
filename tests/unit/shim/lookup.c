/* SPDX-License-Identifier: Apache-2.0 */
/* The answers to lookups of functions of the driver and of NCCL. The loader is the test's. */
#include "shim/lookup.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "runtime/state/counters.h"
#include "shim/libc.h"
#include "shim/nccl_wrappers.h"
#include "shim/off.h"
#include "shim/substitute.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/real_side.h"

static char library, own, real, behind, replacement; /* a handle, and functions */
static void *found, *found_behind;                   /* what the loader has */
static bool is_off, is_loaded;
static const char *asked_for;
static unsigned found_next, asked_behind, lookups, substitutions;
static struct {
    int version;
    bool per_thread;
} looked_up;

static void *find(void *handle, const char *name)
{
    CHECK(found_next == 1 && (handle == &library || handle == RTLD_NEXT));
    CHECK(strcmp(name, asked_for) == 0);
    asked_behind += handle == RTLD_NEXT;
    return handle == RTLD_NEXT ? found_behind : found;
}

ms_dlsym *ms_libc_dlsym(void)
{
    return find;
}

void ms_find_next_dlsym(void)
{
    found_next++;
}

static unsigned found_next_dlvsym;
static bool is_before;
static struct link_map caller;

void ms_find_next_dlvsym(void)
{
    found_next_dlvsym++;
}

bool ms_libc_stands_before(const void *wanted)
{
    CHECK(wanted == &caller);
    return is_before;
}

static bool has_library = true;

WRAPS(dladdr1, ms_counter_add);
int __wrap_dladdr1(const void *address, Dl_info *info_out, void **map_out, int flags)
{
    CHECK(address == &library && flags == RTLD_DL_LINKMAP);
    *map_out = &caller;
    return has_library;
}

bool ms_real_load(const void *address)
{
    CHECK(address == NULL);
    return is_loaded;
}

bool ms_is_own(const void *address)
{
    return address == &own;
}

bool ms_is_off(void)
{
    return is_off;
}

void *ms_substitute(void *given, const char *base, int version, bool per_thread)
{
    CHECK(given != NULL && !is_off && strcmp(base, asked_for) == 0);
    looked_up.version = version;
    looked_up.per_thread = per_thread;
    return given == &real ? &replacement : given;
}

void *ms_nccl_substitute(void *given, const char *name)
{
    CHECK(!is_off && strcmp(name, asked_for) == 0);
    return given == &real ? &replacement : given;
}

void __wrap_ms_counter_add(enum ms_counter count, uint64_t more)
{
    CHECK_EQ(more, 1);
    CHECK(count == MS_COUNT_LOOKUPS || count == MS_COUNT_SUBSTITUTIONS);
    lookups += count == MS_COUNT_LOOKUPS;
    substitutions += count == MS_COUNT_SUBSTITUTIONS;
}

/* --- dlsym */

struct expected {
    void *found, *found_behind; /* what the loader has */
    bool is_off, is_loaded, given;
    void *address;
    unsigned lookups, substitutions, asked_behind;
};

static void must_answer(void *handle, const char *name, const struct expected *expected)
{
    found = expected->found;
    found_behind = expected->found_behind;
    is_off = expected->is_off;
    is_loaded = expected->is_loaded;
    asked_for = name;
    found_next = asked_behind = lookups = substitutions = 0;
    looked_up.version = -1;
    const struct ms_answer answer = ms_answer_dlsym(handle, name);
    CHECK_EQ(found_next, 1);
    CHECK_EQ(answer.given, expected->given);
    CHECK(answer.address == expected->address);
    CHECK_EQ(lookups, expected->lookups);
    CHECK_EQ(substitutions, expected->substitutions);
    CHECK_EQ(asked_behind, expected->asked_behind);
}

MS_TEST(a_driver_function_is_looked_up_and_replaced)
{
    static const struct expected cases[] = {
        {.found = &real, .given = true, .address = &replacement, .lookups = 1, .substitutions = 1},
        {.found = &behind, .given = true, .address = &behind, .lookups = 1}, /* not the driver's */
        {.lookups = 1},                                                      /* there is none */
        {.found = &real, .is_off = true, .lookups = 1},
        /* The shim's own stands for the driver's, if there is a driver. */
        {.found = &own, .is_loaded = true, .given = true, .address = &own, .lookups = 1},
        {.found = &own, .given = true, .lookups = 1, .asked_behind = 1},
        {&own, &behind, .given = true, .address = &behind, .lookups = 1, .asked_behind = 1},
        {&own, &behind, .is_off = true, .given = true, .address = &behind, .lookups = 1,
         .asked_behind = 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        must_answer(&library, "cuMemAlloc_v2", &cases[i]);
        must_answer(&library, "cuA", &cases[i]);
        must_answer(&library, "cuZ", &cases[i]);
    }
    must_answer(&library, "cuMemAlloc_v2", &cases[0]);
    CHECK(looked_up.version == 0 && !looked_up.per_thread);
}

MS_TEST(a_function_of_nccl_is_looked_up_and_replaced)
{
    static const struct expected cases[] = {
        {.found = &real, .given = true, .address = &replacement},
        {.found = &behind, .given = true, .address = &behind},
        {.found = NULL},
        {.found = &real, .is_off = true},
        {.found = &own, .is_off = true},
        /* The shim's own stands for NCCL's, if there is an NCCL. */
        {&own, &behind, .given = true, .address = &own, .asked_behind = 1},
        {.found = &own, .given = true, .asked_behind = 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        must_answer(&library, "ncclAllReduce", &cases[i]);
        must_answer(&library, "nccl", &cases[i]);
    }
}

MS_TEST(other_names_go_on_to_the_next_dlsym)
{
    const struct expected nothing = {.found = &real, .found_behind = &behind};
    static const char *const names[] = {NULL,  "",     "c",     "cu",    "cudaMalloc", "cu@",
                                        "cu[", "curl", "CuMem", "cUMem", "xuMem",      "cxMem",
                                        "ncc", "nccm", "NCCL",  "anccl"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        must_answer(&library, names[i], &nothing);
    must_answer(RTLD_NEXT, "cuMemAlloc_v2", &nothing); /* a library that stands behind the shim */
    must_answer(RTLD_NEXT, "ncclAllReduce", &nothing);
}

/* --- dlvsym */

static bool is_answered(void *handle, const char *name)
{
    found_next_dlvsym = 0;
    const bool is_it = ms_answer_dlvsym(handle, name, &library);
    CHECK_EQ(found_next_dlvsym, 1);
    return is_it;
}

MS_TEST(a_library_before_the_shim_gets_a_dlsym_with_the_shims_answers)
{
    is_before = true;
    CHECK(is_answered(RTLD_NEXT, "dlsym"));
    CHECK(!is_answered(RTLD_DEFAULT, "dlsym"));
    CHECK(!is_answered(&library, "dlsym"));
    CHECK(!is_answered(RTLD_NEXT, "dlvsym"));
    CHECK(!is_answered(RTLD_NEXT, NULL));
    is_before = false;
    CHECK(!is_answered(RTLD_NEXT, "dlsym"));
    is_before = true;
    has_library = false;
    CHECK(!is_answered(RTLD_NEXT, "dlsym"));
    has_library = true;
    is_off = true;
    CHECK(!is_answered(RTLD_NEXT, "dlsym"));
}

/* --- cuGetProcAddress */

static CUresult answer;
static void *given;

static CUresult get_address(const char *symbol, void **address, int version, cuuint64_t flags)
{
    CHECK(strcmp(symbol, "cuMemAlloc") == 0 && version == 3020);
    CHECK_EQ(flags & ~(cuuint64_t)CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 1);
    if (address != NULL)
        *address = given;
    return answer;
}

REAL(cuGetProcAddress, (const char *symbol, void **address, int version, cuuint64_t flags),
     return get_address(symbol, address, version, flags))
REAL(cuGetProcAddress_v2,
     (const char *symbol, void **address, int version, cuuint64_t flags,
      CUdriverProcAddressQueryResult *status),
     CHECK(*status == 7);
     return get_address(symbol, address, version, flags))

/* Each of both; address: where it has its answer. */
static void must_get(void **address, cuuint64_t flags, const void *expected, unsigned replaced)
{
    CUdriverProcAddressQueryResult status = 7;
    asked_for = "cuMemAlloc";
    for (int i = 0; i < 2; i++) {
        lookups = substitutions = 0;
        CHECK_EQ(i == 0 ? cuGetProcAddress("cuMemAlloc", address, 3020, flags)
                        : cuGetProcAddress_v2("cuMemAlloc", address, 3020, flags, &status),
                 answer);
        CHECK(address == NULL || *address == expected);
        CHECK_EQ(lookups, 1);
        CHECK_EQ(substitutions, replaced);
    }
}

MS_TEST(a_function_the_driver_finds_is_replaced_in_its_version)
{
    void *address;
    given = &real;
    must_get(&address, 1, &replacement, 1);
    CHECK(looked_up.version == 3020 && !looked_up.per_thread);
    must_get(&address, 1 | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &replacement, 1);
    CHECK(looked_up.version == 3020 && looked_up.per_thread);
    given = &behind;
    must_get(&address, 1, &behind, 0);
}

MS_TEST(a_function_the_driver_does_not_find_is_not_looked_at)
{
    void *address;
    must_get(NULL, 1, NULL, 0);
    must_get(&address, 1, NULL, 0); /* it may succeed with nothing */
    given = &real;
    answer = CUDA_ERROR_NOT_FOUND;
    must_get(&address, 1, &real, 0); /* whatever it left there */
    answer = CUDA_SUCCESS;
    is_off = true;
    must_get(&address, 1, &real, 0);
}
