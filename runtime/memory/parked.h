/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parked bytes: device memory that holds some granules of a block until they are needed at their
 * own addresses. Bytes are parked when a program receives or sends them only to copy them on
 * (receive.h). Each block has many pieces, so that memory goes back piece by piece.
 *
 *     block     |   | A |   |   | B | C |   |      A, B, C: content of kind MS_PARKED, each of a
 *     parked      | A |   | C |   | B |            piece of its own
 *
 * By reference count; usable from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/counted.h"
#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

struct ms_parked {
    struct ms_counted counted; /* must be first: lineage.h */
    CUcontext context;         /* immutable */
    CUdevice device;           /* immutable */
    bool is_filled;            /* immutable: the work only reads */
    size_t bytes;              /* immutable */
    struct ms_pieces pieces;   /* one, or with is_mapped none */
    struct ms_backing backing; /* the memory at its own address; immutable after is_mapped */
    _Atomic bool is_mapped;    /* set once, by the first reader */
    _Atomic(CUevent) event;    /* set once; NULL: nothing is queued yet */
};

/* Device memory for whole granules, with one reference, that is mapped nowhere yet. Work of
 * `context` will write the memory where it is lent (backing.h), or with is_filled only read it
 * (ms_parked_attach_event). */
CUresult ms_parked_create(CUcontext context, CUdevice device, size_t bytes, bool is_filled,
                          struct ms_parked **parked_out);

/* Drops a reference. The last one waits for the work, then frees the memory. May be NULL. */
static inline void ms_parked_drop(struct ms_parked *parked)
{
    if (parked != NULL)
        ms_counted_drop(&parked->counted);
}

/* The work is queued, and `event` follows it. The parked bytes own the event from now on. */
static inline void ms_parked_attach_event(struct ms_parked *parked, CUevent event)
{
    atomic_store(&parked->event, event);
}

/* Waits until the bytes are written, and gives the address where they can be read. Fails if the
 * work is not queued yet. The first reader maps the memory: many pieces go unread. */
CUresult ms_parked_read(struct ms_parked *parked, CUdeviceptr *address_out);
