/* SPDX-License-Identifier: Apache-2.0 */
/* Sets and copies in all directions, of ranges, rows and boxes, and to another device. */
#include "tests/driver/model/model.h"

#include <stdlib.h>
#include <string.h>

/* --- sets */

static void set(void)
{
    const size_t width = (size_t)1 << model_below(3);
    const uint32_t value = model_one_in(3) ? 0 : (uint32_t)model_random();
    const struct model_range range = model_range(MODEL_MOST, width);
    const bool is_async = model_one_in(2);
    const CUstream stream = is_async ? model_stream() : CU_STREAM_LEGACY;
    const CUdeviceptr at = model_address(range);
    const size_t count = range.bytes / width;
    model_order(range, stream);
    if (width == 1)
        OK(is_async ? cuMemsetD8Async(at, (unsigned char)value, count, stream)
                    : cuMemsetD8(at, (unsigned char)value, count));
    else if (width == 2)
        OK(is_async ? cuMemsetD16Async(at, (unsigned short)value, count, stream)
                    : cuMemsetD16(at, (unsigned short)value, count));
    else
        OK(is_async ? cuMemsetD32Async(at, value, count, stream) : cuMemsetD32(at, value, count));
    model_fill(range, &value, width);
    model_done(range, stream);
}

static void set_rows(void)
{
    const size_t width = (size_t)1 << model_below(3);
    const uint32_t value = (uint32_t)model_random();
    const struct model_range range = model_range(64 << 10, 4);
    const size_t pitch = 4 * (1 + model_below(range.bytes / 4));
    const size_t count = 1 + model_below(pitch / width);
    const size_t height = range.bytes / pitch;
    const bool is_async = model_one_in(2);
    const CUstream stream = is_async ? model_stream() : CU_STREAM_LEGACY;
    const CUdeviceptr at = model_address(range);
    model_order(range, stream);
    if (width == 1)
        OK(is_async ? cuMemsetD2D8Async(at, pitch, (unsigned char)value, count, height, stream)
                    : cuMemsetD2D8(at, pitch, (unsigned char)value, count, height));
    else if (width == 2)
        OK(is_async ? cuMemsetD2D16Async(at, pitch, (unsigned short)value, count, height, stream)
                    : cuMemsetD2D16(at, pitch, (unsigned short)value, count, height));
    else
        OK(is_async ? cuMemsetD2D32Async(at, pitch, value, count, height, stream)
                    : cuMemsetD2D32(at, pitch, value, count, height));
    for (size_t row = 0; row < height; row++)
        model_fill((struct model_range){range.block, range.at + row * pitch, count * width}, &value,
                   width);
    model_done(range, stream);
}

static void set_word(void)
{
    const struct model_range range = model_range(4, 4);
    const uint32_t value = (uint32_t)model_random();
    const CUstream stream = model_stream();
    model_order(range, stream);
    OK(cuStreamWriteValue32(stream, model_address(range), value, 0));
    model_write(range, &value);
    model_done(range, stream);
}

/* --- copies of ranges */

static void from_host(void)
{
    const struct model_range range = model_range(MODEL_MOST, 1);
    const bool is_async = model_one_in(2), is_any = model_one_in(2);
    const CUstream stream = is_async ? model_stream() : CU_STREAM_LEGACY;
    const struct model_source source = model_source(range.bytes, is_async);
    const CUdeviceptr at = model_address(range), from = (CUdeviceptr)(uintptr_t)source.bytes;
    model_order(range, stream);
    model_write(range, source.bytes);
    if (is_async)
        OK(is_any ? cuMemcpyAsync(at, from, range.bytes, stream)
                  : cuMemcpyHtoDAsync(at, source.bytes, range.bytes, stream));
    else
        OK(is_any ? cuMemcpy(at, from, range.bytes) : cuMemcpyHtoD(at, source.bytes, range.bytes));
    model_source_used(source, range.bytes);
    model_done(range, stream);
}

static void on_device(void)
{
    struct model_range from, to;
    if (!model_ranges(&from, &to, MODEL_MOST, 1))
        return;
    const bool is_any = model_one_in(2);
    const CUstream stream = model_one_in(4) ? CU_STREAM_LEGACY : model_stream();
    model_order(from, stream);
    model_order(to, stream);
    if (model_one_in(8)) /* of one device */
        OK(cuMemcpyPeerAsync(model_address(to), model_context, model_address(from), model_context,
                             to.bytes, stream));
    else if (stream == CU_STREAM_LEGACY)
        OK(is_any ? cuMemcpy(model_address(to), model_address(from), to.bytes)
                  : cuMemcpyDtoD(model_address(to), model_address(from), to.bytes));
    else
        OK(is_any ? cuMemcpyAsync(model_address(to), model_address(from), to.bytes, stream)
                  : cuMemcpyDtoDAsync(model_address(to), model_address(from), to.bytes, stream));
    model_move(to, from);
    model_done(to, stream);
    model_done(from, stream);
}

static void to_host(void)
{
    const struct model_range range = model_range(MODEL_MOST, 1);
    const size_t way = model_below(4);
    const CUstream stream = way < 2 ? CU_STREAM_LEGACY : model_stream();
    unsigned char *seen = way == 3 ? model_pinned(range.bytes) : malloc(range.bytes);
    const CUdeviceptr at = model_address(range);
    model_order(range, stream);
    if (way == 0)
        OK(cuMemcpyDtoH(seen, at, range.bytes));
    else if (way == 1)
        OK(cuMemcpy((CUdeviceptr)(uintptr_t)seen, at, range.bytes));
    else
        OK(cuMemcpyDtoHAsync(seen, at, range.bytes, stream));
    if (way == 2)
        OK(cuStreamSynchronize(stream));
    if (way == 3) {
        model_compare_later(range, seen);
    } else {
        model_compare(range, seen);
        free(seen);
    }
    model_done(range, stream);
}

/* To pinned memory and from there, in one stream: the host bytes come late. */
static void bounce(void)
{
    struct model_range from, to;
    if (!model_ranges(&from, &to, MODEL_MOST, 1))
        return;
    unsigned char *between = model_pinned(to.bytes);
    const CUstream stream = model_stream();
    model_order(from, stream);
    model_order(to, stream);
    OK(cuMemcpyDtoHAsync(between, model_address(from), to.bytes, stream));
    OK(cuMemcpyHtoDAsync(model_address(to), between, to.bytes, stream));
    model_compare_later(from, between);
    model_move(to, from);
    model_done(to, stream);
    model_done(from, stream);
}

static void through_array(void)
{
    enum { WIDTH = 4096 };
    static _Thread_local CUarray array;
    struct model_range from, to;
    const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = WIDTH,
                                              .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                              .NumChannels = 1};
    if (array == NULL)
        OK(cuArrayCreate(&array, &descriptor));
    if (!model_ranges(&from, &to, WIDTH, 1))
        return;
    model_order(from, CU_STREAM_LEGACY);
    model_order(to, CU_STREAM_LEGACY);
    OK(cuMemcpyDtoA(array, 0, model_address(from), from.bytes));
    OK(cuMemcpyAtoD(model_address(to), array, 0, to.bytes));
    model_move(to, from);
    model_done(to, CU_STREAM_LEGACY);
    model_done(from, CU_STREAM_LEGACY);
}

/* --- copies of rows and boxes */

/* A copy of one pitch on both sides: rows of `width` bytes, `height` of them in each of `depth`
 * slices. */
struct box {
    size_t pitch, slice, width, height, depth;
};

static struct box draw_box(size_t bytes)
{
    struct box box = {.pitch = 1 + model_below(bytes)};
    const size_t rows = bytes / box.pitch;
    box.width = 1 + model_below(box.pitch);
    box.slice = model_one_in(2) ? rows : 1 + model_below(rows);
    box.height = box.slice == rows ? rows : 1 + model_below(box.slice);
    box.depth = rows / box.slice;
    return box;
}

static struct model_range part(struct model_range range, size_t at, size_t bytes)
{
    return (struct model_range){range.block, range.at + at, bytes};
}

static void run_box(struct box box, const void *host_from, CUdeviceptr from, void *host_to,
                    CUdeviceptr to, CUstream stream)
{
    const CUDA_MEMCPY3D copy = {
        .srcMemoryType = host_from != NULL ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .srcHost = host_from,
        .srcDevice = from,
        .srcPitch = box.pitch,
        .srcHeight = box.slice,
        .dstMemoryType = host_to != NULL ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dstHost = host_to,
        .dstDevice = to,
        .dstPitch = box.pitch,
        .dstHeight = box.slice,
        .WidthInBytes = box.width,
        .Height = box.height,
        .Depth = box.depth};
    const CUDA_MEMCPY2D plane = {.srcMemoryType = copy.srcMemoryType,
                                 .srcHost = host_from,
                                 .srcDevice = from,
                                 .srcPitch = box.pitch,
                                 .dstMemoryType = copy.dstMemoryType,
                                 .dstHost = host_to,
                                 .dstDevice = to,
                                 .dstPitch = box.pitch,
                                 .WidthInBytes = box.width,
                                 .Height = box.height};
    if (box.depth > 1)
        OK(stream == CU_STREAM_LEGACY ? cuMemcpy3D(&copy) : cuMemcpy3DAsync(&copy, stream));
    else if (stream == CU_STREAM_LEGACY)
        OK(model_one_in(2) ? cuMemcpy2D(&plane) : cuMemcpy2DUnaligned(&plane));
    else
        OK(cuMemcpy2DAsync(&plane, stream));
}

static void box_on_device(void)
{
    struct model_range from, to;
    if (!model_ranges(&from, &to, 64 << 10, model_one_in(2) ? 64 : 1))
        return;
    const struct box box = draw_box(to.bytes);
    const CUstream stream = model_one_in(3) ? CU_STREAM_LEGACY : model_stream();
    model_order(from, stream);
    model_order(to, stream);
    run_box(box, NULL, model_address(from), NULL, model_address(to), stream);
    for (size_t i = 0; i < box.depth * box.height; i++) {
        const size_t at = (i / box.height * box.slice + i % box.height) * box.pitch;
        model_move(part(to, at, box.width), part(from, at, box.width));
    }
    model_done(to, stream);
    model_done(from, stream);
}

static void box_from_host(void)
{
    const struct model_range to = model_range(64 << 10, 1);
    const struct box box = draw_box(to.bytes);
    const bool is_async = model_one_in(2);
    const CUstream stream = is_async ? model_own_stream() : CU_STREAM_LEGACY;
    const struct model_source source = model_source(to.bytes, is_async);
    model_order(to, stream);
    for (size_t i = 0; i < box.depth * box.height; i++) {
        const size_t at = (i / box.height * box.slice + i % box.height) * box.pitch;
        model_write(part(to, at, box.width), source.bytes + at);
    }
    run_box(box, source.bytes, 0, NULL, model_address(to), stream);
    model_source_used(source, to.bytes);
    model_done(to, stream);
}

static void box_to_host(void)
{
    const struct model_range from = model_range(64 << 10, 1);
    const struct box box = draw_box(from.bytes);
    const CUstream stream = model_stream();
    unsigned char *seen = model_pinned(from.bytes);
    model_order(from, stream);
    run_box(box, NULL, model_address(from), seen, 0, stream);
    OK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < box.depth * box.height; i++) {
        const size_t at = (i / box.height * box.slice + i % box.height) * box.pitch;
        model_compare(part(from, at, box.width), seen + at);
    }
    model_done(from, stream);
}

/* --- another device: one block a thread, which is done with after each operation */

static struct model_block *abroad(void)
{
    static _Thread_local struct model_block block = {.bytes = 32 << 10, .index = -1};
    CUcontext popped;
    if (block.at == 0) {
        block.content = calloc(1, block.bytes);
        block.known = calloc(1, block.bytes);
        OK(cuCtxPushCurrent(model_peer_context));
        OK(cuMemAlloc(&block.at, block.bytes));
        OK(cuCtxPopCurrent(&popped));
    }
    return &block;
}

static void set_abroad(struct model_range there)
{
    const unsigned char value = (unsigned char)model_random();
    OK(cuMemsetD8(model_address(there), value, there.bytes));
    model_fill(there, &value, 1);
}

static void read_abroad(struct model_range there)
{
    unsigned char *seen = malloc(there.bytes);
    OK(cuMemcpyDtoH(seen, model_address(there), there.bytes));
    model_compare(there, seen);
    free(seen);
}

static void between_peers(void)
{
    struct model_range here = model_range(32 << 10, 1);
    const struct model_range there = {abroad(), model_below((32 << 10) - here.bytes + 1),
                                      here.bytes};
    const bool is_here = model_one_in(2), is_async = model_one_in(2);
    const struct model_range to = is_here ? here : there, from = is_here ? there : here;
    const CUcontext to_context = is_here ? model_context : model_peer_context;
    const CUcontext from_context = is_here ? model_peer_context : model_context;
    const CUstream stream = is_async ? model_stream() : CU_STREAM_LEGACY;
    CUcontext popped;
    model_order(here, stream);
    OK(is_async ? cuMemcpyPeerAsync(model_address(to), to_context, model_address(from),
                                    from_context, to.bytes, stream)
                : cuMemcpyPeer(model_address(to), to_context, model_address(from), from_context,
                               to.bytes));
    model_move(to, from);
    OK(cuStreamSynchronize(stream));
    model_done(here, stream);
    OK(cuCtxPushCurrent(model_peer_context));
    if (model_one_in(2))
        set_abroad(there);
    if (model_one_in(2))
        read_abroad(there);
    OK(cuCtxSynchronize());
    OK(cuCtxPopCurrent(&popped));
}

/* The same with another context current than that of the memory and the stream. */
static void elsewhere(void)
{
    struct model_range from, to;
    CUcontext popped;
    const CUstream stream = model_own_stream();
    const unsigned char value = (unsigned char)model_random();
    if (!model_ranges(&from, &to, MODEL_MOST, 1))
        return;
    unsigned char *host = model_pinned(to.bytes);
    memset(host, value, to.bytes);
    model_order(from, stream);
    model_order(to, stream);
    OK(cuCtxPushCurrent(model_other_context));
    switch (model_below(4)) {
    case 0:
        OK(cuMemsetD8Async(model_address(to), value, to.bytes, stream));
        model_fill(to, &value, 1);
        break;
    case 1:
        OK(cuMemcpyHtoDAsync(model_address(to), host, to.bytes, stream));
        model_fill(to, &value, 1);
        break;
    case 2:
        OK(cuMemcpyDtoDAsync(model_address(to), model_address(from), to.bytes, stream));
        model_move(to, from);
        break;
    default:
        OK(cuMemcpyDtoHAsync(host, model_address(from), from.bytes, stream));
        model_compare_later(from, host);
    }
    OK(cuCtxPopCurrent(&popped));
    model_done(to, stream);
    model_done(from, stream);
}

const struct model_operation model_copies[] = {
    {"set", set, 60},
    {"set rows", set_rows, 20},
    {"set a word", set_word, 2},
    {"copy from the host", from_host, 120},
    {"copy on the device", on_device, 100},
    {"copy to the host", to_host, 120},
    {"bounce", bounce, 15},
    {"copy through an array", through_array, 8},
    {"copy a box on the device", box_on_device, 25},
    {"copy a box from the host", box_from_host, 15},
    {"copy a box to the host", box_to_host, 15},
    {"copy between peers", between_peers, 15},
    {"copy in another current context", elsewhere, 15},
    {NULL, NULL, 0},
};
