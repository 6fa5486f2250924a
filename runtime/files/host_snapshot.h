/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: host copies of bytes that the program may change.
 *
 * The program may copy such bytes on, on the device. Then the snapshot is *shared*: the bytes stay
 * recognisable in the first place that gets them, and the others get them from there. The host
 * memory goes as soon as no place wants the bytes any more, although extents may still refer to the
 * snapshot.
 */
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

/* False for snapshots of less than 256 KiB, and for other sources: they are not shared. */
static inline bool ms_host_snapshot_may_be_shared(const struct ms_source *source)
{
    return source->may_be_shared;
}

/* The program has copied bytes of the source on. Leaves files, which last, and stores. */
static inline void ms_host_snapshot_share(struct ms_source *source)
{
    if (source->kind == MS_SOURCE_SNAPSHOT)
        atomic_store(&source->is_shared, true);
}

static inline bool ms_host_snapshot_is_shared(const struct ms_source *source)
{
    return atomic_load_explicit(&source->is_shared, memory_order_relaxed);
}

/* True if more than `count` extents want bytes of the shared snapshot. */
static inline bool ms_host_snapshot_is_wanted(const struct ms_source *source, uint32_t count)
{
    return ms_host_snapshot_is_shared(source) && atomic_load(&source->wants) > count;
}

/* Gives the host memory back; the snapshot itself stays until the last reference goes. */
void ms_host_snapshot_forget(struct ms_source *source);

/* An extent wants bytes of the source, or no longer; the caller has a reference. */
static inline void ms_host_snapshot_want(struct ms_source *source)
{
    if (source->kind == MS_SOURCE_SNAPSHOT)
        atomic_fetch_add(&source->wants, 1);
}

static inline void ms_host_snapshot_want_no_more(struct ms_source *source)
{
    if (source->kind == MS_SOURCE_SNAPSHOT && atomic_fetch_sub(&source->wants, 1) == 1 &&
        ms_host_snapshot_is_shared(source))
        ms_host_snapshot_forget(source);
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
void *ms_host_snapshot_data(const struct ms_host_snapshot *snapshot); /* NULL: was forgotten */

/*
 * Returns a snapshot whose bytes lie in a store (loading/store.h). It takes a reference to the
 * store, and with the snapshot it frees the pages that lie wholly in the snapshot, also those of a
 * file, if the file system can do that; the others go with the store. NULL if out of memory.
 */
struct ms_stored {
    unsigned char *memory;
    size_t bytes;
    struct ms_counted *store;
    bool is_file; /* the pages are of a file */
};
struct ms_host_snapshot *ms_host_snapshot_create_stored(const struct ms_stored *stored);

extern _Atomic uint64_t ms_host_snapshot_limit;
static inline void ms_host_snapshot_set_limit(uint64_t bytes)
{
    atomic_store(&ms_host_snapshot_limit, bytes);
}

/* Adds `change` to the bytes that snapshots have. False, without adding, if those are too many. */
bool ms_host_snapshot_count(int64_t change, enum ms_snapshot_limit limit);
