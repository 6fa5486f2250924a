/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded launches in the lineage of a block. A recorded launch is one kernel launch with the
 * lineage that its block had before the launch:
 *
 *     block:   | launched by S                | file F      |      the file was copied later
 *     S:       runs kernel K over what was
 *              | fill 0        | undefined                  |
 *
 * Each byte that K writes depends on the old value of that byte alone (rules.h). So a range of the
 * result needs the same range of the old content and, for a kernel that copies from another block,
 * the rows of the input that K loads for the range (loads.h), or all of the input. A recorded
 * launch does not depend on where its block is now, or whether the block still exists.
 *
 * Counted by references; the last one frees the launch and all that it needs. Immutable after
 * creation; usable from any thread.
 */
#pragma once

#include "runtime/kernel/call.h"
#include "runtime/kernel/loads.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/lineage.h"

/* Each input of a replay takes scratch memory of its block's size. Two inputs suffice for a slice
 * of the result of a cast. */
enum { MS_MAX_LAUNCH_DEPTH = 16, MS_MAX_INPUT_DEPTH = 2 };

struct ms_recorded_launch {
    struct ms_counted counted; /* must be first: lineage.h */
    uint32_t depth;            /* 1 + the greatest depth in `before`; at most MS_MAX_LAUNCH_DEPTH */
    uint32_t input_depth; /* inputs in memory at a time in a replay; at most MS_MAX_INPUT_DEPTH */
    bool only_writes;     /* the launch reads no block, not even the one that it writes */
    bool has_sources;     /* `before` or the input has bytes of files or snapshots, at any depth */
    uint64_t allocation_id; /* of the allocation where the launch was recorded */
    CUdeviceptr address;    /* of the block then; the launch's pointers point there */
    CUcontext context;
    CUdevice device;
    struct ms_lineage before; /* no byte is present */
    struct ms_launch *launch;
    struct ms_launch_input *input; /* the other block that the launch reads; NULL: none */
};

/* The other block that the launch reads: the part it loads, or all if the loads are unknown. */
struct ms_launch_input {
    struct ms_lineage lineage; /* no byte is present */
    uint64_t allocation_id;
    CUdeviceptr address;
    struct ms_loads loads;
    size_t written_at; /* the offset of the output's pointer in the block that the launch writes */
};

/* A launch with one reference, the other fields 0. NULL if out of memory. */
struct ms_recorded_launch *ms_recorded_launch_create(void);

/*
 * A launch that writes `out` and, unless `in` is NULL, reads `in`: with the lineage of both. The
 * caller adds the call, whether the launch only writes, and what it loads of its input. NULL: out
 * of memory, launches lie too deep, a replay might not restore `in`, or `out` may not be deferred,
 * because some of its bytes lie in no block.
 */
struct ms_recorded_launch *ms_recorded_launch_of(const struct ms_part *out,
                                                 const struct ms_part *in);
static inline void ms_recorded_launch_drop(struct ms_recorded_launch *recorded)
{
    ms_counted_drop(&recorded->counted);
}

/*
 * A copy with other files, which shares the call: `replace` returns a reference to the source that
 * replaces a source, or NULL. NULL: out of memory, replace returned NULL, the launch's code was
 * unloaded, or a lineage holds parked or absent bytes, or very many extents.
 */
typedef struct ms_source *ms_replace_source(struct ms_source *source, void *argument);
struct ms_recorded_launch *ms_recorded_launch_copy(const struct ms_recorded_launch *recorded,
                                                   ms_replace_source *replace, void *argument);

/* True if launched content at this address of that allocation lies where its launch wrote it. */
static inline bool ms_recorded_launch_is_at(const struct ms_content *content,
                                            uint64_t allocation_id, CUdeviceptr address)
{
    const struct ms_recorded_launch *recorded = content->recorded;
    return recorded->allocation_id == allocation_id &&
           recorded->address + content->source_offset == address;
}
