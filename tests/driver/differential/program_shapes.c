/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets of rows and boxes, between peers, through arrays, in batches, and by graphs. */
#include "tests/driver/differential/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two disjoint ranges of the same size. */
static bool pair(struct program_range *from, struct program_range *to, size_t limit)
{
    if (!program_range(from, limit) || !program_range(to, limit))
        return false;
    from->bytes = to->bytes = from->bytes < to->bytes ? from->bytes : to->bytes;
    return program_is_disjoint(from, to);
}

static void model_copy(const struct program_range *to, size_t to_at,
                       const struct program_range *from, size_t from_at, size_t bytes)
{
    memcpy(to->block->model + to->at + to_at, from->block->model + from->at + from_at, bytes);
    memcpy(to->block->defined + to->at + to_at, from->block->defined + from->at + from_at, bytes);
}

static void model_set(const struct program_range *range, size_t at, size_t bytes, uint32_t value,
                      unsigned width)
{
    for (size_t i = 0; i < bytes; i++)
        range->block->model[range->at + at + i] = (unsigned char)(value >> 8 * (i % width));
    memset(range->block->defined + range->at + at, 1, bytes);
}

void program_set_rows(void)
{
    struct program_range range;
    if (!program_range(&range, 1 << 20))
        return;
    const unsigned width = 1u << program_below(3);
    const uint32_t value = (uint32_t)program_random();
    range.at -= range.at % 4;
    const size_t pitch = 4 * (1 + program_below(range.bytes / 4 + 1));
    const size_t count = 1 + program_below(pitch / width);
    const size_t height = range.bytes / pitch;
    if (height == 0)
        return;
    const CUdeviceptr at = program_address(&range);
    CUstream stream = program_next_stream();
    CUresult result;
    if (width == 1)
        result = cuMemsetD2D8Async(at, pitch, (unsigned char)value, count, height, stream);
    else if (width == 2)
        result = cuMemsetD2D16Async(at, pitch, (unsigned short)value, count, height, stream);
    else
        result = cuMemsetD2D32Async(at, pitch, value, count, height, stream);
    program_must(result, "set rows");
    for (size_t row = 0; row < height; row++)
        model_set(&range, row * pitch, count * width, value, width);
    printf("set %zu rows of %zu, width %u\n", height, count, width);
}

void program_copy_box(void)
{
    struct program_range from, to;
    if (!pair(&from, &to, 1 << 20))
        return;
    const size_t pitch = 1 + program_below(from.bytes);
    const size_t rows = from.bytes / pitch;
    const size_t height = 1 + program_below(rows);
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = program_address(&from),
                                .srcPitch = pitch,
                                .srcHeight = height,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = program_address(&to),
                                .dstPitch = pitch,
                                .dstHeight = height,
                                .WidthInBytes = 1 + program_below(pitch),
                                .Height = 1 + program_below(height),
                                .Depth = rows / height};
    program_must(cuMemcpy3DAsync(&copy, program_next_stream()), "cuMemcpy3DAsync");
    for (size_t z = 0; z < copy.Depth; z++) {
        for (size_t y = 0; y < copy.Height; y++) {
            const size_t at = (z * height + y) * pitch;
            model_copy(&to, at, &from, at, copy.WidthInBytes);
        }
    }
    printf("copy a box of %zu by %zu by %zu\n", copy.WidthInBytes, copy.Height, copy.Depth);
}

void program_copy_peer(void)
{
    struct program_range from, to;
    CUcontext context;
    if (!pair(&from, &to, SIZE_MAX))
        return;
    program_must(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    program_must(cuMemcpyPeerAsync(program_address(&to), context, program_address(&from), context,
                                   from.bytes, program_next_stream()),
                 "cuMemcpyPeerAsync");
    model_copy(&to, 0, &from, 0, from.bytes);
    printf("copy %zu between peers\n", from.bytes);
}

void program_through_array(void)
{
    enum { WIDTH = 4096 };
    static CUarray array;
    struct program_range from, to;
    const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = WIDTH,
                                              .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                              .NumChannels = 1};
    if (array == NULL)
        program_must(cuArrayCreate(&array, &descriptor), "cuArrayCreate");
    if (!pair(&from, &to, WIDTH))
        return;
    program_streams_wait();
    program_must(cuMemcpyDtoA(array, 0, program_address(&from), from.bytes), "cuMemcpyDtoA");
    program_must(cuMemcpyAtoD(program_address(&to), array, 0, to.bytes), "cuMemcpyAtoD");
    program_must(cuCtxSynchronize(), "cuCtxSynchronize");
    model_copy(&to, 0, &from, 0, from.bytes);
    printf("copy %zu through an array\n", from.bytes);
}

/* Nodes that are made one by one, and the set's changed after the graph has become executable. */
void program_run_graph(void)
{
    struct program_range from, to;
    CUcontext context;
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode set, copied;
    if (!pair(&from, &to, 1 << 20))
        return;
    CUDA_MEMSET_NODE_PARAMS value = {.dst = program_address(&from),
                                     .value = (unsigned)program_below(256),
                                     .elementSize = 1,
                                     .width = from.bytes,
                                     .height = 1};
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = program_address(&from),
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = program_address(&to),
                                .WidthInBytes = from.bytes,
                                .Height = 1,
                                .Depth = 1};
    program_must(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    program_must(cuGraphCreate(&graph, 0), "cuGraphCreate");
    program_must(cuGraphAddMemsetNode(&set, graph, NULL, 0, &value, context), "add a set");
    program_must(cuGraphAddMemcpyNode(&copied, graph, &set, 1, &copy, context), "add a copy");
    program_must(cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    value.value = (unsigned)program_below(256);
    program_must(cuGraphExecMemsetNodeSetParams(executable, set, &value, context), "change a set");
    program_must(cuGraphLaunch(executable, program_next_stream()), "cuGraphLaunch");
    program_streams_wait();
    program_must(cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    program_must(cuGraphDestroy(graph), "cuGraphDestroy");
    model_set(&from, 0, from.bytes, value.value, 1);
    model_set(&to, 0, to.bytes, value.value, 1);
    printf("run a graph on %zu\n", from.bytes);
}
