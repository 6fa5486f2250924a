/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaying lineage: turning an extent into bytes in device memory. Only this module does that.
 */
#pragma once

#include "runtime/driver/driver.h"
#include "runtime/memory/lineage.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/memory/space.h"

/*
 * Writes `bytes` bytes of `content` (a fill, a source or parked bytes) to address, in the order of
 * stream. `offset` is the offset of the content's first byte in its block, from which a pattern
 * starts. A source is copied when the function returns; a fill or parked bytes are only queued, and
 * parked bytes must live until the stream is done. The current context must own stream.
 */
CUresult ms_replay(const struct ms_content *content, size_t offset, CUdeviceptr address,
                   size_t bytes, CUstream stream);

/* True if a replay would still give the same bytes: no file behind the content has changed, and the
 * content is no snapshot that is in memory. */
bool ms_replay_is_current(const struct ms_content *content);

/*
 * ms_replay for every kind of content that can be replayed. Runs a launch in scratch memory, copies
 * its bytes from there, and waits for stream then.
 */
CUresult ms_replay_any(const struct ms_content *content, size_t offset, CUdeviceptr address,
                       size_t bytes, CUstream stream);

/*
 * Uses a part of a recorded launch's output while that lies in scratch memory: the bytes from
 * `made` on are those at `offset` of the launch's block. The function queues its work in stream, or
 * finishes it.
 */
typedef CUresult ms_replay_use(CUdeviceptr made, size_t offset, size_t bytes, CUstream stream,
                               void *argument);

/* Runs a recorded launch in scratch memory, and calls `use` for its bytes [offset, offset + bytes),
 * perhaps in several parts. Waits for stream. */
CUresult ms_replay_in_scratch(const struct ms_recorded_launch *recorded, size_t offset,
                              size_t bytes, CUstream stream, ms_replay_use *use, void *argument);

/*
 * Runs a recorded launch over its block, which now lies at address: replays the old content of the
 * part, then launches. All of the block must be writable. The bytes that stood in the part are
 * lost. May wait for stream.
 *
 * The launch writes all of the block. In its own place `made` is what the launch has made before
 * (empty: nothing), and these bytes stay: so the launch also needs what it loads for them. False,
 * and the part holds anything, if not all of that is in memory.
 */
bool ms_replay_launch(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                      struct ms_range part, struct ms_range made, CUstream stream,
                      CUresult *result_out);

/* The bytes of the input's lineage on which [begin, end) of the written block depends; without an
 * input, none. */
struct ms_range ms_replay_needed(const struct ms_recorded_launch *recorded, size_t begin,
                                 size_t end);

/* How many bytes of the range have no memory. */
static inline size_t ms_replay_unbacked(const struct ms_allocation *allocation,
                                        struct ms_range range)
{
    const size_t end = range.end;
    size_t bytes = end - range.begin;
    for (; ms_backing_next(ms_allocation_backing(allocation), &range);
         range = (struct ms_range){range.end, end})
        bytes -= range.end - range.begin;
    return bytes;
}

/* True if the claimed allocation is that of the launch's input, and still has the content that the
 * launch needs (ms_replay_needed), in memory or not. */
bool ms_replay_holds_input(const struct ms_allocation *allocation,
                           const struct ms_recorded_launch *recorded, struct ms_range needed);

/* Waits for the work in stream, also after a failure: queued work must not outlive the call.
 * Returns `result`, or the failure of the wait. */
static inline CUresult ms_replay_end(CUstream stream, CUresult result)
{
    const CUresult waited = ms_driver_wait(stream);
    return result != CUDA_SUCCESS ? result : waited;
}

/*
 * The shim's own stream for filling memory: one for each context. It waits for no stream of the
 * program. `context` must be current. ms_replay_forget_stream is for a destroyed context.
 */
CUresult ms_replay_stream(CUcontext context, CUstream *stream_out);
void ms_replay_forget_stream(CUcontext context);
