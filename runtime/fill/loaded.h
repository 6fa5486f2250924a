/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes of files are in device memory. What is needed in two places, as a tensor and a copy
 * of a part of it, is read once and then copied on the device: it is not sent twice.
 *
 * The table holds the latest places alone and owns nothing. Each place is looked at again before
 * its bytes are used.
 */
#pragma once

#include "runtime/memory/space.h"

/* `bytes` bytes of a file, from `offset`, are in memory at address. Too few are not noted. */
void ms_loaded_note(const struct ms_source *file, uint64_t offset, size_t bytes,
                    CUdeviceptr address);

/*
 * Copies what is in memory elsewhere of the bytes `offset` to `offset + bytes` of a file, in the
 * order of stream: one piece, and returns it as offsets in the file. Returns an empty range if
 * there is none. `allocation` is where they go, and is claimed. Waits for stream; on failure
 * the bytes are to be read.
 */
struct ms_range ms_loaded_copy(struct ms_allocation *allocation, const struct ms_source *file,
                               uint64_t offset, size_t bytes, CUdeviceptr address, CUstream stream);
