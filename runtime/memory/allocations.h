/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address space: every allocation the shim owns, by address, and who may work on which.
 *
 * space.lock guards the index and the claim flags; it is never held across a driver call. A *claim*
 * gives one thread an allocation: lineage and backing are guarded by it. A claim may be held across our
 * own driver calls, none of which runs the program's code; a thread takes two claims only in the
 * order of addresses (ms_space_claim_two). Waiting for a claim holds no lock.
 */
#ifndef METASHARD_RUNTIME_MEMORY_ALLOCATIONS_H
#define METASHARD_RUNTIME_MEMORY_ALLOCATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/gap_array.h"
#include "runtime/base/range.h"
#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"
#include "runtime/memory/lineage.h"
#include "runtime/state/state.h"

/* A block, as offsets in its allocation, and where it is in the state page. */
struct ms_block {
    uint64_t begin, end;
    struct ms_state_place place;
};

/* The blocks of an allocation that a caching allocator carves: sorted, without overlap. */
struct ms_blocks {
    bool carved;  /* else the allocation is one block */
    bool strayed; /* the program has used what is in none of them */
    struct ms_block *all;
    size_t count;
    struct ms_gap_array gaps; /* of all */
};

/* What the state page was told of an allocation. */
struct ms_published {
    struct ms_state_place place;
    uint64_t deferred_bytes, backed_bytes;
};

struct ms_allocation {
    /* immutable after ms_space_add */
    CUdeviceptr address;
    size_t bytes; /* as the program asked */
    CUcontext context;
    CUdevice device;
    uint64_t id; /* unique in the process, never reused */

    /* guarded by space.lock */
    bool claimed;
    bool counted_deferred;   /* in ms_hot.deferred */
    size_t counted_unbacked; /* in the device's unbacked bytes */

    /* changed under the claim and space.lock, read under either */
    struct ms_blocks blocks;

    /* guarded by the claim */
    struct ms_lineage lineage;
    struct ms_backing backing;
    struct ms_published published;
    uint64_t reads;        /* how often it was materialised for reading */
    uint64_t changes;      /* how often a block was taken or returned */
    size_t leftover_bytes; /* of returned blocks, in memory and in no block */
    bool
        uncarvable; /* something was written before the first block was taken: it stays one block */
    bool keeps_dead; /* a captured graph or an exported handle may use what lies in no block */

    struct ms_allocation *next_delayed; /* delayed_free.h */
};

/*
 * Makes [begin, end) of a claimed allocation a block, or the block that begins there none. False when memory
 * is out, or there is no such block.
 */
bool ms_space_add_block(struct ms_allocation *allocation, size_t begin, size_t end);
bool ms_space_remove_block(struct ms_allocation *allocation, size_t begin, size_t *end_out);

/* The program uses [begin, end) of a claimed allocation by a call of its own. */
void ms_space_add_use(struct ms_allocation *allocation, size_t begin, size_t end);

/* The index of the first block of the allocation that ends behind offset. */
size_t ms_space_block_behind(const struct ms_allocation *allocation, size_t offset);

/* Files the allocation, unclaimed. False when memory is out; then the allocation is still the caller's. */
bool ms_space_add(struct ms_allocation *allocation);

/* Takes a claimed allocation out of the index; it is the caller's then. */
void ms_space_remove(struct ms_allocation *allocation);

/* Claims the allocation that holds address, after waiting for others; NULL when there is none. */
struct ms_allocation *ms_space_claim(CUdeviceptr address);

/* The same without waiting: NULL also when another thread has it. */
struct ms_allocation *ms_space_try_claim(CUdeviceptr address);

/* Claims the allocations that hold two addresses (one may be the other, both may be NULL). */
void ms_space_claim_two(CUdeviceptr a, CUdeviceptr b, struct ms_allocation **a_out,
                        struct ms_allocation **b_out);

/* Claims the allocation with the lowest address >= address; NULL after the last. For walks. */
struct ms_allocation *ms_space_claim_next(CUdeviceptr address);

/* For walks over all: the lowest one above `before`, whose claim it ends. From NULL on, to NULL. */
struct ms_allocation *ms_space_claim_after(struct ms_allocation *before);

/* Ends a claim: tells the state page what has changed (claim.c). allocation may be NULL. */
void ms_space_release(struct ms_allocation *allocation);

/* The same without telling: counts the allocation as deferred or not, and others may claim it. */
void ms_space_unclaim(struct ms_allocation *allocation);

/* The immutable part of the allocation that holds address, copied. False when there is none. */
struct ms_allocation_facts {
    CUdeviceptr address;
    size_t bytes;
    CUcontext context;
    CUdevice device;
    uint64_t id;
};
bool ms_space_look_up(CUdeviceptr address, struct ms_allocation_facts *facts_out);

/* The same for the first allocation that ends behind address. */
bool ms_space_first_behind(CUdeviceptr address, struct ms_allocation_facts *facts_out);

/*
 * The ranges of addresses outside of which no pointer means an allocation, of near ones and of far ones (addresses.h);
 * empty where there is none. The guards of allocations are inside. May be out of date when another thread adds or
 * removes an allocation, which then orders itself with whoever uses its address.
 */
enum { MS_NEAR, MS_FAR, MS_BOUNDS };
void ms_space_bounds(struct ms_range bounds_out[MS_BOUNDS]);

/* Whether the address lies within these bounds. Takes no lock. */
bool ms_space_may_hold(CUdeviceptr address);

/* [address, address + bytes) begins within the reservation of an allocation and is not all in the allocation. */
bool ms_space_strays(CUdeviceptr address, size_t bytes);

/*
 * The block that a pointer means. It may lie a little before a block, and in the guards of an allocation
 * that is one block. A pointer into what is dead means nothing: parameters have stale addresses in their
 * padding; unless the program was seen to use that, then it means the whole allocation. False when there is
 * none, or nothing of the allocation is deferred.
 */
bool ms_space_reach(CUdeviceptr pointer, struct ms_allocation_facts *facts_out);

/* Changes a claimed allocation's leftover_bytes; and the sum over all of them. */
void ms_space_set_leftover(struct ms_allocation *allocation, size_t bytes);
uint64_t ms_space_leftover_bytes(void);

/* Bytes of the device's allocations, as the program asked. */
uint64_t ms_space_live_bytes(CUdevice device);

/* The same in whole granules: what they would take if all of them had memory. */
uint64_t ms_space_reserved_bytes(CUdevice device);

/* Bytes of the device's allocations that have no memory behind them. */
uint64_t ms_space_unbacked_bytes(CUdevice device);

#endif
