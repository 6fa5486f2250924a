/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

static bool has_twin(const char *base)
{
    for (int i = 0; i < SIM_ENTRY_COUNT; i++) {
        if (rows[i].per_thread && strcmp(rows[i].base, base) == 0)
            return true;
    }
    return false;
}

/*
 * The newest row of that name which the version allows: of the per-thread twins, where they are
 * wanted and the name has any. One of an older version is then not found, whatever its sibling is.
 */
static int find_row(const char *base, int version, bool per_thread,
                    CUdriverProcAddressQueryResult *status_out)
{
    int best = -1;
    const bool wants_twin = per_thread && has_twin(base);
    *status_out = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (int i = 0; i < SIM_ENTRY_COUNT; i++) {
        if (strcmp(rows[i].base, base) != 0 || rows[i].version > sim_driver_version())
            continue;
        if (*status_out == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            *status_out = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (rows[i].version > version || rows[i].per_thread != wants_twin)
            continue;
        if (best < 0 || rows[i].version > rows[best].version)
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
 * A version above the driver's own is CUDA_ERROR_INVALID_VALUE. *pfn is set only to a function. No
 * name and no place for the answer are refused here; driver 580 touches them.
 */
static CUresult look_up(const char *base, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status_out)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (pfn == NULL || base == NULL || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ||
        version > sim_driver_version())
        return CUDA_ERROR_INVALID_VALUE;

    const bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    void *found = sim_own_function(base, version, per_thread);
    const int row = found != NULL ? -1 : find_row(base, version, per_thread, &status);
    if (row >= 0)
        found = sim_is_broken(SIM_BROKEN_RESOLVER) ? outside_of(row) : sim_entry_addresses[row];
    if (status_out != NULL)
        *status_out = status;
    if (found == NULL)
        return CUDA_ERROR_NOT_FOUND;
    *pfn = found;
    return CUDA_SUCCESS;
}

static CUresult enter(enum sim_entry entry, const char *base, int version, cuuint64_t flags)
{
    return sim_enter_early_noted(entry, "%s %d %llu", base == NULL ? "(null)" : base, version,
                                 (unsigned long long)flags);
}

/* A missing symbol is no error here: *symbolStatus says so, and the address is NULL. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    const CUresult result = enter(SIM_ENTRY_cuGetProcAddress_v2, symbol, cudaVersion, flags);
    if (result != CUDA_SUCCESS)
        return result;
    const CUresult found = look_up(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (found != CUDA_ERROR_NOT_FOUND)
        return found;
    *pfn = NULL;
    return CUDA_SUCCESS;
}

/* A missing symbol is an error here, and *pfn stays as it is. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    const CUresult result = enter(SIM_ENTRY_cuGetProcAddress, symbol, cudaVersion, flags);
    if (result != CUDA_SUCCESS)
        return result;
    return look_up(symbol, pfn, cudaVersion, flags, NULL);
}
