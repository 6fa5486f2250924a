/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The active sharding plan: which bytes of the program's memory this rank keeps. Tensors are known
 * by the files that they were copied from (checkpoint_files.h), by names from the program
 * (metashard.h), or, in programs without files, by the size and order of their blocks.
 *
 * The plan is advice: it decides which bytes get memory early (prefetch.h), and which only when
 * needed. Lineage makes reads of remote bytes right; they are counted, and fail in enforce mode.
 *
 * shard.lock guards all of this. A thread that holds it takes no claim and calls no driver
 * function. Functions that take an allocation require its claim.
 */
#pragma once

#include "runtime/config/config.h"
#include "runtime/memory/space.h"
#include "runtime/plan/plan.h"
#include "runtime/state/state.h"

/* True if a plan is active. One relaxed load. */
bool ms_shard_is_active(void);

/* True if reads of remote bytes must fail (METASHARD_PLAN_MODE). */
static inline bool ms_shard_enforces(void)
{
    return ms_config.plan_mode == MS_ENFORCE && ms_shard_is_active();
}

/*
 * True if this rank drops the remote bytes of a broadcast to `ranks` ranks
 * (METASHARD_RECEIVE_PARTS). Only if the broadcast goes to all ranks of the plan: bytes that fewer
 * ranks receive, this rank may have to pass on.
 */
bool ms_shard_receives_parts(int ranks);

/*
 * Activates a plan, for the rank that the plan or the environment names, and takes ownership of it.
 * `name` is for messages. Forgets an earlier plan with its decisions. On failure returns false with
 * the reason in the fault, and changes nothing. If the rank is not known, the plan waits for a
 * communicator of as many ranks as its world has.
 */
bool ms_shard_set(struct ms_plan *plan, const char *name, struct ms_fault *fault);

/* Called at the end of a process that deferred something. */
void ms_shard_warn_if_waiting(void);

/*
 * The program has made a communicator of `ranks` ranks. A communicator that was split off another
 * is taken to have all ranks of the plan, or the ranks along the one mesh dimension of that size.
 * Activates a waiting plan, and returns true, once its rank, or its coordinates in all dimensions,
 * are known. Logs a rank that contradicts the active plan, and a group along none of its
 * dimensions.
 */
bool ms_shard_add_communicator(uint32_t ranks, uint32_t rank, bool is_split_off);

/* The program has copied this range of a file: marks the range's tensors as found in memory. The
 * first copy from a checkpoint reads the headers. */
void ms_shard_add_copy(const struct ms_source *source, uint64_t offset, uint64_t bytes);

/* Marks the tensors of all copies made before there was a plan. Takes claims itself. */
void ms_shard_catch_up(void);

/* Names the tensor at [address, address + bytes). Returns false with the reason in the fault. The
 * name is forgotten when the memory is freed. */
bool ms_shard_name(CUdeviceptr address, size_t bytes, const char *name,
                   const struct ms_tensor *like, struct ms_fault *fault);

/* Forgets the names in [begin, end), whose blocks are gone. Cheap if there are no names. */
void ms_shard_forget(const struct ms_allocation *allocation, size_t begin, size_t end);

/* Finds blocks, by size and order, for tensors not found otherwise. Takes claims itself. */
void ms_shard_match_unnamed(void);

/* Describes the active plan and its tensors found in the program's memory. Without a plan, only the
 * mode is set. */
void ms_shard_describe(struct ms_state_plan *facts_out);

/* Publishes the description on the state page. `what` is the text of an event, or NULL for none. */
void ms_shard_publish(const char *what, uint64_t began);

/* Visits the entries that decide nothing: those that match no tensor of a known file and no named
 * tensor, or more than one block (is_ambiguous). `name` may be NULL; `index` is in the plan. */
typedef void ms_shard_visitor(void *context, size_t index, const char *name, bool is_ambiguous);
void ms_shard_visit_idle(ms_shard_visitor *visit, void *context);
