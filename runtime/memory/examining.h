/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether all queued work was examined. While something is deferred (ms_hot.deferred), each call of
 * the program is. What was queued before that, and what can reach anything, is not: it may come to
 * an address that the program gets later, by way of host memory. So what begins to be deferred must
 * find that all such work is done, or have memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"

/*
 * From now on queued work may read host memory that the program writes later: pinned memory is
 * there, or a device reads all memory. Before, work knows no address that is younger than itself,
 * and nothing is asked.
 */
void ms_examining_expect(void);

/*
 * True if all work in contexts that can reach memory of the device was examined, or is done now, or
 * within a moment (order.h). To be called between begin and end; holds for what begins to be
 * deferred before the end. True as well if the driver cannot tell (cuCtxRecordEvent, CUDA 12.5).
 */
bool ms_examining_is_complete(CUcontext current, CUdevice device);

/* A kernel of the program is about to be queued, while something is deferred. */
void ms_examining_launched(void);

/*
 * True if no kernel of the program is queued in any context: since all work was done none was
 * launched, or it is done now, or within a moment. What NCCL queues may go on. False if the driver
 * cannot tell, and during a capture.
 */
bool ms_examining_no_kernel(CUcontext current);

/*
 * CUDA_SUCCESS if all work of all contexts is done within so many milliseconds, each; else
 * CUDA_ERROR_NOT_READY. A driver that cannot tell is waited for.
 */
CUresult ms_examining_end_within(uint64_t ms);

/* The contexts of the process. */
void ms_examining_add_context(CUcontext context, CUdevice device);
void ms_examining_forget_context(CUcontext context);
