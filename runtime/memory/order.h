/* SPDX-License-Identifier: Apache-2.0 */
/* When a write may be recorded instead of run: shared by fills and copies. */
#ifndef METASHARD_RUNTIME_MEMORY_ORDER_H
#define METASHARD_RUNTIME_MEMORY_ORDER_H

#include "runtime/memory/allocations.h"

/*
 * Lineage is in the order of the program's calls; streams may run in another order, but only when
 * queued work waits for something that comes later: a host function, a memory value, a kernel. And
 * the bytes a copy reads from the host may still be on their way there. So a write on a stream is
 * recorded when no such work was ever queued, or when nothing is before it. Ordinary work is over soon, so
 * a busy stream is given a moment, unless the last one given was in vain.
 * Never during a capture: the call is then a node of a graph.
 */
bool ms_may_record(CUstream stream);

/*
 * An allocation written in very many small pieces is materialised whole, before its lineage costs more
 * than its bytes. Called with the allocation claimed, before something is recorded in it.
 */
CUresult ms_bound_lineage(struct ms_allocation *allocation);

/*
 * Backs a range that the call overwrites, on that stream. What it held is replayed all the same when the driver may refuse the call,
 * which then changes nothing: for the stream is gone, the thread has no context, or a capture forbids it.
 */
CUresult ms_back_for_call(struct ms_allocation *allocation, size_t begin, size_t end,
                          CUstream stream);

/*
 * Work was queued that can wait for the host, for memory, or for other work in ways that cannot be
 * seen, or that writes host memory later, from which the next copy may read: from now on a write is
 * recorded only when its stream is idle.
 */
void ms_order_add_gate(void);

/*
 * A stream capture is about to begin, or did not begin or ended. While one is under way nothing is deferred, and the
 * driver is asked nothing that would end it.
 */
void ms_order_set_capture(bool begun);

/* True when work of the stream may still write the host memory that a call is about to read. */
bool ms_host_may_change(CUstream stream);

/*
 * True when all that is queued in the context is done; it is given a moment, too. Never during a capture, nor where the
 * driver cannot tell (cuCtxRecordEvent, CUDA 12.5).
 */
bool ms_context_is_idle(CUcontext context);

/*
 * Waits until what is queued in the context now is done, as cuCtxSynchronize does. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED during a
 * capture, which goes on.
 */
CUresult ms_context_wait(CUcontext context);

/*
 * What the driver says to a call of this thread that captures forbid, such as cuMemFree: cuEventQuery is one. CUDA_SUCCESS when there
 * is no capture. To be called outside of ms_driver_enter, which would allow it.
 */
CUresult ms_capture_allows(void);

/* The range of an allocation that [address, address + bytes) is; the caller has checked that it fits. */
static inline size_t ms_offset(const struct ms_allocation *allocation, CUdeviceptr address)
{
    return (size_t)(address - allocation->address);
}

static inline bool ms_fits(const struct ms_allocation *allocation, CUdeviceptr address,
                           size_t bytes)
{
    return bytes <= allocation->bytes - ms_offset(allocation, address);
}

#endif
