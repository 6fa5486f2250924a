/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One kernel launch with a copy of its arguments: what launch.c queues on a stream and what a graph
 * keeps in a kernel node. Runs any number of times.
 */
#pragma once

#include "tools/simcuda/driver/module.h"

/* As a program describes a launch, in whichever of the many structs. */
struct sim_launch_call {
    const void *function; /* CUfunction or CUkernel */
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void **params;
    void **extra;
};

struct sim_launch; /* immutable, counted references */

/* Checks the call as the driver does and copies the arguments. */
CUresult sim_launch_make(const struct sim_launch_call *call, struct sim_launch **launch_out);
struct sim_launch *sim_launch_keep(struct sim_launch *launch);
void sim_launch_drop(struct sim_launch *launch);
void sim_launch_run(const struct sim_launch *launch);

/* The call again, for the GetParams functions; what it points to lives as long as the launch. */
void sim_launch_describe(const struct sim_launch *launch, struct sim_launch_call *call_out);

/* Queues the launch on a stream of the current context. */
CUresult sim_launch_submit(const struct sim_launch_call *call, CUstream stream, bool per_thread);

/* The launch inside a work item, or NULL when the item is something else. */
struct sim_launch *sim_launch_of_work(const struct sim_work *work);
