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
    /* The ranks made it, each for itself, or split it off from another: a plan may wait for that.
     * Or a call was the first to name it. */
    enum { MS_MADE, MS_SPLIT_OFF, MS_MET } origin;
};

/* Handles are addresses, reused after one was forgotten (NULL). Usable from any thread. */
void ms_communicator_set(const void *handle, const struct ms_communicator *communicator);
bool ms_communicator_find(const void *handle, struct ms_communicator *communicator_out);
