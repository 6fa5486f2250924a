/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding files by content. A loader that stages through a buffer (safetensors 0.8 does for
 * device="cuda", through pinned memory) hides where its bytes come from. But a checkpoint's header
 * has the size of each tensor, so few places are possible, and all bytes there are compared.
 */
#pragma once

#include "runtime/source/source.h"

/*
 * Finds a tensor with exactly these bytes in a file with a safetensors header
 * (https://github.com/huggingface/safetensors, format) that this process has mapped. Returns a
 * reference to the file, or NULL. Compares with the file, not the mapping. Usable from any thread.
 */
struct ms_source *ms_source_from_content(const void *address, size_t bytes, uint64_t *offset_out);
