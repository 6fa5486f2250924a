/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises: how much memory the allocations of a device may be promised.
 *
 * A program that makes or loads a model may have more than the device: most of it is cut down or
 * freed before it is used. Up to METASHARD_OVERCOMMIT times the memory is promised then. A program
 * that computes uses what it has, and it looks for an out-of-memory where it allocates. From then
 * on what has no memory yet counts as used, so an allocation fails where it fails without the shim.
 *
 * A program computes when kernels that ran have used a quarter of what has no memory yet, when it
 * has settled, and when a call has failed for lack of memory. The former two are forgotten when it
 * has freed nearly everything.
 *
 * Thread-safe. All of it is about one device, except where it says the current one.
 */
#ifndef METASHARD_RUNTIME_FILL_OVERCOMMIT_H
#define METASHARD_RUNTIME_FILL_OVERCOMMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

/*
 * May an allocation of so many bytes be promised? If not, a line tells why. The device is the
 * current one; the caller holds no claim. *is_tight_out: so little is left then that nothing should
 * be left to be replayed.
 */
bool ms_overcommit_allows(CUdevice device, size_t bytes, bool *is_tight_out);

/* A kernel runs, and this much was materialised for it. */
void ms_overcommit_set_used(CUdevice device, uint64_t bytes);

/* Everything on all devices was materialised because the program has moved on. */
void ms_overcommit_set_settled(void);

/*
 * A call fails on this thread because the current device has no memory for bytes that were
 * promised.
 */
void ms_overcommit_set_failed(void);

/* True once after ms_overcommit_set_failed on this thread. */
bool ms_overcommit_take_failed(void);

#endif
