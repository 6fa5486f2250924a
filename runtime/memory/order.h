/* SPDX-License-Identifier: Apache-2.0 */
/* When a write may be recorded instead of run, and waiting for queued work. */
#pragma once

#include "runtime/memory/space.h"

/*
 * True if a write on the stream may be recorded.
 *
 * Lineage is in the order of the program's calls. Streams run in another order only if queued work
 * waits for something later: a host function, a memory value, a kernel. Also, the host bytes that a
 * copy reads may still be on their way. So a write is recorded if no such work was ever queued, or
 * if its stream is idle. Ordinary work ends soon, so a busy stream gets a moment to finish, unless
 * it did not finish the last time. Never during a capture, where the call becomes a node of a
 * graph.
 */
bool ms_order_may_record(CUstream stream);

/*
 * Work was queued that may wait for the host, for memory or for other work, or that writes host
 * memory later. From now on a write is recorded only if its stream is idle.
 */
void ms_order_add_gate(void);

/*
 * A stream capture is about to begin (true), or it ended or did not begin (false). During a capture
 * nothing is deferred, and the shim makes no driver call that would end it.
 */
void ms_order_set_capture(bool begun);

/* True if the host memory that a call is about to read may still be written before the stream gets
 * to it. Waits for nothing. Not during a capture. */
bool ms_order_host_may_change(CUstream stream);

/*
 * CUDA_SUCCESS if all work of the context is done, or ends within a moment; CUDA_ERROR_NOT_READY if
 * not; CUDA_ERROR_NOT_SUPPORTED if the driver cannot tell (cuCtxRecordEvent is of CUDA 12.5);
 * another error, during a capture, say.
 */
CUresult ms_order_context_poll(CUcontext context);

/* The same for work that ends within so many milliseconds. */
bool ms_order_context_ends_within(CUcontext context, uint64_t ms);

/*
 * Records an event behind all work of the context. That would end captures, so during one it
 * returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. CUDA_ERROR_NOT_SUPPORTED if the driver cannot
 * (CUDA 12.5), or does it wrongly (facts.h).
 */
CUresult ms_order_context_record(CUcontext context, CUevent event);

/* Waits for an event, for about so many milliseconds: CUDA_ERROR_NOT_READY if that was not enough.
 * Spins first: even an idle stream takes some microseconds to get to the event. */
CUresult ms_order_event_poll(CUevent event, uint64_t ms);

/*
 * How long the waits of a kind may last at most, which are for work that may wait for this very
 * thread. After one in vain the next is short, until something was found idle. Until one has lasted
 * for a second in vain, or all have lasted for ten seconds together, each may last a second: queued
 * work is rarely stuck, but devices and machines may be slow.
 */
struct ms_patience {
    _Atomic bool was_in_vain;
    _Atomic uint64_t began_ns, spent_ns;
};
uint64_t ms_order_patience(struct ms_patience *patience); /* milliseconds, from now on */
void ms_order_waited(struct ms_patience *patience, bool is_in_vain);

/* The context of a stream, which need not be current. NULL: the driver names none. */
CUcontext ms_order_stream_context(CUstream stream);

/* Waits for the stream, or asks it, also while other streams are captured: no capture of another
 * thread ends, which may begin meanwhile. */
CUresult ms_order_stream_wait(CUstream stream);
CUresult ms_order_stream_query(CUstream stream);

/* True if the event of that context is complete; `patient`: or will be within a moment. */
bool ms_order_event_passes(CUevent event, CUcontext context, bool patient);

/*
 * Waits for all work that is queued in the context now, as cuCtxSynchronize does. During a capture
 * returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and does not end it.
 */
CUresult ms_order_context_wait(CUcontext context);

/* From now on this thread waits for no context: ms_order_context_wait returns
 * CUDA_ERROR_NOT_READY. For a thread that a stream waits for. */
void ms_order_forbid_waits(void);

/*
 * What the driver answers to a call of this thread that captures forbid, such as cuMemFree.
 * CUDA_SUCCESS without a capture. To be called outside of ms_driver_enter, which would allow the
 * call.
 */
CUresult ms_order_capture_allows(void);

/* The offset of an address in its allocation. */
static inline size_t ms_offset(const struct ms_allocation *allocation, CUdeviceptr address)
{
    return (size_t)(address - allocation->address);
}

/* True if the program may use all of the range, of a claimed allocation. */
static inline bool ms_fits(const struct ms_allocation *allocation, CUdeviceptr address,
                           size_t bytes)
{
    const size_t begin = ms_offset(allocation, address);
    return bytes <= allocation->bytes - begin && ms_space_is_accessible(allocation, begin, bytes);
}
