/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address space: an index of the allocations that the shim owns, and the claims on them.
 *
 * ms_space_lock guards the index and the claim flags. It is never held across a driver call. A
 * *claim* gives one thread an allocation and guards its lineage and backing. A claim may be held
 * across the shim's own driver calls, none of which runs code of the program. A thread takes two
 * claims only in the order of addresses (ms_claims_begin). A thread that waits for a claim holds
 * no lock but turns (docs/locking.md).
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/driver/driver.h"
#include "runtime/memory/allocation.h"

/* The immutable part of an allocation, as a copy that needs no claim. */
struct ms_allocation_facts {
    CUdeviceptr address;
    size_t bytes;
    CUcontext context;
    CUdevice device;
    uint64_t id;
    bool is_programs; /* the program has reserved the addresses (backing.h) */
    bool is_opened;   /* memory of another process */
    CUmemoryPool pool;
    bool is_recurring;
    size_t granule_bytes;
};

/* Finds the mapping that contains address, or the first behind address in the same allocation, and
 * that allocation. False if there is no such mapping. */
bool ms_space_next_mapping(CUdeviceptr address, struct ms_program_mapping *mapping_out,
                           struct ms_allocation_facts *facts_out);

/* Finds only the mapping that contains address. */
static inline bool ms_space_find_mapping(CUdeviceptr address,
                                         struct ms_program_mapping *mapping_out,
                                         struct ms_allocation_facts *facts_out)
{
    return ms_space_next_mapping(address, mapping_out, facts_out) &&
           facts_out->address + mapping_out->begin <= address;
}

/* The offset of an address in its allocation. */
static inline size_t ms_offset(const struct ms_allocation *allocation, CUdeviceptr address)
{
    return (size_t)(address - allocation->address);
}

/* True if the program may use all of a range of a claimed allocation. */
static inline bool ms_fits(const struct ms_allocation *allocation, CUdeviceptr address,
                           size_t bytes)
{
    const size_t begin = ms_offset(allocation, address);
    return bytes <= allocation->bytes - begin &&
           (!allocation->is_programs || !ms_lineage_any(ms_allocation_lineage(allocation), begin,
                                                        begin + bytes, MS_OF_KIND(MS_UNMAPPED)));
}

/* Counts memory of the device that the shim has promised to the program without an allocation. */
void ms_space_count_promised(CUdevice device, int64_t bytes);

/* Adds the allocation to the index, unclaimed. False if out of memory: the caller still owns the
 * allocation. */
bool ms_space_add(struct ms_allocation *allocation);

/* Removes a claimed allocation from the index. The caller then owns it. */
void ms_space_remove(struct ms_allocation *allocation);

/* Waits for other threads, then claims the allocation that contains address. NULL if there is
 * none. */
struct ms_allocation *ms_space_claim(CUdeviceptr address);

/* ms_space_claim without waiting; or the allocation that this thread has claimed before. NULL also
 * if another thread has claimed the allocation. MS_CLAIMED *claimed_out ends a new claim alone. */
struct ms_allocation *ms_space_hold(CUdeviceptr address, struct ms_allocation **claimed_out);

/* ms_space_claim without waiting: NULL also if a thread has claimed the allocation. */
static inline struct ms_allocation *ms_space_try_claim(CUdeviceptr address)
{
    struct ms_allocation *claimed;
    ms_space_hold(address, &claimed);
    return claimed;
}

/* Claims the first allocation at or after address, or returns NULL. For walks. */
struct ms_allocation *ms_space_claim_next(CUdeviceptr address);

/* Publishes the allocation's changes, then ends the claim. NULL: does nothing. */
void ms_space_release(struct ms_allocation *allocation);

/* A step of a walk over all allocations: ends the claim on `before`, and claims the next allocation
 * above `before`. A walk begins and ends with NULL. */
static inline struct ms_allocation *ms_space_walk(struct ms_allocation *before)
{
    const CUdeviceptr at = before != NULL ? before->address + before->bytes : 0;
    ms_space_release(before);
    return ms_space_claim_next(at);
}

/*
 * Claims that end with the block in which their variable stands:
 *
 *     MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
 *     MS_CLAIMED_BOTH struct ms_claims claims = ms_claims_begin(address, other);
 */
#define MS_CLAIMED __attribute__((cleanup(ms_claim_end)))
static inline void ms_claim_end(struct ms_allocation **allocation)
{
    ms_space_release(*allocation);
}

struct ms_claims {
    struct ms_allocation *first, *second;
};
#define MS_CLAIMED_BOTH __attribute__((cleanup(ms_claims_end)))
static inline struct ms_claims ms_claims_begin(CUdeviceptr first, CUdeviceptr second)
{
    const CUdeviceptr low = first < second ? first : second, high = first < second ? second : first;
    struct ms_allocation *const a = ms_space_claim(low);
    /* Both addresses may lie in one allocation, which must not be claimed twice. */
    const bool is_one = a != NULL && ms_offset(a, high) < a->bytes;
    struct ms_allocation *const b = is_one ? a : ms_space_claim(high);
    return first < second ? (struct ms_claims){a, b} : (struct ms_claims){b, a};
}
static inline void ms_claims_end(const struct ms_claims *claims)
{
    ms_space_release(claims->first);
    if (claims->second != claims->first)
        ms_space_release(claims->second);
}

/* Claims the allocation at an address if that allocation still has this id, else returns NULL. */
static inline struct ms_allocation *ms_space_claim_same(CUdeviceptr address, uint64_t id)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL || allocation->id == id)
        return allocation;
    ms_space_release(allocation);
    return NULL;
}

/* Copies the facts of the first allocation that ends behind address. False if there is none. */
bool ms_space_first_behind(CUdeviceptr address, struct ms_allocation_facts *facts_out);

/* Copies the facts of the allocation that contains address. False if there is none. */
static inline bool ms_space_look_up(CUdeviceptr address, struct ms_allocation_facts *facts_out)
{
    return ms_space_first_behind(address, facts_out) && facts_out->address <= address;
}

/*
 * Two ranges of addresses, one near and one far (addresses.h), that contain all allocations with
 * their guards; empty without allocations. May be out of date while another thread adds or removes
 * an allocation: the program must order its uses of an address with such changes itself.
 */
enum { MS_NEAR, MS_FAR, MS_BOUNDS };
void ms_space_bounds(struct ms_range bounds_out[MS_BOUNDS]);

/* True if the address lies within these bounds. Takes no lock. */
static inline bool ms_space_may_hold(CUdeviceptr address)
{
    struct ms_range bounds[MS_BOUNDS];
    ms_space_bounds(bounds);
    return (address >= bounds[MS_NEAR].begin && address < bounds[MS_NEAR].end) ||
           (address >= bounds[MS_FAR].begin && address < bounds[MS_FAR].end);
}

/* True if the range begins in the shim's reservation for an allocation but does not lie in the
 * allocation. */
bool ms_space_strays(CUdeviceptr address, size_t bytes);

/*
 * The blocks that pointers refer to. A pointer may lie a little before its block, or in the guards
 * of an allocation that is one block. A pointer to dead bytes refers to nothing, because padding of
 * parameters holds stale addresses; but if the program has used dead bytes of the allocation, the
 * pointer refers to the whole allocation. Keeps the pointers that refer to an allocation of which a
 * part is deferred, in their order, and returns their number. *nothing_out is a range around the
 * last pointer, up to the next deferred bytes on either side: no pointer into the range would be
 * kept. The range is empty if it does not end behind its begin.
 */
struct ms_pointed {
    size_t offset; /* the caller's */
    CUdeviceptr pointer;
    struct ms_allocation_facts block;
};
size_t ms_space_find_all_pointed(struct ms_pointed *pointers, size_t count,
                                 struct ms_range *nothing_out);

/* ms_space_find_all_pointed for one pointer: true if that pointer is kept. */
static inline bool ms_space_find_pointed(CUdeviceptr pointer, struct ms_allocation_facts *facts_out)
{
    struct ms_pointed one = {.pointer = pointer};
    struct ms_range nothing;
    const bool is_found = ms_space_find_all_pointed(&one, 1, &nothing) == 1;
    if (is_found)
        *facts_out = one.block;
    return is_found;
}

/* Bytes of a device's allocations. live: as the program asked; reserved: in whole granules, as if
 * all were backed; most_reserved: the peak of reserved; unbacked: granules without memory. held:
 * all memory of the device that the shim holds, also for parked bytes and sinks. trim_gain: what it
 * has gained to give back dead memory (ms_carve_trim_gain). */
struct ms_space_sums {
    uint64_t live, reserved, most_reserved, unbacked, held;
    int64_t trim_gain;
};
struct ms_space_sums ms_space_sums(CUdevice device);

/* True if, on any device, some memory that the shim has promised to the program does not exist
 * yet. */
extern _Atomic int64_t ms_space_owed;
static inline bool ms_space_owes_memory(void)
{
    return atomic_load_explicit(&ms_space_owed, memory_order_relaxed) > 0;
}
