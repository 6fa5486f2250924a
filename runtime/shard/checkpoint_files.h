/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known checkpoints: the tensors of the files that the program copies from, and how much of each has been
 * copied. A file is known by device, inode, size and time; the checkpoint it belongs to is the index in
 * its folder that names it, or else the file alone.
 *
 * Guarded by the lock of active_plan.c. Reads headers of files; calls no driver function.
 */
#ifndef METASHARD_RUNTIME_SHARD_CHECKPOINT_FILES_H
#define METASHARD_RUNTIME_SHARD_CHECKPOINT_FILES_H

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/source/source.h"

struct ms_checkpoint_file;

/* All tensors, in the order in which they became known; they are never forgotten. */
size_t ms_checkpoint_files_count(void);
const struct ms_tensor *const *ms_checkpoint_files_tensors(void);

/* The file behind a source. NULL: no checkpoint, which is found out once. */
const struct ms_checkpoint_file *ms_checkpoint_files_find(const struct ms_source *source);

/*
 * Calls visit for each tensor that has bytes in [begin, end) of the file, by offset; `index` is that of
 * ms_checkpoint_files_tensors. False as soon as visit returns false.
 */
typedef bool ms_checkpoint_files_visitor(void *context, size_t index,
                                         const struct ms_tensor *tensor);
bool ms_checkpoint_files_visit(const struct ms_checkpoint_file *file, uint64_t begin, uint64_t end,
                               ms_checkpoint_files_visitor *visit, void *context);

/*
 * The program has copied [begin, end) of the file. True when with these bytes, and not before, all tensors
 * of at least `least` bytes of all known checkpoints have been copied, since that was so last, up to less
 * than `slack` bytes of each: copies so short are not seen.
 */
bool ms_checkpoint_files_add_copy(const struct ms_checkpoint_file *file, uint64_t begin,
                                  uint64_t end, uint64_t least, uint64_t slack);

#endif
