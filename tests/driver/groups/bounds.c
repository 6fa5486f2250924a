/* SPDX-License-Identifier: Apache-2.0 */
/* Memory operations, and nodes of graphs, that reach beyond their allocation: by two bytes, which
 * the driver does not know to be outside of it. */
#include "tests/driver/groups/groups.h"

enum { ODD_BYTES = BLOCK_BYTES + 2 };

static CUstream stream;
static CUcontext context;
static CUgraph graph;
static CUgraphNode node;
static CUgraphExec executable;

/* All of it is in memory, so that it is the bounds alone that matter. */
static CUdeviceptr make_odd(void)
{
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, ODD_BYTES));
    MUST(cuMemsetD8_v2(block, 7, ODD_BYTES));
    print_device("before", block, ODD_BYTES);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxGetCurrent(&context));
    MUST(cuGraphCreate(&graph, 0));
    return block;
}

static void finish(CUdeviceptr block)
{
    size_t count = 0;
    MUST(cuGraphGetNodes(graph, NULL, &count));
    printf("nodes: %zu\n", count);
    if (executable == NULL)
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, stream));
    MUST(cuStreamSynchronize(stream));
    print_device("after", block, ODD_BYTES);
}

/* A call with the last bytes of the block, and with those that reach beyond. */
#define BOUNDED(name, call)                                                                \
    static void name(void)                                                                 \
    {                                                                                      \
        const CUdeviceptr block = make_odd();                                              \
        for (CUdeviceptr at = block + BLOCK_BYTES - 8; at <= block + BLOCK_BYTES; at += 8) \
            SEEN(call);                                                                    \
        finish(block);                                                                     \
    }
BOUNDED(write_32, TESTED(cuStreamWriteValue32)(stream, at, 3, 0))
BOUNDED(write_64, TESTED(cuStreamWriteValue64)(stream, at, 3, 0))
BOUNDED(wait_32, TESTED(cuStreamWaitValue32)(stream, at, 0, CU_STREAM_WAIT_VALUE_NOR))
BOUNDED(wait_64, TESTED(cuStreamWaitValue64)(stream, at, 0, CU_STREAM_WAIT_VALUE_NOR))

/* Two elements of an array of words to an address: lengths count words. */
static CUDA_MEMCPY3D_BATCH_OP *words_to(CUdeviceptr at)
{
    static CUDA_MEMCPY3D_BATCH_OP copy = {.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY,
                                          .dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                          .extent = {2, 1, 1},
                                          .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    const CUDA_ARRAY_DESCRIPTOR words = {
        .Width = 2, .Height = 1, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    const unsigned zeroes[2] = {0};
    if (copy.src.op.array.array == NULL) {
        MUST(cuArrayCreate_v2(&copy.src.op.array.array, &words));
        MUST(cuMemcpyHtoA_v2(copy.src.op.array.array, 0, zeroes, sizeof(zeroes)));
    }
    copy.dst.op.ptr.ptr = at;
    return &copy;
}
BOUNDED(copy_words, TESTED(cuMemcpy3DWithAttributesAsync)(words_to(at), 0, stream))

static CUstreamBatchMemOpParams operation;

static CUstreamBatchMemOpParams *write_at(CUdeviceptr at)
{
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operation.writeValue.address = at;
    operation.writeValue.value64 = 5;
    return &operation;
}
BOUNDED(write_batch, TESTED(cuStreamBatchMemOp)(stream, 1, write_at(at), 0))

static const CUDA_BATCH_MEM_OP_NODE_PARAMS *values_at(CUdeviceptr at)
{
    static CUDA_BATCH_MEM_OP_NODE_PARAMS params;
    params =
        (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = context, .count = 1, .paramArray = write_at(at)};
    return &params;
}

static const CUDA_MEMCPY3D *copy_at(CUdeviceptr at)
{
    static CUDA_MEMCPY3D copy;
    copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = at - MIB,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = at,
                           .WidthInBytes = 8,
                           .Height = 1,
                           .Depth = 1};
    return &copy;
}

static const CUDA_MEMSET_NODE_PARAMS *set_at(CUdeviceptr at)
{
    static CUDA_MEMSET_NODE_PARAMS set;
    set =
        (CUDA_MEMSET_NODE_PARAMS){.dst = at, .value = 9, .elementSize = 4, .width = 2, .height = 1};
    return &set;
}

static CUgraphNodeParams *any_at(CUdeviceptr at)
{
    static CUgraphNodeParams params;
    params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){
        .dst = at, .value = 9, .elementSize = 4, .width = 2, .height = 1};
    return &params;
}

BOUNDED(add_copy, TESTED(cuGraphAddMemcpyNode)(&node, graph, NULL, 0, copy_at(at), context))
BOUNDED(add_set, TESTED(cuGraphAddMemsetNode)(&node, graph, NULL, 0, set_at(at), context))
BOUNDED(add_values, TESTED(cuGraphAddBatchMemOpNode)(&node, graph, NULL, 0, values_at(at)))
BOUNDED(add_any, TESTED(cuGraphAddNode)(&node, graph, NULL, 0, any_at(at)))
BOUNDED(add_any_2, TESTED(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0, any_at(at)))
BOUNDED(add_any_3, TESTED(cuGraphAddNode_v3)(&node, graph, NULL, NULL, 0, any_at(at)))

/* The same with a node that is there already, and with a graph that is executable. */
#define CHANGED(name, add, call)                                               \
    static void name(void)                                                     \
    {                                                                          \
        const CUdeviceptr block = make_odd();                                  \
        CUdeviceptr at = block;                                                \
        MUST(add);                                                             \
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));              \
        for (at = block + BLOCK_BYTES - 8; at <= block + BLOCK_BYTES; at += 8) \
            SEEN(call);                                                        \
        finish(block);                                                         \
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));              \
        finish(block);                                                         \
    }
#define COPY cuGraphAddMemcpyNode(&node, graph, NULL, 0, copy_at(at + MIB), context)
#define SET cuGraphAddMemsetNode(&node, graph, NULL, 0, set_at(at), context)
#define VALUES cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, values_at(at))
CHANGED(set_copy, COPY, TESTED(cuGraphMemcpyNodeSetParams)(node, copy_at(at)))
CHANGED(set_set, SET, TESTED(cuGraphMemsetNodeSetParams)(node, set_at(at)))
CHANGED(set_values, VALUES, TESTED(cuGraphBatchMemOpNodeSetParams)(node, values_at(at)))
CHANGED(set_any, SET, TESTED(cuGraphNodeSetParams)(node, any_at(at)))
CHANGED(set_any_2, SET, TESTED(cuGraphNodeSetParams_v2)(node, any_at(at)))
CHANGED(change_copy, COPY,
        TESTED(cuGraphExecMemcpyNodeSetParams)(executable, node, copy_at(at), context))
CHANGED(change_set, SET,
        TESTED(cuGraphExecMemsetNodeSetParams)(executable, node, set_at(at), context))
CHANGED(change_values, VALUES,
        TESTED(cuGraphExecBatchMemOpNodeSetParams)(executable, node, values_at(at)))
CHANGED(change_any, SET, TESTED(cuGraphExecNodeSetParams)(executable, node, any_at(at)))

/* Both ABIs, and their per-thread twins. */
#define FOUR(symbol, run)                                                        \
    {symbol, run, NULL}, {symbol "_ptsz", run, NULL}, {symbol "_v2", run, NULL}, \
    {                                                                            \
        symbol "_v2_ptsz", run, NULL                                             \
    }
const struct scenario bounds_scenarios[] = {
    FOUR("cuStreamWriteValue32", write_32),
    FOUR("cuStreamWriteValue64", write_64),
    FOUR("cuStreamWaitValue32", wait_32),
    FOUR("cuStreamWaitValue64", wait_64),
    FOUR("cuStreamBatchMemOp", write_batch),
    {"cuMemcpy3DWithAttributesAsync:array", copy_words, NULL},
    {"cuMemcpy3DWithAttributesAsync_ptsz:array", copy_words, NULL},
    {"cuGraphAddMemcpyNode", add_copy, NULL},
    {"cuGraphAddMemsetNode", add_set, NULL},
    {"cuGraphAddBatchMemOpNode", add_values, NULL},
    {"cuGraphAddNode", add_any, NULL},
    {"cuGraphAddNode_v2", add_any_2, NULL},
    {"cuGraphAddNode_v3", add_any_3, NULL},
    {"cuGraphMemcpyNodeSetParams", set_copy, NULL},
    {"cuGraphMemsetNodeSetParams", set_set, NULL},
    {"cuGraphBatchMemOpNodeSetParams", set_values, NULL},
    {"cuGraphNodeSetParams", set_any, NULL},
    {"cuGraphNodeSetParams_v2", set_any_2, NULL},
    {"cuGraphExecMemcpyNodeSetParams", change_copy, NULL},
    {"cuGraphExecMemsetNodeSetParams", change_set, NULL},
    {"cuGraphExecBatchMemOpNodeSetParams", change_values, NULL},
    {"cuGraphExecNodeSetParams", change_any, NULL},
    {NULL, NULL, NULL},
};
