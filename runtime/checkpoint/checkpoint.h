/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a checkpoint: a .safetensors file, a file of torch.save, an index of such files,
 * or a folder (docs/plan-format.md). Reads only headers. What no correct writer writes is a fault.
 */
#ifndef METASHARD_RUNTIME_CHECKPOINT_CHECKPOINT_H
#define METASHARD_RUNTIME_CHECKPOINT_CHECKPOINT_H

#include <stddef.h>

#include "runtime/checkpoint/tensor.h"
#include "runtime/document/fault.h"

struct ms_checkpoint;

/* Numbers of tensors of torch.save files that are not in the list; each name counts. */
struct ms_skipped {
    size_t strided; /* not contiguous in their storage */
    size_t dtype;   /* of a dtype that safetensors lacks */
    size_t other;   /* in an object, or below a key without a name; conjugated; too many dims */
};

bool ms_checkpoint_open(const char *path, struct ms_checkpoint **checkpoint_out,
                        struct ms_fault *fault);
void ms_checkpoint_close(struct ms_checkpoint *checkpoint); /* may be NULL */

/* The tensors in the order of the format; valid until the checkpoint is closed. */
size_t ms_checkpoint_count(const struct ms_checkpoint *checkpoint);
const struct ms_tensor *ms_checkpoint_tensors(const struct ms_checkpoint *checkpoint);
struct ms_skipped ms_checkpoint_skipped(const struct ms_checkpoint *checkpoint);

/* Parses a safetensors header in memory, without the 8 bytes of its length; data_bytes of data
 * follow it. `file` is the name for faults. */
bool ms_checkpoint_parse(const char *file, const void *header, size_t header_bytes,
                         uint64_t data_bytes, struct ms_checkpoint **checkpoint_out,
                         struct ms_fault *fault);

#endif
