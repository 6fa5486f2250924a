/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a checkpoint: a .safetensors file, a file of torch.save, an index of such files,
 * or a folder (docs/plan-format.md). Reads only headers. A header that no correct writer makes is a
 * fault.
 */
#pragma once

#include <stddef.h>

#include "runtime/checkpoint/tensor.h"
#include "runtime/document/fault.h"

struct ms_checkpoint;

bool ms_checkpoint_open(const char *path, struct ms_checkpoint **checkpoint_out,
                        struct ms_fault *fault);
void ms_checkpoint_close(struct ms_checkpoint *checkpoint); /* may be NULL */

/* Tensors are in the order of the format. Their names are valid until the checkpoint is closed. */
size_t ms_checkpoint_count(const struct ms_checkpoint *checkpoint);
struct ms_tensor ms_checkpoint_tensor(const struct ms_checkpoint *checkpoint, size_t index);
