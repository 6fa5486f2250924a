/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address space: every block the shim owns, by address, and who may work on which.
 *
 * space.lock guards the index and the claim flags; it is never held across a driver call. A *claim*
 * gives one thread a block: lineage and backing are guarded by it. A claim may be held across our
 * own driver calls, none of which runs the program's code; a thread takes two claims only in the
 * order of addresses (ms_space_claim_two). Waiting for a claim holds no lock.
 */
#ifndef METASHARD_RUNTIME_MACHINE_SPACE_H
#define METASHARD_RUNTIME_MACHINE_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver.h"
#include "runtime/machine/backing.h"
#include "runtime/machine/lineage.h"

struct ms_block {
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

    /* guarded by the claim */
    struct ms_lineage lineage;
    struct ms_backing backing;
    uint64_t reads; /* how often it was materialised for reading */
};

/* Files the block, unclaimed. False when memory is out; then the block is still the caller's. */
bool ms_space_add(struct ms_block *block);

/* Takes a claimed block out of the index; it is the caller's then. */
void ms_space_remove(struct ms_block *block);

/* Claims the block that holds address, after waiting for others; NULL when there is none. */
struct ms_block *ms_space_claim(CUdeviceptr address);

/* The same without waiting: NULL also when another thread has it. */
struct ms_block *ms_space_try_claim(CUdeviceptr address);

/* Claims the blocks that hold two addresses (one may be the other, both may be NULL). */
void ms_space_claim_two(CUdeviceptr a, CUdeviceptr b, struct ms_block **block_a_out,
                        struct ms_block **block_b_out);

/* Claims the block with the lowest address >= address; NULL after the last. For walks. */
struct ms_block *ms_space_claim_next(CUdeviceptr address);

/* Ends a claim, and counts the block as deferred or not. block may be NULL. */
void ms_space_release(struct ms_block *block);

/* The immutable part of the block that holds address, copied. False when there is none. */
struct ms_block_facts {
    CUdeviceptr address;
    size_t bytes;
    CUcontext context;
    CUdevice device;
    uint64_t id;
};
bool ms_space_look_up(CUdeviceptr address, struct ms_block_facts *facts_out);

/* The same for the first block that ends behind address. */
bool ms_space_first_behind(CUdeviceptr address, struct ms_block_facts *facts_out);

/*
 * The range of addresses outside of which no pointer means a block; empty when there is none. The guards
 * of blocks are inside. May be out of date when another thread adds or removes a block, which then
 * orders itself with whoever uses its address.
 */
void ms_space_bounds(CUdeviceptr *begin_out, CUdeviceptr *end_out);

/*
 * The block that a pointer means, which may lie a little outside of it (in the guards). False when there
 * is none, or all of it is resident.
 */
bool ms_space_reach(CUdeviceptr pointer, struct ms_block_facts *facts_out);

/* Bytes of the device's blocks, as the program asked. */
uint64_t ms_space_live_bytes(CUdevice device);

/* Bytes of the device's blocks that have no memory behind them. */
uint64_t ms_space_unbacked_bytes(CUdevice device);

#endif
