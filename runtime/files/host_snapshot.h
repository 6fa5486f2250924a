/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: host copies of bytes that the program may change. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/files/source.h"

struct ms_host_snapshot;

static inline struct ms_source *ms_host_snapshot_source(struct ms_host_snapshot *snapshot)
{
    return (struct ms_source *)snapshot;
}

static inline void ms_host_snapshot_drop(struct ms_host_snapshot *snapshot)
{
    ms_source_drop(ms_host_snapshot_source(snapshot));
}

/*
 * Returns a snapshot, which the caller fills (ms_host_snapshot_data) before anybody else has it.
 * NULL if out of memory, or beyond METASHARD_SNAPSHOT_BYTES. MS_SNAPSHOT_ANY ignores that limit,
 * for bytes that would be lost.
 */
enum ms_snapshot_limit { MS_SNAPSHOT_LIMITED, MS_SNAPSHOT_ANY };
struct ms_host_snapshot *ms_host_snapshot_create(size_t bytes, enum ms_snapshot_limit limit);
void *ms_host_snapshot_data(const struct ms_host_snapshot *snapshot);

/*
 * Returns a snapshot whose bytes lie in a store (loading/store.h). It takes a reference to the
 * store, and frees the pages with the snapshot, also those of a file, if the file system can do
 * that. NULL if out of memory.
 */
struct ms_stored {
    unsigned char *memory;
    size_t bytes, pages_bytes; /* whole pages from `memory` on are this snapshot's alone */
    struct ms_counted *store;
    bool is_file; /* the pages are of a file */
};
struct ms_host_snapshot *ms_host_snapshot_create_stored(const struct ms_stored *stored);

void ms_host_snapshot_set_limit(uint64_t bytes);

/* Adds `change` to the bytes that snapshots have. False, without adding, if those are too many. */
bool ms_host_snapshot_count(int64_t change, enum ms_snapshot_limit limit);
