/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backing: which granules of an allocation have physical memory. This is the only module that
 * creates, maps and unmaps device memory.
 *
 * A chunk is one physical handle under a run of granules. The driver maps a handle from its start
 * only, and unmaps it whole, so the chunk is the unit of both. This module releases a handle right
 * after mapping it: unmapping then frees the memory.
 *
 * Not thread-safe: guarded by the claim on the allocation. No function needs a current context.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/number.h"
#include "runtime/base/range.h"
#include "runtime/base/sorted.h"
#include "runtime/driver/driver.h"

struct ms_chunk {
    size_t begin, end; /* offsets in the allocation, multiples of the granule */
    bool is_pinned;    /* the memory of a real mapping: it stays until the program unmaps it */
};

/*
 * Where the program has mapped a handle in addresses that it has reserved itself. A *real* mapping
 * is the driver's own, of a handle that the driver made. For all others the shim has only promised
 * memory. No chunk reaches over the end of a mapping, because the program may unmap each mapping
 * alone.
 */
struct ms_program_mapping {
    size_t begin, end;                   /* multiples of the granule */
    CUmemGenericAllocationHandle handle; /* as the program knows it */
    bool is_accessible;                  /* by its device, for reading and writing */
    bool is_real;
};

/* The memory of a chunk, kept by a handle of the shim's own. The offsets are relative to the range
 * that the memory was taken from, so it can be mapped elsewhere. */
struct ms_piece {
    size_t begin, end;
    CUmemGenericAllocationHandle handle;
};

struct ms_pieces {
    struct ms_piece *all; /* owned; NULL: none */
    size_t count;
};

/* Granules under which the sink, or lent memory, is mapped until queued work has written there. */
struct ms_sink_mapping {
    struct ms_sink_mapping *next;
    CUcontext context;
    CUevent event; /* follows the work; NULL: the work is not queued yet */
    bool is_lent;  /* lent memory, each range mapped whole */
    size_t count;
    struct ms_range ranges[]; /* ascending; multiples of the granule, none of it backed */
};

/* A driver (580, on an H200) takes addresses from the system in areas of multiples of this size,
 * and rounds hints up to it. It may put a smaller reservation into the rest of another area. */
#define MS_AREA_BYTES ((size_t)32 << 20)

/* The size of the shim's reservation for so many bytes, guards included: whole areas, so that the
 * driver puts it where the shim wants. */
static inline size_t ms_backing_reserved(size_t bytes, size_t granule)
{
    return ms_round_up(bytes + 2 * granule, MS_AREA_BYTES);
}

/* A reservation of the shim has one guard granule on either side, which is never backed, so that a
 * pointer just outside of an allocation still identifies it. A reservation of the program has no
 * guards. */
struct ms_backing {
    CUdeviceptr address;     /* of the first granule; immutable */
    size_t bytes;            /* without the guards, a multiple of granule; immutable */
    size_t granule;          /* immutable */
    CUdevice device;         /* immutable */
    bool is_pooled;          /* immutable; enabled peers cannot reach it, as in the driver */
    bool is_programs;        /* the program has reserved the addresses; immutable */
    struct ms_sorted chunks; /* struct ms_chunk */
    size_t backed_bytes;
    size_t mapped_bytes;       /* of mappings; all bytes if the shim has reserved the addresses */
    struct ms_sorted mappings; /* struct ms_program_mapping; changed under the claim and the lock of
                                  allocations */
    struct ms_sink_mapping *sinks; /* owned; NULL: none */
};

/* Makes a backing of addresses that the program has reserved and where it has mapped nothing yet.
 * CUDA_ERROR_NOT_SUPPORTED if they are not whole granules. For the shim's own addresses see
 * ms_addresses_reserve_backing (addresses.h). */
CUresult ms_backing_adopt(struct ms_backing *backing, CUdevice device, CUdeviceptr address,
                          size_t bytes);

/* The first mapping that ends behind offset, or NULL. */
static inline struct ms_program_mapping *ms_backing_mapping(const struct ms_backing *backing,
                                                            size_t offset)
{
    return ms_sorted_item(&backing->mappings, ms_sorted_behind(&backing->mappings, offset));
}

/* Unmaps everything and frees the reservation. The device must be done with the memory. */
void ms_backing_release(struct ms_backing *backing);

/*
 * Backs every granule of [begin, end), after waiting for sink mappings there. On failure
 * (CUDA_ERROR_OUT_OF_MEMORY) the granules that were backed before stay backed, and no chunk is half
 * mapped.
 */
CUresult ms_backing_cover(struct ms_backing *backing, size_t begin, size_t end);

/* The first chunk that ends behind offset, or NULL. */
static inline struct ms_chunk *ms_backing_chunk(const struct ms_backing *backing, size_t offset)
{
    return ms_sorted_item(&backing->chunks, ms_sorted_behind(&backing->chunks, offset));
}

/* Cuts *range to its first part that lies in one chunk. False if there is none. */
bool ms_backing_next(const struct ms_backing *backing, struct ms_range *range);

/* How many bytes of device memory the backing has. */
static inline size_t ms_backing_bytes(const struct ms_backing *backing)
{
    return backing->backed_bytes;
}

/* True if one chunk is the memory of all of the range. */
static inline bool ms_backing_is_one_chunk(const struct ms_backing *backing, size_t begin,
                                           size_t end)
{
    const struct ms_chunk *chunk = ms_backing_chunk(backing, begin);
    return chunk != NULL && chunk->begin <= begin && chunk->end >= end;
}

/* Unmaps every chunk that lies whole in [begin, end), pinned ones only with pinned_too, and returns
 * how many bytes that freed. The device must be done with the bytes. */
size_t ms_backing_uncover(struct ms_backing *backing, size_t begin, size_t end, bool pinned_too);

/*
 * ms_backing_sink_map maps the device's sink, one throw-away granule, under every granule of
 * [begin, end) that is not backed, so that a kernel may write all of the range.
 * ms_backing_sink_unmap unmaps it; the device must be done with the range then.
 */
CUresult ms_backing_sink_map(struct ms_backing *backing, size_t begin, size_t end);
void ms_backing_sink_unmap(const struct ms_backing *backing, size_t begin, size_t end);

/*
 * For work that the caller queues later, in `context`. ms_backing_lend maps the sink under the
 * ranges, which are granules without memory. With handles, one for each range, it maps their memory
 * instead, each whole. When the work is queued, pass the event that follows it to ms_backing_lent:
 * the backing then owns the event. NULL: the work was not queued after all.
 */
CUresult ms_backing_lend(struct ms_backing *backing, const CUmemGenericAllocationHandle *handles,
                         const struct ms_range *ranges, size_t count, CUcontext context,
                         struct ms_sink_mapping **lent_out);
void ms_backing_lent(struct ms_backing *backing, const struct ms_sink_mapping *lent, CUevent event);

/* Waits for the work of sink mappings that touch [begin, end), then unmaps them. Fails if the work
 * is not queued yet. */
CUresult ms_backing_sink_wait(struct ms_backing *backing, size_t begin, size_t end);

/* Frees the device's sink, which the next use makes again. False if there is no sink, or a thread
 * is mapping it. */
bool ms_backing_drop_sink(CUdevice device);

/*
 * Real mappings. ms_backing_add_real records a chunk that the driver has mapped at [begin, end).
 * ms_backing_make_real pins the chunk of [begin, end), and returns its handle.
 */
CUresult ms_backing_add_real(struct ms_backing *backing, size_t begin, size_t end);
CUresult ms_backing_make_real(struct ms_backing *backing, size_t begin, size_t end,
                              CUmemGenericAllocationHandle *real_out);

/*
 * Joins the chunks of [begin, end), all of which is backed, into one. The device copies the bytes
 * to the new memory, which is mapped beside the old for that; `copy`, host memory of that size,
 * gets the bytes too, in case this fails. The device is done with the bytes, and a context of the
 * device is current. A failure leaves the chunks as they were. With may_give_up, a device without
 * room for old and new chunks gives the old ones back first: then a failure may leave the bytes
 * only in `copy` (*is_lost_out).
 */
CUresult ms_backing_join(struct ms_backing *backing, size_t begin, size_t end, void *copy,
                         bool may_give_up, bool *is_lost_out);

/*
 * ms_backing_create_pieces makes memory of whole granules as one piece that is mapped nowhere yet.
 * ms_backing_take_pieces gives the memory of all chunks in [begin, end) as pieces, which may
 * outlive the mapping. ms_backing_put_pieces maps pieces where nothing is backed; with `ends` the
 * pieces then end, and the mappings alone hold the memory. A failure changes nothing. Pieces count
 * as the shim's memory until they end.
 */
CUresult ms_backing_create_pieces(CUdevice device, size_t bytes, struct ms_pieces *pieces_out);
CUresult ms_backing_take_pieces(const struct ms_backing *backing, size_t begin, size_t end,
                                struct ms_pieces *pieces_out);
CUresult ms_backing_put_pieces(struct ms_backing *backing, size_t begin, struct ms_pieces *pieces,
                               bool ends);
void ms_backing_end_pieces(struct ms_pieces *pieces, CUdevice device);

/* All memory of the device that the shim holds. */
uint64_t ms_backing_device_bytes(CUdevice device);

/* Gives `peer` access to the memory that the backing has, or takes it (peers.h). */
CUresult ms_backing_apply_access(struct ms_backing *backing, CUdevice peer, bool enabled);
