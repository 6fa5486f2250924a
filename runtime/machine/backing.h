/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backing: which granules of a block have physical memory. The one place that creates, maps and
 * unmaps device memory.
 *
 * A chunk is one physical handle under a run of granules; the driver can map a handle from its
 * start only and unmap it only whole, so the chunk is the unit of both. Handles are released right
 * after mapping; the memory goes with the mapping.
 *
 * Not thread-safe: guarded by the claim on the block. No function needs a current context.
 */
#ifndef METASHARD_RUNTIME_MACHINE_BACKING_H
#define METASHARD_RUNTIME_MACHINE_BACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/driver.h"

enum { MS_MAX_DEVICES = 64 };

struct ms_chunk {
    size_t begin, end; /* offsets in the block, multiples of the granule */
};

/* The reservation has one more granule on either side, which is never backed: a pointer that a program
 * forms a little outside of its allocation still tells which one it means. */
struct ms_backing {
    CUdeviceptr address;     /* of the first granule; immutable */
    size_t bytes;            /* a multiple of granule, without the guards; immutable */
    size_t granule;          /* immutable */
    CUdevice device;         /* immutable */
    struct ms_chunk *chunks; /* sorted */
    size_t count, capacity;
    size_t backed_bytes;
};

/* Reserves addresses for `bytes` bytes on device. Nothing is backed. */
CUresult ms_backing_reserve(struct ms_backing *backing, CUdevice device, size_t bytes);

/* Unmaps everything and gives the addresses back. The device must be done with them. */
void ms_backing_release(struct ms_backing *backing);

/*
 * Backs every granule of [begin, end). On failure (CUDA_ERROR_OUT_OF_MEMORY) what was mapped before
 * stays mapped, and nothing is half mapped.
 */
CUresult ms_backing_cover(struct ms_backing *backing, size_t begin, size_t end);

/* Cuts *range to the first part of it that is backed. False when there is none. */
bool ms_backing_next(const struct ms_backing *backing, struct ms_range *range);

/* Unmaps every chunk that lies whole in [begin, end) and gives its memory back; returns how much. The
 * device must be done with them. */
size_t ms_backing_uncover(struct ms_backing *backing, size_t begin, size_t end);

/*
 * Maps the device's sink, one throw-away granule, under every granule of [begin, end) that is not backed,
 * so that a kernel may write all of it; and takes it away again. The device must be done with it then.
 */
CUresult ms_backing_sink(const struct ms_backing *backing, size_t begin, size_t end);
void ms_backing_unsink(const struct ms_backing *backing, size_t begin, size_t end);

/* True when one chunk holds the whole block. */
bool ms_backing_is_one_chunk(const struct ms_backing *backing);

/*
 * Lets `peer` reach memory of `device` from now on, or no longer. The caller then calls
 * ms_backing_apply_access for every block of that device.
 */
void ms_backing_set_peer(CUdevice device, CUdevice peer, bool enabled);
CUresult ms_backing_apply_access(struct ms_backing *backing, CUdevice peer, bool enabled);

#endif
