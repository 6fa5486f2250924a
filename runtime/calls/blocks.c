/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/blocks.h"

#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/publish.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/shard/shard.h"
#include "runtime/state/window.h"

/* Cheap for unowned memory: allocators report host memory as well. */
static struct ms_allocation *claim(CUdeviceptr address)
{
    return ms_space_may_hold(address) ? ms_space_claim(address) : NULL;
}

static void add_change(struct ms_allocation *allocation)
{
    allocation->notes.touches++;
    /* A graph uses its addresses at each launch, whether or not they are handed out. */
    if (ms_is_capturing())
        allocation->notes.keeps_dead = true;
}

/* Returns false if no block begins there. */
static bool give_back(struct ms_allocation *allocation, size_t begin)
{
    size_t end;
    if (!ms_carve_return(allocation, begin, &end))
        return false;
    ms_shard_forget(allocation, begin, end);
    return true;
}

/* Ends blocks that overlap the new one: the allocator has taken them back without a report. */
static enum ms_carved take(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_range old;
    add_change(allocation);
    ms_carve_settle(allocation, begin, end);
    while (ms_carve_next_block(allocation, begin, &old) && old.begin < end &&
           give_back(allocation, old.begin))
        ;
    return ms_carve_take(allocation, begin, end);
}

/* True if at least a granule of the range has dead memory: a block there could not be
 * deferred. */
static bool lies_on_dead(CUdeviceptr address, size_t bytes)
{
    MS_CLAIMED struct ms_allocation *allocation = claim(address);
    return allocation != NULL && ms_fits(allocation, address, bytes) &&
           bytes >= allocation->granule &&
           ms_carve_dead(allocation, ms_offset(allocation, address),
                         ms_offset(allocation, address) + bytes) >= allocation->granule;
}

/* While nothing is deferred, the shim does not see launches. The sign of a program that computes is
 * then a block that is handed out again with the memory that it had. */
static bool has_moved_on(void)
{
    return !ms_defers_any() && ms_window_is_due();
}

/* Gives memory to a block that was handed out deferred, unless it may stay deferred. After a
 * failure the launch that uses the block tries again, and the program gets the error there. */
static void back_if_needed(CUdeviceptr address, size_t bytes, CUcontext context, CUdevice device)
{
    const bool is_settled = ms_window_now().is_settled;
    if (!is_settled)
        ms_evict_dead(0);
    const bool may_defer = !is_settled && !ms_is_capturing();
    if (may_defer && ms_examining_is_complete(context, device))
        return;
    ms_access_uses(&(struct ms_use){.need = MS_NEED_READ_WRITE,
                                    .begin = address,
                                    .bytes = bytes,
                                    .why = may_defer ? MS_REASON_UNEXAMINED : MS_REASON_HANDED_OUT},
                   1);
}

/* How a block that was handed out was recorded. */
struct taken {
    enum ms_carved carved;
    bool is_deferred;
    CUcontext context;
    CUdevice device;
};

static struct taken take_reported(CUdeviceptr address, size_t bytes)
{
    MS_CLAIMED struct ms_allocation *allocation = claim(address);
    if (allocation == NULL || !ms_fits(allocation, address, bytes))
        return (struct taken){.carved = MS_CARVED_NOT};
    const size_t begin = ms_offset(allocation, address);
    const enum ms_carved carved = take(allocation, begin, begin + bytes);
    return (struct taken){carved,
                          carved == MS_CARVED &&
                              ms_lineage_any(ms_allocation_lineage(allocation), begin,
                                             begin + bytes, MS_NOT_RESIDENT),
                          allocation->context, allocation->device};
}

static void taken(CUdeviceptr address, size_t bytes)
{
    if (!ms_window_now().is_settled && lies_on_dead(address, bytes) && !has_moved_on())
        ms_evict_dead(address);
    const struct taken block = take_reported(address, bytes);
    if (block.carved == MS_CARVED_FAILED)
        ms_access(address, bytes, MS_NEED_READ_WRITE);
    if (block.is_deferred)
        back_if_needed(address, bytes, block.context, block.device);
}

static void returned(CUdeviceptr address)
{
    struct ms_allocation_facts block;
    /* Bytes that a stream has yet to copy may hold addresses of the block, which mean nothing once
     * the block is dead: give it memory now. */
    if (ms_has_late_payloads() && ms_space_may_hold(address) &&
        ms_space_find_pointed(address, &block))
        ms_access(block.address, block.bytes, MS_NEED_REACH);
    MS_CLAIMED struct ms_allocation *allocation = claim(address);
    if (allocation == NULL)
        return;
    const size_t begin = ms_offset(allocation, address);
    ms_carve_settle(allocation, begin, begin + 1);
    if (give_back(allocation, begin))
        add_change(allocation);
}

void ms_block_report(CUdeviceptr address, int64_t bytes)
{
    if (bytes > 0)
        taken(address, (size_t)bytes);
    else
        returned(address);
}
