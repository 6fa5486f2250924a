/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a checkpoint: a .safetensors file, a file of torch.save, an index of such files, or a
 * folder (docs/plan-format.md). Reads headers only. Anything that a correct writer would not have written
 * is a fault.
 */
#ifndef METASHARD_RUNTIME_CHECKPOINT_CHECKPOINT_H
#define METASHARD_RUNTIME_CHECKPOINT_CHECKPOINT_H

#include <stddef.h>

#include "runtime/checkpoint/tensor.h"
#include "runtime/document/fault.h"

struct ms_checkpoint;

/* Tensors of torch.save files that are not in the list, each name of one counted. */
struct ms_skipped {
    size_t strided; /* not contiguous in their storage */
    size_t dtype;   /* safetensors has no such dtype */
    size_t other; /* in an object or below a key that is no name; conjugated; of more dimensions */
};

bool ms_checkpoint_open(const char *path, struct ms_checkpoint **checkpoint_out,
                        struct ms_fault *fault);
void ms_checkpoint_close(struct ms_checkpoint *checkpoint); /* may be NULL */

/* In the order that the format gives them; valid until the checkpoint is closed. */
size_t ms_checkpoint_count(const struct ms_checkpoint *checkpoint);
const struct ms_tensor *ms_checkpoint_tensors(const struct ms_checkpoint *checkpoint);
struct ms_skipped ms_checkpoint_skipped(const struct ms_checkpoint *checkpoint);

/* One safetensors header that is in memory already, without the 8 bytes of its length, followed by
 * data_bytes of data. `file` is the name for faults. */
bool ms_checkpoint_parse(const char *file, const void *header, size_t header_bytes,
                         uint64_t data_bytes, struct ms_checkpoint **checkpoint_out,
                         struct ms_fault *fault);

#endif
