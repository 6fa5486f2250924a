/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a file of torch.save (a zip file; PyTorch 1.6 and later), each with the bytes of
 * the file that torch.load(mmap=True) maps for it. Nothing in the file is executed.
 */
#pragma once

#include "runtime/base/arena.h"
#include "runtime/checkpoint/checkpoint.h"

/* In the order of the format. The caller frees `tensors` with ms_heap_free. */
struct ms_torch_tensors {
    struct ms_tensor *tensors;
    size_t count;
    size_t skipped;
};

/* True if torch.save wrote a file that begins with these bytes, as a zip file or before 1.6. Wants
 * at least 9 bytes, if the file has them. */
bool ms_torch_file_is(const unsigned char *begin, size_t bytes);

/* `file` is open for reading and file_bytes long. Names, also the file's, are in the arena. */
bool ms_torch_file_read(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                        struct ms_arena *arena, struct ms_torch_tensors *tensors_out);
