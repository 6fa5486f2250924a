/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of NCCL: their size, and the rank of this process. The rank of a plan is that in
 * the communicator of as many ranks as the plan's world has.
 */
#pragma once

#include <stdbool.h>

struct ms_communicator {
    int ranks, rank;
    bool is_blocking; /* its operations are queued when a call, or the group, returns */
};

/* The ranks made a communicator, each for itself: a plan may wait for that. */
void ms_communicator_made(const void *handle, const struct ms_communicator *communicator);

/* The same for a communicator that was split off from another. */
void ms_communicator_split_off(const void *handle, const struct ms_communicator *communicator);

/* Handles are addresses, reused after ms_communicator_forget. Usable from any thread. */
void ms_communicator_add(const void *handle, const struct ms_communicator *communicator);
bool ms_communicator_find(const void *handle, struct ms_communicator *communicator_out);
void ms_communicator_forget(const void *handle);
