/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaying lineage: turning an extent into bytes in device memory. The one place that does.
 */
#pragma once

#include "runtime/driver/driver.h"
#include "runtime/memory/lineage.h"

/*
 * Writes `bytes` bytes of `content` (a fill, a source or parked bytes) to address, in the order of
 * stream. `offset` is that of the content's first byte in its block, where a pattern starts. A
 * source is copied when this returns; a fill or parked bytes are only queued, and parked bytes must
 * live until the stream is done. The current context must own stream.
 */
CUresult ms_replay(const struct ms_content *content, size_t offset, CUdeviceptr address,
                   size_t bytes, CUstream stream);

/*
 * The same for every kind of content that can be replayed. A launch runs in scratch memory, from
 * which its bytes are copied; this then waits for stream.
 */
CUresult ms_replay_any(const struct ms_content *content, size_t offset, CUdeviceptr address,
                       size_t bytes, CUstream stream);

/*
 * Runs a recorded launch over its block, which now lies at address: first replays the old content
 * of [begin, end), then launches. All of the block must be writable; the content of [begin, end) is
 * lost. May wait for stream.
 */
CUresult ms_replay_launch(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                          size_t begin, size_t end, CUstream stream);

/*
 * The shim's own stream for filling memory: one per context, which waits for no stream of the
 * program. `context` must be current. ms_replay_forget_stream is for a destroyed context.
 */
CUresult ms_replay_stream(CUcontext context, CUstream *stream_out);
void ms_replay_forget_stream(CUcontext context);
