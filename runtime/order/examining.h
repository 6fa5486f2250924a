/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the shim has examined all queued work. While something is deferred (ms_hot.deferred), it
 * examines each call of the program. It has not examined work that was queued before, or that can
 * reach anything: such work may find, in host memory, an address that the program gets later. So an
 * allocation may begin to be deferred only if all such work is done; else it gets memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"

/*
 * From now on queued work may read host memory that the program writes later: the program has
 * pinned memory, or a device reads all host memory. Before this call, work knows no address that is
 * younger than itself, and ms_examining_is_complete asks nothing.
 */
void ms_examining_expect(void);

/*
 * True if all work in contexts that can reach memory of the device was examined, or is done now, or
 * within a moment (order.h). To be called between ms_examining_begin and ms_examining_end
 * (flags.h); holds for allocations that begin to be deferred before the end. True as well if the
 * driver cannot tell (cuCtxRecordEvent, CUDA 12.5).
 */
bool ms_examining_is_complete(CUcontext current, CUdevice device);

/* A kernel of the program is about to be queued, while something is deferred. */
void ms_examining_launched(void);

/*
 * True if no kernel of the program is queued in any context: the program has launched none since
 * all work was last done, or all work is done now, or within a moment. NCCL's work may go on. False
 * if the driver cannot tell, and during a capture.
 */
bool ms_examining_no_kernel(CUcontext current);

/* True if all work of each context is done within `ms` milliseconds a context. Waits without limit
 * if the driver cannot tell. */
bool ms_examining_end_within(uint64_t ms);

/* The contexts of the process. */
void ms_examining_add_context(CUcontext context, CUdevice device);
void ms_examining_forget_context(CUcontext context);
