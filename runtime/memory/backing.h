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
#ifndef METASHARD_RUNTIME_MEMORY_BACKING_H
#define METASHARD_RUNTIME_MEMORY_BACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/driver/driver.h"

enum { MS_MAX_DEVICES = 64 };

struct ms_chunk {
    size_t begin, end; /* offsets in the block, multiples of the granule */
};

/* Granules under which the sink, or another's memory, lies until queued work has written there. */
struct ms_sink_mapping {
    struct ms_sink_mapping *next;
    CUcontext context;
    CUevent event; /* after that work; NULL: it is not queued yet */
    bool is_lent;  /* it is another's memory, each range mapped whole */
    size_t count;
    struct ms_range ranges[]; /* ascending; multiples of the granule, none of it backed */
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
    struct ms_sink_mapping *sinks; /* owned; NULL: there is none */
};

/* Reserves addresses for `bytes` bytes on device. Nothing is backed. */
CUresult ms_backing_reserve(struct ms_backing *backing, CUdevice device, size_t bytes);

/* What so many bytes take: whole granules. */
size_t ms_backing_rounded(CUdevice device, size_t bytes);

/* Unmaps everything and gives the addresses back. The device must be done with them. */
void ms_backing_release(struct ms_backing *backing);

/*
 * Backs every granule of [begin, end), after waiting for what is under the sink there. On failure (CUDA_ERROR_OUT_OF_MEMORY) what was mapped before
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
CUresult ms_backing_sink_map(struct ms_backing *backing, size_t begin, size_t end);
void ms_backing_sink_unmap(const struct ms_backing *backing, size_t begin, size_t end);

/*
 * The sink for work that is queued later, in that context: under the granules of `ranges`, none of which is
 * backed or under the sink. Then the work is queued, and the event, which the backing owns from then on, tells when it is done.
 */
CUresult ms_backing_sink_map_for(struct ms_backing *backing, const struct ms_range *ranges,
                                 size_t count, CUcontext context,
                                 struct ms_sink_mapping **sink_out);
/*
 * The same with the memory of `lender`, whose chunks are as long as the ranges, for the time being. It must not go before. Fails with
 * CUDA_ERROR_NOT_SUPPORTED where the driver tells no handles.
 */
CUresult ms_backing_lend_map_for(struct ms_backing *backing, const struct ms_backing *lender,
                                 const struct ms_range *ranges, CUcontext context,
                                 struct ms_sink_mapping **sink_out);
void ms_backing_sink_attach_event(struct ms_backing *backing, const struct ms_sink_mapping *mapping,
                                  CUevent event);

/* Takes away what is under the sink and touches [begin, end), after waiting for its work. Fails while that is not queued. */
CUresult ms_backing_sink_wait(struct ms_backing *backing, size_t begin, size_t end);

/* Takes away what is under the sink or lent for work that was not queued after all. NULL: nothing. */
void ms_backing_sink_cancel(struct ms_backing *backing, const struct ms_sink_mapping *mapping);

/*
 * Gives the device's throw-away granule back, which is made again when it is needed. False: there is
 * none, or it is being mapped.
 */
bool ms_backing_drop_sink(CUdevice device);

/* The memory of the device that the shim has, behind whatever it is. */
uint64_t ms_backing_device_bytes(CUdevice device);

/* True when one chunk holds the whole block. */
bool ms_backing_is_one_chunk(const struct ms_backing *backing);

/*
 * Lets `peer` reach memory of `device` from now on, or no longer. The caller then calls
 * ms_backing_apply_access for every block of that device.
 */
void ms_backing_set_peer(CUdevice device, CUdevice peer, bool enabled);
CUresult ms_backing_apply_access(struct ms_backing *backing, CUdevice peer, bool enabled);

#endif
