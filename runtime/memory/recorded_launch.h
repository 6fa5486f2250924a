/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded launches: recorded launches in the lineage of a block. A recorded launch is one launch together with the
 * lineage that its block had before it:
 *
 *     block:   | launched by S                | file F      |      the file was copied later
 *     S:       runs kernel K over what was
 *              | fill 0        | undefined                  |
 *
 * Each byte that K writes depends on the old value of that byte alone (rules.h), so a range of the
 * result needs only that range of what was before, and, for a kernel that copies from another block, all of
 * what that block held. A recorded launch does not care where its block is today, or
 * whether it still exists. When nothing refers to it any more, it and all it needed go.
 *
 * By reference count; immutable after creation; usable from any thread.
 */
#ifndef METASHARD_RUNTIME_MEMORY_RECORDED_LAUNCH_H
#define METASHARD_RUNTIME_MEMORY_RECORDED_LAUNCH_H

#include "runtime/kernel/call.h"
#include "runtime/memory/lineage.h"

/* Each input that a replay needs at a time takes scratch memory of its block's size: a cast, and a slice of
 * what was cast. */
enum { MS_MAX_LAUNCH_DEPTH = 16, MS_MAX_INPUT_DEPTH = 2 };

struct ms_recorded_launch {
    struct ms_counted counted; /* first: lineage.h */
    uint32_t
        depth; /* 1 + the greatest depth of a recorded launch in before; at most MS_MAX_LAUNCH_DEPTH */
    uint32_t input_depth; /* inputs in memory at a time, for a replay; at most MS_MAX_INPUT_DEPTH */
    uint64_t allocation_id; /* of the allocation it was recorded in */
    CUdeviceptr address;    /* of that block then; where the launch's pointers point */
    CUcontext context;
    CUdevice device;
    struct ms_lineage before; /* nothing of it is present */
    struct ms_launch *launch;

    /* What the launch reads of another block, whole; nothing of it is present either. No bytes: nothing. */
    struct ms_lineage input;
    uint64_t input_allocation_id;
    CUdeviceptr input_address;
};

/* With one reference; the rest is the caller's to fill. NULL: memory is out. */
struct ms_recorded_launch *ms_recorded_launch_create(void);
void ms_recorded_launch_drop(struct ms_recorded_launch *recorded);

/* The greatest depth and input_depth of the recorded launches in [begin, end). */
struct ms_depths {
    uint32_t launches, inputs;
};
struct ms_depths ms_recorded_launch_depths(const struct ms_lineage *lineage, size_t begin,
                                           size_t end);

/* True when launched content at this address of that allocation is where its launch wrote it. */
static inline bool ms_recorded_launch_is_at(const struct ms_content *content,
                                            uint64_t allocation_id, CUdeviceptr address)
{
    const struct ms_recorded_launch *recorded = content->recorded;
    return recorded->allocation_id == allocation_id &&
           recorded->address + content->source_offset == address;
}

/* True when replaying the content would still give the same: no file behind it has changed. */
bool ms_content_is_current(const struct ms_content *content);

#endif
