/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when a write may be recorded instead of run, and waits for queued work. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

/*
 * True if a write on the stream may be recorded.
 *
 * Lineage is in the order of the program's calls. Streams run in another order only if queued work
 * waits for something later: a host function, a memory value, a kernel. Also, earlier work may not
 * yet have written the host bytes that a copy reads. So a write may be recorded if no such work was
 * ever queued, or if its stream is idle. Ordinary work ends soon, so a busy stream gets a moment to
 * finish, unless it did not finish the last time. False during a capture, where the call becomes a
 * node of a graph.
 */
bool ms_order_may_record(CUstream stream);

/*
 * The program has queued work that may wait for the host, for memory or for other work, or that
 * writes host memory later. From now on a write is recorded only if its stream is idle.
 */
void ms_order_add_gate(void);

/*
 * A stream capture is about to begin (true), or has ended or did not begin (false). During a
 * capture the shim defers nothing, and makes no driver call that would end the capture.
 */
void ms_order_set_capture(bool begun);

/* True if earlier work may still write the host memory that a call is about to read. Waits for
 * nothing. Not to be called during a capture. */
bool ms_order_host_may_change(CUstream stream);

/*
 * CUDA_SUCCESS if all work of the context is done, or ends within a moment; CUDA_ERROR_NOT_READY if
 * not; CUDA_ERROR_NOT_SUPPORTED if the driver cannot tell (cuCtxRecordEvent came with CUDA 12.5);
 * any other error otherwise, for example during a capture.
 */
CUresult ms_order_context_poll(CUcontext context);

/* True if all work of the context ends within `ms` milliseconds. */
bool ms_order_context_ends_within(CUcontext context, uint64_t ms);

/*
 * Records an event behind all work of the context. During a capture it records nothing, because
 * that would end the capture, and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. Returns
 * CUDA_ERROR_NOT_SUPPORTED if the driver lacks the call (CUDA 12.5), or its call is wrong
 * (facts.h).
 */
CUresult ms_order_context_record(CUcontext context, CUevent event);

/* Waits about `ms` milliseconds for an event: CUDA_ERROR_NOT_READY if that was not enough. Spins
 * first: even an idle stream takes some microseconds to get to the event. */
CUresult ms_order_event_poll(CUevent event, uint64_t ms);

/*
 * Limits waits of one kind, because the work may itself wait for this very thread. After a wait in
 * vain the next ones are short, until one finds its work idle. Each wait may last a second at
 * first, as queued work is rarely stuck but devices and machines may be slow; less after a wait of
 * a second in vain, or after ten seconds of waiting in all.
 */
struct ms_patience {
    _Atomic bool was_in_vain;
    _Atomic uint64_t began_ns, spent_ns;
};
uint64_t ms_order_patience(struct ms_patience *patience); /* milliseconds; the wait begins */
void ms_order_waited(struct ms_patience *patience, bool is_in_vain);

/* The context of a stream; another context may be current. NULL: the driver names none. */
CUcontext ms_order_stream_context(CUstream stream);

/* Wait for the stream, or query it, without ending a capture of another stream, also one that
 * another thread begins meanwhile. */
CUresult ms_order_stream_wait(CUstream stream);
CUresult ms_order_stream_query(CUstream stream);

/* True if an event of the context is complete or, if patient, will be within a moment. */
bool ms_order_event_passes(CUevent event, CUcontext context, bool patient);

/*
 * Waits for all work that is queued in the context now, as cuCtxSynchronize does. During a capture
 * it returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and does not end the capture.
 */
CUresult ms_order_context_wait(CUcontext context);

/* For a thread that a stream waits for: from now on ms_order_context_wait does not wait in this
 * thread, and returns CUDA_ERROR_NOT_READY. */
void ms_order_forbid_waits(void);

/*
 * The driver's answer to a call of this thread that a capture forbids, such as cuMemFree.
 * CUDA_SUCCESS without a capture. To be called outside of ms_driver_enter, which would allow such a
 * call.
 */
CUresult ms_order_capture_allows(void);
