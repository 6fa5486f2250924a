/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to free when device memory runs out. Cached bytes can be replayed, and granules without
 * present bytes hold nothing. Both can be unmapped once no queued work uses them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/order.h"
#include "runtime/memory/space.h"

/*
 * True if `result` is out of memory and another attempt makes sense: it has waited for the device
 * and unmapped what lineage can restore. *attempts counts the attempts from 0. They are limited,
 * because an attempt may free what the last one took. The caller holds no claim.
 */
bool ms_evict_try_again(CUresult result, int *attempts);

/* The same for bytes that were promised to the program before: a failure is logged
 * (overcommit.h). */
bool ms_evict_try_bytes_again(CUresult result, int *attempts);

/*
 * Waits for the device, then calls evict for every claimed allocation to which it applies (NULL: of
 * which lineage can restore something). Leaves out busy allocations, and all of them during a
 * capture. Returns the sum of the bytes that evict frees.
 */
struct ms_allocation;
typedef size_t ms_evictor(struct ms_allocation *allocation, void *argument);
size_t ms_evict_all(bool (*applies)(const struct ms_allocation *allocation), ms_evictor *evict,
                    void *argument);

/*
 * A block was handed out without memory. Frees the memory of returned blocks above
 * METASHARD_LEFTOVER_BYTES, if the device is done with it within a moment; or, with an address,
 * that of its allocation alone, without the limit. The caller holds no claim.
 */
void ms_evict_leftover(CUdeviceptr address);

/*
 * A bracket around the preparation of a read (ms_access opens it for what becomes cached) and the
 * call itself: between them nothing is taken away. Both cheap.
 */
void ms_evict_hold(void);
void ms_evict_let_go(void);

/*
 * If `result` came of a refusal of scratch memory in this thread (scratch.h), frees what recorded
 * launches and fills can make again, as far as it is in the way, and returns true: then another
 * attempt makes sense. The thread allows no more refusals if nothing was freed, or after the last
 * of *attempts, which are counted from 0. The caller holds no claim.
 */
bool ms_evict_for_scratch(CUresult result, int *attempts);

/* True once all reads that were prepared before now are queued; false if that takes long. */
bool ms_evict_reads_are_queued(void);

/* Frees scratch memory and sinks that are not in use. False: there were none. */
bool ms_evict_drop_sinks(void);

/* The need that applies to the allocation when the call is queued in stream: need itself, or its
 * `elsewhere` in needs.def. */
static inline enum ms_need ms_evict_need_in(const struct ms_allocation *allocation,
                                            enum ms_need need, CUstream stream)
{
    const enum ms_need elsewhere = ms_needs[need].elsewhere;
    return elsewhere == need || ms_order_stream_context(stream) == allocation->context ? need
                                                                                       : elsewhere;
}
