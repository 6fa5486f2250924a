/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/space.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/far_address.h"
#include "runtime/memory/invariants.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/publish.h"

/* An allocation and its addresses, guards included: only pointers to this allocation lie there.
 * Places do not overlap. A search reads nothing but places. */
struct place {
    uint64_t begin, end;
    struct ms_allocation *allocation;
};

_Atomic int64_t ms_space_owed;

static struct {
    pthread_cond_t released;
    struct ms_sorted places;   /* guarded by ms_space_lock */
    struct ms_sorted deferred; /* struct ms_range: the places that count as deferred */
    bool misses_deferred;      /* a range is missing from `deferred` (host memory was short) */
    /* Reserved minus backed bytes, by device; changed when a claim ends. */
    _Atomic int64_t unbacked_bytes[MS_MAX_DEVICES];
    _Atomic uint64_t live_bytes[MS_MAX_DEVICES], reserved_bytes[MS_MAX_DEVICES];
    _Atomic uint64_t most_reserved_bytes[MS_MAX_DEVICES];
    struct {
        _Atomic uint64_t begin, end;
    } bounds[MS_BOUNDS]; /* around all allocations and their guards */
} space = {.released = PTHREAD_COND_INITIALIZER,
           .places = {.item_bytes = sizeof(struct place)},
           .deferred = {.item_bytes = sizeof(struct ms_range)}};

MS_HOLDS(ms_space_lock) static const struct place *place_locked(struct ms_position at)
{
    return ms_sorted_item(&space.places, at);
}

/* The first allocation that ends behind address. */
MS_HOLDS(ms_space_lock) static struct ms_position lower_bound_locked(CUdeviceptr address)
{
    const struct ms_position at = ms_sorted_behind(&space.places, address);
    const struct place *place = place_locked(at);
    if (place != NULL && place->allocation->address + place->allocation->bytes <= address)
        return ms_sorted_next(&space.places, at);
    return at;
}

MS_HOLDS(ms_space_lock) static struct ms_allocation *next_locked(CUdeviceptr address)
{
    const struct place *place = place_locked(lower_bound_locked(address));
    return place != NULL ? place->allocation : NULL;
}

MS_HOLDS(ms_space_lock) static struct ms_allocation *find_locked(CUdeviceptr address)
{
    struct ms_allocation *allocation = next_locked(address);
    return allocation != NULL && allocation->address <= address ? allocation : NULL;
}

MS_HOLDS(ms_space_lock)
static void count_backed_locked(struct ms_allocation *allocation, size_t bytes)
{
    atomic_fetch_add(&ms_space_owed, (int64_t)MS_OWN(allocation)->counted_backed - (int64_t)bytes);
    MS_OWN(allocation)->counted_backed = bytes;
}

MS_HOLDS(ms_space_lock) static void count_unbacked_locked(struct ms_allocation *allocation)
{
    const size_t unbacked =
        MS_OWN(allocation)->backing.mapped_bytes - MS_OWN(allocation)->backing.backed_bytes;
    atomic_fetch_add(&space.unbacked_bytes[allocation->device],
                     (int64_t)unbacked - (int64_t)MS_OWN(allocation)->counted_unbacked);
    MS_OWN(allocation)->counted_unbacked = unbacked;
    count_backed_locked(allocation, MS_OWN(allocation)->backing.backed_bytes);
}

static struct place place_of(struct ms_allocation *allocation)
{
    const struct ms_backing *backing = &MS_OWN(allocation)->backing;
    const size_t guard = backing->is_programs ? 0 : backing->granule;
    return (struct place){allocation->address - guard, allocation->address + backing->bytes + guard,
                          allocation};
}

static void count(CUdevice device, int64_t live, int64_t reserved)
{
    atomic_fetch_add(&space.live_bytes[device], (uint64_t)live);
    const uint64_t before = atomic_fetch_add(&space.reserved_bytes[device], (uint64_t)reserved);
    uint64_t most = atomic_load(&space.most_reserved_bytes[device]);
    while (before + (uint64_t)reserved > most &&
           !atomic_compare_exchange_weak(&space.most_reserved_bytes[device], &most,
                                         before + (uint64_t)reserved))
        ;
    atomic_fetch_add(&ms_space_owed, reserved);
}

/* For addresses that the program has reserved, vmm.c counts the handles instead. */
static void count_promised(const struct ms_allocation *allocation, int64_t sign)
{
    if (!allocation->is_programs)
        count(allocation->device, sign * (int64_t)allocation->bytes,
              sign * (int64_t)MS_OWN(allocation)->backing.bytes);
}

void ms_space_count_promised(CUdevice device, int64_t bytes)
{
    count(device, bytes, bytes);
}

MS_HOLDS(ms_space_lock)
static void set_bound_locked(unsigned bound, const struct place *first, const struct place *last)
{
    atomic_store(&space.bounds[bound].begin, first != NULL ? first->begin : 0);
    atomic_store(&space.bounds[bound].end, first != NULL ? last->end : 0);
}

MS_HOLDS(ms_space_lock) static void set_bounds_locked(void)
{
    const struct ms_position far = lower_bound_locked(MS_FAR_ADDRESS);
    const struct place *first = place_locked((struct ms_position){0, 0});
    const struct place *first_far = place_locked(far);
    const struct place *last_near = place_locked(ms_sorted_previous(&space.places, far));
    set_bound_locked(MS_NEAR, first != first_far ? first : NULL, last_near);
    set_bound_locked(MS_FAR, first_far, place_locked(ms_sorted_find(&space.places, UINT64_MAX)));
}

/* Keeps the list of deferred places; the caller changes ms_hot.deferred. */
MS_HOLDS(ms_space_lock)
static void count_deferred_locked(struct ms_allocation *allocation, bool is_deferred)
{
    const struct place place = place_of(allocation);
    const struct ms_range range = {place.begin, place.end};
    const struct ms_position at = ms_sorted_find(&space.deferred, range.begin);
    const struct ms_range *item = ms_sorted_item(&space.deferred, at);
    MS_OWN(allocation)->counted_deferred = is_deferred;
    if (!is_deferred && item != NULL && item->begin == range.begin)
        ms_sorted_remove(&space.deferred, at, 1);
    else if (is_deferred && !ms_sorted_insert(&space.deferred,
                                              item != NULL && item->begin < range.begin
                                                  ? ms_sorted_next(&space.deferred, at)
                                                  : at,
                                              &range, 1))
        space.misses_deferred = true;
}

bool ms_space_add(struct ms_allocation *allocation)
{
    const struct place place = place_of(allocation);
    ms_lock_take(&ms_space_lock);
    if (!ms_sorted_insert(&space.places, lower_bound_locked(allocation->address), &place, 1)) {
        ms_lock_drop(&ms_space_lock);
        return false;
    }
    MS_OWN(allocation)->claimed_by = 0;
    count_deferred_locked(allocation, true);
    MS_OWN(allocation)->counted_unbacked = MS_OWN(allocation)->counted_backed = 0;
    count_unbacked_locked(allocation);
    count_promised(allocation, 1);
    set_bounds_locked();
    atomic_fetch_add(&ms_hot.owned, 1);
    ms_examining_begin();
    ms_lock_drop(&ms_space_lock);
    return true;
}

void ms_space_remove(struct ms_allocation *allocation)
{
    ms_publish_freed(allocation);
    ms_carve_settle(allocation, 0, allocation->bytes);
    ms_lock_take(&ms_space_lock);
    const struct ms_position at = lower_bound_locked(allocation->address);
    const struct place *place = place_locked(at);
    if (place == NULL || place->allocation != allocation)
        ms_fatal("allocation 0x%llx is not in the index", allocation->address);
    ms_sorted_remove(&space.places, at, 1);
    count_promised(allocation, -1);
    count_backed_locked(allocation, 0);
    set_bounds_locked();
    atomic_fetch_sub(&space.unbacked_bytes[allocation->device],
                     (int64_t)MS_OWN(allocation)->counted_unbacked);
    atomic_fetch_sub(&ms_space_dead, MS_OWN(allocation)->dead_memory);
    if (MS_OWN(allocation)->counted_deferred) {
        count_deferred_locked(allocation, false);
        ms_examining_end();
    }
    atomic_fetch_sub(&ms_hot.owned, 1);
    ms_claim_remove();
    pthread_cond_broadcast(&space.released);
    ms_lock_drop(&ms_space_lock);
}

/* Takes no lock: in a forked child, which owns nothing, a thread that the child lacks may hold
 * ms_space_lock (flags.h). */
static bool is_empty(void)
{
    return !ms_owns_any();
}

/* The current context if it belongs to the device, else NULL. */
static CUcontext current_context(CUdevice device)
{
    CUcontext context;
    CUdevice current;
    return ms_driver.ctx_get_current(&context) == CUDA_SUCCESS && context != NULL &&
                   ms_driver.ctx_get_device(&current) == CUDA_SUCCESS && current == device
               ? context
               : NULL;
}

/* Gives an allocation (or NULL) that was just claimed a context if its own has ended. */
static struct ms_allocation *in_context(struct ms_allocation *allocation)
{
    if (allocation != NULL && allocation->context == NULL && allocation->pool != NULL)
        allocation->context = current_context(allocation->device);
    return allocation;
}

static void set_claimed(struct ms_allocation *allocation)
{
    MS_OWN(allocation)->claimed_by = pthread_self();
    ms_claim_add(allocation->address + allocation->bytes);
}

/* Waits until find(address) gives an unclaimed allocation, and claims that; or NULL. */
static struct ms_allocation *claim(struct ms_allocation *(*find)(CUdeviceptr), CUdeviceptr address)
{
    struct ms_allocation *allocation;
    if (is_empty())
        return NULL;
    ms_claim_check(address);
    ms_lock_take(&ms_space_lock);
    while ((allocation = find(address)) != NULL && MS_OWN(allocation)->claimed_by != 0)
        pthread_cond_wait(&space.released, &ms_space_lock.mutex);
    if (allocation != NULL)
        set_claimed(allocation);
    ms_lock_drop(&ms_space_lock);
    return in_context(allocation);
}

struct ms_allocation *ms_space_claim(CUdeviceptr address)
{
    return claim(find_locked, address);
}

struct ms_allocation *ms_space_claim_next(CUdeviceptr address)
{
    return claim(next_locked, address);
}

struct ms_allocation *ms_space_hold(CUdeviceptr address, struct ms_allocation **claimed_out)
{
    *claimed_out = NULL;
    if (is_empty())
        return NULL;
    ms_lock_take(&ms_space_lock);
    struct ms_allocation *allocation = find_locked(address);
    const pthread_t by = allocation != NULL ? MS_OWN(allocation)->claimed_by : 0;
    if (allocation != NULL && by == 0) {
        set_claimed(allocation);
        *claimed_out = allocation;
    }
    ms_lock_drop(&ms_space_lock);
    return by == 0 || by == pthread_self() ? in_context(allocation) : NULL;
}

enum { BEFORE = 512 }; /* a pointer up to so many bytes before a block may be meant for it */

/* One range that covers the blocks which a pointer at this offset may refer to; perhaps empty. */
MS_HOLDS(ms_space_lock)
static struct ms_range find_pointed_locked(const struct ms_allocation *allocation, int64_t offset)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    if (!MS_OWN(allocation)->is_carved)
        return (struct ms_range){.begin = 0, .end = allocation->bytes};
    struct ms_range found = {0, 0};
    struct ms_position at = ms_sorted_behind(&blocks->all, offset < 0 ? 0 : (size_t)offset);
    for (const struct ms_block *block; (block = ms_sorted_item(&blocks->all, at)) != NULL &&
                                       (int64_t)block->begin - offset <= BEFORE;
         at = ms_sorted_next(&blocks->all, at)) {
        found = (struct ms_range){found.end > 0 ? found.begin : block->begin, block->end};
    }
    if (found.end == 0 && blocks->uses_dead)
        found.end = allocation->bytes;
    return found;
}

static bool is_deferred(const struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    return lineage->resident_bytes + lineage->kind_bytes[MS_DEAD] < ms_mapped_bytes(lineage);
}

void ms_space_unclaim(struct ms_allocation *allocation)
{
    const bool deferred = is_deferred(allocation);
    ms_lock_take(&ms_space_lock);
    if (deferred != MS_OWN(allocation)->counted_deferred) {
        if (deferred)
            ms_examining_begin();
        else
            ms_examining_end();
        count_deferred_locked(allocation, deferred);
    }
    count_unbacked_locked(allocation);
    MS_OWN(allocation)->claimed_by = 0;
    ms_claim_remove();
    pthread_cond_broadcast(&space.released);
    ms_lock_drop(&ms_space_lock);
}

void ms_space_release(struct ms_allocation *allocation)
{
    if (allocation == NULL)
        return;
    if (MS_DEBUG_CHECKS)
        ms_check_allocation(allocation);
    if (is_deferred(allocation))
        ms_carve_settle(allocation, 0, allocation->bytes);
    ms_publish_allocation(allocation);
    ms_space_unclaim(allocation);
}

static struct ms_allocation_facts facts_of(const struct ms_allocation *allocation)
{
    return (struct ms_allocation_facts){.address = allocation->address,
                                        .bytes = allocation->bytes,
                                        .context = allocation->context,
                                        .device = allocation->device,
                                        .id = allocation->id,
                                        .is_programs = allocation->is_programs,
                                        .is_opened = allocation->is_opened,
                                        .pool = ms_pool_handle(allocation->pool),
                                        .is_recurring = allocation->is_recurring,
                                        .granule_bytes = allocation->granule_bytes};
}

/* --- looking up */

bool ms_space_first_behind(CUdeviceptr address, struct ms_allocation_facts *facts_out)
{
    if (is_empty())
        return false;
    ms_lock_take(&ms_space_lock);
    const struct ms_allocation *allocation = next_locked(address);
    if (allocation != NULL)
        *facts_out = facts_of(allocation);
    ms_lock_drop(&ms_space_lock);
    if (allocation != NULL && facts_out->context == NULL && facts_out->pool != NULL)
        facts_out->context = current_context(facts_out->device);
    return allocation != NULL;
}

bool ms_space_next_mapping(CUdeviceptr address, struct ms_program_mapping *mapping_out,
                           struct ms_allocation_facts *facts_out)
{
    if (is_empty())
        return false;
    ms_lock_take(&ms_space_lock);
    const struct ms_allocation *allocation = find_locked(address);
    bool is_found = allocation != NULL && allocation->is_programs;
    if (is_found) {
        const struct ms_program_mapping *mapping =
            ms_backing_mapping(&MS_OWN(allocation)->backing, address - allocation->address);
        is_found = mapping != NULL;
        if (is_found)
            *mapping_out = *mapping;
        *facts_out = facts_of(allocation);
    }
    ms_lock_drop(&ms_space_lock);
    return is_found;
}

void ms_space_bounds(struct ms_range bounds_out[MS_BOUNDS])
{
    for (unsigned i = 0; i < MS_BOUNDS; i++) {
        bounds_out[i].begin = atomic_load_explicit(&space.bounds[i].begin, memory_order_relaxed);
        bounds_out[i].end = atomic_load_explicit(&space.bounds[i].end, memory_order_relaxed);
    }
}

/* The addresses around an address that belong to the same allocation; or, if that is NULL, the gap
 * between two places. */
struct surroundings {
    CUdeviceptr begin, end;
    const struct ms_allocation *allocation;
};

MS_HOLDS(ms_space_lock) static struct surroundings find_surroundings_locked(CUdeviceptr address)
{
    const struct ms_position at = ms_sorted_behind(&space.places, address);
    const struct place *place = place_locked(at);
    if (place != NULL && place->begin <= address)
        return (struct surroundings){place->begin, place->end, place->allocation};
    const struct place *before = place_locked(ms_sorted_previous(&space.places, at));
    return (struct surroundings){.begin = before != place ? before->end : 0,
                                 .end = place != NULL ? place->begin : UINT64_MAX};
}

bool ms_space_strays(CUdeviceptr address, size_t bytes)
{
    if (is_empty())
        return false;
    ms_lock_take(&ms_space_lock);
    const struct ms_allocation *found = find_surroundings_locked(address).allocation;
    const bool strays = found != NULL && !found->is_programs &&
                        (address < found->address || address - found->address > found->bytes ||
                         bytes > found->bytes - (address - found->address));
    ms_lock_drop(&ms_space_lock);
    return strays;
}

MS_HOLDS(ms_space_lock)
static bool find_block_locked(CUdeviceptr pointer, const struct ms_allocation *allocation,
                              struct ms_allocation_facts *facts_out)
{
    if (allocation == NULL || !MS_OWN(allocation)->counted_deferred)
        return false;
    const struct ms_range range =
        find_pointed_locked(allocation, (int64_t)(pointer - allocation->address));
    if (range.end == range.begin)
        return false;
    *facts_out = facts_of(allocation);
    facts_out->address += range.begin;
    facts_out->bytes = range.end - range.begin;
    return true;
}

/* The addresses around a pointer between two blocks, where pointers refer to nothing; perhaps
 * empty. */
MS_HOLDS(ms_space_lock)
static struct ms_range find_between_blocks_locked(const struct surroundings *near,
                                                  CUdeviceptr pointer)
{
    const struct ms_allocation *allocation = near->allocation;
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    struct ms_range nothing = {near->begin, near->end};
    if (!MS_OWN(allocation)->is_carved || blocks->uses_dead || pointer < allocation->address)
        return (struct ms_range){0, 0};
    const struct ms_position at = ms_sorted_behind(&blocks->all, pointer - allocation->address);
    const struct ms_block *next = ms_sorted_item(&blocks->all, at);
    const struct ms_block *before =
        ms_sorted_item(&blocks->all, ms_sorted_previous(&blocks->all, at));
    if (next != NULL)
        nothing.end = allocation->address + next->begin - BEFORE;
    if (before != NULL && before != next)
        nothing.begin = allocation->address + before->end;
    return nothing;
}

/* Addresses around a pointer that refer to nothing. */
MS_HOLDS(ms_space_lock)
static struct ms_range find_nothing_locked(const struct surroundings *near, CUdeviceptr pointer)
{
    if (near->allocation != NULL && MS_OWN(near->allocation)->counted_deferred)
        return find_between_blocks_locked(near, pointer);
    const struct ms_position at = ms_sorted_find(&space.deferred, pointer);
    const struct ms_range *before = ms_sorted_item(&space.deferred, at), *next = before;
    if (before == NULL || before->begin > pointer)
        before = NULL;
    else
        next = ms_sorted_item(&space.deferred, ms_sorted_next(&space.deferred, at));
    if (space.misses_deferred)
        return (struct ms_range){0, 0};
    return (struct ms_range){before != NULL ? before->end : 0,
                             next != NULL ? next->begin : UINT64_MAX};
}

/* Looks up the surroundings only when they change: pointers in a row mostly lie near each other. */
size_t ms_space_find_all_pointed(struct ms_pointed *pointers, size_t count,
                                 struct ms_range *nothing_out)
{
    size_t found = 0;
    struct surroundings near = {0, 0, NULL};
    *nothing_out = (struct ms_range){0, 0};
    if (is_empty())
        return 0;
    ms_lock_take(&ms_space_lock);
    for (size_t i = 0; i < count; i++) {
        const CUdeviceptr pointer = pointers[i].pointer;
        if (pointer < near.begin || pointer >= near.end)
            near = find_surroundings_locked(pointer);
        if (!find_block_locked(pointer, near.allocation, &pointers[found].block))
            continue;
        pointers[found].offset = pointers[i].offset;
        pointers[found++].pointer = pointer;
    }
    if (count > 0)
        *nothing_out = find_nothing_locked(&near, pointers[count - 1].pointer);
    ms_lock_drop(&ms_space_lock);
    return found;
}

struct ms_space_sums ms_space_sums(CUdevice device)
{
    if (device < 0 || device >= MS_MAX_DEVICES)
        return (struct ms_space_sums){0};
    const int64_t unbacked = atomic_load(&space.unbacked_bytes[device]);
    return (struct ms_space_sums){.live = atomic_load(&space.live_bytes[device]),
                                  .reserved = atomic_load(&space.reserved_bytes[device]),
                                  .most_reserved = atomic_load(&space.most_reserved_bytes[device]),
                                  .unbacked = unbacked > 0 ? (uint64_t)unbacked : 0,
                                  .held = ms_backing_device_bytes(device),
                                  .trim_gain = ms_carve_trim_gain(device)};
}
