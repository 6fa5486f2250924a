/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lineage: where the content of each byte of a block comes from. A sorted list of extents without
 * gaps from 0 to the size of the block; neighbours differ. Offsets are relative to the block.
 * extent_states.h has the legal states of an extent, invariants.h all that must be true.
 *
 *     0                    64K                   1M                 size
 *     | file F at 4096     | fill 00000000       | resident         |
 *
 * An extent that was read is *cached*: in device memory too, though its lineage still holds. A byte
 * is *present* when it is resident or cached.
 *
 * In an allocation that is carved into blocks (space.h), bytes outside of every block are
 * *dead*: nobody wrote them and nobody will read them, so they are never deferred.
 *
 * Not thread-safe: guarded by the claim on the allocation. Owns references to its sources, recorded
 * launches and parked bytes. A function that fails (out of memory) leaves the lineage unchanged, or
 * says otherwise.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/counted.h"
#include "runtime/base/range.h"
#include "runtime/base/sorted.h"
#include "runtime/files/source.h"

struct ms_recorded_launch;
struct ms_parked;

enum ms_kind {
    MS_UNDEFINED, /* never written: any content is right, but must stay the same once seen */
    MS_DEAD,      /* never written, and in no block */
    MS_UNMAPPED,  /* the program has mapped no memory there, or may not use it (backing.h) */
    MS_FILL,      /* a pattern */
    MS_SOURCE,    /* bytes of a file or a snapshot */
    MS_LAUNCHED,  /* the result of a recorded launch (recorded_launch.h) */
    MS_PARKED,    /* in device memory, but at another address (parked.h) */
    MS_ABSENT,    /* on other ranks only: received into the sink (receive.h). Always remote */
    MS_RESIDENT,  /* in device memory, and nowhere else */
    MS_KIND_COUNT
};

/* Who keeps some bytes by the sharding plan (shard.h). A new write makes the locality unknown. */
enum ms_locality {
    MS_UNKNOWN, /* the plan was not asked, or does not say */
    MS_LOCAL,   /* this rank */
    MS_REMOTE   /* other ranks: the bytes get no memory unless they are read. Never present. */
};

/*
 * The content of an extent: its origin (kind, reference, offset, pattern), its state and its marks.
 * extent_states.h has the 34 legal states. The core decides nothing by a mark: a mark belongs to
 * one room, no other room names it, and every write and ms_content_move() end it.
 */
struct ms_content {
    enum ms_kind kind : 8; /* small, because a large model has very many extents */
    enum ms_locality locality : 8;
    bool cached : 1;         /* the bytes are in device memory as well; MS_FILL and later kinds */
    bool is_remote_copy : 1; /* a copy of remote bytes (placement_query.h). Never present. */

    /* Marks: on what, belongs to, ends when. */
    bool is_shadowed : 1;    /* verify mode's writes; shadow.h; the shadow differs or is given up */
    bool is_in_sequence : 1; /* copies of several tensors; receive.h; the bytes come into memory */

    uint32_t pattern; /* MS_FILL: the byte at offset o is byte o % 4, lowest first */
    union {
        struct ms_source *source;            /* MS_SOURCE */
        struct ms_recorded_launch *recorded; /* MS_LAUNCHED */
        struct ms_parked *parked;            /* MS_PARKED */
        struct ms_counted *owned;            /* the common first member of all three */
    };
    /* Where the extent's first byte lies: in the source, the recorded launch's block or the parked
     * bytes. */
    uint64_t source_offset;
};

/* There is nothing to replay. */
static inline bool ms_content_is_nothing(const struct ms_content *content)
{
    return content->kind == MS_UNDEFINED || content->kind == MS_DEAD ||
           content->kind == MS_UNMAPPED;
}

static inline bool ms_content_is_present(const struct ms_content *content)
{
    return content->kind == MS_RESIDENT || content->cached;
}

/* Bytes of a snapshot that are cached: others get them from here, but a replay cannot. */
static inline bool ms_content_is_kept_snapshot(const struct ms_content *content)
{
    return content->kind == MS_SOURCE && content->cached &&
           ms_source_snapshot(content->source) != NULL;
}

/* The file that the bytes come from; NULL: none. */
static inline struct ms_file *ms_content_file(const struct ms_content *content)
{
    return content->kind == MS_SOURCE ? ms_source_file(content->source) : NULL;
}

/* States of a byte, for questions about ranges (ms_lineage_any): a bit for each kind, and these. */
#define MS_OF_KIND(kind) (1u << (kind))
enum {
    MS_NOT_RESIDENT = (1 << MS_RESIDENT) - 1, /* all other kinds */
    MS_DEFERRED = MS_NOT_RESIDENT & ~(1 << MS_UNDEFINED | 1 << MS_DEAD | 1 << MS_UNMAPPED),
    MS_PRESENT = 1 << MS_KIND_COUNT,
    MS_MISSING = MS_PRESENT << 1,   /* not present */
    MS_WANTING = MS_PRESENT << 2,   /* missing, and the program may use the byte */
    MS_UNDECIDED = MS_PRESENT << 3, /* wanting, and the plan was not asked, or does not say */
    MS_CACHED = MS_PRESENT << 4,
    MS_OF_OTHERS = MS_PRESENT << 5, /* MS_REMOTE */
    MS_REMOTE_COPY = MS_PRESENT << 6,
    MS_IN_SEQUENCE = MS_PRESENT << 7,
};

_Static_assert(MS_RESIDENT + 1 == MS_KIND_COUNT, "MS_NOT_RESIDENT has all others");

static inline unsigned ms_content_states(const struct ms_content *content)
{
    const bool is_present = ms_content_is_present(content);
    const bool is_wanting = !is_present && content->kind != MS_DEAD && content->kind != MS_UNMAPPED;
    return MS_OF_KIND(content->kind) | (is_present ? MS_PRESENT : MS_MISSING) |
           (is_wanting ? MS_WANTING : 0u) |
           (is_wanting && content->locality == MS_UNKNOWN ? MS_UNDECIDED : 0u) |
           (content->cached ? MS_CACHED : 0u) |
           (content->locality == MS_REMOTE ? MS_OF_OTHERS : 0u) |
           (content->is_remote_copy ? MS_REMOTE_COPY : 0u) |
           (content->is_in_sequence ? MS_IN_SEQUENCE : 0u);
}

/* Forgets the locality, except that absent bytes stay remote. */
static inline void ms_content_forget_locality(struct ms_content *content)
{
    if (content->kind != MS_ABSENT)
        content->locality = MS_UNKNOWN;
    content->is_remote_copy = false;
}

/* The cached bytes leave device memory. */
static inline void ms_content_set_missing(struct ms_content *content)
{
    content->cached = false;
}

/* Marks a copy of one of several tensors; MS_IN_SEQUENCE asks. Parked bytes have arrived: this
 * copies them on. */
static inline void ms_content_set_in_sequence(struct ms_content *content)
{
    content->is_in_sequence = content->kind != MS_PARKED;
}

static inline void ms_content_forget_shadow(struct ms_content *content)
{
    content->is_shadowed = false;
}

/* The pattern of a fill after its bytes moved from one offset to another: the byte that stood at
 * `from` comes to stand at `to`. */
static inline uint32_t ms_lineage_move_pattern(uint32_t pattern, size_t from, size_t to)
{
    const unsigned shift = 8 * (unsigned)((to - from) & 3);
    return shift == 0 ? pattern : pattern << shift | pattern >> (32 - shift);
}

/* Content after its bytes moved from offset `from` of a block to offset `to` of another: only the
 * origin moves. At the new place the bytes have no memory, no locality and no mark of a room. */
static inline struct ms_content ms_content_move(const struct ms_content *content, size_t from,
                                                size_t to)
{
    struct ms_content moved = *content;
    ms_content_forget_locality(&moved);
    moved.cached = moved.is_shadowed = moved.is_in_sequence = false;
    moved.pattern = ms_lineage_move_pattern(content->pattern, from, to);
    return moved;
}

struct ms_extent {
    uint64_t begin, end;
    struct ms_content content;
};

_Static_assert(sizeof(struct ms_extent) == 40, "a large model has very many of them");

struct ms_lineage {
    struct ms_sorted extents;
    size_t bytes;
    size_t deferred_bytes; /* not resident, and with something to replay */
    size_t resident_bytes;
    size_t cached_bytes;
    size_t remote_bytes;
    size_t kind_bytes[MS_KIND_COUNT];  /* without MS_UNDEFINED */
    size_t file_bytes;                 /* bytes of kind MS_SOURCE whose source is a file */
    size_t changed_begin, changed_end; /* covers all changes; its reader resets it */
};

/* True when the content of `right` continues that of its neighbour `left`: both could be one
 * extent. */
bool ms_lineage_continues(const struct ms_extent *left, const struct ms_extent *right);

bool ms_lineage_init(struct ms_lineage *lineage, size_t bytes); /* all undefined */
void ms_lineage_cleanup(struct ms_lineage *lineage);

/* Sets the content of [begin, end). Takes a reference of its own. */
bool ms_lineage_set(struct ms_lineage *lineage, size_t begin, size_t end,
                    const struct ms_content *content);

/* Copies the first extent of [*at, end), cut to that range, and moves *at behind the extent. False
 * when the range is empty. */
bool ms_lineage_next(const struct ms_lineage *lineage, size_t *at, size_t end,
                     struct ms_extent *extent_out);

/* The extent that contains offset, cut to begin at offset. */
static inline struct ms_extent ms_lineage_at(const struct ms_lineage *lineage, size_t offset)
{
    struct ms_extent extent;
    ms_lineage_next(lineage, &offset, lineage->bytes, &extent);
    return extent;
}

/*
 * For loops that do not change the lineage: its extents, whole, from the one that contains `begin`
 * to the last that begins before `end`.
 *
 *     struct ms_walk walk = {lineage, begin, end};
 *     for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;)
 */
struct ms_walk {
    const struct ms_lineage *lineage;
    size_t begin, end;
    bool has_begun;
    struct ms_position at; /* of the next extent */
};
const struct ms_extent *ms_lineage_walk(struct ms_walk *walk);

/* The number of extents of [begin, end). */
size_t ms_lineage_pieces(const struct ms_lineage *lineage, size_t begin, size_t end);

/* True if some byte of [begin, end) has one of the states. Reads extents up to the first that does,
 * and none if the sums tell. */
bool ms_lineage_any(const struct ms_lineage *lineage, size_t begin, size_t end, unsigned states);

/*
 * Calls `change` for the content of every extent, cut to the ranges, which do not overlap. False if
 * out of memory: then only the extents before some offset have changed. Calls `change` again for an
 * extent that a change has joined with the next one.
 */
typedef void ms_content_change(struct ms_content *content);
bool ms_lineage_change(struct ms_lineage *lineage, const struct ms_range *ranges, size_t count,
                       ms_content_change *change);

/* The bytes of the ranges came into memory: content that can be replayed becomes cached, the rest
 * resident. A snapshot becomes resident, which frees host memory; while other extents want bytes of
 * a shared one (host_snapshot.h) it becomes cached, and is never made from the snapshot again. */
bool ms_lineage_set_present(struct ms_lineage *lineage, const struct ms_range *ranges,
                            size_t count);

/* A lineage of [begin, end) alone, with offsets from 0: without locality, cached bytes or
 * shadow. */
bool ms_lineage_extract(const struct ms_lineage *lineage, size_t begin, size_t end,
                        struct ms_lineage *part_out);

/*
 * A copy of the extents of [begin, end), cut to that range, each with a reference. The copy stays
 * valid while the lineage changes. NULL if out of memory. Free it with ms_lineage_free_copy.
 */
struct ms_extent *ms_lineage_copy(const struct ms_lineage *lineage, size_t begin, size_t end,
                                  size_t *count_out);
void ms_lineage_free_copy(struct ms_extent *extents, size_t count);
