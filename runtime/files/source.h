/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: the bytes behind deferred data that are not a simple pattern. This is the head, the
 * first member, of three types. No other room knows their members:
 *
 *     struct ms_file           a file that the program had mapped (file.h)
 *     struct ms_host_snapshot  a copy on the host, because the program may change its buffer
 *     struct ms_file_name      tells which file it was, without its bytes
 *
 * Reference-counted; immutable after creation, but for the counts; usable from any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"

enum ms_source_kind {
    MS_SOURCE_FILE,
    MS_SOURCE_SNAPSHOT,
    MS_SOURCE_STORED, /* a snapshot, too: its bytes lie in a store (loading/store.h) */
    MS_SOURCE_NAME
};

struct ms_source {
    struct ms_counted counted; /* must be first: lineage.h */
    enum ms_source_kind kind : 8;
    bool may_be_shared;     /* a snapshot that is large enough */
    _Atomic bool is_shared; /* a snapshot: the program has copied the bytes on (host_snapshot.h) */
    _Atomic uint32_t wants; /* of a snapshot: extents that may yet be made from the bytes */
};

static inline void ms_source_take(struct ms_source *source)
{
    ms_counted_take(&source->counted);
}

static inline void ms_source_drop(struct ms_source *source)
{
    ms_counted_drop(&source->counted);
}

/* The source as what it is; NULL: it is something else. No source is really const. */
static inline struct ms_file *ms_source_file(const struct ms_source *source)
{
    return source->kind == MS_SOURCE_FILE ? (struct ms_file *)(uintptr_t)source : NULL;
}

static inline struct ms_host_snapshot *ms_source_snapshot(const struct ms_source *source)
{
    return source->kind == MS_SOURCE_SNAPSHOT || source->kind == MS_SOURCE_STORED
               ? (struct ms_host_snapshot *)(uintptr_t)source
               : NULL;
}

static inline struct ms_file_name *ms_source_name(const struct ms_source *source)
{
    return source->kind == MS_SOURCE_NAME ? (struct ms_file_name *)(uintptr_t)source : NULL;
}
