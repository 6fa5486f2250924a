/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives resident bytes their lineage back: bytes that are still equal to the file, or the result of
 * the recorded launch, from which they came (origins.h) become cached, with that origin as their
 * lineage. Their allocation is marked (notes.was_resident): it must become resident again, because
 * kernels may know it by an address that nobody has seen.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/fill/origins.h"
#include "runtime/memory/space.h"

/* A file of origins, as it is now. */
struct ms_reopened {
    struct ms_file_name *name;
    struct ms_file *file; /* NULL: the file is gone */
};

struct ms_restoring {
    struct ms_origins origins; /* with files in place of names; of 0 bytes: left out */
    struct ms_reopened *files;
    size_t file_count, file_capacity;
    bool with_launches;
    size_t bytes; /* that got their lineage back */
};

/* False: there are no origins, and nothing to end. With launches: also compares the results of
 * recorded launches, which run again for that. */
bool ms_restore_begin(struct ms_restoring *restoring, bool with_launches);
void ms_restore_end(struct ms_restoring *restoring);

/* Restores the lineage of one claimed allocation, which neither the device nor another thread
 * uses. */
void ms_restore(struct ms_allocation *allocation, struct ms_restoring *restoring);

/*
 * Restores the lineage of all allocations, after waiting for the device. The caller holds no claim,
 * and no thread of the program may write to such memory meanwhile. Returns how many bytes got their
 * lineage back.
 */
size_t ms_restore_all(void);

/* Makes the written bytes of all marked allocations resident again. An allocation for which
 * that fails stays marked. Returns the first failure. The caller holds no claim. */
CUresult ms_restore_keep(void);
