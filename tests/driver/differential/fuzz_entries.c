/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/fuzz.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { WAYS = 3 };

static const struct {
    const char *symbol, *base;
    int version;
    bool per_thread;
} facts[FUZZ_ENTRIES] = {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) \
    {#symbol, #base, version, per_thread},
#include "shim/entries.def"
#undef MS_ENTRY
};

static void *ways[WAYS][FUZZ_ENTRIES];

/* In the place of a function that the driver lacks, whatever its arguments are. */
static CUresult absent(void)
{
    return CUDA_ERROR_NOT_FOUND;
}
uint32_t *fuzz_hits;

/* Asks both forms of cuGetProcAddress; dlsym finds a function that cuGetProcAddress lacks. */
static void ask(int entry, __typeof__(&cuGetProcAddress) first,
                __typeof__(&cuGetProcAddress_v2) second)
{
    const cuuint64_t flags = facts[entry].per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                     : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    if (first(facts[entry].base, &found, facts[entry].version, flags) == CUDA_SUCCESS)
        ways[1][entry] = found;
    found = NULL;
    if (second(facts[entry].base, &found, facts[entry].version, flags, &status) == CUDA_SUCCESS)
        ways[2][entry] = found;
}

void fuzz_entries_init(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    for (int i = 0; i < FUZZ_ENTRIES; i++)
        ways[0][i] = dlsym(driver, facts[i].symbol);
    for (int i = 0; i < FUZZ_ENTRIES; i++) {
        ask(i, (__typeof__(&cuGetProcAddress))ways[0][FUZZ_cuGetProcAddress],
            (__typeof__(&cuGetProcAddress_v2))ways[0][FUZZ_cuGetProcAddress_v2]);
        for (int way = 1; way < WAYS; way++) {
            if (ways[way][i] == NULL)
                ways[way][i] = ways[0][i];
        }
    }
    for (int i = 0; i < FUZZ_ENTRIES; i++) {
        for (int way = 0; way < WAYS; way++) {
            if (ways[way][i] == NULL)
                ways[way][i] = (void *)absent;
        }
    }
    fuzz_hits[FUZZ_cuGetProcAddress] += FUZZ_ENTRIES;
    fuzz_hits[FUZZ_cuGetProcAddress_v2] += FUZZ_ENTRIES;
}

void *fuzz_stand_in(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *found = driver != NULL ? dlsym(driver, name) : NULL;
    if (found == NULL) {
        fprintf(stderr, "the simulated driver has no %s\n", name);
        exit(2);
    }
    dlclose(driver);
    return found;
}

void *fuzz_entry(enum fuzz_entry entry)
{
    /* Several threads may count at once, and a count that is lost does not matter; a torn one
     * would. */
    __atomic_fetch_add(&fuzz_hits[entry], 1, __ATOMIC_RELAXED);
    return ways[fuzz_way(WAYS)][entry];
}

bool fuzz_driver_lacks(enum fuzz_entry entry)
{
    return ways[0][entry] == (void *)absent;
}

bool fuzz_is_newer(enum fuzz_entry entry)
{
    return !fuzz_driver_lacks(entry) && fuzz_one_in(2);
}

const char *fuzz_entry_name(enum fuzz_entry entry)
{
    return facts[entry].symbol;
}
