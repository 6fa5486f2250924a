/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaying lineage: turning an extent into bytes in device memory. The one place that does.
 */
#ifndef METASHARD_RUNTIME_FILL_REPLAY_H
#define METASHARD_RUNTIME_FILL_REPLAY_H

#include "runtime/driver/driver.h"
#include "runtime/memory/lineage.h"

/*
 * Writes `bytes` bytes of `content` (a fill, a source or a parked memory) to address, in the order of stream. Offset
 * is the content's first byte in its block; it says where a pattern starts. Nothing on the host is needed afterwards, for
 * which this waits for the stream; a fill or a parked memory is only queued, and the parked memory needed until the stream is done. Wants a
 * current context that owns stream.
 */
CUresult ms_replay(const struct ms_content *content, size_t offset, CUdeviceptr address,
                   size_t bytes, CUstream stream);

/*
 * The same for content of any kind that can be replayed. A launch runs in scratch memory of its own,
 * from which its bytes are copied; this then waits for stream.
 */
CUresult ms_replay_any(const struct ms_content *content, size_t offset, CUdeviceptr address,
                       size_t bytes, CUstream stream);

/*
 * Runs a recorded launch over its block, which now lies at address: first what the block held before, of
 * [begin, end), then the launch. All of the block can be written, and of [begin, end), which is memory,
 * nothing is needed. May wait for stream.
 */
CUresult ms_replay_launch(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                          size_t begin, size_t end, CUstream stream);

/*
 * The stream on which the shim fills memory of its own accord: one per context, blocking on nothing
 * of the program's. Wants context current. Forgotten when the context goes.
 */
CUresult ms_fill_stream(CUcontext context, CUstream *stream_out);
void ms_fill_stream_forget(CUcontext context);

#endif
