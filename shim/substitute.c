/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/substitute.h"

#include <string.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "shim/newer.h"
#include "shim/real.h"

#define WRAPPER_OWN(symbol) (void *)symbol
#define WRAPPER_OBSERVE(symbol) (void *)symbol
#define WRAPPER_SEAL(symbol) (void *)symbol
#define WRAPPER_FORWARD(symbol) NULL

/* The shim's functions; NULL for class FORWARD. */
static void *const wrappers[MS_ENTRY_COUNT] = {
#define MS_ENTRY(class, symbol, base, version, per_thread, reason) WRAPPER_##class(symbol),
#include "shim/entries.def"
#undef MS_ENTRY
};

bool ms_has_wrapper(enum ms_entry entry)
{
    return wrappers[entry] != NULL;
}

/* The spare thunks, in assembly: ms_spare_thunks[i] leads to slot MS_ENTRY_COUNT + i. */
extern void *const ms_spare_thunks[MS_SPARE_COUNT];

/* Guards filling by_address, and the spare slots. Nothing is called while it is held. */
static struct ms_lock lock = MS_LOCK_INIT(substitute);
static bool is_filled; /* atomic; released when by_address is complete */

/* From real address to entry: open addressing, filled once. Several names may share an address; the
 * first one with a wrapper stands for all. */
enum { SLOTS = 4096 };
static struct {
    const void *address;
    int entry;
} by_address[SLOTS];

static size_t slot_of(const void *address)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15);
    size_t slot = mixed >> 52;
    while (by_address[slot].address != NULL && by_address[slot].address != address)
        slot = (slot + 1) % SLOTS;
    return slot;
}

static void file_address(const void *address, int entry)
{
    const size_t slot = slot_of(address);
    if (by_address[slot].address == NULL || wrappers[by_address[slot].entry] == NULL) {
        by_address[slot].entry = entry;
        by_address[slot].address = address;
    }
}

/* Called once the driver is known. */
static void fill(void)
{
    if (__atomic_load_n(&is_filled, __ATOMIC_ACQUIRE))
        return;
    ms_lock_take(&lock);
    for (int i = 0; i < MS_ENTRY_COUNT && !is_filled; i++) {
        if (ms_real[i] != (void *)ms_missing)
            file_address(ms_real[i], i);
    }
    __atomic_store_n(&is_filled, true, __ATOMIC_RELEASE);
    ms_lock_drop(&lock);
}

/* The entry for (base, version, per_thread): the newest ABI that is not newer than `version`. */
static int find_entry(const char *base, int version, bool per_thread)
{
    int best = -1;
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        const struct ms_entry_facts *facts = &ms_entries[i];
        if (facts->version > version || strcmp(facts->base, base) != 0)
            continue;
        if (best < 0 ||
            (facts->per_thread == per_thread) > (ms_entries[best].per_thread == per_thread) ||
            (facts->per_thread == ms_entries[best].per_thread &&
             facts->version > ms_entries[best].version))
            best = i;
    }
    return best;
}

/* Seals a function that the table does not know: it might touch anything. */
static void *seal_unknown(void *real, const char *name)
{
    void *thunk = NULL;
    ms_lock_take(&lock);
    for (int i = 0; i < MS_SPARE_COUNT && thunk == NULL; i++) {
        void **slot = &ms_real[MS_ENTRY_COUNT + i];
        if (*slot == NULL)
            __atomic_store_n(slot, real, __ATOMIC_RELEASE);
        if (*slot == real)
            thunk = ms_spare_thunks[i];
    }
    ms_lock_drop(&lock);
    if (thunk == NULL) {
        ms_log(MS_WARN,
               "%s is unknown and there are more than %d such functions: it is not watched", name,
               (int)MS_SPARE_COUNT);
        return real;
    }
    return thunk;
}

static void *wrapper_or(int entry, void *real)
{
    return wrappers[entry] != NULL ? wrappers[entry] : real;
}

void *ms_substitute(void *real, const char *base, int version, bool per_thread)
{
    if (!ms_real_load(real) || ms_is_own(real))
        return real;
    fill();
    const size_t slot = slot_of(real);
    if (by_address[slot].address != NULL)
        return wrapper_or(by_address[slot].entry, real);
    if (!ms_is_driver(real))
        return real; /* another library, or a second driver */

    /* The driver returned an address that it does not export, or a newer function. */
    const int entry = find_entry(base, version, per_thread);
    return entry >= 0 ? wrapper_or(entry, real) : seal_unknown(real, base);
}
