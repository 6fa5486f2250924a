/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overcommit: how much more memory than a device has its allocations may ask for.
 *
 * A program that makes or loads a model may allocate more than the device has, because it frees or
 * shards most of it before use. Until the program computes, its allocations may take
 * METASHARD_OVERCOMMIT times the device's memory. With 0 they may take 32 times the memory in bytes
 * that the program has not written or only set, and 128 times in all. A program that computes uses
 * its memory, and expects an out-of-memory error from the allocation. From then on unbacked bytes
 * count as used, so an allocation fails where it fails without the shim.
 *
 * A program computes once kernels have used a quarter of the unbacked bytes, once it has settled,
 * and once a call has failed for lack of memory. The shim forgets the first two signs when the
 * program has freed nearly everything.
 *
 * Thread-safe. Figures are kept for each device.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

/*
 * True if an allocation of `bytes` bytes may succeed; logs a line if not. `device` is the current
 * device; the caller holds no claim. *is_tight_out: so little memory is left that nothing should
 * stay deferred.
 */
bool ms_overcommit_allows(CUdevice device, size_t bytes, bool *is_tight_out);

/*
 * A sign that the program computes:
 *
 *     MS_OVERCOMMIT_USED     `bytes` bytes were materialised for a kernel that runs on the device
 *     MS_OVERCOMMIT_SETTLED  everything on all devices was materialised by settling
 *     MS_OVERCOMMIT_FAILED   a call fails on this thread because the current device has no memory
 *                            for bytes that were allocated before
 */
enum ms_overcommit_sign { MS_OVERCOMMIT_USED, MS_OVERCOMMIT_SETTLED, MS_OVERCOMMIT_FAILED };
void ms_overcommit_note(enum ms_overcommit_sign sign, CUdevice device, uint64_t bytes);

/* True once after MS_OVERCOMMIT_FAILED on this thread. */
bool ms_overcommit_take_failed(void);
