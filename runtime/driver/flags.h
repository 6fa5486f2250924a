/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flags that every intercepted call reads first, by relaxed loads of one page. All zero makes
 * the shim inert.
 *
 * The kernel zeroes the page in a forked child (MADV_WIPEONFORK), however the child was created:
 * the driver is unusable there.
 */
#pragma once

/* Offsets for the assembly thunks; checked in flags.c. */
#define MS_HOT_DEFERRED 0
#define MS_HOT_GATED 4

#ifndef __ASSEMBLER__
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The largest page size of the architecture: the struct has its page to itself. */
#if defined(__aarch64__)
#define MS_HOT_PAGE (64 << 10)
#else
#define MS_HOT_PAGE (4 << 10)
#endif

struct ms_hot {
    /* The number of allocations with a byte that is not resident, and the bit MS_HOT_COUNTED. */
    _Alignas(MS_HOT_PAGE) _Atomic uint32_t deferred;
    _Atomic uint32_t gated;        /* 1: work that can wait for the host or for memory was queued */
    _Atomic uint32_t owned;        /* allocations, and what has calls examined */
    _Atomic uint32_t gated_copies; /* a copy of gated, for one load with owned; may be set later */
    _Atomic uint32_t started;
    _Atomic uint32_t captures;      /* stream captures in progress */
    _Atomic uint32_t recorded;      /* enum ms_recorded: whether the process keeps a state page */
    _Atomic uint32_t marking;       /* threads that may be in cuCtxRecordEvent */
    _Atomic uint32_t files;         /* files with bytes that may not be in memory yet (source.h) */
    _Atomic uint32_t mapped;        /* how often the program mapped a file from offset 0 */
    _Atomic uint32_t late_payloads; /* copies whose bytes are still to be looked at (payload.h) */
    _Atomic uint32_t unexamined;    /* how often calls began to pass unexamined (examining.h) */
    _Atomic uint32_t unfilled;      /* granules that the next launch must fill (materialise.c) */
    _Atomic uint32_t keeps_memory;  /* blocks handed out again keep their memory (window.h) */
    char rest_of_page[MS_HOT_PAGE - 14 * sizeof(uint32_t)];
};

extern struct ms_hot ms_hot;

/* Calls are counted (quiesce.h). A bit of `deferred`, so that a quiet call needs one load. */
#define MS_HOT_COUNTED (UINT32_C(1) << 31)

/* MS_WILL_BE_RECORDED: the first record makes the page (state/state.h). */
enum ms_recorded { MS_NOT_RECORDED, MS_RECORDED, MS_WILL_BE_RECORDED };

#define MS_IS_SET(name, flag)                                                 \
    static inline bool name(void)                                             \
    {                                                                         \
        return atomic_load_explicit(&ms_hot.flag, memory_order_relaxed) != 0; \
    }
MS_IS_SET(ms_is_started, started)
MS_IS_SET(ms_is_recorded, recorded)
MS_IS_SET(ms_is_capturing, captures)
MS_IS_SET(ms_has_files, files)
MS_IS_SET(ms_has_late_payloads, late_payloads)
MS_IS_SET(ms_has_unfilled, unfilled)
MS_IS_SET(ms_keeps_memory, keeps_memory)
MS_IS_SET(ms_owns_any, owned)
MS_IS_SET(ms_is_gated, gated)
#undef MS_IS_SET

static inline bool ms_defers_any(void)
{
    return (atomic_load_explicit(&ms_hot.deferred, memory_order_relaxed) & ~MS_HOT_COUNTED) != 0;
}

static inline bool ms_counts_calls(void)
{
    return (atomic_load_explicit(&ms_hot.deferred, memory_order_relaxed) & MS_HOT_COUNTED) != 0;
}

/* Sets the flag until the next window opens. */
static inline void ms_keep_memory(void)
{
    atomic_store_explicit(&ms_hot.keeps_memory, 1, memory_order_relaxed);
}

/* Nothing is deferred, and the gate flag is set: a call may go straight to the driver. One load. */
static inline bool ms_is_quiet(void)
{
    typedef uint64_t __attribute__((may_alias)) both;
    /* Both architectures are little-endian. */
    return __atomic_load_n((const both *)&ms_hot, __ATOMIC_RELAXED) == UINT64_C(1)
                                                                           << (8 * MS_HOT_GATED);
}

/* A call may go straight to the driver, once counted (quiesce.h). */
static inline bool ms_is_quiet_but_counted(void)
{
    return !ms_defers_any() && ms_is_gated();
}

/* The shim owns no allocation, and the gate flag is set: a copy may go straight to the driver,
 * which does not know the bounds of the shim's allocations. One load. */
static inline bool ms_is_quiet_for_copies(void)
{
    typedef uint64_t __attribute__((may_alias)) both;
    return __atomic_load_n((const both *)&ms_hot.owned, __ATOMIC_RELAXED) == UINT64_C(1) << 32;
}

/* A call that can reach anything is about to be queued. */
static inline void ms_examining_missed(void)
{
    atomic_fetch_add(&ms_hot.unexamined, 1);
}

/* Something is deferred, or about to be: calls are examined until the matching end. Copies look at
 * `owned` alone (ms_is_quiet_for_copies), and the last allocation may go meanwhile. */
static inline void ms_examining_begin(void)
{
    atomic_fetch_add(&ms_hot.owned, 1);
    atomic_fetch_add(&ms_hot.deferred, 1);
}

/* The last end counts before calls may pass: who passes and then asks (ms_examining_is_complete)
 * finds the call counted. */
static inline void ms_examining_end(void)
{
    uint32_t now = atomic_load(&ms_hot.deferred);
    do {
        if ((now & ~MS_HOT_COUNTED) == 1)
            ms_examining_missed();
    } while (!atomic_compare_exchange_strong(&ms_hot.deferred, &now, now - 1));
    atomic_fetch_sub(&ms_hot.owned, 1);
}

#endif
