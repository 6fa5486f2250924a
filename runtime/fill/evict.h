/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frees device memory when it runs out. Cached bytes can be replayed, and granules without present
 * bytes hold nothing: eviction unmaps both once no queued work uses them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/space.h"
#include "runtime/order/order.h"

/*
 * True if `result` is out of memory and another attempt makes sense: the function has waited for
 * the device and unmapped bytes that lineage can restore. *attempts counts the attempts from 0, up
 * to a limit, because an attempt may free the bytes that the last one brought in. The caller holds
 * no claim.
 */
bool ms_evict_try_again(CUresult result, int *attempts);

/* ms_evict_try_again for bytes of an allocation that the program already has: a failure is noted
 * for overcommit.h, and logged. */
bool ms_evict_try_bytes_again(CUresult result, int *attempts);

/*
 * Waits for the device, then claims every allocation for which `applies` holds (NULL: lineage can
 * restore some of it), and calls `evict`. Leaves out allocations on which other threads work, and
 * all during a capture. Returns the sum of the bytes that evict frees.
 */
typedef size_t ms_evictor(struct ms_allocation *allocation, void *argument);
size_t ms_evict_all(bool (*applies)(const struct ms_allocation *allocation), ms_evictor *evict,
                    void *argument);

/*
 * A block was handed out without memory. Frees the memory of returned blocks, if it is more than
 * METASHARD_DEAD_BYTES and the device is done with it within a moment. With an address, frees
 * that of its allocation only, whatever its size. The caller holds no claim.
 */
void ms_evict_dead(CUdeviceptr address);

/*
 * A bracket around the preparation of a read (ms_access opens it for bytes that become cached) and
 * the call itself: in between no eviction takes memory away. Both functions are cheap.
 */
void ms_evict_hold(void);
void ms_evict_let_go(void);

/*
 * If `result` came from a refusal of scratch memory in this thread (scratch.h), frees bytes that
 * recorded launches and fills can make again, as many as were missing, and returns true: another
 * attempt makes sense. The thread allows no more refusals if nothing was freed, or after the last
 * attempt; *attempts counts them from 0. The caller holds no claim.
 */
bool ms_evict_for_scratch(CUresult result, int *attempts);

/* True once all reads that were prepared before now are queued; false if that takes long. */
bool ms_evict_reads_are_queued(void);

/* Frees scratch memory and sinks that are not in use. False: there was nothing to free. */
bool ms_evict_drop_sinks(void);

/* The need that applies to the allocation when the call is queued in stream: `need`, or that row's
 * `elsewhere` in needs.def. */
static inline enum ms_need ms_evict_need_in(const struct ms_allocation *allocation,
                                            enum ms_need need, CUstream stream)
{
    const enum ms_need elsewhere = ms_needs[need].elsewhere;
    return elsewhere == need || ms_order_stream_context(stream) == allocation->context ? need
                                                                                       : elsewhere;
}

/* True if the byte at offset lies in a pinned chunk, which others may write. Moves *end, which lies
 * behind offset, down to where the answer changes at the earliest. */
bool ms_evict_is_pinned(const struct ms_backing *backing, size_t offset, size_t *end);
