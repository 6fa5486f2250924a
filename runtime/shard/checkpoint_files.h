/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known checkpoints: the tensors of the files that the program copies from. Device, inode, size and
 * time identify a file. Its checkpoint is the index in its folder that names it, or else the file
 * alone. One that is saved again, with the same tensors in the same places, takes the place of the
 * one before: its tensors are those.
 *
 * Guarded by the lock of shard.c. Reads headers of files; calls no driver function.
 */
#pragma once

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/source/source.h"

/* So many files are known at a time; the oldest is forgotten, and read again when it is needed. A
 * program that saves and loads for days has other files each time. Tests make it small. */
extern size_t ms_checkpoint_files_most;

/* The program's copy waits while headers are read: a line says so if that took longer. A second;
 * tests set it. */
extern uint64_t ms_checkpoint_files_slow_ns;

/* All tensors, in the order in which they became known; none is ever removed. */
size_t ms_checkpoint_files_count(void);
struct ms_tensor ms_checkpoint_files_at(size_t index);

/* Calls visit for each tensor with bytes in [begin, end) of the file behind the source, by offset,
 * if that is a checkpoint, until it returns false; `index` is that of ms_checkpoint_files_at. Each
 * file is read once, before the first visit. The tensor is gone after the call, its name is not. */
typedef bool ms_checkpoint_files_visitor(void *context, size_t index,
                                         const struct ms_tensor *tensor);
void ms_checkpoint_files_visit(const struct ms_source *source, uint64_t begin, uint64_t end,
                               ms_checkpoint_files_visitor *visit, void *context);
