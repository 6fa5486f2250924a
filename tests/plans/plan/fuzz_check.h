/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of any plan over any tensors that were accepted; a failed check ends the program. */
#pragma once

#include "runtime/plan/plan.h"

/* A refusal is one line of some text. */
void check_fault(const struct ms_fault *fault);

/* Ranges of some ranks, and the census if the world is small. */
void check_layout(const struct ms_layout *layout);

/* Opens a safetensors file of this header and so many bytes of data. */
bool open_header(const void *header, size_t bytes, uint64_t data_bytes,
                 struct ms_checkpoint **checkpoint_out, struct ms_fault *fault);
