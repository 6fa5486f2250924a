/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharding plan in force: which bytes of the program's memory this rank keeps. Tensors are found by
 * the files they were copied from (checkpoint_files.h), by the names that the program gave (metashard.h), and, in
 * programs without files, by the size and order of their blocks.
 *
 * The plan is advice: it decides what gets memory early (prefetch.h) and what gets none of the shim's own
 * accord. What is read all the same is right by its lineage, and counted; or refused, in enforce mode.
 *
 * shard.lock guards all of it; no claim is taken and no driver function called under it. Functions that are
 * given an allocation want it claimed.
 */
#ifndef METASHARD_RUNTIME_SHARD_ACTIVE_PLAN_H
#define METASHARD_RUNTIME_SHARD_ACTIVE_PLAN_H

#include "runtime/base/range_list.h"
#include "runtime/memory/allocations.h"
#include "runtime/plan/plan.h"

/* A plan is in force. One relaxed load. */
bool ms_shard_is_active(void);

/* What is remote must not be read (METASHARD_PLAN_MODE). */
bool ms_shard_enforces(void);

/*
 * What is received by a broadcast to so many ranks, and remote, is not kept (METASHARD_RECEIVE_PARTS). Only of one to
 * all ranks of the plan: what is broadcast to some is perhaps to be passed on by this one.
 */
bool ms_shard_receives_parts(int ranks);

/*
 * Puts a plan in force, for the rank that it or the environment names; takes it. `name` is for messages. A
 * plan that is there is replaced: what it has said is forgotten (ms_shard_generation grows). False: the
 * fault says why, and nothing has changed. Where neither names a rank, the plan waits for a communicator of
 * as many ranks as its world has.
 */
bool ms_shard_set(struct ms_plan *plan, const char *name, struct ms_fault *fault);

/* A communicator of so many ranks was made. True: a plan that waited for it is in force now. Another rank than
 * that of the plan in force is told. */
bool ms_shard_set_rank(uint32_t ranks, uint32_t rank);

/*
 * A communicator was split off another: all ranks of the plan, or a group along the mesh dimension of that size, if
 * only one has it. True: with this one the coordinates of all dimensions are known, and the plan that waited is in force now.
 * A group that is along no dimension, for the plan in force, is told.
 */
bool ms_shard_add_group(uint32_t ranks, uint32_t rank);

/* Grows with each plan; 0: there was none. */
uint64_t ms_shard_generation(void);

/* Shorter copies are not looked for in files: that costs more than a snapshot, unless a plan wants to know. */
size_t ms_shard_least_copy(void);

/* The program has copied this range of a file. True: all known tensors are there now, which is the time
 * for a pass. */
bool ms_shard_add_copy(const struct ms_source *source, uint64_t offset, uint64_t bytes);

/* The same for all that was copied before there was a plan. Without a claim. */
void ms_shard_catch_up(void);

/*
 * Asks the plan about what is open in [begin, end) of the allocation: it becomes ours or remote, or stays
 * open. Extents are asked about whole. What could not be asked stays open.
 */
void ms_shard_query_placement(struct ms_allocation *allocation, size_t begin, size_t end);

/* The program reads what is remote in [begin, end): counted, or the error that the call fails with. */
CUresult ms_shard_read_remote(const struct ms_allocation *allocation, size_t begin, size_t end);

/*
 * [address, address + bytes) is the tensor of that name. False: the fault says why. Forgotten when the
 * memory is freed.
 */
bool ms_shard_name(CUdeviceptr address, size_t bytes, const char *name,
                   const struct ms_tensor *like, struct ms_fault *fault);

/* The name of the tensor that [begin, end) of the allocation begins with, as far as plans have made it known;
 * cut to `bytes`. False: there is none. */
bool ms_shard_name_of(const struct ms_allocation *allocation, size_t begin, size_t end,
                      char *name_out, size_t bytes);

/* True when [begin, end) of the allocation is a tensor that has a name, from its first byte to its last; adds what the plan gives
 * to others, all or, when memory is out, less of it. */
bool ms_shard_named_remote_parts(const struct ms_allocation *allocation, size_t begin, size_t end,
                                 struct ms_ranges *remote);

/* No byte of it is a tensor's by name any more, and what names said of it is forgotten. */
bool ms_shard_unname(CUdeviceptr address, size_t bytes, struct ms_fault *fault);

/* Blocks of [begin, end) of the allocation are gone, and their names. Cheap when there are none. */
void ms_shard_forget(const struct ms_allocation *allocation, size_t begin, size_t end);

/* Finds blocks for tensors of the plan that have no other place: by size and order. Without a claim. */
void ms_shard_match_blocks(void);

/* What is told of a plan, at one moment. */
struct ms_shard_facts {
    char name[512];
    uint32_t rank, world;
    uint64_t generation;
    uint64_t tensors;                    /* of the plan, that were found in the program's memory */
    uint64_t planned_bytes, owned_bytes; /* of these; of this rank */
};
void ms_shard_describe(struct ms_shard_facts *facts_out);
void ms_shard_publish(const struct ms_shard_facts *facts); /* to the state page */

/* The state page is told: the plan in force has changed, or was carried out, in `what` words. */
void ms_shard_publish(const char *what, uint64_t began);

/* Entries that no tensor of a known file meets, nor a named one; and entries for which there is more than
 * one block. `name` may be NULL; `index` is that in the plan. */
typedef void ms_shard_visitor(void *context, size_t index, const char *name);
void ms_shard_visit_unmatched(ms_shard_visitor *visit, void *context);
void ms_shard_visit_ambiguous(ms_shard_visitor *visit, void *context);

#endif
