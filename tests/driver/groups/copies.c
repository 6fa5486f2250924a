/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets of every shape, from and to deferred memory. */
#include "tests/driver/groups/groups.h"

static void from_host(void)
{
    unsigned char *bytes = make_bytes(3 * MIB, 9);
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemcpyHtoD_v2)(block + MIB + 5, bytes, 3 * MIB));
    memset(bytes, 0, 3 * MIB);
    print_device("block", block, BLOCK_BYTES);
}

static void from_host_async(void)
{
    CUstream stream;
    unsigned char *bytes = make_bytes(3 * MIB, 9);
    const CUdeviceptr block = make_block(1);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SEEN(TESTED(cuMemcpyHtoDAsync_v2)(block + MIB + 5, bytes, 3 * MIB, stream));
    MUST(cuStreamSynchronize(stream));
    memset(bytes, 0, 3 * MIB);
    print_device("block", block, BLOCK_BYTES);
}

static void on_device(void)
{
    const CUdeviceptr from = make_block(1);
    const CUdeviceptr to = make_block(2);
    SEEN(TESTED(cuMemcpyDtoD_v2)(to + MIB, from + 3 * MIB + 4, 4 * MIB));
    MUST(cuCtxSynchronize());
    print_device("to", to, BLOCK_BYTES);
}

static void on_device_async(void)
{
    const CUdeviceptr from = make_block(1);
    const CUdeviceptr to = make_block(2);
    SEEN(TESTED(cuMemcpyDtoDAsync_v2)(to + MIB, from + 3 * MIB + 4, 4 * MIB, NULL));
    MUST(cuCtxSynchronize());
    print_device("to", to, BLOCK_BYTES);
}

static void to_host(void)
{
    unsigned char *host = calloc(1, BLOCK_BYTES);
    SEEN(TESTED(cuMemcpyDtoH_v2)(host, make_block(1), BLOCK_BYTES));
    print_host("host", host, BLOCK_BYTES);
}

static void to_host_async(void)
{
    unsigned char *host = calloc(1, BLOCK_BYTES);
    SEEN(TESTED(cuMemcpyDtoHAsync_v2)(host, make_block(1), BLOCK_BYTES, NULL));
    seen("synchronised", cuCtxSynchronize());
    print_host("host", host, BLOCK_BYTES);
}

static void any(void)
{
    unsigned char *host = make_bytes(BLOCK_BYTES, 3);
    const CUdeviceptr block = make_block(1);
    const CUdeviceptr other = make_block(2);
    SEEN(TESTED(cuMemcpy)(block + MIB, (CUdeviceptr)(uintptr_t)host, MIB));
    SEEN(TESTED(cuMemcpy)(other + MIB, block, 4 * MIB));
    SEEN(TESTED(cuMemcpy)((CUdeviceptr)(uintptr_t)host, other, BLOCK_BYTES));
    print_host("host", host, BLOCK_BYTES);
}

static void any_async(void)
{
    unsigned char *host = make_bytes(BLOCK_BYTES, 3);
    const CUdeviceptr block = make_block(1);
    const CUdeviceptr other = make_block(2);
    SEEN(TESTED(cuMemcpyAsync)(block + MIB, (CUdeviceptr)(uintptr_t)host, MIB, NULL));
    SEEN(TESTED(cuMemcpyAsync)(other + MIB, block, 4 * MIB, NULL));
    SEEN(TESTED(cuMemcpyAsync)((CUdeviceptr)(uintptr_t)host, other, BLOCK_BYTES, NULL));
    seen("synchronised", cuCtxSynchronize());
    print_host("host", host, BLOCK_BYTES);
}

static void set_8(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD8_v2)(block + 7, 0x5a, 3 * MIB));
    print_device("block", block, BLOCK_BYTES);
}

static void set_16(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD16_v2)(block + 6, 0x5aa5, MIB));
    print_device("block", block, BLOCK_BYTES);
}

static void set_32(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD32_v2)(block + 4, 0x12345678, MIB));
    print_device("block", block, BLOCK_BYTES);
}

static void set_8_async(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD8Async)(block + 7, 0x5a, 3 * MIB, NULL));
    print_device("block", block, BLOCK_BYTES);
}

static void set_16_async(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD16Async)(block + 6, 0x5aa5, MIB, NULL));
    print_device("block", block, BLOCK_BYTES);
}

static void set_32_async(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD32Async)(block + 4, 0x12345678, MIB, NULL));
    print_device("block", block, BLOCK_BYTES);
}

/* Columns of 1000 elements in rows of 4096 bytes. */
static void set_rows_8(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD2D8_v2)(block + 7, 4096, 0x5a, 1000, 500));
    print_device("block", block, BLOCK_BYTES);
}

static void set_rows_16(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD2D16_v2)(block + 6, 4096, 0x5aa5, 1000, 500));
    print_device("block", block, BLOCK_BYTES);
}

static void set_rows_32(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD2D32_v2)(block + 4, 4096, 0x12345678, 1000, 500));
    print_device("block", block, BLOCK_BYTES);
}

static void set_rows_8_async(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD2D8Async)(block + 7, 4096, 0x5a, 1000, 500, NULL));
    print_device("block", block, BLOCK_BYTES);
}

static void set_rows_16_async(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD2D16Async)(block + 6, 4096, 0x5aa5, 1000, 500, NULL));
    print_device("block", block, BLOCK_BYTES);
}

static void set_rows_32_async(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemsetD2D32Async)(block + 4, 4096, 0x12345678, 1000, 500, NULL));
    print_device("block", block, BLOCK_BYTES);
}

static CUDA_MEMCPY2D plane(CUdeviceptr to, CUdeviceptr from)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .srcXInBytes = 100,
                           .srcY = 3,
                           .srcPitch = 4096,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = 8192,
                           .WidthInBytes = 3000,
                           .Height = 400};
}

static void plane_copied(void)
{
    const CUdeviceptr to = make_block(2);
    const CUDA_MEMCPY2D copy = plane(to, make_block(1));
    SEEN(TESTED(cuMemcpy2D_v2)(&copy));
    print_device("to", to, BLOCK_BYTES);
}

static void plane_copied_async(void)
{
    const CUdeviceptr to = make_block(2);
    const CUDA_MEMCPY2D copy = plane(to, make_block(1));
    SEEN(TESTED(cuMemcpy2DAsync_v2)(&copy, NULL));
    print_device("to", to, BLOCK_BYTES);
}

static void box_copied(void)
{
    const CUdeviceptr to = make_block(2);
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = make_block(1),
                                .srcPitch = 4096,
                                .srcHeight = 128,
                                .srcZ = 2,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = 4096,
                                .dstHeight = 100,
                                .WidthInBytes = 3000,
                                .Height = 90,
                                .Depth = 5};
    SEEN(TESTED(cuMemcpy3D_v2)(&copy));
    print_device("to", to, BLOCK_BYTES);
}

static void box_copied_async(void)
{
    const CUdeviceptr to = make_block(2);
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = make_block(1),
                                .srcPitch = 4096,
                                .srcHeight = 128,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = 4096,
                                .dstHeight = 100,
                                .WidthInBytes = 3000,
                                .Height = 90,
                                .Depth = 5};
    SEEN(TESTED(cuMemcpy3DAsync_v2)(&copy, NULL));
    print_device("to", to, BLOCK_BYTES);
}

static CUarray make_array(size_t bytes)
{
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR descriptor = {
        .Width = bytes, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    MUST(cuArrayCreate_v2(&array, &descriptor));
    return array;
}

static void to_array(void)
{
    unsigned char host[4096] = {0};
    const CUarray array = make_array(sizeof(host));
    SEEN(TESTED(cuMemcpyDtoA_v2)(array, 0, make_block(1) + 5 * MIB, sizeof(host)));
    MUST(cuMemcpyAtoH_v2(host, array, 0, sizeof(host)));
    print_host("array", host, sizeof(host));
}

static void from_array(void)
{
    unsigned char *bytes = make_bytes(4096, 5);
    const CUarray array = make_array(4096);
    const CUdeviceptr block = make_block(1);
    MUST(cuMemcpyHtoA_v2(array, 0, bytes, 4096));
    SEEN(TESTED(cuMemcpyAtoD_v2)(block + MIB, array, 0, 4096));
    print_device("block", block, BLOCK_BYTES);
}

static void between_peers(void)
{
    CUcontext context;
    const CUdeviceptr from = make_block(1);
    const CUdeviceptr to = make_block(2);
    MUST(cuCtxGetCurrent(&context));
    SEEN(TESTED(cuMemcpyPeer)(to + MIB, context, from, context, 4 * MIB));
    print_device("to", to, BLOCK_BYTES);
}

static void between_peers_async(void)
{
    CUcontext context;
    const CUdeviceptr from = make_block(1);
    const CUdeviceptr to = make_block(2);
    MUST(cuCtxGetCurrent(&context));
    SEEN(TESTED(cuMemcpyPeerAsync)(to + MIB, context, from, context, 4 * MIB, NULL));
    print_device("to", to, BLOCK_BYTES);
}

static CUDA_MEMCPY3D_PEER peer_box(CUdeviceptr to, CUdeviceptr from)
{
    CUDA_MEMCPY3D_PEER copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = from,
                               .srcY = 3,
                               .srcPitch = 8192,
                               .srcHeight = 128,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = to,
                               .dstXInBytes = 64,
                               .dstPitch = 4096,
                               .dstHeight = 100,
                               .WidthInBytes = 3000,
                               .Height = 90,
                               .Depth = 5};
    MUST(cuCtxGetCurrent(&copy.srcContext));
    copy.dstContext = copy.srcContext;
    return copy;
}

static void box_between_peers(void)
{
    const CUdeviceptr from = make_block(1), to = make_block(2);
    const CUDA_MEMCPY3D_PEER copy = peer_box(to, from);
    SEEN(TESTED(cuMemcpy3DPeer)(&copy));
    print_device("to", to, BLOCK_BYTES);
}

static void box_between_peers_async(void)
{
    const CUdeviceptr from = make_block(1), to = make_block(2);
    const CUDA_MEMCPY3D_PEER copy = peer_box(to, from);
    SEEN(TESTED(cuMemcpy3DPeerAsync)(&copy, NULL));
    print_device("to", to, BLOCK_BYTES);
}

/* A stream that was made: a batch takes no other. */
static CUstream make_stream(void)
{
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxSynchronize());
    return stream;
}

/* Two copies, and then two of which the second ends a byte behind its block. */
struct batch {
    CUdeviceptr to[2], from[2];
    size_t sizes[2], starts[1], failed;
    CUmemcpyAttributes attributes[1];
};

static struct batch make_batch(void)
{
    const CUdeviceptr to = make_block(1), from = make_block(2);
    return (struct batch){.to = {to + MIB, to + 4 * MIB},
                          .from = {from, from + MIB + 1},
                          .sizes = {MIB, 4 * MIB},
                          .attributes = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}}};
}

static void batch(void)
{
    struct batch of = make_batch();
    const CUstream stream = make_stream();
    for (int i = 0; i < 2; i++, of.sizes[1]++) {
        SEEN(TESTED(cuMemcpyBatchAsync)(of.to, of.from, of.sizes, 2, of.attributes, of.starts, 1,
                                        &of.failed, stream));
        printf("failed: %zd\n", (ssize_t)of.failed);
    }
    print_device("to", of.to[0] - MIB, BLOCK_BYTES);
}

static void batch_2(void)
{
    struct batch of = make_batch();
    const CUstream stream = make_stream();
    for (int i = 0; i < 2; i++, of.sizes[1]++)
        SEEN(TESTED(cuMemcpyBatchAsync_v2)(of.to, of.from, of.sizes, 2, of.attributes, of.starts, 1,
                                           stream));
    print_device("to", of.to[0] - MIB, BLOCK_BYTES);
}

/* The source may be written again when the call has returned. */
static void with_attributes_from_host(void)
{
    unsigned char *bytes = make_bytes(3 * MIB, 9);
    const CUdeviceptr block = make_block(1), host = (CUdeviceptr)(uintptr_t)bytes;
    const CUstream stream = make_stream();
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL};
    SEEN(TESTED(cuMemcpyWithAttributesAsync)(block + MIB + 5, host, 3 * MIB, &attributes, stream));
    memset(bytes, 0, 3 * MIB);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    SEEN(TESTED(cuMemcpyWithAttributesAsync)(block, host, MIB, &attributes, stream));
    SEEN(TESTED(cuMemcpyWithAttributesAsync)(block, host, MIB, NULL, stream));
    MUST(cuStreamSynchronize(stream));
    print_device("block", block, BLOCK_BYTES);
}

static void with_attributes(void)
{
    struct batch of = make_batch();
    const CUstream stream = make_stream();
    for (int i = 0; i < 2; i++, of.sizes[1]++)
        SEEN(TESTED(cuMemcpyWithAttributesAsync)(of.to[1], of.from[1], of.sizes[1], of.attributes,
                                                 stream));
    print_device("to", of.to[0] - MIB, BLOCK_BYTES);
}

/* The same of boxes. */
struct boxes {
    CUDA_MEMCPY3D_BATCH_OP all[2];
    CUdeviceptr to;
    size_t failed;
};

static CUDA_MEMCPY3D_BATCH_OP make_box(CUdeviceptr to, CUdeviceptr from)
{
    return (CUDA_MEMCPY3D_BATCH_OP){
        .src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                .op.ptr = {.ptr = from, .rowLength = 4096, .layerHeight = 256}},
        .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                .op.ptr = {.ptr = to, .rowLength = 4096, .layerHeight = 256}},
        .extent = {1000, 256, 2},
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
}

static struct boxes make_boxes(void)
{
    const CUdeviceptr to = make_block(1), from = make_block(2);
    /* The last row of the second ends at the end of the block. */
    const CUdeviceptr last = to + BLOCK_BYTES - 2 * MIB + 3096;
    return (struct boxes){.all = {make_box(to, from), make_box(last, from + MIB)}, .to = to};
}

static void batch_of_boxes(void)
{
    struct boxes of = make_boxes();
    const CUstream stream = make_stream();
    for (int i = 0; i < 2; i++, of.all[1].extent.width++) {
        SEEN(TESTED(cuMemcpy3DBatchAsync)(2, of.all, &of.failed, 0, stream));
        printf("failed: %zd\n", (ssize_t)of.failed);
    }
    print_device("to", of.to, BLOCK_BYTES);
}

static void batch_of_boxes_2(void)
{
    struct boxes of = make_boxes();
    const CUstream stream = make_stream();
    for (int i = 0; i < 2; i++, of.all[1].extent.width++)
        SEEN(TESTED(cuMemcpy3DBatchAsync_v2)(2, of.all, 0, stream));
    print_device("to", of.to, BLOCK_BYTES);
}

static void box_with_attributes(void)
{
    struct boxes of = make_boxes();
    const CUstream stream = make_stream();
    for (int i = 0; i < 2; i++, of.all[1].extent.width++)
        SEEN(TESTED(cuMemcpy3DWithAttributesAsync)(&of.all[1], 0, stream));
    print_device("to", of.to, BLOCK_BYTES);
}

const struct scenario copy_scenarios[] = {
    {"cuMemcpyHtoD_v2", from_host, NULL},
    {"cuMemcpyHtoD_v2_ptds", from_host, NULL},
    {"cuMemcpyHtoDAsync_v2", from_host_async, NULL},
    {"cuMemcpyHtoDAsync_v2_ptsz", from_host_async, NULL},
    {"cuMemcpyDtoD_v2", on_device, NULL},
    {"cuMemcpyDtoD_v2_ptds", on_device, NULL},
    {"cuMemcpyDtoDAsync_v2", on_device_async, NULL},
    {"cuMemcpyDtoDAsync_v2_ptsz", on_device_async, NULL},
    {"cuMemcpyDtoH_v2", to_host, NULL},
    {"cuMemcpyDtoH_v2_ptds", to_host, NULL},
    {"cuMemcpyDtoHAsync_v2", to_host_async, NULL},
    {"cuMemcpyDtoHAsync_v2_ptsz", to_host_async, NULL},
    {"cuMemcpy", any, NULL},
    {"cuMemcpy_ptds", any, NULL},
    {"cuMemcpyAsync", any_async, NULL},
    {"cuMemcpyAsync_ptsz", any_async, NULL},
    {"cuMemsetD8_v2", set_8, NULL},
    {"cuMemsetD8_v2_ptds", set_8, NULL},
    {"cuMemsetD16_v2", set_16, NULL},
    {"cuMemsetD16_v2_ptds", set_16, NULL},
    {"cuMemsetD32_v2", set_32, NULL},
    {"cuMemsetD32_v2_ptds", set_32, NULL},
    {"cuMemsetD8Async", set_8_async, NULL},
    {"cuMemsetD8Async_ptsz", set_8_async, NULL},
    {"cuMemsetD16Async", set_16_async, NULL},
    {"cuMemsetD16Async_ptsz", set_16_async, NULL},
    {"cuMemsetD32Async", set_32_async, NULL},
    {"cuMemsetD32Async_ptsz", set_32_async, NULL},
    {"cuMemsetD2D8_v2", set_rows_8, NULL},
    {"cuMemsetD2D8_v2_ptds", set_rows_8, NULL},
    {"cuMemsetD2D16_v2", set_rows_16, NULL},
    {"cuMemsetD2D16_v2_ptds", set_rows_16, NULL},
    {"cuMemsetD2D32_v2", set_rows_32, NULL},
    {"cuMemsetD2D32_v2_ptds", set_rows_32, NULL},
    {"cuMemsetD2D8Async", set_rows_8_async, NULL},
    {"cuMemsetD2D8Async_ptsz", set_rows_8_async, NULL},
    {"cuMemsetD2D16Async", set_rows_16_async, NULL},
    {"cuMemsetD2D16Async_ptsz", set_rows_16_async, NULL},
    {"cuMemsetD2D32Async", set_rows_32_async, NULL},
    {"cuMemsetD2D32Async_ptsz", set_rows_32_async, NULL},
    {"cuMemcpy2D_v2", plane_copied, NULL},
    {"cuMemcpy2D_v2_ptds", plane_copied, NULL},
    {"cuMemcpy2DUnaligned_v2", plane_copied, NULL},
    {"cuMemcpy2DUnaligned_v2_ptds", plane_copied, NULL},
    {"cuMemcpy2DAsync_v2", plane_copied_async, NULL},
    {"cuMemcpy2DAsync_v2_ptsz", plane_copied_async, NULL},
    {"cuMemcpy3D_v2", box_copied, NULL},
    {"cuMemcpy3D_v2_ptds", box_copied, NULL},
    {"cuMemcpy3DAsync_v2", box_copied_async, NULL},
    {"cuMemcpy3DAsync_v2_ptsz", box_copied_async, NULL},
    {"cuMemcpyDtoA_v2", to_array, NULL},
    {"cuMemcpyDtoA_v2_ptds", to_array, NULL},
    {"cuMemcpyAtoD_v2", from_array, NULL},
    {"cuMemcpyAtoD_v2_ptds", from_array, NULL},
    {"cuMemcpyPeer", between_peers, NULL},
    {"cuMemcpyPeer_ptds", between_peers, NULL},
    {"cuMemcpyPeerAsync", between_peers_async, NULL},
    {"cuMemcpyPeerAsync_ptsz", between_peers_async, NULL},
    {"cuMemcpy3DPeer", box_between_peers, NULL},
    {"cuMemcpy3DPeer_ptds", box_between_peers, NULL},
    {"cuMemcpy3DPeerAsync", box_between_peers_async, NULL},
    {"cuMemcpy3DPeerAsync_ptsz", box_between_peers_async, NULL},
    {"cuMemcpyBatchAsync", batch, NULL},
    {"cuMemcpyBatchAsync_ptsz", batch, NULL},
    {"cuMemcpyBatchAsync_v2", batch_2, NULL},
    {"cuMemcpyBatchAsync_v2_ptsz", batch_2, NULL},
    {"cuMemcpyWithAttributesAsync", with_attributes, NULL},
    {"cuMemcpyWithAttributesAsync_ptsz", with_attributes, NULL},
    {"cuMemcpyWithAttributesAsync:host", with_attributes_from_host, NULL},
    {"cuMemcpyWithAttributesAsync_ptsz:host", with_attributes_from_host, NULL},
    {"cuMemcpy3DWithAttributesAsync", box_with_attributes, NULL},
    {"cuMemcpy3DWithAttributesAsync_ptsz", box_with_attributes, NULL},
    {"cuMemcpy3DBatchAsync", batch_of_boxes, NULL},
    {"cuMemcpy3DBatchAsync_ptsz", batch_of_boxes, NULL},
    {"cuMemcpy3DBatchAsync_v2", batch_of_boxes_2, NULL},
    {"cuMemcpy3DBatchAsync_v2_ptsz", batch_of_boxes_2, NULL},
    {NULL, NULL, NULL},
};
