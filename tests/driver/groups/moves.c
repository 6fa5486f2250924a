/* SPDX-License-Identifier: Apache-2.0 */
#define __CUDA_API_VERSION_INTERNAL
#include "tests/driver/groups/moves.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/scrambled.h"
#include "tools/simcuda/driver/newer.h"

#define MIB ((size_t)1 << 20)

void *tested;
struct sides sides;
static CUarray words; /* an array of elements of 4 bytes */
static CUcontext context;

static void must(CUresult result, int line)
{
    if (result != CUDA_SUCCESS) {
        printf("moves.c, line %d: %d\n", line, (int)result);
        exit(3);
    }
}
#define MUST(call) must(call, __LINE__)

static void fill_host(size_t bytes)
{
    scramble(sides.host, bytes, 9, 11);
}

void moves_begin(void)
{
    const CUDA_ARRAY_DESCRIPTOR of_bytes = {.Width = MOVES_BYTES,
                                            .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                            .NumChannels = 1};
    const CUDA_ARRAY_DESCRIPTOR of_words = {.Width = MOVES_BYTES / 4,
                                            .Format = CU_AD_FORMAT_HALF,
                                            .NumChannels = 2};
    if (sides.host == NULL) {
        MUST(cuCtxGetCurrent(&context));
        MUST(cuStreamCreate(&sides.stream, CU_STREAM_NON_BLOCKING));
        MUST(cuArrayCreate_v2(&sides.array, &of_bytes));
        MUST(cuArrayCreate_v2(&words, &of_words));
        sides.host = malloc(MOVES_BYTES);
    }
    fill_host(MOVES_BYTES);
    MUST(cuMemcpyHtoA_v2(sides.array, 0, sides.host, MOVES_BYTES));
    MUST(cuMemcpyHtoA_v2(words, 0, sides.host, MOVES_BYTES));
    MUST(cuMemAlloc_v2(&sides.other, MOVES_BYTES));
    MUST(cuMemsetD32_v2(sides.other, 0x04050607, MOVES_BYTES / 4));
    MUST(cuMemcpyHtoD_v2(sides.other + MIB, sides.host, MIB));
    MUST(cuCtxSynchronize()); /* the stream waits for no other */
    sides.failed = SIZE_MAX;
}

/* --- arguments */

#define EVEN(at) ((at) & ~(CUdeviceptr)1)
#define WORD(at) ((at) & ~(CUdeviceptr)3)
#define LAST_32 WORD(at + bytes - 2)
#define LAST_64 ((at + bytes - 6) & ~(CUdeviceptr)7)

static CUdeviceptr host_address(void)
{
    return (CUdeviceptr)(uintptr_t)sides.host;
}

/* The role of the range in the copy. */
enum role { INTO, OUT_OF, FROM_HOST };

/* Three rows, of which the last ends with the range; on the other side they lie otherwise. */
static const CUDA_MEMCPY2D *plane(CUdeviceptr at, size_t bytes, enum role role)
{
    static CUDA_MEMCPY2D copy;
    copy = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = role == OUT_OF ? at : sides.other,
                           .srcPitch = role == OUT_OF ? MIB : 8192,
                           .srcXInBytes = role == OUT_OF ? 0 : 100,
                           .srcY = role == OUT_OF ? 0 : 3,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = role == OUT_OF ? sides.other : at,
                           .dstPitch = role == OUT_OF ? 8192 : MIB,
                           .dstXInBytes = role == OUT_OF ? 100 : 0,
                           .dstY = role == OUT_OF ? 3 : 0,
                           .WidthInBytes = bytes - 2 * MIB,
                           .Height = 3};
    if (role == FROM_HOST) {
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = sides.host;
    }
    return &copy;
}

/* Three rows of each of two slices, in slices of six; a member more on the other side. */
#define BOX(type, at, bytes, role)                              \
    ((type){.srcMemoryType = CU_MEMORYTYPE_DEVICE,              \
            .srcDevice = (role) == OUT_OF ? (at) : sides.other, \
            .srcPitch = (role) == OUT_OF ? MIB / 4 : 8192,      \
            .srcHeight = (role) == OUT_OF ? 6 : 10,             \
            .srcXInBytes = (role) == OUT_OF ? 0 : 64,           \
            .srcY = (role) == OUT_OF ? 0 : 3,                   \
            .srcZ = (role) == OUT_OF ? 0 : 2,                   \
            .dstMemoryType = CU_MEMORYTYPE_DEVICE,              \
            .dstDevice = (role) == OUT_OF ? sides.other : (at), \
            .dstPitch = (role) == OUT_OF ? 8192 : MIB / 4,      \
            .dstHeight = (role) == OUT_OF ? 10 : 6,             \
            .dstXInBytes = (role) == OUT_OF ? 64 : 0,           \
            .dstY = (role) == OUT_OF ? 3 : 0,                   \
            .dstZ = (role) == OUT_OF ? 2 : 0,                   \
            .WidthInBytes = (bytes)-2 * MIB,                    \
            .Height = 3,                                        \
            .Depth = 2})

static const CUDA_MEMCPY3D *box(CUdeviceptr at, size_t bytes, enum role role)
{
    static CUDA_MEMCPY3D copy;
    copy = BOX(CUDA_MEMCPY3D, at, bytes, role);
    return &copy;
}

static const CUDA_MEMCPY3D_PEER *peer_box(CUdeviceptr at, size_t bytes, enum role role)
{
    static CUDA_MEMCPY3D_PEER copy;
    copy = BOX(CUDA_MEMCPY3D_PEER, at, bytes, role);
    copy.srcContext = copy.dstContext = context;
    return &copy;
}

/* --- batches, of which the second copy is the one */

static CUmemcpyAttributes *order_of(CUmemcpySrcAccessOrder which)
{
    static CUmemcpyAttributes attributes;
    attributes = (CUmemcpyAttributes){.srcAccessOrder = which};
    return &attributes;
}
#define order(name) order_of(CU_MEMCPY_SRC_ACCESS_ORDER_##name)

static CUdeviceptr pair_to[2], pair_from[2];
static size_t pair_sizes[2], pair_starts[1];

static CUdeviceptr *pair_of(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    pair_to[0] = sides.other + 3 * MIB;
    pair_from[0] = sides.other + 3 * MIB + 64;
    pair_sizes[0] = 64;
    pair_to[1] = to;
    pair_from[1] = from;
    pair_sizes[1] = bytes;
    return pair_to;
}
#define PAIR pair_from, pair_sizes, 2, order(STREAM), pair_starts, 1

static CUmemcpy3DOperand rows_at(CUdeviceptr at, size_t length, size_t height)
{
    return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                               .op.ptr = {.ptr = at, .rowLength = length, .layerHeight = height}};
}

static CUDA_MEMCPY3D_BATCH_OP *two(CUmemcpy3DOperand range, CUmemcpy3DOperand beside, size_t width,
                                   size_t height, enum role role)
{
    static CUDA_MEMCPY3D_BATCH_OP all[2];
    all[0] = (CUDA_MEMCPY3D_BATCH_OP){.src = rows_at(sides.other + 3 * MIB, 0, 0),
                                      .dst = rows_at(sides.other + 3 * MIB + 64, 0, 0),
                                      .extent = {64, 1, 1},
                                      .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    all[1] = (CUDA_MEMCPY3D_BATCH_OP){.src = role == OUT_OF ? range : beside,
                                      .dst = role == OUT_OF ? beside : range,
                                      .extent = {width, height, 1},
                                      .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    return all;
}

static CUDA_MEMCPY3D_BATCH_OP *planes(CUdeviceptr at, size_t bytes, enum role role)
{
    return two(rows_at(at, MIB, 3), rows_at(sides.other, 4096, 3), bytes - 2 * MIB, 3, role);
}

/* The other side is an array, so lengths count elements of 4 bytes. */
static CUDA_MEMCPY3D_BATCH_OP *elements(CUdeviceptr at, size_t bytes, enum role role)
{
    const CUmemcpy3DOperand beside = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY,
                                      .op.array = {.array = words}};
    return two(rows_at(WORD(at), 0, 0), beside, (bytes + 2) / 4, 1, role);
}

/* The source may be written again when the call has returned. */
static CUresult cuMemcpyWithAttributesAsync_from_passing_host(CUdeviceptr at, size_t bytes)
{
    const CUresult result =
        TESTED(cuMemcpyWithAttributesAsync)(at, host_address(), bytes, order(DURING_API_CALL),
                                            sides.stream);
    fill_host(MIB / 2);
    memset(sides.host, 0, bytes);
    return result;
}

/* --- memory operations: the second of two. The program's own array is as it was. */

struct operations {
    CUstreamBatchMemOpParams all[2];
};

static struct operations operations_at(CUdeviceptr at, size_t bytes)
{
    struct operations operations;
    memset(&operations, 0, sizeof(operations));
    operations.all[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations.all[0].writeValue.address = sides.other;
    operations.all[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operations.all[1].writeValue.address = LAST_64;
    operations.all[1].writeValue.value64 = 9;
    return operations;
}

static CUresult cuStreamBatchMemOp_into(CUdeviceptr at, size_t bytes)
{
    struct operations asked = operations_at(at, bytes), given = asked;
    const CUresult result = TESTED(cuStreamBatchMemOp)(sides.stream, 2, given.all, 0);
    if (memcmp(&given, &asked, sizeof(given)) != 0)
        printf("the operations were changed ");
    return result;
}
#define cuStreamBatchMemOp_v2_into cuStreamBatchMemOp_into

/* --- nodes of graphs. Each is made, or changed in a graph or in an executable one; and it runs. */

enum when { ADDED, CHANGED, RUNNABLE };

struct node {
    CUgraphNodeType type;
    CUDA_MEMCPY3D copy; /* one of these */
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_BATCH_MEM_OP_NODE_PARAMS values;
    struct operations operations;
};
static CUgraph graph;
static CUgraphNode node;
static CUgraphExec executable;

/* One row, as all changes of executable graphs must be. */
static struct node line(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (struct node){.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                         .copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .srcDevice = from,
                                  .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .dstDevice = to,
                                  .WidthInBytes = bytes,
                                  .Height = 1,
                                  .Depth = 1}};
}

static struct node copy_into(CUdeviceptr at, size_t bytes)
{
    return line(at, sides.other, bytes);
}

static struct node copy_out_of(CUdeviceptr at, size_t bytes)
{
    return line(sides.other, at, bytes);
}

static struct node copy_box(CUdeviceptr at, size_t bytes)
{
    return (struct node){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *box(at, bytes, INTO)};
}

static struct node set_of(CUdeviceptr at, size_t count, unsigned width)
{
    return (struct node){.type = CU_GRAPH_NODE_TYPE_MEMSET,
                         .set = {.dst = at & ~(CUdeviceptr)(width - 1),
                                 .value = 3,
                                 .elementSize = width,
                                 .width = count,
                                 .height = 1}};
}

static struct node set_8(CUdeviceptr at, size_t bytes)
{
    return set_of(at, bytes, 1);
}

static struct node set_32(CUdeviceptr at, size_t bytes)
{
    return set_of(at, (bytes + 2) / 4, 4);
}

static struct node set_rows(CUdeviceptr at, size_t bytes)
{
    struct node rows = set_of(at, bytes - 2 * MIB, 1);
    rows.set.pitch = MIB;
    rows.set.height = 3;
    return rows;
}

static struct node values(CUdeviceptr at, size_t bytes)
{
    return (struct node){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                         .values = {.ctx = context, .count = 2},
                         .operations = operations_at(at, bytes)};
}

static CUgraphNodeParams given, as_given; /* of the newer functions */

static CUgraphNodeParams *any(const struct node *asked)
{
    given.type = asked->type;
    if (asked->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        given.memcpy.copyParams = asked->copy;
    else if (asked->type == CU_GRAPH_NODE_TYPE_MEMSET)
        given.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = asked->set.dst,
                                                    .value = asked->set.value,
                                                    .elementSize = asked->set.elementSize,
                                                    .width = asked->set.width,
                                                    .height = asked->set.height};
    else
        given.memOp = (CUDA_BATCH_MEM_OP_NODE_PARAMS_v2){.ctx = context,
                                                         .count = 2,
                                                         .paramArray = asked->values.paramArray};
    memcpy(&as_given, &given, sizeof(given));
    return &given;
}

/* A graph, with a node of bytes that are there unless the one that is asked for is to be added. */
static void begin_graph(enum when when, struct node *fine, struct node *asked)
{
    fine->values.paramArray = fine->operations.all;
    asked->values.paramArray = asked->operations.all;
    executable = NULL;
    memset(&given, 0, sizeof(given));
    memset(&as_given, 0, sizeof(as_given));
    MUST(cuGraphCreate(&graph, 0));
    if (when == ADDED)
        return;
    if (fine->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        MUST(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &fine->copy, context));
    else if (fine->type == CU_GRAPH_NODE_TYPE_MEMSET)
        MUST(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fine->set, context));
    else
        MUST(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &fine->values));
    if (when == RUNNABLE)
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
}

/* Runs the nodes that are there, whatever came of the call. The program's structs are unchanged. */
static CUresult end_graph(CUresult result, const struct node *asked, const struct node *before)
{
    size_t count = 0;
    CUresult ran = CUDA_SUCCESS;
    if (memcmp(asked, before, sizeof(*asked)) != 0 || memcmp(&given, &as_given, sizeof(given)) != 0)
        printf("the node was changed ");
    MUST(cuGraphGetNodes(graph, NULL, &count));
    if (executable == NULL)
        ran = cuGraphInstantiateWithFlags(&executable, graph, 0);
    if (ran == CUDA_SUCCESS)
        ran = cuGraphLaunch(executable, sides.stream);
    if (ran == CUDA_SUCCESS)
        ran = cuStreamSynchronize(sides.stream);
    printf("nodes %zu, run %d ", count, (int)ran);
    if (executable != NULL)
        MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
    return result;
}

/* --- the table */

#define MOVE(symbol, way, kind, arguments)                       \
    static CUresult symbol##_##way(CUdeviceptr at, size_t bytes) \
    {                                                            \
        return TESTED(symbol) arguments;                         \
    }
#define MOVE_BY(symbol, way, kind)
#define NODE(symbol, way, make, when, arguments)                       \
    static CUresult symbol##_##way(CUdeviceptr at, size_t bytes)       \
    {                                                                  \
        struct node asked, before, fine = make(sides.other + MIB, 64); \
        memset(&asked, 0, sizeof(asked));                              \
        asked = make(at, bytes);                                       \
        begin_graph(when, &fine, &asked);                              \
        memcpy(&before, &asked, sizeof(before));                       \
        return end_graph(TESTED(symbol) arguments, &asked, &before);   \
    }
#include "tests/driver/groups/moves.def"
#undef MOVE
#undef MOVE_BY
#undef NODE

#define MOVE(symbol, way, kind, arguments) {#symbol, #way, MOVE_##kind, symbol##_##way},
#define MOVE_BY(symbol, way, kind) {#symbol, #way, MOVE_##kind, symbol##_##way},
#define NODE(symbol, way, make, when, arguments) {#symbol, #way, MOVE_SEALED, symbol##_##way},
const struct move moves[] = {
#include "tests/driver/groups/moves.def"
    {NULL, NULL, MOVE_DEVICE, NULL}};
