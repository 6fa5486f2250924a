/* SPDX-License-Identifier: Apache-2.0 */
/* Memory operations, and nodes of graphs: within their block, or over its end. */
#include "tests/driver/differential/fuzz.h"

/* The word of `width` bytes that has the end of a block in it, or the last one before. Only of
 * blocks that are allocations by themselves. */
static bool draw_word(size_t width, struct fuzz_block **block_out, CUdeviceptr *word_out)
{
    struct fuzz_block *block = fuzz_block();
    const CUdeviceptr end = block->at + block->bytes;
    if (block->is_part || block->is_mapped || end % width == 0)
        return false;
    *block_out = block;
    *word_out = end - end % width - (fuzz_one_in(2) ? width : 0);
    return true;
}

/* One of the two ABIs, or of their per-thread twins. */
enum { ABIS = 4 };
#define ABIS_OF(symbol)                                                                  \
    {                                                                                    \
        FUZZ_##symbol, FUZZ_##symbol##_ptsz, FUZZ_##symbol##_v2, FUZZ_##symbol##_v2_ptsz \
    }

static const enum fuzz_entry batches[ABIS] = ABIS_OF(cuStreamBatchMemOp);
static const enum fuzz_entry words[2][ABIS] = {ABIS_OF(cuStreamWriteValue32),
                                               ABIS_OF(cuStreamWaitValue32)};
static const enum fuzz_entry doubles[2][ABIS] = {ABIS_OF(cuStreamWriteValue64),
                                                 ABIS_OF(cuStreamWaitValue64)};

/* To wait: for a word that is not all ones. */
static CUstreamBatchMemOpParams make_operation(CUdeviceptr at, size_t width, bool waits)
{
    CUstreamBatchMemOpParams operation = {0};
    if (width == 4)
        operation.operation =
            waits ? CU_STREAM_MEM_OP_WAIT_VALUE_32 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    else
        operation.operation =
            waits ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operation.writeValue.address = at;
    operation.writeValue.value64 = waits ? 0 : fuzz_below(1000);
    operation.writeValue.flags = waits ? CU_STREAM_WAIT_VALUE_NOR : 0;
    return operation;
}

static void use_memory_value(void)
{
    struct fuzz_block *block;
    CUdeviceptr at;
    const size_t width = fuzz_one_in(2) ? 4 : 8, abi = fuzz_below(ABIS);
    const bool waits = fuzz_one_in(2);
    if (!draw_word(width, &block, &at))
        return;
    CUstreamBatchMemOpParams operation = make_operation(at, width, waits);
    const unsigned flags = operation.writeValue.flags;
    const cuuint64_t value = operation.writeValue.value64;
    const CUstream stream = fuzz_stream(abi % 2 == 1);
    if (waits)
        SEE(CALL(cuMemsetD8Async)(at, 0, block->at + block->bytes - at, stream));
    if (fuzz_one_in(3))
        SEE(((__typeof__(&cuStreamBatchMemOp))fuzz_entry(batches[abi]))(stream, 1, &operation, 0));
    else if (width == 4)
        SEE(((__typeof__(&cuStreamWriteValue32))fuzz_entry(
            words[waits][abi]))(stream, at, (cuuint32_t)value, flags));
    else
        SEE(((__typeof__(&cuStreamWriteValue64))fuzz_entry(doubles[waits][abi]))(stream, at, value,
                                                                                 flags));
    fuzz_wait();
    fuzz_read(block->at, block->bytes);
}

/* --- nodes: made, changed in their graph, and in an executable one */

/* The arguments of each kind of node: bytes that are there, and a word that may not be. */
struct nodes {
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_BATCH_MEM_OP_NODE_PARAMS values;
    CUstreamBatchMemOpParams operation;
};

static void make_nodes(struct nodes *nodes, CUdeviceptr to, CUdeviceptr from)
{
    nodes->copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .srcDevice = from,
                                  .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .dstDevice = to,
                                  .WidthInBytes = 4,
                                  .Height = 1,
                                  .Depth = 1};
    nodes->set = (CUDA_MEMSET_NODE_PARAMS){
        .dst = to, .value = (unsigned)fuzz_below(256), .elementSize = 4, .width = 1, .height = 1};
    nodes->operation = make_operation(to, 4, false);
    nodes->values = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = fuzz_context,
                                                    .count = 1,
                                                    .paramArray = &nodes->operation};
}

static CUgraphNodeParams any_of(const struct nodes *nodes)
{
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    any.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = nodes->set.dst,
                                              .value = nodes->set.value,
                                              .elementSize = 4,
                                              .width = 1,
                                              .height = 1};
    return any;
}

static CUresult add(int kind, CUgraph graph, struct nodes *nodes, CUgraphNode *node_out)
{
    CUgraphNodeParams any = any_of(nodes);
    switch (kind) {
    case 0:
        return CALL(cuGraphAddMemcpyNode)(node_out, graph, NULL, 0, &nodes->copy, fuzz_context);
    case 1:
        return CALL(cuGraphAddMemsetNode)(node_out, graph, NULL, 0, &nodes->set, fuzz_context);
    case 2:
        return CALL(cuGraphAddBatchMemOpNode)(node_out, graph, NULL, 0, &nodes->values);
    default:
        if (fuzz_one_in(2) && fuzz_is_newer(FUZZ_cuGraphAddNode_v3))
            return CALL(cuGraphAddNode_v3)(node_out, graph, NULL, NULL, 0, &any);
        return fuzz_one_in(2) ? CALL(cuGraphAddNode)(node_out, graph, NULL, 0, &any)
                              : CALL(cuGraphAddNode_v2)(node_out, graph, NULL, NULL, 0, &any);
    }
}

static CUresult change(int kind, CUgraphNode node, struct nodes *nodes)
{
    CUgraphNodeParams any = any_of(nodes);
    switch (kind) {
    case 0:
        return CALL(cuGraphMemcpyNodeSetParams)(node, &nodes->copy);
    case 1:
        return CALL(cuGraphMemsetNodeSetParams)(node, &nodes->set);
    case 2:
        return CALL(cuGraphBatchMemOpNodeSetParams)(node, &nodes->values);
    default:
        return fuzz_is_newer(FUZZ_cuGraphNodeSetParams_v2)
                   ? CALL(cuGraphNodeSetParams_v2)(node, &any)
                   : CALL(cuGraphNodeSetParams)(node, &any);
    }
}

static CUresult change_executable(int kind, CUgraphExec executable, CUgraphNode node,
                                  struct nodes *nodes)
{
    CUgraphNodeParams any = any_of(nodes);
    switch (kind) {
    case 0:
        return CALL(cuGraphExecMemcpyNodeSetParams)(executable, node, &nodes->copy, fuzz_context);
    case 1:
        return CALL(cuGraphExecMemsetNodeSetParams)(executable, node, &nodes->set, fuzz_context);
    case 2:
        return CALL(cuGraphExecBatchMemOpNodeSetParams)(executable, node, &nodes->values);
    default:
        return CALL(cuGraphExecNodeSetParams)(executable, node, &any);
    }
}

static void use_node(void)
{
    CUgraph graph = NULL;
    CUgraphNode node, another;
    CUgraphExec executable = NULL;
    struct fuzz_block *block;
    CUdeviceptr at;
    struct nodes fine, asked;
    const int kind = (int)fuzz_below(4);
    if (!draw_word(4, &block, &at) || block->bytes < 64)
        return;
    make_nodes(&fine, (block->at + 3) & ~(CUdeviceptr)3, block->at + 16);
    make_nodes(&asked, at, block->at + 32);
    SEE(CALL(cuGraphCreate)(&graph, 0));
    SEE(add(kind, graph, &fine, &node));
    SEE(CALL(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    SEE(add(kind, graph, &asked, &another));
    SEE(change(kind, node, &asked));
    SEE(change_executable(kind, executable, node, &asked));
    const CUstream stream = fuzz_stream(false);
    SEE(CALL(cuGraphLaunch)(executable, stream));
    fuzz_wait();
    SEE(CALL(cuGraphExecDestroy)(executable));
    SEE(CALL(cuGraphDestroy)(graph));
    fuzz_read(block->at, block->bytes);
}

const struct fuzz_operation fuzz_bounds[] = {
    {"use a memory value", use_memory_value, 25},
    {"use a node", use_node, 25},
    {NULL, NULL, 0},
};
