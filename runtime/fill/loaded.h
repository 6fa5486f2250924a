/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes of files are in device memory. A program may need bytes in two places, such as a
 * tensor and a copy of a part of it: the shim sends them once, then copies them on the device.
 *
 * The table holds the latest places only, and owns nothing. ms_loaded_copy checks a place again
 * before it uses the bytes.
 */
#pragma once

#include "runtime/memory/space.h"

/* `bytes` bytes of a file, from `offset`, are in memory at address. Ignores small pieces. */
void ms_loaded_note(const struct ms_file *file, uint64_t offset, size_t bytes, CUdeviceptr address);

/*
 * The bytes `offset` to `offset + bytes` of a file belong at `address`, in the claimed
 * `allocation`: copies one piece of them that is in memory elsewhere, in the order of stream.
 * Returns the piece as offsets in the file; empty if nothing was copied: read the file then. Waits
 * for stream.
 */
struct ms_range ms_loaded_copy(struct ms_allocation *allocation, const struct ms_file *file,
                               uint64_t offset, size_t bytes, CUdeviceptr address, CUstream stream);
