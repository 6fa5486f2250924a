/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a file of torch.save (a zip file; PyTorch 1.6 and later), each with the bytes of
 * the file that torch.load(mmap=True) maps for it. Nothing in the file is executed.
 */
#pragma once

#include "runtime/base/arena.h"
#include "runtime/checkpoint/checkpoint.h"

/* Tensors in the order of the format. The caller frees `tensors` with ms_heap_free. */
struct ms_torch_tensors {
    struct ms_tensor *tensors;
    size_t count;
    size_t skipped;
};

/* True if a file that begins with these bytes is of torch.save, as a zip file or in the format
 * before 1.6. Needs 9 bytes, or the whole file if it is shorter. */
bool ms_torch_file_is(const unsigned char *begin, size_t bytes);

/* `file` is open for reading and file_bytes long. The arena gets the names of tensors and file. */
bool ms_torch_file_read(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                        struct ms_arena *arena, struct ms_torch_tensors *tensors_out);
