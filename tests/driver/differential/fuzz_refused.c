/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that are refused: ranges that begin or end outside of their block. And batches, of which
 * one may be refused. */
#include "tests/driver/differential/fuzz.h"

enum { MOST = 64 << 10, COUNT_MOST = 4 };

/* A range that is not all in its block; only of blocks that are allocations by themselves. */
static bool draw_stray(struct fuzz_range *range_out)
{
    struct fuzz_range range = fuzz_range(MOST, 1);
    if (range.block->is_part || range.block->is_mapped)
        return false;
    const CUdeviceptr end = range.block->at + range.block->bytes;
    range.at = end - range.bytes + 1 + fuzz_below(range.bytes < 9 ? range.bytes : 8);
    *range_out = range;
    return range.at < end;
}

static void stray_to_host(struct fuzz_range range, bool twin)
{
    SEE_NOW(twin, cuMemcpyDtoH_v2, fuzz_scratch, range.at, range.bytes);
}

static void stray_from_host(struct fuzz_range range, bool twin)
{
    SEE_QUEUED(twin, cuMemcpyHtoDAsync_v2, range.at, fuzz_source(range.bytes), range.bytes);
}

static void stray_within(struct fuzz_range range, bool twin)
{
    const struct fuzz_range other = fuzz_range(MOST, 1);
    const size_t bytes = other.bytes < range.bytes ? range.bytes : other.bytes;
    const CUstream stream = fuzz_stream(twin);
    if (other.bytes >= range.bytes)
        SEE(TWIN(twin, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz)(other.at, range.at, bytes,
                                                                        stream));
}

static void stray_set(struct fuzz_range range, bool twin)
{
    SEE_QUEUED(twin, cuMemsetD8Async, range.at, 5, range.bytes);
}

static void stray(void)
{
    static void (*const ways[])(struct fuzz_range, bool) = {stray_to_host, stray_from_host,
                                                            stray_within, stray_set};
    struct fuzz_range range;
    if (!draw_stray(&range))
        return;
    const size_t way = fuzz_below(sizeof(ways) / sizeof(ways[0]));
    ways[way](range, fuzz_one_in(2));
    fuzz_read(range.block->at, range.block->bytes);
}

/* --- batches: a stream that was made, or that of the thread; no copy touches what another one
 * writes */

struct batch {
    CUdeviceptr to, from;
    size_t bytes;
};

static bool draw_batch(struct batch *batch_out)
{
    struct fuzz_range from, to;
    if (!fuzz_two_ranges(&from, &to, MOST, 1))
        return false;
    *batch_out = (struct batch){to.at, from.at, to.bytes};
    return true;
}

static CUstream made_stream(void)
{
    CUstream stream = NULL;
    fuzz_wait();
    SEE(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void done_with(CUstream stream)
{
    SEE(CALL(cuStreamSynchronize)(stream));
    SEE(CALL(cuStreamDestroy_v2)(stream));
}

/* In parts, one behind the other. */
static void copy_batch(void)
{
    struct batch batch;
    if (!draw_batch(&batch))
        return;
    CUdeviceptr to[COUNT_MOST], from[COUNT_MOST];
    size_t sizes[COUNT_MOST], starts[] = {0}, failed = 7, count = 0;
    CUmemcpyAttributes attributes[] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    const size_t parts = 1 + fuzz_below(COUNT_MOST);
    for (size_t at = 0; at < batch.bytes; at += sizes[count++]) {
        sizes[count] = count + 1 == parts ? batch.bytes - at : 1 + fuzz_below(batch.bytes - at);
        to[count] = batch.to + at;
        from[count] = batch.from + at;
    }
    const bool twin = fuzz_one_in(2);
    const CUstream stream = made_stream();
    if (fuzz_one_in(2))
        SEE(TWIN(twin, cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz)(
            to, from, sizes, count, attributes, starts, 1, stream));
    else
        SEE(TWIN(twin, cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz)(
            to, from, sizes, count, attributes, starts, 1, &failed, stream));
    fuzz_see(failed);
    done_with(stream);
    fuzz_read(batch.to, batch.bytes);
}

static CUmemcpy3DOperand operand(CUdeviceptr at, size_t pitch, size_t height)
{
    return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                               .op.ptr = {.ptr = at, .rowLength = pitch, .layerHeight = height}};
}

static void copy_batch_of_boxes(void)
{
    struct batch batch;
    if (!draw_batch(&batch))
        return;
    size_t failed = 7;
    const size_t pitch = 1 + fuzz_below(batch.bytes), height = batch.bytes / pitch;
    CUDA_MEMCPY3D_BATCH_OP copy = {.src = operand(batch.from, pitch, height),
                                   .dst = operand(batch.to, pitch, height),
                                   .extent = {1 + fuzz_below(pitch), height, 1},
                                   .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    const bool twin = fuzz_one_in(2);
    const CUstream stream = made_stream();
    if (fuzz_is_newer(FUZZ_cuMemcpy3DWithAttributesAsync))
        SEE(TWIN(twin, cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz)(&copy, 0,
                                                                                          stream));
    else if (fuzz_one_in(2))
        SEE(TWIN(twin, cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz)(1, &copy, 0, stream));
    else
        SEE(TWIN(twin, cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz)(1, &copy, &failed, 0,
                                                                        stream));
    fuzz_see(failed);
    done_with(stream);
    fuzz_read(batch.to, batch.bytes);
}

static void copy_box_between_peers(void)
{
    struct batch batch;
    if (!draw_batch(&batch))
        return;
    const size_t pitch = 1 + fuzz_below(batch.bytes);
    const CUDA_MEMCPY3D_PEER copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .srcDevice = batch.from,
                                     .srcContext = fuzz_context,
                                     .srcPitch = pitch,
                                     .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .dstDevice = batch.to,
                                     .dstContext = fuzz_context,
                                     .dstPitch = pitch,
                                     .WidthInBytes = 1 + fuzz_below(pitch),
                                     .Height = batch.bytes / pitch,
                                     .Depth = 1};
    const bool twin = fuzz_one_in(2);
    if (fuzz_one_in(2))
        SEE_QUEUED(twin, cuMemcpy3DPeerAsync, &copy);
    else
        SEE_NOW(twin, cuMemcpy3DPeer, &copy);
    fuzz_wait();
    fuzz_read(batch.to, batch.bytes);
}

const struct fuzz_operation fuzz_refused[] = {
    {"stray from a block", stray, 20},
    {"copy a batch", copy_batch, 10},
    {"copy a batch of boxes", copy_batch_of_boxes, 10},
    {"copy a box between peers", copy_box_between_peers, 10},
    {NULL, NULL, 0},
};
