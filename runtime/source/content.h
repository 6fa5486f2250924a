/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files by content. A loader that stages through a buffer (safetensors 0.8 does, through pinned memory, for
 * device="cuda") hides where its bytes come from. But a checkpoint's header tells the size of each tensor,
 * so there are few places where the bytes can be from, and they are compared, all of them.
 */
#ifndef METASHARD_RUNTIME_SOURCE_CONTENT_H
#define METASHARD_RUNTIME_SOURCE_CONTENT_H

#include "runtime/source/source.h"

/*
 * A file with a safetensors header (https://github.com/huggingface/safetensors, format) that this process
 * has mapped, and a tensor in it that holds exactly these bytes. NULL when there is none; the caller gets
 * a reference. Bytes are compared with the file, not with the mapping. Usable from any thread.
 */
struct ms_source *ms_source_from_content(const void *address, size_t bytes, uint64_t *offset_out);

#endif
