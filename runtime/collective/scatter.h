/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scatter (METASHARD_SCATTER): where all ranks of a communicator follow one plan, a broadcast of one of its tensors
 * is done as sends of what each rank keeps. Which tensor it is, the root knows by what it has there, or the number of bytes
 * tells, of the plan as it was when the communicator was made; that all can is settled for every broadcast
 * (agreement.h).
 *
 *     rows        one range    sent from its place, received in its place
 *     columns     many         laid side by side in the root's window (window.h), piece by piece; received in a store
 *                              (store.h)
 */
#ifndef METASHARD_RUNTIME_COLLECTIVE_SCATTER_H
#define METASHARD_RUNTIME_COLLECTIVE_SCATTER_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/collective/communicator.h"
#include "runtime/collective/window.h"
#include "runtime/driver.h"
#include "runtime/machine/ranges.h"

/* The process has made an id, or has joined, or has left, a communicator. Nothing when METASHARD_SCATTER is off. */
void ms_scatter_offer(unsigned char id[128]);
void ms_scatter_join(const void *handle, const unsigned char id[128],
                     const struct ms_communicator *self);
void ms_scatter_forget(const void *handle);

/* Some communicator's ranks have agreed. One relaxed load. */
bool ms_scatter_is_used(void);

struct ms_broadcast {
    const void *handle;
    struct ms_communicator self;
    int root;
    CUdeviceptr address; /* where this rank receives, or, the root, where it has the bytes */
    uint64_t bytes;
    CUstream stream;
    bool is_in_group;
    bool can; /* as far as the caller knows */
};

/* By rank: what it gets, ranges of the tensor. Of a rank that is not the root, only its own. */
struct ms_parts {
    uint32_t count; /* 0: memory is out */
    struct ms_ranges *ranges;
    size_t piece; /* a packed part is sent in pieces of so many bytes, and the rest */
    struct ms_window
        *window; /* the communicator's, a piece for each rank; NULL: nothing is packed */
};

static inline bool ms_part_is_packed(const struct ms_ranges *ranges)
{
    return ranges->count > 1;
}

/* True: all ranks scatter it; the parts are the caller's. May wait for the other ranks. */
bool ms_scatter_decide(const struct ms_broadcast *broadcast, struct ms_parts *parts_out);
void ms_parts_cleanup(struct ms_parts *parts);

#endif
