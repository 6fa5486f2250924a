/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const char *const sim_entry_names[SIM_ENTRY_COUNT] = {
#define SIM_FUNCTION(symbol, base, version, per_thread) #symbol,
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
};

/* One row of the entry table, as a lookup sees it. */
struct row {
    const char *base;
    int version;
    bool per_thread;
};
static const struct row rows[SIM_ENTRY_COUNT] = {
#define SIM_FUNCTION(symbol, base, version, per_thread) {#base, version, per_thread},
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
};

/* stubs.c fills it: a file that includes cuda.h cannot name every symbol. */
extern void *const sim_entry_addresses[SIM_ENTRY_COUNT];

extern const int sim_built_version; /* profile.c: the only object that differs between libraries */

enum { FIRST_WITHOUT_LIMIT = 13000 }; /* sim_driver_version */

int sim_stub_refuse(int entry);

int sim_stub_refuse(int entry)
{
    const CUresult result = sim_enter((enum sim_entry)entry);
    return (int)(result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED);
}

/* A library with the exports of a driver before 13.0 is never newer than they are. */
int sim_driver_version(void)
{
    const int wanted = sim_config.driver_version;
    const bool is_older = sim_built_version < FIRST_WITHOUT_LIMIT;
    return wanted == 0 || (is_older && wanted > sim_built_version) ? sim_built_version : wanted;
}

/*
 * The newest row of that name which the version allows. A per-thread twin is of the version that
 * brought the twin, at least as new as its sibling, so it wins whenever it qualifies and is wanted.
 */
static int find_row(const char *base, int version, bool per_thread,
                    CUdriverProcAddressQueryResult *status_out)
{
    int best = -1;
    *status_out = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (int i = 0; i < SIM_ENTRY_COUNT; i++) {
        if (strcmp(rows[i].base, base) != 0 || rows[i].version > sim_driver_version())
            continue;
        if (*status_out == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            *status_out = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (rows[i].version > version || (rows[i].per_thread && !per_thread))
            continue;
        if (best < 0 || rows[i].version > rows[best].version ||
            (rows[i].version == rows[best].version && rows[i].per_thread))
            best = i;
    }
    if (best >= 0)
        *status_out = CU_GET_PROC_ADDRESS_SUCCESS;
    return best;
}

/* SIMCUDA_BREAK=resolver: code in memory of its own, which jumps to the function. */
static void *outside_of(int entry)
{
    enum { CODE_BYTES = 16 };
#ifdef __aarch64__
    unsigned char code[CODE_BYTES] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6}; /* ldr x16; br x16 */
    const size_t address_at = 8;
#else
    unsigned char code[CODE_BYTES] = {0x48, 0xb8, [10] = 0xff, 0xe0}; /* movabs rax; jmp rax */
    const size_t address_at = 2;
#endif
    static unsigned char *all;
    pthread_mutex_lock(&sim_lock);
    if (all == NULL) {
        all = mmap(NULL, (size_t)SIM_ENTRY_COUNT * CODE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED)
            abort();
    }
    unsigned char *at = all + (size_t)entry * CODE_BYTES;
    memcpy(code + address_at, &sim_entry_addresses[entry], sizeof(void *));
    memcpy(at, code, CODE_BYTES);
    __builtin___clear_cache((char *)at, (char *)at + CODE_BYTES);
    pthread_mutex_unlock(&sim_lock);
    return at;
}

/* For drivers of tests, which have functions of their own: they define it again, strongly. */
void *sim_own_function(const char *base, int version, bool per_thread);

__attribute__((weak)) void *sim_own_function(const char *base, int version, bool per_thread)
{
    (void)base, (void)version, (void)per_thread;
    return NULL;
}

/*
 * The driver manual says that an unknown symbol is CUDA_SUCCESS with a NULL pointer; drivers return
 * CUDA_ERROR_NOT_FOUND with the NULL pointer, and so do we. A version above the driver's own is
 * CUDA_ERROR_INVALID_VALUE by the manual.
 */
static CUresult look_up(const char *base, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status_out)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (status_out != NULL)
        *status_out = status;
    if (pfn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pfn = NULL;
    if (base == NULL || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ||
        version > sim_driver_version())
        return CUDA_ERROR_INVALID_VALUE;

    const bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *pfn = sim_own_function(base, version, per_thread);
    if (*pfn != NULL) {
        if (status_out != NULL)
            *status_out = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    const int found = find_row(base, version, per_thread, &status);
    if (status_out != NULL)
        *status_out = status;
    if (found < 0)
        return CUDA_ERROR_NOT_FOUND;
    *pfn = sim_is_broken(SIM_BROKEN_RESOLVER) ? outside_of(found) : sim_entry_addresses[found];
    return CUDA_SUCCESS;
}

static CUresult enter(enum sim_entry entry, const char *base, int version, cuuint64_t flags)
{
    return sim_enter_early_noted(entry, "%s %d %llu", base == NULL ? "(null)" : base, version,
                                 (unsigned long long)flags);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    const CUresult result = enter(SIM_ENTRY_cuGetProcAddress_v2, symbol, cudaVersion, flags);
    if (result != CUDA_SUCCESS)
        return result;
    return look_up(symbol, pfn, cudaVersion, flags, symbolStatus);
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    const CUresult result = enter(SIM_ENTRY_cuGetProcAddress, symbol, cudaVersion, flags);
    if (result != CUDA_SUCCESS)
        return result;
    return look_up(symbol, pfn, cudaVersion, flags, NULL);
}
