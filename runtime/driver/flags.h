/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every intercepted call reads first. Relaxed loads of one page; zero means "not ours".
 *
 * The page is wiped in a forked child (MADV_WIPEONFORK): there the driver is unusable anyway, and
 * all zeroes make the shim inert, whatever way the child was made.
 */
#ifndef METASHARD_RUNTIME_DRIVER_FLAGS_H
#define METASHARD_RUNTIME_DRIVER_FLAGS_H

/* Offsets for the assembly thunks; checked in flags.c. */
#define MS_HOT_DEFERRED 0
#define MS_HOT_GATED 4

#ifndef __ASSEMBLER__
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The largest page the architecture may have: the struct fills its page alone. */
#if defined(__aarch64__)
#define MS_HOT_PAGE (64 << 10)
#else
#define MS_HOT_PAGE (4 << 10)
#endif

struct ms_hot {
    _Alignas(MS_HOT_PAGE) _Atomic uint32_t deferred; /* blocks with a byte that is not resident */
    _Atomic uint32_t gated; /* work that can wait for the host or for memory was queued */
    _Atomic uint32_t owned; /* blocks */
    _Atomic uint32_t
        gated_copies; /* as gated, beside owned: for one load of both. May be set later */
    _Atomic uint32_t started;
    _Atomic uint32_t captures; /* stream captures under way */
    _Atomic uint32_t recorded; /* the process keeps a state page (state/state.h) */
    _Atomic uint32_t marking;  /* threads that are perhaps within cuCtxRecordEvent */
    _Atomic uint32_t files;    /* from which something may come that is not in memory (source.h) */
    char rest_of_page[MS_HOT_PAGE - 9 * sizeof(uint32_t)];
};

extern struct ms_hot ms_hot;

static inline bool ms_is_started(void)
{
    return atomic_load_explicit(&ms_hot.started, memory_order_relaxed) != 0;
}

static inline bool ms_is_recorded(void)
{
    return atomic_load_explicit(&ms_hot.recorded, memory_order_relaxed) != 0;
}

/* Some stream is being captured. */
static inline bool ms_is_capturing(void)
{
    return atomic_load_explicit(&ms_hot.captures, memory_order_relaxed) != 0;
}

static inline bool ms_has_files(void)
{
    return atomic_load_explicit(&ms_hot.files, memory_order_relaxed) != 0;
}

static inline bool ms_owns_any(void)
{
    return atomic_load_explicit(&ms_hot.owned, memory_order_relaxed) != 0;
}

static inline bool ms_is_gated(void)
{
    return atomic_load_explicit(&ms_hot.gated, memory_order_relaxed) != 0;
}

/* Nothing is deferred, and the gate flag is set: a call may go straight to the driver. One load of both. */
static inline bool ms_is_quiet(void)
{
    typedef uint64_t __attribute__((may_alias)) both;
    /* Both architectures are little-endian. */
    return __atomic_load_n((const both *)&ms_hot, __ATOMIC_RELAXED) == UINT64_C(1)
                                                                           << (8 * MS_HOT_GATED);
}

/* No allocation is ours, and the gate flag is set: a copy may go straight to the driver. Of what is ours the driver knows
 * no bounds. One load of both. */
static inline bool ms_is_quiet_for_copies(void)
{
    typedef uint64_t __attribute__((may_alias)) both;
    return __atomic_load_n((const both *)&ms_hot.owned, __ATOMIC_RELAXED) == UINT64_C(1) << 32;
}

static inline bool ms_defers_any(void)
{
    return atomic_load_explicit(&ms_hot.deferred, memory_order_relaxed) != 0;
}
#endif

#endif
