/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding files by content. A loader that stages through a buffer (safetensors 0.8 does for
 * device="cuda", through pinned memory) hides where its bytes come from. But a checkpoint's header
 * has the size of each tensor, so few places are possible, and all bytes there are compared.
 */
#pragma once

#include "runtime/finding/find_internal.h"

/*
 * Finds a tensor with exactly the wanted bytes in a file with a safetensors header
 * (https://github.com/huggingface/safetensors, format) that this process has mapped. Compares with
 * the file, not the mapping. In the file thread.
 */
void ms_mapped_tensors_find(struct ms_wanted_source *wanted);
