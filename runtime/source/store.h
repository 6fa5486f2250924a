/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store: where bytes of the device wait while they have no device memory. It is host memory, or a
 * file without a name in a folder, which is gone when the last of its bytes is, or the process. Its
 * bytes are sources, as snapshots are (source.h), and do not count as these.
 *
 * One thread fills it, and all may read. The store goes with its last source.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/document/fault.h"
#include "runtime/source/source.h"

struct ms_store;

/*
 * A store with room for `capacity` bytes, of which it takes at most `limit` (0: what fits). Host
 * memory, also of a folder that lies in memory, is taken as far as this process may have it
 * (headroom.h), but for an eighth. folder: NULL for host memory.
 */
struct ms_store *ms_store_create(const char *folder, size_t capacity, uint64_t limit,
                                 struct ms_fault *fault);

/* A source with a copy of these bytes. NULL: the fault says why there is no room. */
struct ms_source *ms_store_add(struct ms_store *store, const void *bytes, size_t count,
                               struct ms_fault *fault);

/* All is in: nothing of it can get lost any more. False: some of it may be, and the fault says
 * why. */
bool ms_store_finish(struct ms_store *store, struct ms_fault *fault);

/* Drops the reference of the creator. */
static inline void ms_store_drop(struct ms_store *store)
{
    ms_counted_drop((struct ms_counted *)store);
}
