/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The active sharding plan: which bytes of the program's memory this rank keeps. Tensors are found
 * by the files that they were copied from (checkpoint_files.h), by the names that the program gave
 * (metashard.h), and, in programs without files, by the size and order of their blocks.
 *
 * The plan is advice. It decides what gets memory early (prefetch.h), and what the shim gives no
 * memory before it is needed. Reads of other bytes are right by their lineage, and counted; in
 * enforce mode they fail.
 *
 * shard.lock guards all of it. No claim is taken and no driver function called while it is held.
 * Functions that take an allocation require its claim.
 */
#pragma once

#include "runtime/memory/space.h"
#include "runtime/plan/plan.h"

/* True if a plan is active. One relaxed load. */
bool ms_shard_is_active(void);

/* True if reads of remote bytes must fail (METASHARD_PLAN_MODE). */
bool ms_shard_enforces(void);

/*
 * True if remote bytes that a broadcast to so many ranks brings are not kept
 * (METASHARD_RECEIVE_PARTS). Only for a broadcast to all ranks of the plan: this rank may have to
 * pass on what fewer ranks receive.
 */
bool ms_shard_receives_parts(int ranks);

/*
 * Activates a plan and takes ownership of it, for the rank that it or the environment names. `name`
 * is for messages. Replaces an earlier plan: its decisions are forgotten (ms_shard_generation
 * grows). Returns false with the reason in the fault, and nothing has changed. If the rank is not
 * known, the plan waits for a communicator of as many ranks as its world has.
 */
bool ms_shard_set(struct ms_plan *plan, const char *name, struct ms_fault *fault);

/* A communicator of so many ranks was made. Returns true if that activated a waiting plan. Logs a
 * warning if the rank differs from that of the active plan. */
bool ms_shard_set_rank(uint32_t ranks, uint32_t rank);

/*
 * A communicator was split off another: it has all ranks of the plan, or those along the mesh
 * dimension of that size, if only one dimension has it. Returns true if now the coordinates of all
 * dimensions are known, which activates a waiting plan. Logs a group that is along no dimension of
 * the active plan.
 */
bool ms_shard_add_group(uint32_t ranks, uint32_t rank);

/* Grows with each plan; 0 before the first. */
uint64_t ms_shard_generation(void);

/* The least length of a copy that is looked for in files: for shorter ones that costs more than a
 * snapshot. Smaller with a plan. */
size_t ms_shard_least_copy(void);

/* The program has copied this range of a file: its tensors are in the program's memory. The first
 * copy from a checkpoint reads the headers. */
void ms_shard_add_copy(const struct ms_source *source, uint64_t offset, uint64_t bytes);

/* The same for all that was copied before there was a plan. Takes claims itself. */
void ms_shard_catch_up(void);

/* Names the tensor at [address, address + bytes). Returns false with the reason in the fault. The
 * name is forgotten when the memory is freed. */
bool ms_shard_name(CUdeviceptr address, size_t bytes, const char *name,
                   const struct ms_tensor *like, struct ms_fault *fault);

/* Forgets the names of blocks in [begin, end), which are gone. Cheap if there are none. */
void ms_shard_forget(const struct ms_allocation *allocation, size_t begin, size_t end);

/* Finds blocks, by size and order, for tensors that have no other place. Takes claims itself. */
void ms_shard_match_unnamed(void);

/* The active plan at one moment, with its tensors that were found in the program's memory; in a
 * process without a plan all zero but for its mode. */
void ms_shard_describe(struct ms_state_plan *facts_out);

/* Publishes that to the state page. `what` says what happened to the plan, for an event. */
void ms_shard_publish_facts(const struct ms_state_plan *facts);
void ms_shard_publish(const char *what, uint64_t began);

/* Visits the entries that match no tensor of a known file and no named tensor, and the entries that
 * match more than one block. `name` may be NULL; `index` is that in the plan. */
typedef void ms_shard_visitor(void *context, size_t index, const char *name);
void ms_shard_visit_unmatched(ms_shard_visitor *visit, void *context);
void ms_shard_visit_ambiguous(ms_shard_visitor *visit, void *context);
