/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: what NCCL reads is materialised, and what it writes is backed, before NCCL is
 * called. NCCL works later, in the order of a stream.
 *
 *     ms_collective_prepare(&operation)   before the call; NCCL is called only if that succeeds
 *     ms_collective_called(stream)        after it, whatever it answered
 *     ms_collective_group(begins)         after the start, or the end, of a group
 *
 * all on the thread that calls NCCL. From the first to the second, or to the end of the outermost
 * group, what the thread's operations read cannot be evicted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"

/* What one call reads, and overwrites whole. Either may be empty, and both may be the same. */
struct ms_operation {
    const void *read;
    size_t read_bytes;
    void *written;
    size_t written_bytes;
    bool sends;    /* the bytes that are read go to other ranks unchanged */
    bool receives; /* the written bytes come from a root, and all ranks get the same */
    bool gathers;  /* they are what all ranks send, one behind the other */
    int ranks;     /* of the communicator */
    int rank;      /* in it */
    bool is_late;  /* NCCL may queue it after the call or the group has returned */
};
CUresult ms_collective_prepare(const struct ms_operation *operation);

/* False if there is nothing to prepare. Relaxed loads. */
static inline bool ms_collective_matters(void)
{
    return ms_defers_any() || (ms_owns_any() && ms_is_capturing());
}

void ms_collective_called(CUstream stream);

void ms_collective_group(bool begins);

/* True if a thread has a group open. */
bool ms_collective_is_in_group(void);
