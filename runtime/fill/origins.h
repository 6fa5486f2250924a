/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Origins: what was brought to which device memory: bytes of a file, or what a recorded launch
 * makes. Once memory is resident its lineage is gone, and its files are let go. When the process is
 * suspended, or a plan comes then, what is still equal to its origin can get its lineage back
 * (restore.h), and its memory can go.
 *
 * Origins are hints: whoever uses one compares, byte by byte, with what it gives now. They hold no
 * file, only its name.
 */
#pragma once

#include "runtime/base/array.h"
#include "runtime/memory/space.h"

/*
 * An extent of a claimed allocation was brought into memory. Left out are copies of a file of less
 * than 64 KiB, results of launches of less than 1 MiB or with more behind them than files, fills
 * and other launches, and the oldest of more than 16384.
 */
void ms_origins_note(const struct ms_allocation *allocation, const struct ms_extent *extent);

struct ms_origin {
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t time;             /* the newest is right, if any is */
    struct ms_content content; /* MS_SOURCE or MS_LAUNCHED; in place of each file its name */
};

struct ms_origins {
    struct ms_origin *list; /* by address, and of one address the newest first */
    size_t count;
};

/* Copies what is known now, with references. False if that is nothing, or out of memory: then there
 * is nothing to clean up. ms_origins_find: the index of the first at the address or above. */
bool ms_origins_copy(struct ms_origins *copy_out);
void ms_origins_cleanup(struct ms_origins *copy);

static inline size_t ms_origins_find(const struct ms_origins *copy, CUdeviceptr address)
{
    return MS_ARRAY_FIND(at, copy->count, copy->list[at].address < address);
}

/* It gives other bytes than there are now: it is not looked at again. */
void ms_origins_forget(const struct ms_origin *origin);
