/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios (scenario.h) of calls that the driver refuses: they are refused with the shim as well,
 * by the same result, and nothing is changed. refused.py runs them.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/differential/scenario.h"

enum { TAIL = 5 };                                /* bytes in a granule that no other block has */
static const size_t block_bytes = 2 * MIB + TAIL; /* shapes below cover all of it */

static void see(const char *what, CUresult result)
{
    printf("%s: %d\n", what, (int)result);
}
#define SEE(call) see(#call, call)

/* In memory, and nothing else is known of it: written by the driver after it was read. */
static void make_resident(CUdeviceptr address, size_t bytes)
{
    void *host = malloc(bytes);
    OK(cuMemcpyDtoH(host, address, bytes));
    OK(cuMemsetD8(address, 1, bytes));
    OK(cuCtxSynchronize());
    free(host);
}

/* --- without a context, and with one that is gone */

static void ask_all(CUdeviceptr block, CUdeviceptr other)
{
    static unsigned char host[64];
    CUdeviceptr base = 0, made = 0;
    size_t bytes = 0, total = 0;
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle shared;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *places[] = {&bytes};
    SEE(cuMemGetAddressRange(&base, &bytes, block));
    SEE(cuMemGetAddressRange(NULL, NULL, block + 4096));
    SEE(cuMemGetInfo(&bytes, &total));
    SEE(cuMemAlloc(&made, 8 * MIB));
    SEE(cuMemcpyHtoD(block, host, sizeof(host)));
    SEE(cuMemcpyHtoDAsync(block, host, sizeof(host), NULL));
    SEE(cuMemcpyDtoH(host, block, sizeof(host)));
    SEE(cuMemcpyDtoD(block, other, MIB));
    SEE(cuMemcpyDtoDAsync(block, other, MIB, NULL));
    SEE(cuMemcpy(block, other, MIB));
    SEE(cuMemsetD8(block, 9, MIB));
    SEE(cuMemsetD32Async(block, 9, MIB / 4, NULL));
    SEE(cuMemsetD2D8(block, 4096, 9, 64, 8));
    SEE(cuIpcGetMemHandle(&shared, block));
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block));
    SEE(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block));
    SEE(cuPointerGetAttributes(1, which, places, block));
    SEE(cuMemcpyHtoD(block + block_bytes, host, 0));
    SEE(cuMemFree(block + 4096));
    SEE(cuMemFree(block));
    SEE(cuMemFreeAsync(block, NULL));
}

static void without_context(bool resident)
{
    CUcontext context;
    const CUdeviceptr block = allocate(8 * MIB), other = allocate(8 * MIB);
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(other, 2, 8 * MIB));
    if (resident) {
        make_resident(block, 8 * MIB);
        make_resident(other, 8 * MIB);
    }
    OK(cuCtxPopCurrent(&context));
    ask_all(block, other);
    OK(cuCtxPushCurrent(context));
    OK(cuCtxSynchronize());
    print_bytes("still there", block, 8 * MIB);
    SEE(cuMemFree(block));
}

static void no_context(void)
{
    without_context(false);
}

static void no_context_resident(void)
{
    without_context(true);
}

static CUcontext doomed;

static void *destroy(void *unused)
{
    OK(cuCtxDestroy(doomed));
    return unused;
}

/* Current here, and destroyed by another thread. */
static void destroyed_context(void)
{
    CUcontext context;
    pthread_t thread;
    const CUdeviceptr block = allocate(8 * MIB), other = allocate(8 * MIB);
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(other, 2, 8 * MIB));
    OK(cuCtxGetCurrent(&context));
    OK(cuCtxCreate(&doomed, NULL, 0, 0));
    pthread_create(&thread, NULL, destroy, NULL);
    pthread_join(thread, NULL);
    ask_all(block, other);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxSynchronize());
    print_bytes("still there", block, 8 * MIB);
    SEE(cuMemFree(block));
}

/* --- in a stream that is gone */

static void destroyed_stream(void)
{
    static unsigned char bytes[64];
    CUstream gone;
    const CUdeviceptr block = allocate(8 * MIB), from = allocate(8 * MIB);
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(from, 2, 8 * MIB));
    OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    OK(cuStreamDestroy(gone));
    SEE(cuMemsetD8Async(block, 3, MIB, gone));
    SEE(cuMemcpyHtoDAsync(block, bytes, sizeof(bytes), gone));
    SEE(cuMemcpyDtoDAsync(block + 4 * MIB, from, MIB, gone));
    SEE(cuMemFreeAsync(block, gone));
    OK(cuCtxSynchronize());
    print_bytes("still there", block, 8 * MIB);
}

/* --- another device's memory */

static void current(CUdevice device)
{
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

/* Set, and done: another device's work does not wait for it. */
static CUdeviceptr make_set(size_t bytes)
{
    const CUdeviceptr block = allocate(bytes);
    OK(cuMemsetD8(block, 1, bytes));
    OK(cuCtxSynchronize());
    return block;
}

/* Without access of one device to the other. The error is sticky, so there is one call in a run. */
static void far_access(bool resident)
{
    unsigned long long flags = 7;
    const CUdeviceptr block = make_set(8 * MIB);
    if (resident)
        make_resident(block, 8 * MIB);
    current(1);
    SEE(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, block));
    printf("access %llu\n", flags);
    SEE(cuMemsetD8(block, 2, MIB));
    SEE(cuCtxSynchronize());
}

static void far_set(void)
{
    far_access(false);
}

static void far_set_resident(void)
{
    far_access(true);
}

static void far_set_async(void)
{
    const CUdeviceptr block = make_set(8 * MIB);
    current(1);
    SEE(cuMemsetD32Async(block, 2, MIB, NULL));
    SEE(cuCtxSynchronize());
}

/* One that has access sets it. */
static void far_set_by_peer(void)
{
    CUcontext owner;
    const CUdeviceptr block = make_set(8 * MIB);
    OK(cuCtxGetCurrent(&owner));
    current(1);
    OK(cuCtxEnablePeerAccess(owner, 0));
    SEE(cuMemsetD8(block, 2, MIB));
    SEE(cuCtxSynchronize());
    print_bytes("set", block, 8 * MIB);
}

/* --- ranges that are not all in an allocation */

static unsigned char *host;
static CUdeviceptr other;    /* as big as what is asked for */
static CUarray array, words; /* of bytes, and of 4 bytes */
static CUstream stream;
static CUcontext context;

/* A call that touches [at, at + bytes). */
struct shape {
    const char *name;
    CUresult (*call)(CUdeviceptr at, size_t bytes);
    bool is_unified; /* an address that is no memory of the device would be one of the host */
};

#define SHAPE(name, expression)                        \
    static CUresult name(CUdeviceptr at, size_t bytes) \
    {                                                  \
        return expression;                             \
    }
SHAPE(from_host, cuMemcpyHtoD(at, host, bytes))
SHAPE(from_host_async, cuMemcpyHtoDAsync(at, host, bytes, stream))
SHAPE(to_host, cuMemcpyDtoH(host, at, bytes))
SHAPE(to_host_async, cuMemcpyDtoHAsync(host, at, bytes, stream))
SHAPE(into, cuMemcpyDtoD(at, other, bytes))
SHAPE(out_of, cuMemcpyDtoD(other, at, bytes))
SHAPE(into_async, cuMemcpyDtoDAsync(at, other, bytes, stream))
SHAPE(out_of_async, cuMemcpyDtoDAsync(other, at, bytes, stream))
SHAPE(any_into, cuMemcpy(at, (CUdeviceptr)(uintptr_t)host, bytes))
SHAPE(any_out_of, cuMemcpy((CUdeviceptr)(uintptr_t)host, at, bytes))
SHAPE(any_between, cuMemcpy(at, other, bytes))
SHAPE(any_into_async, cuMemcpyAsync(at, other, bytes, stream))
SHAPE(any_out_of_async, cuMemcpyAsync(other, at, bytes, stream))
SHAPE(peer_into, cuMemcpyPeer(at, context, other, context, bytes))
SHAPE(peer_out_of, cuMemcpyPeer(other, context, at, context, bytes))
SHAPE(peer_into_async, cuMemcpyPeerAsync(at, context, other, context, bytes, stream))
SHAPE(peer_out_of_async, cuMemcpyPeerAsync(other, context, at, context, bytes, stream))
SHAPE(to_array, cuMemcpyDtoA(array, 0, at, bytes))
SHAPE(from_array, cuMemcpyAtoD(at, array, 0, bytes))
SHAPE(set_8, cuMemsetD8(at, 3, bytes))
SHAPE(set_8_async, cuMemsetD8Async(at, 3, bytes, stream))
SHAPE(rows_8, cuMemsetD2D8(at, MIB, 3, bytes - 2 * MIB, 3))
SHAPE(rows_8_async, cuMemsetD2D8Async(at, MIB, 3, bytes - 2 * MIB, 3, stream))

/* Elements of more than a byte begin at multiples of their size: of the block's bytes the last are
 * left out, and one byte more is one element more. */
SHAPE(set_16, cuMemsetD16(at & ~(CUdeviceptr)1, 3, bytes / 2))
SHAPE(set_32, cuMemsetD32(at & ~(CUdeviceptr)3, 3, (bytes + 2) / 4))
SHAPE(set_16_async, cuMemsetD16Async(at & ~(CUdeviceptr)1, 3, bytes / 2, stream))
SHAPE(set_32_async, cuMemsetD32Async(at & ~(CUdeviceptr)3, 3, (bytes + 2) / 4, stream))
SHAPE(rows_16, cuMemsetD2D16(at & ~(CUdeviceptr)1, MIB, 3, (bytes - 2 * MIB) / 2, 3))
SHAPE(rows_32, cuMemsetD2D32(at & ~(CUdeviceptr)3, MIB, 3, (bytes - 2 * MIB + 2) / 4, 3))

/* Two rows, of which the second is short of the first by nothing: the last byte is at + bytes -
 * 1. */
static CUDA_MEMCPY2D plane(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .srcPitch = MIB,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = MIB,
                           .WidthInBytes = bytes - 2 * MIB,
                           .Height = 3};
}

static CUresult plane_into(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY2D copy = plane(at, other, bytes);
    return cuMemcpy2D(&copy);
}

static CUresult plane_out_of(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY2D copy = plane(other, at, bytes);
    return cuMemcpy2DUnaligned(&copy);
}

static CUresult plane_into_async(CUdeviceptr at, size_t bytes)
{
    CUDA_MEMCPY2D copy = plane(at, 0, bytes);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host;
    return cuMemcpy2DAsync(&copy, stream);
}

static CUDA_MEMCPY3D box(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .srcPitch = MIB / 2,
                           .srcHeight = 2,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = MIB / 2,
                           .dstHeight = 2,
                           .WidthInBytes = bytes - 2 * MIB,
                           .Height = 1,
                           .Depth = 3};
}

static CUresult box_into(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY3D copy = box(at, other, bytes);
    return cuMemcpy3D(&copy);
}

static CUresult box_out_of_async(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY3D copy = box(other, at, bytes);
    return cuMemcpy3DAsync(&copy, stream);
}

static CUDA_MEMCPY3D_PEER peer_box(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcContext = context,
                                .srcPitch = MIB / 2,
                                .srcHeight = 2,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstContext = context,
                                .dstPitch = MIB / 2,
                                .dstHeight = 2,
                                .WidthInBytes = bytes - 2 * MIB,
                                .Height = 1,
                                .Depth = 3};
}

static CUresult peer_box_into(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY3D_PEER copy = peer_box(at, other, bytes);
    return cuMemcpy3DPeer(&copy);
}

static CUresult peer_box_out_of_async(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY3D_PEER copy = peer_box(other, at, bytes);
    return cuMemcpy3DPeerAsync(&copy, stream);
}

/* The second of two copies. */
static CUresult batch(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUdeviceptr tos[] = {other, to}, froms[] = {other + MIB, from};
    size_t sizes[] = {64, bytes}, starts[] = {0};
    CUmemcpyAttributes attributes[] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    return cuMemcpyBatchAsync(tos, froms, sizes, 2, attributes, starts, 1, stream);
}
SHAPE(batch_into, batch(at, other, bytes))
SHAPE(batch_out_of, batch(other, at, bytes))

static CUmemcpy3DOperand operand(CUdeviceptr at)
{
    return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                               .op.ptr = {.ptr = at, .rowLength = MIB, .layerHeight = 3}};
}

static CUresult batch_box(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUDA_MEMCPY3D_BATCH_OP operation = {.src = operand(from),
                                        .dst = operand(to),
                                        .extent = {bytes - 2 * MIB, 3, 1},
                                        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    return cuMemcpy3DBatchAsync(1, &operation, 0, stream);
}
SHAPE(batch_box_into, batch_box(at, other, bytes))
SHAPE(batch_box_out_of, batch_box(other, at, bytes))

/* The second of the two boxes is an array, so lengths count elements of 4 bytes. */
static CUresult batch_elements(CUdeviceptr at, size_t bytes, bool is_read)
{
    const size_t count = (bytes + 2) / 4;
    const CUmemcpy3DOperand pointer = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                       .op.ptr = {.ptr = at & ~(CUdeviceptr)3}};
    const CUmemcpy3DOperand words_array = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY,
                                           .op.array = {.array = words}};
    CUDA_MEMCPY3D_BATCH_OP operation = {.src = is_read ? pointer : words_array,
                                        .dst = is_read ? words_array : pointer,
                                        .extent = {count, 1, 1},
                                        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    return cuMemcpy3DBatchAsync(1, &operation, 0, stream);
}
SHAPE(batch_elements_into, batch_elements(at, bytes, false))
SHAPE(batch_elements_out_of, batch_elements(at, bytes, true))

/* --- memory operations: the last word of the range, with the byte behind it */

#define LAST_32(at, bytes) (((at) + (bytes)-2) & ~(CUdeviceptr)3)
#define LAST_64(at, bytes) (((at) + (bytes)-6) & ~(CUdeviceptr)7)
SHAPE(write_32, cuStreamWriteValue32(stream, LAST_32(at, bytes), 7, 0))
SHAPE(write_64, cuStreamWriteValue64(stream, LAST_64(at, bytes), 7, 0))
SHAPE(wait_32, cuStreamWaitValue32(stream, LAST_32(at, bytes), 0, CU_STREAM_WAIT_VALUE_NOR))
SHAPE(wait_64, cuStreamWaitValue64(stream, LAST_64(at, bytes), 0, CU_STREAM_WAIT_VALUE_NOR))

/* The second of two operations. The program's own array is as it was. */
struct operations {
    CUstreamBatchMemOpParams all[2];
};

static struct operations operations_at(CUdeviceptr at, size_t bytes)
{
    struct operations operations = {0};
    operations.all[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations.all[0].writeValue.address = other;
    operations.all[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operations.all[1].writeValue.address = LAST_64(at, bytes);
    operations.all[1].writeValue.value64 = 9;
    return operations;
}

static CUresult values(CUdeviceptr at, size_t bytes)
{
    struct operations operations = operations_at(at, bytes);
    const CUresult result = cuStreamBatchMemOp(stream, 2, operations.all, 0);
    if (operations.all[1].writeValue.address != LAST_64(at, bytes))
        printf("the operations were changed ");
    return result;
}

/* --- nodes of graphs. Each is made, or changed in a graph or in an executable one; and it runs. */

enum way { ADDED, SET, SET_IN_EXECUTABLE, WAYS };

/* What all ways of one kind of node have in common. */
struct node_kind {
    CUresult (*add)(CUgraphNode *node_out, CUgraph graph, const void *params);
    CUresult (*set)(CUgraphNode node, const void *params);
    CUresult (*set_in_executable)(CUgraphExec executable, CUgraphNode node, const void *params);
};

static CUresult run_graph(CUgraphExec executable)
{
    const CUresult result = cuGraphLaunch(executable, stream);
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(stream);
}

/* A node of bytes that are there (fine), and of those that are asked for. */
static CUresult try_node(const struct node_kind *kind, enum way way, const void *fine,
                         const void *asked)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable = NULL;
    OK(cuGraphCreate(&graph, 0));
    CUresult result = kind->add(&node, graph, way == ADDED ? asked : fine);
    if (result == CUDA_SUCCESS && way == SET)
        result = kind->set(node, asked);
    if (result == CUDA_SUCCESS)
        result = cuGraphInstantiate(&executable, graph, 0);
    if (result == CUDA_SUCCESS && way == SET_IN_EXECUTABLE)
        result = kind->set_in_executable(executable, node, asked);
    if (result == CUDA_SUCCESS)
        result = run_graph(executable);
    if (executable != NULL)
        OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    return result;
}

static CUresult add_copy(CUgraphNode *node_out, CUgraph graph, const void *params)
{
    return cuGraphAddMemcpyNode(node_out, graph, NULL, 0, params, context);
}

static CUresult set_copy(CUgraphNode node, const void *params)
{
    return cuGraphMemcpyNodeSetParams(node, params);
}

static CUresult set_copy_in_executable(CUgraphExec executable, CUgraphNode node, const void *params)
{
    return cuGraphExecMemcpyNodeSetParams(executable, node, params, context);
}

static CUresult add_set(CUgraphNode *node_out, CUgraph graph, const void *params)
{
    return cuGraphAddMemsetNode(node_out, graph, NULL, 0, params, context);
}

static CUresult set_set(CUgraphNode node, const void *params)
{
    return cuGraphMemsetNodeSetParams(node, params);
}

static CUresult set_set_in_executable(CUgraphExec executable, CUgraphNode node, const void *params)
{
    return cuGraphExecMemsetNodeSetParams(executable, node, params, context);
}

static CUresult add_values(CUgraphNode *node_out, CUgraph graph, const void *params)
{
    return cuGraphAddBatchMemOpNode(node_out, graph, NULL, 0, params);
}

static CUresult set_values(CUgraphNode node, const void *params)
{
    return cuGraphBatchMemOpNodeSetParams(node, params);
}

static CUresult set_values_in_executable(CUgraphExec executable, CUgraphNode node,
                                         const void *params)
{
    return cuGraphExecBatchMemOpNodeSetParams(executable, node, params);
}

/* The program's own struct is as it was. */
static CUresult add_any(CUgraphNode *node_out, CUgraph graph, const void *params)
{
    CUgraphNodeParams given = *(const CUgraphNodeParams *)params;
    const CUresult result = cuGraphAddNode(node_out, graph, NULL, NULL, 0, &given);
    if (memcmp(&given, params, sizeof(given)) != 0)
        printf("the node was changed ");
    return result;
}

static CUresult set_any(CUgraphNode node, const void *params)
{
    CUgraphNodeParams given = *(const CUgraphNodeParams *)params;
    return cuGraphNodeSetParams(node, &given);
}

static CUresult set_any_in_executable(CUgraphExec executable, CUgraphNode node, const void *params)
{
    CUgraphNodeParams given = *(const CUgraphNodeParams *)params;
    return cuGraphExecNodeSetParams(executable, node, &given);
}

static const struct node_kind copies = {add_copy, set_copy, set_copy_in_executable};
static const struct node_kind sets = {add_set, set_set, set_set_in_executable};
static const struct node_kind value_nodes = {add_values, set_values, set_values_in_executable};
static const struct node_kind any_kind = {add_any, set_any, set_any_in_executable};

/* One row, as all changes of executable graphs must be. */
static CUDA_MEMCPY3D line(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}

static CUresult copy_node(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum way way)
{
    const CUDA_MEMCPY3D fine = line(other, other + 4 * MIB, 64), asked = line(to, from, bytes);
    return try_node(&copies, way, &fine, &asked);
}
SHAPE(node_copy_into, copy_node(at, other, bytes, ADDED))
SHAPE(node_copy_out_of, copy_node(other, at, bytes, ADDED))
SHAPE(node_copy_into_set, copy_node(at, other, bytes, SET))
SHAPE(node_copy_out_of_executable, copy_node(other, at, bytes, SET_IN_EXECUTABLE))

static CUresult node_box_into(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMCPY3D asked = box(at, other, bytes);
    return try_node(&copies, ADDED, NULL, &asked);
}

static CUDA_MEMSET_NODE_PARAMS row(CUdeviceptr at, size_t bytes, unsigned width)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = at & ~(CUdeviceptr)(width - 1),
                                     .value = 3,
                                     .elementSize = width,
                                     .width = (bytes + width / 2) / width,
                                     .height = 1};
}

static CUresult set_node(CUdeviceptr at, size_t bytes, unsigned width, enum way way)
{
    const CUDA_MEMSET_NODE_PARAMS fine = row(other, 64, width), asked = row(at, bytes, width);
    return try_node(&sets, way, &fine, &asked);
}
SHAPE(node_set_8, set_node(at, bytes, 1, ADDED))
SHAPE(node_set_32, set_node(at, bytes, 4, ADDED))
SHAPE(node_set_8_set, set_node(at, bytes, 1, SET))
SHAPE(node_set_8_executable, set_node(at, bytes, 1, SET_IN_EXECUTABLE))

static CUresult node_rows_8(CUdeviceptr at, size_t bytes)
{
    const CUDA_MEMSET_NODE_PARAMS asked = {.dst = at,
                                           .pitch = MIB,
                                           .value = 3,
                                           .elementSize = 1,
                                           .width = bytes - 2 * MIB,
                                           .height = 3};
    return try_node(&sets, ADDED, NULL, &asked);
}

static CUresult values_node(CUdeviceptr at, size_t bytes, enum way way)
{
    struct operations there = operations_at(other + MIB, 64), wanted = operations_at(at, bytes);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS fine = {.ctx = context,
                                                .count = 2,
                                                .paramArray = there.all};
    const CUDA_BATCH_MEM_OP_NODE_PARAMS asked = {.ctx = context,
                                                 .count = 2,
                                                 .paramArray = wanted.all};
    return try_node(&value_nodes, way, &fine, &asked);
}
SHAPE(node_values, values_node(at, bytes, ADDED))
SHAPE(node_values_set, values_node(at, bytes, SET))
SHAPE(node_values_executable, values_node(at, bytes, SET_IN_EXECUTABLE))

static CUresult any_node(CUgraphNodeType type, CUdeviceptr at, size_t bytes, enum way way)
{
    struct operations there = operations_at(other + MIB, 64), wanted = operations_at(at, bytes);
    CUgraphNodeParams fine = {.type = type}, asked = {.type = type};
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        fine.memcpy.copyParams = line(other, other + 4 * MIB, 64);
        asked.memcpy.copyParams = line(at, other, bytes);
    } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
        fine.memset = (CUDA_MEMSET_NODE_PARAMS_v2){
            .dst = other, .value = 3, .elementSize = 1, .width = 64, .height = 1};
        asked.memset = fine.memset;
        asked.memset.dst = at;
        asked.memset.width = bytes;
    } else {
        fine.memOp =
            (CUDA_BATCH_MEM_OP_NODE_PARAMS_v2){.ctx = context, .count = 2, .paramArray = there.all};
        asked.memOp = fine.memOp;
        asked.memOp.paramArray = wanted.all;
    }
    return try_node(&any_kind, way, &fine, &asked);
}
SHAPE(any_copy, any_node(CU_GRAPH_NODE_TYPE_MEMCPY, at, bytes, ADDED))
SHAPE(any_copy_set, any_node(CU_GRAPH_NODE_TYPE_MEMCPY, at, bytes, SET))
SHAPE(any_copy_executable, any_node(CU_GRAPH_NODE_TYPE_MEMCPY, at, bytes, SET_IN_EXECUTABLE))
SHAPE(any_set, any_node(CU_GRAPH_NODE_TYPE_MEMSET, at, bytes, ADDED))
SHAPE(any_set_set, any_node(CU_GRAPH_NODE_TYPE_MEMSET, at, bytes, SET))
SHAPE(any_set_executable, any_node(CU_GRAPH_NODE_TYPE_MEMSET, at, bytes, SET_IN_EXECUTABLE))
SHAPE(any_values, any_node(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, at, bytes, ADDED))
SHAPE(any_values_set, any_node(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, at, bytes, SET))
SHAPE(any_values_executable,
      any_node(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, at, bytes, SET_IN_EXECUTABLE))

#define ROW(name)          \
    {                      \
#name, name, false \
    }
#define UNIFIED(name)     \
    {                     \
#name, name, true \
    }
static const struct shape shapes[] = {
    ROW(from_host),
    ROW(from_host_async),
    ROW(to_host),
    ROW(to_host_async),
    ROW(into),
    ROW(out_of),
    ROW(into_async),
    ROW(out_of_async),
    UNIFIED(any_into),
    UNIFIED(any_out_of),
    UNIFIED(any_between),
    UNIFIED(any_into_async),
    UNIFIED(any_out_of_async),
    UNIFIED(peer_into),
    UNIFIED(peer_out_of),
    UNIFIED(peer_into_async),
    UNIFIED(peer_out_of_async),
    ROW(to_array),
    ROW(from_array),
    ROW(set_8),
    ROW(set_8_async),
    ROW(rows_8),
    ROW(rows_8_async),
    ROW(set_16),
    ROW(set_32),
    ROW(set_16_async),
    ROW(set_32_async),
    ROW(rows_16),
    ROW(rows_32),
    ROW(plane_into),
    ROW(plane_out_of),
    ROW(plane_into_async),
    ROW(box_into),
    ROW(box_out_of_async),
    ROW(peer_box_into),
    ROW(peer_box_out_of_async),
    UNIFIED(batch_into),
    UNIFIED(batch_out_of),
    UNIFIED(batch_box_into),
    UNIFIED(batch_box_out_of),
    UNIFIED(batch_elements_into),
    UNIFIED(batch_elements_out_of),
    ROW(write_32),
    ROW(write_64),
    ROW(wait_32),
    ROW(wait_64),
    ROW(values),
    ROW(node_copy_into),
    ROW(node_copy_out_of),
    ROW(node_copy_into_set),
    ROW(node_copy_out_of_executable),
    ROW(node_box_into),
    ROW(node_set_8),
    ROW(node_set_32),
    ROW(node_set_8_set),
    ROW(node_set_8_executable),
    ROW(node_rows_8),
    ROW(node_values),
    ROW(node_values_set),
    ROW(node_values_executable),
    ROW(any_copy),
    ROW(any_copy_set),
    ROW(any_copy_executable),
    ROW(any_set),
    ROW(any_set_set),
    ROW(any_set_executable),
    ROW(any_values),
    ROW(any_values_set),
    ROW(any_values_executable),
};

/* All of the block, and one byte more at either end; and beside it. */
static void try_shape(const struct shape *shape, bool resident)
{
    const size_t hole = 4 * MIB;
    const CUdeviceptr room = allocate(hole);
    const CUdeviceptr block = allocate(block_bytes);
    OK(cuMemFree(room)); /* what lies before the block is nobody's, unless it went elsewhere */
    OK(cuMemsetD8(block, 1, block_bytes));
    OK(cuCtxSynchronize()); /* the other stream does not wait for this one */
    if (resident)
        make_resident(block, block_bytes);
    printf("%s: %d", shape->name, (int)shape->call(block, block_bytes));
    printf(" %d", (int)shape->call(block, block_bytes + 1));
    printf(" %d", (int)shape->call(block + 1, block_bytes));
    if (!shape->is_unified) {
        printf(" %d", (int)shape->call(block - 1, block_bytes));
        printf(" %d", (int)shape->call(block + block_bytes + TAIL, block_bytes));
        printf(" %d", (int)shape->call(block - 64, 2 * MIB + 1));
    }
    printf(" %d\n", (int)cuCtxSynchronize());
    print_bytes("block", block, block_bytes);
    OK(cuMemFree(block));
}

static void make_others(void)
{
    const CUDA_ARRAY_DESCRIPTOR bytes = {
        .Width = 4 * MIB, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    const CUDA_ARRAY_DESCRIPTOR elements = {
        .Width = MIB, .Height = 0, .Format = CU_AD_FORMAT_HALF, .NumChannels = 2};
    OK(cuCtxGetCurrent(&context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuArrayCreate(&array, &bytes));
    OK(cuArrayCreate(&words, &elements));
    host = calloc(1, 8 * MIB);
    other = allocate(8 * MIB);
    OK(cuMemsetD8(other, 4, 8 * MIB));
    OK(cuCtxSynchronize());
}

static void overruns(bool resident)
{
    make_others();
    if (resident)
        make_resident(other, 8 * MIB);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        try_shape(&shapes[i], resident);
}

static void overruns_deferred(void)
{
    overruns(false);
}

static void overruns_resident(void)
{
    overruns(true);
}

/* --- memory that is freed, and not gone yet */

static void try_all(CUdeviceptr freed)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (!shapes[i].is_unified)
            printf("%s: %d\n", shapes[i].name, (int)shapes[i].call(freed, block_bytes));
    }
    OK(cuStreamSynchronize(stream));
}

/* In the order of a stream. */
static void freed_in_stream(void)
{
    CUdeviceptr pooled;
    CUstream own;
    make_others();
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&pooled, block_bytes, own));
    OK(cuMemsetD8Async(pooled, 1, block_bytes, own));
    OK(cuMemFreeAsync(pooled, own));
    try_all(pooled);
}

/* Freed by one thread while another one captures. */
static void free_and_try(CUdeviceptr block)
{
    OK(cuMemFree(block));
    try_all(block);
}

static void freed_beside_capture(void)
{
    make_others();
    const CUdeviceptr block = allocate(block_bytes);
    OK(cuMemsetD8(block, 1, block_bytes));
    OK(cuCtxSynchronize());
    beside_capture(free_and_try, block);
}

/* The other side is the driver's own memory, whose bounds the shim does not know. */
static void overruns_small(void)
{
    const CUdeviceptr small = allocate(4096), block = allocate(block_bytes);
    OK(cuMemsetD8(small, 3, 4096));
    OK(cuMemsetD8(block, 1, block_bytes));
    OK(cuCtxSynchronize());
    SEE(cuMemcpyDtoD(block + 100, small, 4096));
    SEE(cuMemcpyDtoD(block + 9000, small, 4097));
    SEE(cuMemcpyDtoDAsync(block + 20000, small + 4000, MIB, NULL));
    SEE(cuMemcpy(block + 30000, small + 4095, 2));
    OK(cuCtxSynchronize());
    print_bytes("block", block, block_bytes);
}

/* --- what is said of addresses beside an allocation, and of its memory */

static void beside(void)
{
    const CUpointer_attribute all[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
    };
    enum { COUNT = sizeof(all) / sizeof(all[0]) };
    const CUdeviceptr room = allocate(4 * MIB);
    const CUdeviceptr block = allocate(block_bytes);
    OK(cuMemFree(room));
    const CUdeviceptr places[] = {block - 1, block + block_bytes, block + block_bytes + MIB};
    for (size_t at = 0; at < sizeof(places) / sizeof(places[0]); at++) {
        CUdeviceptr base = 0;
        size_t bytes = 0;
        SEE(cuMemGetAddressRange(&base, &bytes, places[at]));
        SEE(cuMemFree(places[at]));
        for (int i = 0; i < COUNT; i++) {
            uint64_t value = 0, values = 7;
            void *to[] = {&values};
            CUpointer_attribute which[] = {all[i]};
            printf("%d: %d", (int)all[i], (int)cuPointerGetAttribute(&value, all[i], places[at]));
            printf(" %d", (int)cuPointerGetAttributes(1, which, to, places[at]));
            printf(" %d\n", (uint32_t)values != 0);
        }
    }
}

static void retained(void)
{
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long types = 7;
    const CUdeviceptr block = allocate(8 * MIB);
    SEE(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block));
    printf("handle types %llu\n", types);
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block));
    OK(cuMemsetD8(block, 1, 8 * MIB));
    make_resident(block, 8 * MIB);
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block));
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(block + 4096)));
}

/* What a batch does not touch stays as it is. */
static void batches(void)
{
    const CUdeviceptr to = allocate(8 * MIB), from = allocate(8 * MIB), rest = allocate(8 * MIB);
    unsigned char seen[2] = {0};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8(to, 1, 8 * MIB));
    OK(cuMemsetD8(from, 2, 8 * MIB));
    OK(cuMemsetD8(rest, 3, 8 * MIB));
    OK(cuCtxSynchronize());
    CUdeviceptr tos[] = {to, to + 2 * MIB}, froms[] = {from, from + MIB};
    size_t sizes[] = {64, MIB}, starts[] = {0};
    CUmemcpyAttributes attributes[] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    SEE(cuMemcpyBatchAsync(tos, froms, sizes, 2, attributes, starts, 1, stream));
    CUDA_MEMCPY3D_BATCH_OP box = {
        .src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = from},
        .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = to + 4 * MIB},
        .extent = {MIB, 1, 1},
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    SEE(cuMemcpy3DBatchAsync(1, &box, 0, stream));
    OK(cuStreamSynchronize(stream));
    for (size_t at = 0; at < 8 * MIB; at += MIB / 2) {
        OK(cuMemcpyDtoH(seen, to + at, 2));
        printf("%d %d\n", seen[0], seen[1]);
    }
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(to));
    OK(cuMemFree(from));
    OK(cuMemFree(rest));
}

const struct scenario scenarios[] = {
    {"no_context", no_context},
    {"no_context_resident", no_context_resident},
    {"destroyed_context", destroyed_context},
    {"destroyed_stream", destroyed_stream},
    {"far_set", far_set},
    {"far_set_resident", far_set_resident},
    {"far_set_async", far_set_async},
    {"far_set_by_peer", far_set_by_peer},
    {"overruns", overruns_deferred},
    {"overruns_resident", overruns_resident},
    {"overruns_small", overruns_small},
    {"freed_in_stream", freed_in_stream},
    {"freed_beside_capture", freed_beside_capture},
    {"beside", beside},
    {"retained", retained},
    {"batches", batches},
    {NULL, NULL},
};
