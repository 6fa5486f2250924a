/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/substitute.h"

#include <string.h>

#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "shim/real.h"

/* By entry: the distance of the shim's function from this table; 0: no function (class FORWARD).
 * wrappers.S makes the table, because C cannot express such distances. */
extern const int32_t ms_wrappers[MS_ENTRY_COUNT];

bool ms_has_wrapper(enum ms_entry entry)
{
    return ms_wrappers[entry] != 0;
}

/* Distances of the spare thunks from this table: ms_spare_thunks[i] is the thunk of slot
 * MS_ENTRY_COUNT + i. */
extern const int32_t ms_spare_thunks[MS_SPARE_COUNT];

/* Guards filling the table below and the spare slots. A thread that holds it calls nothing. */
static struct ms_lock lock = MS_LOCK_INIT(substitute);

/* --- by name: chains of nodes, two for each entry: its symbol and its base */

enum { CHAINS = 1024, NODES = 2 * MS_ENTRY_COUNT };
static struct {
    bool is_filled;         /* atomic; released when the rest is complete */
    uint16_t first[CHAINS]; /* a node + 1; 0: the end */
    uint16_t next[NODES];   /* like `first` */
} by_name;

static size_t length_of(unsigned node)
{
    const struct ms_entry_facts *facts = &ms_entries[node / 2];
    return node % 2 == 0 ? facts->symbol_length : facts->base_length;
}

/* By the bytes in the middle, the last bytes and the length, which tell names apart well enough. */
static unsigned chain_of(const char *name, size_t length)
{
    uint64_t middle = 0, end = 0;
    const size_t bytes = length < sizeof(end) ? length : sizeof(end);
    memcpy(&middle, name + (length - bytes) / 2, bytes);
    memcpy(&end, name + length - bytes, bytes);
    return (unsigned)(((middle * 31 + end + length) * UINT64_C(0x9e3779b97f4a7c15)) >> 54);
}

static void fill_by_name(void)
{
    if (__atomic_load_n(&by_name.is_filled, __ATOMIC_ACQUIRE))
        return;
    ms_lock_take(&lock);
    for (unsigned node = NODES; node-- > 0 && !by_name.is_filled;) {
        const size_t length = length_of(node);
        if (node % 2 == 1 && length == length_of(node - 1))
            continue; /* the symbol is the base */
        uint16_t *first = &by_name.first[chain_of(ms_entry_symbol(node / 2), length)];
        by_name.next[node] = *first;
        *first = (uint16_t)(node + 1);
    }
    __atomic_store_n(&by_name.is_filled, true, __ATOMIC_RELEASE);
    ms_lock_drop(&lock);
}

/* The entry with that symbol or base whose real function is `real`, or -1. If one function has
 * several names, the first name with a wrapper stands for all. */
static int find_named(const char *name, const void *real)
{
    const size_t length = strlen(name);
    int found = -1;
    fill_by_name();
    for (unsigned at = by_name.first[chain_of(name, length)]; at != 0; at = by_name.next[at - 1]) {
        const enum ms_entry entry = (at - 1) / 2;
        if (length_of(at - 1) == length && memcmp(ms_entry_symbol(entry), name, length) == 0 &&
            (found < 0 || (!ms_has_wrapper(found) && ms_has_wrapper(entry))) &&
            ms_real_get(entry) == real)
            found = entry;
    }
    return found;
}

/* --- by address: for a function that the name does not find */

/* The entry whose real function is `real`, or -1. Like find_named, but looks up all of the driver's
 * functions. */
static int find_at(const void *real)
{
    int found = -1;
    for (int i = 0; i < MS_ENTRY_COUNT && real != (void *)ms_missing; i++) {
        if (ms_real_get(i) == real && (found < 0 || (!ms_has_wrapper(found) && ms_has_wrapper(i))))
            found = i;
    }
    return found;
}

/*
 * The entry for (base, version, per_thread): the newest ABI that is not newer than `version`. -1 if
 * the table has none, or may lack a newer ABI that the version allows, or if the driver does not
 * export the entry.
 */
static int find_entry(const char *base, int version, bool per_thread)
{
    const size_t length = strlen(base);
    int best = -1;
    if (version >= MS_TABLE_VERSION)
        return -1;
    for (int i = 0; i < MS_ENTRY_COUNT; i++) {
        const struct ms_entry_facts *facts = &ms_entries[i];
        if (facts->version > version || facts->base_length != length ||
            memcmp(ms_entry_symbol(i), base, length) != 0)
            continue;
        if (best < 0 ||
            (facts->per_thread == per_thread) > (ms_entries[best].per_thread == per_thread) ||
            (facts->per_thread == ms_entries[best].per_thread &&
             facts->version > ms_entries[best].version))
            best = i;
    }
    return best >= 0 && ms_real_get(best) != (void *)ms_missing ? best : -1;
}

/* Seals a function that the table does not know, because it might touch anything. */
static void *seal_unknown(void *real, const char *name)
{
    void *thunk = NULL;
    ms_lock_take(&lock);
    for (int i = 0; i < MS_SPARE_COUNT && thunk == NULL; i++) {
        void **slot = &ms_real[MS_ENTRY_COUNT + i];
        if (*slot == NULL)
            __atomic_store_n(slot, real, __ATOMIC_RELEASE);
        if (*slot == real)
            thunk = (char *)ms_spare_thunks + ms_spare_thunks[i];
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
    return ms_has_wrapper(entry) ? (char *)ms_wrappers + ms_wrappers[entry] : real;
}

void *ms_substitute(void *real, const char *base, int version, bool per_thread)
{
    if (!ms_real_load(real) || ms_is_own(real))
        return real;
    int entry = find_named(base, real);
    if (entry < 0)
        entry = find_at(real);
    if (entry < 0 && !ms_is_driver(real))
        return real; /* another library, or a second driver */

    /* No row may name the address: the driver does not export it, or the table does not know it. */
    if (entry < 0)
        entry = find_entry(base, version, per_thread);
    return entry >= 0 ? wrapper_or(entry, real) : seal_unknown(real, base);
}
