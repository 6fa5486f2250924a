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

#include "runtime/config/config.h"
#include "runtime/memory/space.h"
#include "runtime/plan/plan.h"

/* True if a plan is active. One relaxed load. */
bool ms_shard_is_active(void);

/* True if reads of remote bytes must fail (METASHARD_PLAN_MODE). */
static inline bool ms_shard_enforces(void)
{
    return ms_config.plan_mode == MS_ENFORCE && ms_shard_is_active();
}

/*
 * True if remote bytes that a broadcast to so many ranks brings are not kept
 * (METASHARD_RECEIVE_PARTS). Only for a broadcast to all ranks of the plan: this rank may have to
 * pass on what fewer ranks receive.
 */
bool ms_shard_receives_parts(int ranks);

/*
 * Activates a plan and takes ownership of it, for the rank that it or the environment names. `name`
 * is for messages. Replaces an earlier plan: its decisions are forgotten. Returns false
 * with the reason in the fault, and nothing has changed. If the rank is not known, the plan waits
 * for a communicator of as many ranks as its world has.
 */
bool ms_shard_set(struct ms_plan *plan, const char *name, struct ms_fault *fault);

/* At the end of a process that has deferred something. */
void ms_shard_warn_if_waiting(void);

/*
 * A communicator of so many ranks was made. One that was split off another has all ranks of the
 * plan, or those along the mesh dimension of that size, if only one dimension has it. Returns true
 * if now the rank, or the coordinates of all dimensions, are known, which activates a waiting plan.
 * Logs a rank that contradicts the active plan, and a group that is along none of its dimensions.
 */
bool ms_shard_add_communicator(uint32_t ranks, uint32_t rank, bool is_split_off);

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

/* Publishes that to the state page, with an event that says what happened to the plan, or NULL. */
void ms_shard_publish(const char *what, uint64_t began);

/* Visits the entries that decide nothing: those that match no tensor of a known file and no named
 * tensor, and those that match more than one block, which are ambiguous. `name` may be NULL;
 * `index` is that in the plan. */
typedef void ms_shard_visitor(void *context, size_t index, const char *name, bool is_ambiguous);
void ms_shard_visit_idle(ms_shard_visitor *visit, void *context);
