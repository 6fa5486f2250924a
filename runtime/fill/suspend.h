/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspending: the inverse of settling. All that the shim has of the devices goes back, and the
 * addresses stay. What lineage can give again is dropped; what was written is compared with the
 * file that it came from, and dropped if it is equal; the rest waits in a store (store.h).
 *
 *     memory    | cached | equal to its file | changed | zeros |
 *     lineage   |  same  |       file        |  store  | fill  |     none of it in memory
 *
 * While a process is suspended its kernels may know any of this memory, by addresses that nobody
 * has seen. So the first launch, or call that is not modelled, takes everything back; copies take
 * what they use. If that finds no memory, the call fails, and what waits still waits.
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
    uint64_t replayed;        /* was in memory, and comes back from files, or is made again */
    uint64_t made;            /* of these the bytes that no file has: of launches and sets */
    uint64_t stored;          /* waits in the store */
    uint64_t zeros;           /* held zeros only */
    uint64_t stays_exported;  /* device memory that stays: others use it */
    uint64_t stays_mapped;    /* the program has its handle, and others may */
    uint64_t stays_otherwise; /* could not go */
};

/* folder: NULL for host memory. False: nothing has changed, and the fault says why. One that is
 * suspended already gives back what it has taken since. The caller holds no claim. */
bool ms_suspend(const char *folder, struct ms_suspended *told_out, struct ms_fault *fault);

/* True from a suspension until all of it was taken back. */
extern _Atomic bool ms_suspend_is_set;
static inline bool ms_suspend_is_active(void)
{
    return atomic_load_explicit(&ms_suspend_is_set, memory_order_relaxed);
}

/* Takes everything back, in the order of the files, after waiting up to METASHARD_RESUME_MS for
 * memory. Does nothing in a process that is not suspended. The caller holds no claim. */
CUresult ms_suspend_take_back(void);
