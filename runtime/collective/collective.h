/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: before NCCL is called, the shim materialises the bytes that NCCL reads, and backs
 * those that it writes. NCCL works later, in the order of a stream.
 *
 *     ms_collective_prepare(&operation)   before the call; NCCL is called only if that succeeds
 *     ms_collective_called(stream)        after the call, whatever NCCL answered
 *     ms_collective_group(begins)         after the start, or the end, of a group
 *
 * All run on the thread that calls NCCL. From ms_collective_prepare to ms_collective_called, or to
 * the end of the outermost group, the bytes that the thread's operations read cannot be evicted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"

/* The bytes that one call reads, and those that it overwrites whole. Either may be empty, and both
 * may be the same. */
struct ms_operation {
    const void *read;
    size_t read_bytes;
    void *written;
    size_t written_bytes;
    bool sends;    /* the bytes that are read go to other ranks unchanged */
    bool receives; /* the written bytes come from a root, and all ranks get the same */
    bool gathers;  /* the written bytes are what all ranks send, one behind the other */
    int ranks;     /* of the communicator */
    int rank;      /* of this process in the communicator */
    bool is_late;  /* NCCL may queue the operation after the call or the group has returned */
};
CUresult ms_collective_prepare(const struct ms_operation *operation);

/* False if there is nothing to prepare. Relaxed loads. */
static inline bool ms_collective_matters(void)
{
    return ms_defers_any() || (ms_owns_any() && ms_is_capturing());
}

void ms_collective_called(CUstream stream);

void ms_collective_group(bool begins);

/* True if any thread has a group open. */
bool ms_collective_is_in_group(void);
