/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors in one launch, as torch._foreach_* makes it, and parts of tensors. */
#include <stdio.h>
#include <string.h>

#include "tests/driver/differential/list_kernels.h"
#include "tests/driver/differential/scenario.h"

enum { FLOATS = MIB, MOST = LISTED };

static void launch(const char *name, unsigned blocks, void **params)
{
    OK(cuLaunchKernel(function(name), blocks, 1, 1, 512, 1, 1, 0, NULL, params, NULL));
}

static void scale_all(const CUdeviceptr *tensors, unsigned count, int64_t numel, float operand)
{
    static struct listed list;
    char functor = 0, multiplies = 0;
    unsigned blocks = 0;
    memset(&list, 0, sizeof(list));
    for (unsigned i = 0; i < count; i++) {
        list.addresses[i] = tensors[i];
        list.numel[i] = numel;
        for (int64_t chunk = 0; chunk * LIST_CHUNK < numel; chunk++) {
            list.block_to_tensor[blocks] = (uint8_t)i;
            list.block_to_chunk[blocks++] = (int32_t)chunk;
        }
    }
    launch(KERNEL_NAME(LIST_SCALE), blocks, (void *[]){&list, &functor, &multiplies, &operand});
}

static void copy_all(const CUdeviceptr *from, const CUdeviceptr *to, unsigned count, int64_t numel)
{
    static struct listed_pairs list;
    char functor = 0, copy = 0;
    unsigned blocks = 0;
    memset(&list, 0, sizeof(list));
    for (unsigned i = 0; i < count; i++) {
        list.addresses[0][i] = from[i];
        list.addresses[1][i] = to[i];
        list.numel[i] = numel;
        for (int64_t chunk = 0; chunk * LIST_CHUNK < numel; chunk++) {
            list.block_to_tensor[blocks] = (uint8_t)i;
            list.block_to_chunk[blocks++] = (int32_t)chunk;
        }
    }
    launch(KERNEL_NAME(LIST_COPY), blocks, (void *[]){&list, &functor, &copy});
}

static void make(CUdeviceptr *tensors, unsigned count, size_t floats)
{
    for (unsigned i = 0; i < count; i++) {
        tensors[i] = allocate(floats * 4);
        uniform(tensors[i], floats, i + 1);
    }
}

static void print_all(const char *name, const CUdeviceptr *tensors, unsigned count, size_t bytes)
{
    for (unsigned i = 0; i < count; i++)
        print_bytes(name, tensors[i], bytes);
}

SCENARIO(scaled)
{
    CUdeviceptr tensors[3];
    make(tensors, 3, FLOATS);
    scale_all(tensors, 3, FLOATS, 0.5F);
    print_all("scaled", tensors, 3, 4 * MIB);
}

/* The tail of the second is not in the list. */
SCENARIO(one_in_memory)
{
    CUdeviceptr tensors[3];
    make(tensors, 3, FLOATS);
    print_bytes("read before", tensors[1], 4 * MIB);
    scale_all(tensors, 3, FLOATS - 1000, 0.25F);
    print_all("scaled", tensors, 3, 4 * MIB);
}

/* More than any other launch may point to. */
SCENARIO(many)
{
    CUdeviceptr tensors[MOST];
    make(tensors, MOST, 32 << 10);
    scale_all(tensors, MOST, 32 << 10, 3);
    scale_all(tensors, MOST, 32 << 10, 5);
    print_all("one of many", tensors, 3, 128 << 10);
}

SCENARIO(copied)
{
    CUdeviceptr from[2], to[2];
    make(from, 2, FLOATS);
    make(to, 2, FLOATS);
    copy_all(from, to, 2, FLOATS);
    for (unsigned i = 0; i < 2; i++)
        OK(cuMemFree(from[i]));
    print_all("copied", to, 2, 4 * MIB);
}

/* From one place of a block to another; from what is in memory; to what is. */
SCENARIO(copied_elsewhere)
{
    CUdeviceptr blocks[4];
    make(blocks, 4, FLOATS);
    OK(try_add(blocks[1], 1, FLOATS, NULL)); /* no rule names it */
    const CUdeviceptr from[] = {blocks[0], blocks[1], blocks[3]};
    const CUdeviceptr to[] = {blocks[0] + 2 * MIB, blocks[2], blocks[1] + MIB};
    copy_all(from, to, 3, FLOATS / 4);
    print_all("copied", blocks, 4, 4 * MIB);
}

/* A frozen model, of which each pass uses a copy that it changes and frees. */
enum { PASSES = 4, LAYERS = 5, PER_LAYER = 300007 };

static void load_layers(CUdeviceptr *layers)
{
    const float *file = map_file((size_t)LAYERS * PER_LAYER * 4);
    for (unsigned i = 0; i < LAYERS; i++) {
        layers[i] = allocate((size_t)PER_LAYER * 4);
        OK(cuMemcpyHtoD(layers[i], file + (size_t)i * PER_LAYER, (size_t)PER_LAYER * 4));
    }
}

static void use_copies(CUdeviceptr buffer)
{
    OK(try_add(buffer, 1, (uint64_t)LAYERS * PER_LAYER, NULL)); /* no rule names it */
    print_bytes("a pass", buffer, (size_t)LAYERS * PER_LAYER * 4);
    OK(cuMemFree(buffer));
}

SCENARIO(passes)
{
    CUdeviceptr layers[LAYERS], places[LAYERS];
    load_layers(layers);
    for (unsigned pass = 0; pass < PASSES; pass++) {
        const CUdeviceptr buffer = allocate((size_t)LAYERS * PER_LAYER * 4);
        for (unsigned i = 0; i < LAYERS; i++)
            places[i] = buffer + (size_t)i * PER_LAYER * 4;
        copy_all(layers, places, LAYERS, PER_LAYER);
        use_copies(buffer);
    }
}

/* The buffer has memory from the first pass on. */
SCENARIO(passes_in_memory)
{
    CUdeviceptr layers[LAYERS];
    load_layers(layers);
    const CUdeviceptr buffer = allocate((size_t)LAYERS * PER_LAYER * 4);
    OK(try_add(buffer, 1, (uint64_t)LAYERS * PER_LAYER, NULL));
    for (unsigned pass = 0; pass < PASSES; pass++) {
        for (unsigned i = 0; i < LAYERS; i++)
            OK(cuMemcpyDtoD(buffer + (size_t)i * PER_LAYER * 4, layers[i], (size_t)PER_LAYER * 4));
        OK(try_add(buffer, 1, (uint64_t)LAYERS * PER_LAYER, NULL));
        print_bytes("a pass", buffer, (size_t)LAYERS * PER_LAYER * 4);
    }
}

/* --- parts of tensors: 1024 rows of 1024 elements */

enum { SIDE = 1024, PITCH = 4 * SIDE };

static struct part_scale columns(CUdeviceptr block, uint32_t width)
{
    struct part_scale part;
    memset(&part, 0x7f, sizeof(part)); /* what is not in use was never written */
    part.offsets.dims = 2;
    part.offsets.sizes[0].divisor = width;
    part.offsets.sizes[1].divisor = SIDE;
    for (int side = 0; side < 2; side++) {
        part.offsets.strides[0][side] = 4;
        part.offsets.strides[1][side] = PITCH;
        part.data[side] = block;
    }
    part.operand = 0.125F;
    return part;
}

static void scale_part(const struct part_scale *part)
{
    int numel = (int)(part->offsets.sizes[0].divisor * part->offsets.sizes[1].divisor);
    launch(KERNEL_NAME(PART_SCALE), SIDE, (void *[]){&numel, (void *)part});
}

SCENARIO(columns_scaled)
{
    CUdeviceptr block;
    make(&block, 1, FLOATS);
    const struct part_scale part = columns(block, 256);
    scale_part(&part);
    print_bytes("columns", block + MIB, MIB);
}

/* Each row is made of a column. */
SCENARIO(turned)
{
    CUdeviceptr block;
    make(&block, 1, FLOATS);
    struct part_scale part = columns(block, SIDE);
    part.offsets.strides[0][1] = PITCH;
    part.offsets.strides[1][1] = 4;
    scale_part(&part);
    print_bytes("turned", block + MIB, MIB);
}

SCENARIO(diagonal_filled)
{
    CUdeviceptr block;
    struct part_fill part;
    int numel = SIDE;
    make(&block, 1, FLOATS);
    memset(&part, 0x7f, sizeof(part));
    part.offsets.dims = 1;
    part.offsets.sizes[0].divisor = SIDE;
    part.offsets.strides[0] = PITCH + 4;
    part.out = block;
    part.value = 1;
    launch(KERNEL_NAME(PART_FILL), SIDE, (void *[]){&numel, &part});
    print_bytes("diagonal", block + MIB, MIB);
}
