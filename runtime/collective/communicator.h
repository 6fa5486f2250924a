/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's communicators: their size, and the rank of this process. A plan's rank is the rank in a
 * communicator of as many ranks as the plan's world has. */
#pragma once

#include <stdbool.h>

struct ms_communicator {
    int ranks, rank;
    bool is_blocking; /* its operations are queued when a call, or the group, returns */
    /* MS_MADE: each rank has made the communicator. MS_SPLIT_OFF: it comes from another. A plan may
     * wait for either. MS_MET: a call was the first to name it. */
    enum { MS_MADE, MS_SPLIT_OFF, MS_MET } origin;
};

/* Records a communicator; NULL: forgets it, because handles are addresses and are reused. Usable
 * from any thread. */
void ms_communicator_set(const void *handle, const struct ms_communicator *communicator);
bool ms_communicator_find(const void *handle, struct ms_communicator *communicator_out);
