/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/overcommit.h"

#include <stdatomic.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/device_memory.h"
#include "runtime/fill/replay.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"

enum {
    UNWRITTEN_TIMES = 32, /* the device's memory: an empty model of 10^12 parameters fits twice */
    MOST_TIMES = 128,
    USED_PART = 4, /* of the unbacked bytes: kernels that initialise never use so much */
    FREED_PART =
        8 /* of the program's peak, or of the device's memory: with less, it has freed its model */
};

static struct {
    _Atomic uint64_t used_bytes;    /* by kernels that ran */
    _Atomic uint64_t most_bytes;    /* the program's peak, at most the device's memory */
    _Atomic uint64_t allowed_bytes; /* up to here unwritten bytes are not counted again */
    _Atomic bool is_settled;
    /* a call has failed for lack of memory: the program looks for a size that fits */
    _Atomic bool is_short;
} devices[MS_MAX_DEVICES];

static _Thread_local bool is_broken;

static void set_settled(void)
{
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++) {
        if (ms_space_sums(device).live > 0)
            atomic_store(&devices[device].is_settled, true);
    }
}

static void set_failed(void)
{
    CUdevice device;
    is_broken = true;
    if (ms_driver.ctx_get_device(&device) == CUDA_SUCCESS && device < MS_MAX_DEVICES)
        atomic_store(&devices[device].is_short, true);
}

void ms_overcommit_note(enum ms_overcommit_sign sign, CUdevice device, uint64_t bytes)
{
    if (sign == MS_OVERCOMMIT_SETTLED)
        set_settled();
    else if (sign == MS_OVERCOMMIT_FAILED)
        set_failed();
    else if (device >= 0 && device < MS_MAX_DEVICES)
        atomic_fetch_add_explicit(&devices[device].used_bytes, bytes, memory_order_relaxed);
}

bool ms_overcommit_take_failed(void)
{
    const bool was = is_broken;
    is_broken = false;
    return was;
}

static bool is_computing(CUdevice device)
{
    const uint64_t used = atomic_load(&devices[device].used_bytes);
    return atomic_load(&devices[device].is_short) || atomic_load(&devices[device].is_settled) ||
           (used > 0 && used >= ms_space_sums(device).unbacked / USED_PART);
}

/* Follows the peak, and forgets the signs of computing once the program has freed its model, as it
 * may make the next one. */
static void set_live(CUdevice device, uint64_t live, size_t total)
{
    const uint64_t now = live < total ? live : total;
    const uint64_t most = atomic_load(&devices[device].most_bytes);
    if (live < most / FREED_PART) {
        atomic_store(&devices[device].used_bytes, 0);
        atomic_store(&devices[device].is_settled, false);
        atomic_store(&devices[device].allowed_bytes, 0);
    }
    if (live < most / FREED_PART || now > most)
        atomic_store(&devices[device].most_bytes, now);
}

/* Bytes that nobody has written, or that were only set: neither files, kernels nor copies. */
static uint64_t unwritten_bytes_of(const struct ms_lineage *lineage)
{
    uint64_t bytes = lineage->bytes + lineage->kind_bytes[MS_FILL];
    for (int kind = 0; kind < MS_KIND_COUNT; kind++)
        bytes -= kind != MS_UNDEFINED ? lineage->kind_bytes[kind] : 0;
    return bytes;
}

static uint64_t unwritten_bytes(CUdevice device)
{
    uint64_t bytes = 0;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL)
        bytes += allocation->device == device
                     ? unwritten_bytes_of(ms_allocation_lineage(allocation))
                     : 0;
    return bytes;
}

/* Warns once, because a program may ask again and again. */
static bool refuse(CUdevice device, size_t bytes, const char *what, uint64_t times)
{
    static _Atomic bool is_said;
    if (!atomic_exchange(&is_said, true))
        ms_log(MS_WARN,
               "an allocation of %zu bytes on device %d is refused: with it, the program would "
               "have more than %llu times the device's memory%s (METASHARD_OVERCOMMIT)",
               bytes, (int)device, (unsigned long long)times, what);
    return true;
}

/*
 * Allows memory that the program fills with its own data, up to a bound that no model reaches.
 * Counts unwritten bytes only when the program has one device's memory more than at the last count,
 * because the count walks all allocations.
 */
static bool is_beyond_asked(CUdevice device, uint64_t live, size_t bytes, size_t total)
{
    if (live + bytes > MOST_TIMES * (uint64_t)total)
        return refuse(device, bytes, "", MOST_TIMES);
    if (live + bytes <= UNWRITTEN_TIMES * (uint64_t)total ||
        live + bytes <= atomic_load(&devices[device].allowed_bytes))
        return false;
    if (unwritten_bytes(device) + bytes > UNWRITTEN_TIMES * (uint64_t)total)
        return refuse(device, bytes, " unwritten", UNWRITTEN_TIMES);
    atomic_store(&devices[device].allowed_bytes, live + bytes + total);
    return false;
}

/* Sets a limit, because a program that allocates until it fails must fail. */
static bool is_overcommitted(CUdevice device, uint64_t live, size_t bytes, size_t total)
{
    const uint64_t times = ms_config.overcommit;
    if (bytes > UINT64_MAX - live)
        return refuse(device, bytes, "", times > 0 ? times : MOST_TIMES);
    if (times == 0)
        return is_beyond_asked(device, live, bytes, total);
    return (live + bytes) / times > total && refuse(device, bytes, "", times);
}

/* Whole granules in [begin, end) that have no memory. */
static uint64_t unbacked_bytes(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t granule = allocation->granule, stop = end / granule * granule;
    const struct ms_range range = {(begin + granule - 1) / granule * granule, stop};
    return range.begin < stop ? ms_replay_unbacked(allocation, range) : 0;
}

/* Bytes of unbacked granules whose content is all remote. */
static uint64_t left_out_bytes(const struct ms_allocation *allocation)
{
    uint64_t bytes = 0;
    size_t begin = 0;
    struct ms_walk walk = {ms_allocation_lineage(allocation), 0, allocation->bytes};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (extent->content.locality == MS_REMOTE || extent->content.kind == MS_ABSENT)
            continue;
        bytes += unbacked_bytes(allocation, begin, extent->begin);
        begin = extent->end;
    }
    return bytes + unbacked_bytes(allocation, begin, allocation->granule_bytes);
}

/* Bytes of allocations that, by the plan, this rank never needs. */
static uint64_t unneeded_bytes(CUdevice device)
{
    uint64_t bytes = 0;
    if (!ms_shard_is_active())
        return 0;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL) {
        if (allocation->device != device)
            continue;
        ms_placement_query(allocation, 0, allocation->bytes);
        bytes += left_out_bytes(allocation);
    }
    return bytes;
}

/* True if all allocations, with this one, fit into the device. *is_tight_out: so little is left
 * that a replay may not find scratch memory. */
static bool fits(CUdevice device, size_t bytes, bool *is_tight_out)
{
    enum { LITTLE = 8 };
    size_t free, total;
    if (ms_driver.mem_get_info(&free, &total) != CUDA_SUCCESS)
        return true;
    const struct ms_space_sums sums = ms_space_sums(device);
    const uint64_t has = free + sums.held;
    uint64_t promised = sums.reserved + ms_device_memory_rounded(device, bytes);
    if (promised > has)
        promised -= unneeded_bytes(device);
    if (promised <= has) {
        *is_tight_out = has - promised < total / LITTLE && !ms_shard_is_active();
        return true;
    }
    ms_log(MS_INFO,
           "an allocation of %zu bytes on device %d is refused: the program computes, and with it "
           "the program's memory would be %llu bytes more than the device has",
           bytes, (int)device, (unsigned long long)(promised - has));
    return false;
}

bool ms_overcommit_allows(CUdevice device, size_t bytes, bool *is_tight_out)
{
    size_t total;
    *is_tight_out = false;
    const uint64_t live = ms_space_sums(device).live;
    if (ms_driver.device_total_mem(&total, device) != CUDA_SUCCESS)
        return true;
    set_live(device, live, total);
    if (is_overcommitted(device, live, bytes, total))
        return false;
    if (!is_computing(device))
        return true;
    const bool is_promised = fits(device, bytes, is_tight_out);
    if (!is_promised)
        atomic_store(&devices[device].is_short, true);
    return is_promised;
}
