/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/blocks.h"

#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/examining.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"

/* Cheap for unowned memory; host memory is reported as well. */
static struct ms_allocation *claim(CUdeviceptr address)
{
    return ms_space_may_hold(address) ? ms_space_claim(address) : NULL;
}

static void add_change(struct ms_allocation *allocation)
{
    allocation->touches++;
    /* A graph uses its addresses at each launch, whether or not they are handed out. */
    if (ms_is_capturing())
        allocation->keeps_dead = true;
}

/* False: no block begins there. */
static bool give_back(struct ms_allocation *allocation, size_t begin)
{
    size_t end;
    if (!ms_carve_return(allocation, begin, &end))
        return false;
    ms_shard_forget(allocation, begin, end);
    return true;
}

/* Blocks that overlap the new one were returned, which was not reported. */
static enum ms_carved take(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_range old;
    add_change(allocation);
    while (ms_carve_next_block(allocation, begin, &old) && old.begin < end &&
           give_back(allocation, old.begin))
        ;
    const enum ms_carved carved = ms_carve_take(allocation, begin, end);
    ms_counter_add(MS_COUNT_BLOCKS, carved == MS_CARVED);
    return carved;
}

static bool lies_on_leftover(const struct ms_allocation *allocation, CUdeviceptr address,
                             size_t bytes)
{
    const size_t begin = ms_offset(allocation, address);
    return ms_fits(allocation, address, bytes) &&
           ms_carve_meets_leftover(allocation, begin, begin + bytes);
}

static struct ms_allocation *claim_for_block(CUdeviceptr address, size_t bytes)
{
    struct ms_allocation *allocation = claim(address);
    if (allocation == NULL || ms_window_now().is_settled ||
        !lies_on_leftover(allocation, address, bytes))
        return allocation;
    ms_space_release(allocation);
    ms_evict_leftover(address);
    return claim(address);
}

/* Of a block that was handed out and counts as deferred. If that fails, the launch that uses it
 * tries again, and its program gets the error. */
static void back_if_needed(CUdeviceptr address, size_t bytes, CUcontext context, CUdevice device)
{
    const bool may_defer = !ms_window_now().is_settled && !ms_is_capturing();
    if (may_defer && ms_examining_is_complete(context, device))
        return;
    ms_access_uses(&(struct ms_use){.need = MS_NEED_READ_WRITE,
                                    .begin = address,
                                    .bytes = bytes,
                                    .why = may_defer ? MS_REASON_UNEXAMINED : MS_REASON_HANDED_OUT},
                   1);
}

static void taken(CUdeviceptr address, size_t bytes)
{
    struct ms_allocation *allocation = claim_for_block(address, bytes);
    if (allocation == NULL)
        return;
    const size_t begin = ms_offset(allocation, address);
    const CUcontext context = allocation->context;
    const CUdevice device = allocation->device;
    enum ms_carved carved = MS_CARVED_NOT;
    if (bytes > 0 && ms_fits(allocation, address, bytes))
        carved = take(allocation, begin, begin + bytes);
    const bool is_deferred = carved == MS_CARVED && ms_lineage_any(&allocation->lineage, begin,
                                                                   begin + bytes, MS_NOT_RESIDENT);
    ms_space_release(allocation);
    if (carved == MS_CARVED_FAILED)
        ms_access(address, bytes, MS_NEED_READ_WRITE);
    if (is_deferred && !ms_window_now().is_settled)
        ms_evict_leftover(0);
    if (is_deferred)
        back_if_needed(address, bytes, context, device);
}

static void returned(CUdeviceptr address)
{
    struct ms_allocation_facts block;
    /* Addresses of it that a stream has not got to yet would mean nothing once it is dead. */
    if (ms_has_late_payloads() && ms_space_may_hold(address) &&
        ms_space_find_pointed(address, &block))
        ms_access(block.address, block.bytes, MS_NEED_REACH);
    MS_CLAIMED struct ms_allocation *allocation = claim(address);
    if (allocation != NULL && give_back(allocation, ms_offset(allocation, address)))
        add_change(allocation);
}

void ms_block_report(CUdeviceptr address, int64_t bytes)
{
    if (bytes > 0)
        taken(address, (size_t)bytes);
    else
        returned(address);
}
