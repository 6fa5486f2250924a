/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lineage for what is resident: bytes that are still those of the file, or of the recorded launch,
 * from which they came (origins.h) become cached, with that as their lineage. Their allocation gets
 * was_resident, since the program's kernels may know it by an address that nobody has seen.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/fill/origins.h"
#include "runtime/memory/space.h"

/* A file of origins, as it is now. */
struct ms_reopened {
    struct ms_source *name;
    struct ms_source *file; /* NULL: it is not there */
};

struct ms_restoring {
    struct ms_origins origins; /* with files in place of names; no bytes: it has none */
    struct ms_reopened *files;
    size_t file_count, file_capacity;
    bool with_launches;
    size_t bytes; /* that were found */
};

/* False: nothing is known, and there is nothing to end. With launches: what those make is compared
 * too, for which they run again. */
bool ms_restore_begin(struct ms_restoring *restoring, bool with_launches);
void ms_restore_end(struct ms_restoring *restoring);

/* Of one claimed allocation, with which neither the device nor another thread works. */
void ms_restore(struct ms_allocation *allocation, struct ms_restoring *restoring);

/*
 * Of all allocations. Waits for the device. The caller holds no claim, and no other thread of the
 * program may write to such memory. Returns the bytes.
 */
size_t ms_restore_all(void);

/* The allocation was resident: kernels may know it by an address that nobody has seen, so it has to
 * be so again. Its caller has the claim. */
static inline void ms_restore_mark(struct ms_allocation *allocation)
{
    allocation->was_resident = true;
}

static inline bool ms_restore_is_due(const struct ms_allocation *allocation)
{
    return allocation->was_resident;
}

/* What was written of all allocations with was_resident becomes resident again; one that cannot
 * stays as it is, and the first failure is returned. The caller holds no claim. */
CUresult ms_restore_keep(void);
