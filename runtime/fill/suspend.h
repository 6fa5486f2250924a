/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspending: the inverse of settling. The shim gives back all its device memory, and keeps the
 * addresses. It drops bytes that lineage can give again, and written bytes that are still equal to
 * their file; the other bytes wait in a store (loading/store.h).
 *
 *     memory    | cached | equal to its file | changed | zeros |
 *     lineage   |  same  |       file        |  store  | fill  |     none of it in memory
 *
 * While a process is suspended its kernels may know any of this memory, by addresses that nobody
 * has seen. So the first launch, or call that is not modelled, takes everything back; copies take
 * back the bytes that they use. If memory is short the call fails, and the bytes wait on.
 *
 * Calls of the program that come meanwhile wait for the end of the suspension.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/document/fault.h"
#include "runtime/driver/driver.h"

/* Bytes. */
struct ms_suspended {
    uint64_t freed;           /* device memory that went back */
    uint64_t replayed;        /* was in memory, and comes back by a replay of lineage */
    uint64_t made;            /* the part of replayed that is in no file: launches and sets */
    uint64_t stored;          /* waits in the store */
    uint64_t zeros;           /* held zeros only */
    uint64_t stays_exported;  /* device memory that stays: others use it */
    uint64_t stays_mapped;    /* stays: the program has the handle, and others may have it */
    uint64_t stays_otherwise; /* stays for other reasons */
};

/* Suspends the process; `folder` is for the store, NULL: host memory. A process that is suspended
 * already gives back the memory that it has taken since. False: nothing has changed, and *fault
 * says why. The caller holds no claim. */
bool ms_suspend(const char *folder, struct ms_suspended *told_out, struct ms_fault *fault);

/* True from a suspension until the process has taken everything back. */
extern _Atomic bool ms_suspend_is_set;
static inline bool ms_suspend_is_active(void)
{
    return atomic_load_explicit(&ms_suspend_is_set, memory_order_relaxed);
}

/* Takes everything back, in the order of the files, after waiting up to METASHARD_RESUME_MS for
 * memory. Does nothing in a process that is not suspended. The caller holds no claim. */
CUresult ms_suspend_take_back(void);
