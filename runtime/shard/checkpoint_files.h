/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known checkpoints: the tensors of the files that the program copies from. Device, inode, size and
 * time identify a file. The index in the file's folder that names the file is its checkpoint, or
 * else the file alone. A checkpoint saved again, with the same tensors in the same places, shares
 * the tensors of the earlier one.
 *
 * Guarded by the lock of shard.c. Reads headers of files; calls no driver function.
 */
#pragma once

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/files/file.h"

/* The most files known at a time; then the oldest is forgotten, and read again when needed. A
 * program that saves and loads for days has new files each time. Tests make it small. */
extern size_t ms_checkpoint_files_most;

/* Reading headers for longer than this, 1 s, logs a line: the program's copy waits meanwhile. Tests
 * change the time. */
extern uint64_t ms_checkpoint_files_slow_ns;

/* All tensors, in the order in which they became known; none is ever removed. */
size_t ms_checkpoint_files_count(void);
struct ms_tensor ms_checkpoint_files_at(size_t index);

/* If the source is a checkpoint file, calls visit for each tensor with bytes in [begin, end) of the
 * file, by offset, until visit returns false. `index` is for ms_checkpoint_files_at. Each file is
 * read once, before the first visit. After the call only the tensor's name stays valid. */
typedef bool ms_checkpoint_files_visitor(void *context, size_t index,
                                         const struct ms_tensor *tensor);
void ms_checkpoint_files_visit(const struct ms_file *source, uint64_t begin, uint64_t end,
                               ms_checkpoint_files_visitor *visit, void *context);
