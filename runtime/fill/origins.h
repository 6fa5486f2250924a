/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Origins: which bytes of which files were brought to which device memory. Once memory is resident
 * its lineage is gone, and its file is let go. When a plan comes then, what is still equal to its
 * file can get its lineage back (prefetch.c), and its memory can go.
 *
 * Origins are hints: they are never removed, and whoever uses one compares, byte by byte, with the
 * file as it is now.
 */
#pragma once

#include "runtime/memory/space.h"

/* A file extent of a claimed allocation was brought into memory. Copies of less than 64 KiB, and
 * the oldest of more than 16384, are left out; all are forgotten when the 1025th file comes. */
void ms_origins_note(const struct ms_allocation *allocation, const struct ms_extent *extent);

struct ms_origin {
    CUdeviceptr address;
    uint64_t bytes, offset;
    size_t file;
    uint64_t time; /* the newest is right, if any is */
};

struct ms_origins {
    struct ms_origin *list; /* by address, and of one address the newest first */
    size_t count;
    struct ms_source_name *files; /* copies; one without a path: out of memory */
    size_t file_count;
};

/* Copies what is known now. False if that is nothing, or out of memory: then there is nothing to
 * clean up. ms_origins_find: the index of the first at the address or above. */
bool ms_origins_copy(struct ms_origins *copy_out);
void ms_origins_cleanup(struct ms_origins *copy);
size_t ms_origins_find(const struct ms_origins *copy, CUdeviceptr address);
