/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry table as the shim uses it: ids, names and real functions, made from entries.def. Spare
 * slots follow the table's entries: when a program looks up a function of a newer driver that the
 * table does not have, one of their thunks seals it.
 */
#pragma once

enum { MS_SPARE_COUNT = 128 }; /* as in the thunks */

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/flags.h"
#include "runtime/state/caller.h"
#include "shim/cancellation.h"

enum ms_entry {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) MS_ENTRY_##symbol,
#include "shim/entries.def"
#undef MS_ENTRY
    MS_ENTRY_COUNT
};

/* No pointers: a table of them would be relocated in every process. The base is the beginning of
 * the symbol (tests/static/check_entries.py). */
struct ms_entry_facts {
    uint16_t name; /* where the symbol begins in one text of all names */
    uint16_t version;
    uint8_t symbol_length, base_length;
    uint8_t per_thread;
};

extern const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT];

const char *ms_entry_symbol(enum ms_entry entry);

/* Real functions by entry. NULL until somebody needs the entry (ms_real_get); then the driver's
 * function, or ms_missing if it has none. Whoever writes a slot writes the same. */
extern void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];

/* Returns the real function of an entry, and asks the driver for it if nobody has. Never NULL. */
void *ms_real_get(enum ms_entry entry);

/* Stands in for functions that the installed driver lacks. */
CUresult ms_missing(void);

#define MS_REAL(symbol) ((__typeof__(&symbol))ms_real_fast(MS_ENTRY_##symbol))

static inline void *ms_real_fast(enum ms_entry entry)
{
    void *real = __atomic_load_n(&ms_real[entry], __ATOMIC_ACQUIRE);
    return __builtin_expect(real != NULL, 1) ? real : ms_real_get(entry);
}

/*
 * An entry that jumps to the driver when nothing is deferred (a copy or set: when the shim owns
 * nothing). Otherwise it goes inside (cancellation.h), to the body that follows the macro. The body
 * is a separate function so that the fast path needs no frame.
 */
#define MS_QUICK(symbol, parameters, arguments) \
    MS_QUICK_WHEN(ms_is_quiet(), symbol, parameters, arguments)
#define MS_QUICK_COPY(symbol, parameters, arguments) \
    MS_QUICK_WHEN(ms_is_quiet_for_copies(), symbol, parameters, arguments)
#define MS_QUICK_WHEN(is_quiet, symbol, parameters, arguments)                                   \
    static CUresult inside_##symbol parameters;                                                  \
    static __attribute__((noinline)) CUresult slow_##symbol parameters                           \
    {                                                                                            \
        MS_ENTER(#symbol);                                                                       \
        return inside_##symbol arguments;                                                        \
    }                                                                                            \
    CUresult symbol parameters                                                                   \
    {                                                                                            \
        if (__builtin_expect(!(is_quiet), 0))                                                    \
            return slow_##symbol arguments;                                                      \
        const __typeof__(&symbol) real =                                                         \
            (__typeof__(&symbol))__atomic_load_n(&ms_real[MS_ENTRY_##symbol], __ATOMIC_ACQUIRE); \
        if (__builtin_expect(real != NULL, 1))                                                   \
            return real arguments;                                                               \
        return slow_##symbol arguments;                                                          \
    }                                                                                            \
    static CUresult inside_##symbol parameters

/* The null address. For a copy or set that strays (ms_strays), the driver is called with this
 * address, so that it checks its other arguments first and then refuses the call. */
#define MS_NOWHERE ((CUdeviceptr)0)
