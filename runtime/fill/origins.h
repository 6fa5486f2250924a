/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Origins record which bytes of a file, or of a recorded launch, were brought to which device
 * memory. Resident memory has no lineage, and the shim has let go of its files. When the process is
 * suspended later, or a plan comes, bytes that are still equal to their origin can get their
 * lineage back (restore.h), and their memory can go.
 *
 * Origins are hints: the user of an origin compares the bytes in memory with those that the origin
 * gives now. An origin holds only the name of a file.
 */
#pragma once

#include "runtime/base/array.h"
#include "runtime/memory/space.h"

/*
 * An extent of a claimed allocation was brought into memory. Leaves out copies of less than 64 KiB
 * of a file, and results of launches of less than 1 MiB, or that depend on more than files, fills
 * and other launches. Keeps the newest 16384.
 */
void ms_origins_note(const struct ms_allocation *allocation, const struct ms_extent *extent);

struct ms_origin {
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t time;             /* the newest is right, if any is */
    struct ms_content content; /* MS_SOURCE or MS_LAUNCHED, with names in place of files */
};

struct ms_origins {
    struct ms_origin *list; /* sorted by address; the newest first at the same address */
    size_t count;
};

/* Copies all origins, with references. False if there are none, or out of memory: then there is
 * nothing to clean up. */
bool ms_origins_copy(struct ms_origins *copy_out);
void ms_origins_cleanup(struct ms_origins *copy);

/* The index of the first origin at the address or above. */
static inline size_t ms_origins_find(const struct ms_origins *copy, CUdeviceptr address)
{
    return MS_ARRAY_FIND(at, copy->count, copy->list[at].address < address);
}

/* Drops an origin that gives other bytes than memory holds now. */
void ms_origins_forget(const struct ms_origin *origin);
