/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store: bytes of the device wait in it while they have no device memory. It is host memory, or a
 * file without a name in a folder; the file goes with the last of its bytes, or with the process.
 * The bytes are snapshots (files/host_snapshot.h), but do not count for METASHARD_SNAPSHOT_BYTES.
 *
 * One thread fills a store, and all may read. The store goes with its last source.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/document/fault.h"
#include "runtime/files/source.h"

struct ms_store;

/*
 * Makes a store with room for `capacity` bytes, of which it takes at most `limit` (0: what fits).
 * `folder` NULL: host memory. Takes host memory, also for a folder that lies in memory, as far as
 * this process may have it (base/headroom.h), but for an eighth.
 */
struct ms_store *ms_store_create(const char *folder, size_t capacity, uint64_t limit,
                                 struct ms_fault *fault);

/* Returns a source with a copy of these bytes. NULL: the fault says why. */
struct ms_source *ms_store_add(struct ms_store *store, const void *bytes, size_t count,
                               struct ms_fault *fault);

/* Ends the filling: from then on no byte can get lost. False: some may; the fault says why. */
bool ms_store_finish(struct ms_store *store, struct ms_fault *fault);

/* Drops the reference of the creator. */
static inline void ms_store_drop(struct ms_store *store)
{
    ms_counted_drop((struct ms_counted *)store);
}
