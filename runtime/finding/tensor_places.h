/* SPDX-License-Identifier: Apache-2.0 */
/* The places of tensors in a file with a safetensors header
 * (https://github.com/huggingface/safetensors, format). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/heap.h"
#include "runtime/files/file.h"

/* A header begins with 8 bytes of length and the first letter of a JSON object. */
enum { MS_TENSOR_PLACES_START = 9 };

struct ms_tensor_place {
    uint64_t offset, bytes; /* in the file */
    uint64_t start, middle; /* sums of a page there (uring.c); 0: not read yet */
};

/* Zeroed: no tensors. */
struct ms_tensor_places {
    struct ms_tensor_place *tensors;
    size_t count, capacity;
};

/* True if a file may begin so: the format allows a header of that length. */
bool ms_tensor_places_is_start(const unsigned char start[MS_TENSOR_PLACES_START],
                               uint64_t *length_out);

/* Reads the header of a file. Out of memory, some tensors are missing; a file without a header has
 * none. In the file thread. */
void ms_tensor_places_read(const struct ms_file *file, struct ms_tensor_places *header);

static inline void ms_tensor_places_cleanup(struct ms_tensor_places *header)
{
    ms_heap_free(header->tensors);
    *header = (struct ms_tensor_places){0};
}
