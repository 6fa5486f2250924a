/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/scratch.h"

#include <stdatomic.h>

#include "runtime/config/config.h"
#include "runtime/driver/device_memory.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/space.h"

static const size_t least_bytes = (size_t)8 << 20; /* room on either side of the middle */

/* A launch is replayed in one while its input, a launch too, is replayed in the other. */
enum { KEPT = 2, PLACES = MS_MAX_DEVICES * KEPT };

static struct ms_scratch kept[PLACES]; /* those of a device follow each other */
static _Atomic bool is_used[PLACES];   /* the thread that has set it may use the place of kept */
static _Atomic unsigned kept_count;    /* how many of kept have a backing */

_Thread_local struct ms_scratch_refusing ms_scratch_refusing;

static bool try_use(size_t place)
{
    bool no = false;
    return atomic_compare_exchange_strong(&is_used[place], &no, true);
}

/* One that the device keeps, and nobody uses; NULL: none. */
static struct ms_scratch *find_kept(CUdevice device)
{
    if (device < 0 || device >= MS_MAX_DEVICES)
        return NULL;
    for (size_t place = (size_t)device * KEPT; place < ((size_t)device + 1) * KEPT; place++) {
        if (try_use(place))
            return &kept[place];
    }
    return NULL;
}

static void release(struct ms_scratch *scratch)
{
    const bool is_kept = scratch->is_kept;
    if (scratch->room.bytes > 0) {
        atomic_fetch_sub(&kept_count, is_kept);
        ms_backing_sink_unmap(&scratch->room, scratch->begin, scratch->end);
        ms_backing_release(&scratch->room);
    }
    *scratch = (struct ms_scratch){.is_kept = is_kept};
}

static size_t middle_of(const struct ms_scratch *scratch)
{
    return scratch->room.bytes / 2;
}

/* Reserves room for a block, whichever part of it begins in the middle. Sizes are powers of two, so
 * that growing blocks do not need new room each time. */
static CUresult reserve(struct ms_scratch *scratch, CUdevice device, size_t block_bytes)
{
    size_t half = least_bytes;
    if (block_bytes > SIZE_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    while (half < block_bytes + MS_SCRATCH_ALIGNMENT)
        half *= 2;
    if (middle_of(scratch) >= half)
        return CUDA_SUCCESS;
    release(scratch);
    const CUresult result = ms_addresses_reserve_backing(&scratch->room, device, 2 * half);
    if (result == CUDA_SUCCESS)
        atomic_fetch_add(&kept_count, scratch->is_kept);
    scratch->begin = scratch->end = middle_of(scratch);
    return result;
}

/* Replaces the memory, and the sink behind it, by more memory. */
static CUresult grow(struct ms_scratch *scratch, size_t bytes)
{
    const size_t middle = middle_of(scratch), end = middle + bytes;
    struct ms_backing *backing = &scratch->room;
    if (bytes <= scratch->memory_bytes)
        return CUDA_SUCCESS;
    ms_backing_sink_unmap(backing, middle + scratch->memory_bytes,
                          end < scratch->end ? end : scratch->end);
    ms_backing_uncover(backing, middle, middle + scratch->memory_bytes, false);
    scratch->memory_bytes = 0;
    const CUresult result = ms_backing_cover(backing, middle, end);
    if (result == CUDA_SUCCESS) {
        scratch->memory_bytes = bytes;
    } else {
        ms_backing_sink_unmap(backing, scratch->begin, middle);
        ms_backing_sink_unmap(backing, end, scratch->end);
        scratch->begin = scratch->end = middle;
    }
    if (result == CUDA_SUCCESS && scratch->end < end)
        scratch->end = end;
    return result;
}

/* Maps the sink wherever the block lies and nothing is mapped yet. */
static CUresult extend(struct ms_scratch *scratch, struct ms_range wanted)
{
    CUresult result = CUDA_SUCCESS;
    if (wanted.begin < scratch->begin) {
        result = ms_backing_sink_map(&scratch->room, wanted.begin, scratch->begin);
        scratch->begin = result == CUDA_SUCCESS ? wanted.begin : scratch->begin;
    }
    if (result == CUDA_SUCCESS && scratch->end < wanted.end) {
        result = ms_backing_sink_map(&scratch->room, scratch->end, wanted.end);
        scratch->end = result == CUDA_SUCCESS ? wanted.end : scratch->end;
    }
    return result;
}

static CUresult prepare(struct ms_scratch *scratch, CUdevice device, size_t block_bytes,
                        size_t begin, size_t end, CUdeviceptr *address_out)
{
    const size_t aligned = begin / MS_SCRATCH_ALIGNMENT * MS_SCRATCH_ALIGNMENT;
    CUresult result = reserve(scratch, device, block_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    const size_t granule = scratch->room.granule;
    const size_t at = middle_of(scratch) - aligned; /* of the block */
    const struct ms_range wanted = {at / granule * granule,
                                    (at + block_bytes + granule - 1) / granule * granule};
    const size_t bytes = (end - aligned + granule - 1) / granule * granule;
    if (bytes > scratch->memory_bytes)
        result = ms_scratch_ask(device, bytes - scratch->memory_bytes);
    if (result == CUDA_SUCCESS)
        result = grow(scratch, bytes);
    if (result == CUDA_SUCCESS)
        result = extend(scratch, wanted);
    *address_out = scratch->room.address + at;
    return result;
}

CUresult ms_scratch_take(CUdevice device, size_t block_bytes, size_t begin, size_t end,
                         struct ms_scratch *own, struct ms_scratch **scratch_out,
                         CUdeviceptr *address_out)
{
    struct ms_scratch *scratch = find_kept(device);
    const bool is_kept = scratch != NULL;
    if (!is_kept) {
        *own = (struct ms_scratch){0};
        scratch = own;
    }
    scratch->is_kept = is_kept;
    const CUresult result = prepare(scratch, device, block_bytes, begin, end, address_out);
    if (result == CUDA_SUCCESS) {
        *scratch_out = scratch;
        return CUDA_SUCCESS;
    }
    release(scratch);
    ms_scratch_give_back(scratch);
    return result;
}

void ms_scratch_give_back(struct ms_scratch *scratch)
{
    if (scratch->is_kept)
        atomic_store(&is_used[scratch - kept], false);
    else
        release(scratch);
}

bool ms_scratch_drop(void)
{
    bool any = false;
    if (ms_is_capturing()) /* the driver may refuse to unmap */
        return false;
    for (size_t place = 0; place < PLACES && atomic_load(&kept_count) > 0; place++) {
        if (!try_use(place))
            continue;
        any = kept[place].room.bytes > 0 || any;
        release(&kept[place]);
        atomic_store(&is_used[place], false);
    }
    return any;
}

/* By how many bytes `bytes` more would break the bound. A small program has some beside the peak: a
 * granule of scratch memory and the sink are much of what it has, and each replay would drive out
 * what the next one needs. */
static uint64_t bytes_beyond(CUdevice device, uint64_t bytes)
{
    enum { SMALL = 8, BESIDE = 2 };
    const struct ms_space_sums sums = ms_space_sums(device);
    const uint64_t all = sums.held + bytes, peak = sums.most_reserved;
    if (all <= peak || ms_config.mode == MS_VERIFY)
        return 0;
    const uint64_t granule = ms_device_memory_rounded(device, 1);
    const uint64_t most = peak + (peak < SMALL * granule ? BESIDE * granule : 0);
    return all > most ? all - most : 0;
}

bool ms_scratch_fits(CUdevice device, size_t bytes)
{
    return bytes_beyond(device, bytes) == 0;
}

void ms_scratch_make_way(CUdevice device, size_t bytes)
{
    if (ms_scratch_fits(device, bytes))
        return;
    ms_scratch_drop();
    ms_backing_drop_sink(device);
}

/* Counts a sink too, which the replay may need as well. */
CUresult ms_scratch_ask(CUdevice device, size_t bytes)
{
    const uint64_t all = bytes + ms_device_memory_rounded(device, 1);
    if (!ms_scratch_fits(device, all))
        ms_scratch_drop();
    const uint64_t beyond = bytes_beyond(device, all);
    if (beyond == 0 || !ms_scratch_refusing.may)
        return CUDA_SUCCESS;
    ms_scratch_refusing.may = false;
    ms_scratch_refusing.refusal = (struct ms_scratch_refusal){device, beyond};
    return CUDA_ERROR_OUT_OF_MEMORY;
}
