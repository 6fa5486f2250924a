/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/list_kernels.h"

#include <string.h>

#include "tools/simcuda/driver/simcuda.h"

/* Names that are macros are expanded on the way. */
#define KERNEL(name) SIMCUDA_KERNEL(name)
#define PARAMS(name, ...) SIMCUDA_PARAMS(name, __VA_ARGS__)

/* Elements of a chunk, and where it begins. */
static size_t chunk_of(int64_t numel, int32_t chunk, size_t *begin_out)
{
    *begin_out = (size_t)chunk * LIST_CHUNK;
    const size_t left = (size_t)numel - *begin_out;
    return left < LIST_CHUNK ? left : LIST_CHUNK;
}

KERNEL(LIST_SCALE)
{
    const struct listed *list = args[0];
    const float operand = SIMCUDA_ARG(args, 3, float);
    for (unsigned block = 0; block < launch->grid[0]; block++) {
        const unsigned tensor = list->block_to_tensor[block];
        size_t begin;
        const size_t count = chunk_of(list->numel[tensor], list->block_to_chunk[block], &begin);
        float *values =
            launch->touch(launch, list->addresses[tensor] + begin * sizeof(*values), count * 4);
        for (size_t i = 0; values != NULL && i < count; i++)
            values[i] *= operand;
    }
}
PARAMS(LIST_SCALE, {0, sizeof(struct listed)}, {sizeof(struct listed), 1},
       {sizeof(struct listed) + 1, 1}, {sizeof(struct listed) + 4, 4});

KERNEL(LIST_COPY)
{
    const struct listed_pairs *list = args[0];
    for (unsigned block = 0; block < launch->grid[0]; block++) {
        const unsigned tensor = list->block_to_tensor[block];
        size_t begin;
        const size_t count = chunk_of(list->numel[tensor], list->block_to_chunk[block], &begin);
        const void *from = launch->touch(launch, list->addresses[0][tensor] + begin * 4, count * 4);
        void *to = from == NULL
                       ? NULL
                       : launch->touch(launch, list->addresses[1][tensor] + begin * 4, count * 4);
        if (to != NULL)
            memcpy(to, from, count * 4);
    }
}
PARAMS(LIST_COPY, {0, sizeof(struct listed_pairs)}, {sizeof(struct listed_pairs), 1},
       {sizeof(struct listed_pairs) + 1, 1});

/* The place of an element in bytes, of one side of `sides`. */
static size_t place_of(int dims, const struct torch_divider *sizes, const uint32_t *strides,
                       unsigned sides, size_t index)
{
    size_t place = 0;
    for (int i = 0; i < dims; i++) {
        place += index % sizes[i].divisor * strides[(size_t)i * sides];
        index /= sizes[i].divisor;
    }
    return place;
}

KERNEL(PART_FILL)
{
    const struct part_fill *part = args[1];
    for (int i = 0; i < SIMCUDA_ARG(args, 0, int); i++) {
        const size_t place =
            place_of(part->offsets.dims, part->offsets.sizes, part->offsets.strides, 1, (size_t)i);
        float *out = launch->touch(launch, part->out + place, sizeof(*out));
        if (out != NULL)
            *out = part->value;
    }
}
PARAMS(PART_FILL, {0, 4}, {8, sizeof(struct part_fill)});

/* Element by element and in order. */
KERNEL(PART_SCALE)
{
    const struct part_scale *part = args[1];
    const struct torch_offsets2 *offsets = &part->offsets;
    for (int i = 0; i < SIMCUDA_ARG(args, 0, int); i++) {
        const size_t to =
            place_of(offsets->dims, offsets->sizes, &offsets->strides[0][0], 2, (size_t)i);
        const size_t from =
            place_of(offsets->dims, offsets->sizes, &offsets->strides[0][1], 2, (size_t)i);
        const float *in = launch->touch(launch, part->data[1] + from, sizeof(*in));
        const float value = in != NULL ? *in * part->operand : 0;
        float *out = launch->touch(launch, part->data[0] + to, sizeof(*out));
        if (out != NULL)
            *out = value;
    }
}
PARAMS(PART_SCALE, {0, 4}, {8, sizeof(struct part_scale)});
