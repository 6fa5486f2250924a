/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lineage: where the content of each byte of a block comes from. A sorted list of extents without
 * gaps from 0 to the size of the block; neighbours differ. Offsets are relative to the block.
 *
 *     0                    64K                   1M                 size
 *     | file F at 4096     | fill 00000000       | resident         |
 *
 * An extent that was read is *cached*: in device memory too, though its lineage still holds. A byte is
 * *present* when it is resident or cached.
 *
 * Where an allocation is carved into blocks (allocations.h), what lies in none of them is *dead*: nobody wrote it
 * and nobody will read it, so it is never deferred.
 *
 * Not thread-safe: guarded by the claim on the block. Owns the references of its sources, recorded launches and parked memory.
 * Functions that fail (out of memory) leave the lineage as it was.
 */
#ifndef METASHARD_RUNTIME_MEMORY_LINEAGE_H
#define METASHARD_RUNTIME_MEMORY_LINEAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/base/gap_array.h"
#include "runtime/base/range.h"
#include "runtime/source/source.h"

struct ms_recorded_launch;
struct ms_parked;

enum ms_kind {
    MS_UNDEFINED, /* never written; any content is right, but it must stay the same once seen */
    MS_DEAD,      /* the same, and in no block */
    MS_FILL,      /* a pattern */
    MS_SOURCE,    /* bytes of a file or a snapshot */
    MS_LAUNCHED,  /* what a recorded launch left in its block (recorded_launch.h) */
    MS_PARKED,    /* in device memory, but not in its place (parked.h) */
    MS_ABSENT,    /* only other ranks have it: received into the sink (receive.h). Always remote */
    MS_RESIDENT,  /* the truth is in device memory */
    MS_KIND_COUNT
};

/* What the sharding plan says of some bytes (active_plan.h). Bytes that are written anew are open again. */
enum ms_locality {
    MS_UNKNOWN, /* it was not asked, or says nothing */
    MS_LOCAL,   /* this rank keeps them */
    MS_REMOTE   /* other ranks do: they get no memory of the shim's own accord. Never present. */
};

/* What an extent holds, apart from where it lies. */
struct ms_content {
    enum ms_kind kind;
    enum ms_locality locality;
    bool cached; /* the bytes are in device memory as well; MS_FILL and later kinds */
    bool
        is_remote_copy; /* what comes in their place is other ranks' (remote_parts.h). Never present. */
    uint32_t pattern; /* MS_FILL: the byte at offset o is byte o % 4, lowest first */
    union {
        struct ms_source *source;            /* MS_SOURCE */
        struct ms_recorded_launch *recorded; /* MS_LAUNCHED */
        struct ms_parked *parked;            /* MS_PARKED */
        struct ms_counted *owned;            /* any of these: what each of them begins with */
    };
    uint64_t
        source_offset; /* of the extent's first byte, in the source, the recorded launch's block or the parked memory */
};

/* Nothing has to be replayed. */
static inline bool ms_content_is_nothing(const struct ms_content *content)
{
    return content->kind == MS_UNDEFINED || content->kind == MS_DEAD;
}

static inline bool ms_content_is_present(const struct ms_content *content)
{
    return content->kind == MS_RESIDENT || content->cached;
}

/* What the plan said of it is forgotten; but what other ranks alone have stays theirs. */
static inline void ms_content_forget_locality(struct ms_content *content)
{
    if (content->kind != MS_ABSENT)
        content->locality = MS_UNKNOWN;
    content->is_remote_copy = false;
}

struct ms_extent {
    size_t begin, end;
    struct ms_content content;
};

struct ms_lineage {
    struct ms_extent *extents;
    size_t count;
    struct ms_gap_array gaps; /* of extents */
    size_t bytes;
    size_t deferred_bytes; /* bytes that are neither resident nor undefined nor dead */
    size_t resident_bytes;
    size_t cached_bytes;
    size_t dead_bytes;
    size_t remote_bytes;
    size_t kind_bytes[MS_KIND_COUNT]; /* without MS_UNDEFINED */
    size_t file_bytes;                /* of MS_SOURCE, those of files */
    size_t changed_begin,
        changed_end; /* around all that was changed; whoever reads it empties it */
};

bool ms_lineage_init(struct ms_lineage *lineage, size_t bytes); /* all undefined */
void ms_lineage_cleanup(struct ms_lineage *lineage);

/* [begin, end) now holds content; takes its own reference of a source. */
bool ms_lineage_set(struct ms_lineage *lineage, size_t begin, size_t end,
                    const struct ms_content *content);

/* The extent that holds offset; begin and content are cut so that it starts at offset exactly. */
struct ms_extent ms_lineage_at(const struct ms_lineage *lineage, size_t offset);

/* Index of the extent that holds offset. */
size_t ms_lineage_index(const struct ms_lineage *lineage, size_t offset);

/* True when some byte of [begin, end) is remote. */
bool ms_lineage_has_remote(const struct ms_lineage *lineage, size_t begin, size_t end);

/* True when some byte of [begin, end) is absent. */
bool ms_lineage_has_absent(const struct ms_lineage *lineage, size_t begin, size_t end);

/* True when every byte of [begin, end) is resident. */
bool ms_lineage_is_resident(const struct ms_lineage *lineage, size_t begin, size_t end);

/* True when every byte of [begin, end) is present. */
bool ms_lineage_is_present(const struct ms_lineage *lineage, size_t begin, size_t end);

/* True when no byte of [begin, end) is present. */
bool ms_lineage_is_missing(const struct ms_lineage *lineage, size_t begin, size_t end);

/* What was never written and lies in [begin, end) becomes dead, or undefined again; the rest stays. */
bool ms_lineage_set_dead(struct ms_lineage *lineage, size_t begin, size_t end, bool dead);

/* Content that is not in memory is forgotten: [begin, end) becomes dead, and what is present resident. */
bool ms_lineage_forget(struct ms_lineage *lineage, size_t begin, size_t end);

/*
 * Changes what an extent holds, for every extent and part of one in the ranges, which are ascending and do
 * not overlap: in one walk, however many they are. What `change` gives must need the same references.
 */
typedef void ms_content_change(struct ms_content *content);
bool ms_lineage_change(struct ms_lineage *lineage, const struct ms_range *ranges, size_t count,
                       ms_content_change *change);

/* A lineage of [begin, end) alone, which begins at 0; the plan has not been asked about it. */
bool ms_lineage_extract(const struct ms_lineage *lineage, size_t begin, size_t end,
                        struct ms_lineage *part_out);

/* Nothing is cached any more. */
void ms_lineage_drop_caches(struct ms_lineage *lineage);

/*
 * The extents of [begin, end), cut to it, each with a reference of its source: a picture that stays
 * true while the lineage changes. NULL when memory is out. Freed with ms_extents_free.
 */
struct ms_extent *ms_lineage_copy(const struct ms_lineage *lineage, size_t begin, size_t end,
                                  size_t *count_out);
void ms_extents_free(struct ms_extent *extents, size_t count);

/* The pattern of a fill whose bytes move from one offset to another. */
uint32_t ms_pattern_move(uint32_t pattern, size_t from, size_t to);

bool ms_lineage_is_valid(const struct ms_lineage *lineage);

#endif
