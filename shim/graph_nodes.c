/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graph nodes that copy, set, or wait for a value. The driver looks up a node's addresses when the
 * node is made or changed (cuda.h: cuGraphExecMemcpyNodeSetParams returns CUDA_ERROR_INVALID_VALUE
 * if the operands' mappings changed), so it refuses a node that strays at that call; a refused node
 * never runs.
 */
#include "runtime/base/heap.h"
#include "runtime/calls/move.h"
#include "shim/memory_values.h"
#include "shim/newer.h"
#include "shim/quick.h"

static bool copy_strays(const CUDA_MEMCPY3D *copy)
{
    const struct ms_movement movement = ms_movement_of_box(copy, NULL);
    return ms_move_strays(&movement);
}

static bool set_strays(CUdeviceptr address, size_t pitch, unsigned width, size_t count,
                       size_t height)
{
    const struct ms_movement movement = {
        .width = ms_side_bytes(count, width),
        .height = height,
        .depth = 1,
        .to = {.type = CU_MEMORYTYPE_DEVICE, .begin = address, .pitch = pitch}};
    return ms_move_strays(&movement);
}

/* Each returns the program's parameters, or, if they stray, a copy in `room` for the driver to
 * refuse. */
static const CUDA_MEMCPY3D *bound_copy(const CUDA_MEMCPY3D *copy, CUDA_MEMCPY3D *room)
{
    if (copy == NULL || !copy_strays(copy))
        return copy;
    *room = *copy;
    room->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    room->dstDevice = MS_NOWHERE;
    room->dstXInBytes = room->dstY = room->dstZ = 0;
    return room;
}

static const CUDA_MEMSET_NODE_PARAMS *bound_set(const CUDA_MEMSET_NODE_PARAMS *set,
                                                CUDA_MEMSET_NODE_PARAMS *room)
{
    if (set == NULL || !set_strays(set->dst, set->pitch, set->elementSize, set->width, set->height))
        return set;
    *room = *set;
    room->dst = MS_NOWHERE;
    return room;
}

/* Nodes whose copy or set is a parameter of its own. */
#define NODE(symbol, type, given, bound, parameters, arguments)             \
    MS_QUICK_COPY(symbol, parameters, arguments)                            \
    {                                                                       \
        type room;                                                          \
        given = bound(given, &room);                                        \
        const CUresult result = ms_move_seal();                             \
        return result != CUDA_SUCCESS ? result : MS_REAL(symbol) arguments; \
    }
#define COPY_NODE(symbol, parameters, arguments) \
    NODE(symbol, CUDA_MEMCPY3D, copyParams, bound_copy, parameters, arguments)
#define SET_NODE(symbol, parameters, arguments) \
    NODE(symbol, CUDA_MEMSET_NODE_PARAMS, memsetParams, bound_set, parameters, arguments)
COPY_NODE(cuGraphAddMemcpyNode,
          (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
           size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx),
          (phGraphNode, hGraph, dependencies, numDependencies, copyParams, ctx))
COPY_NODE(cuGraphMemcpyNodeSetParams, (CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams),
          (hNode, copyParams))
COPY_NODE(cuGraphExecMemcpyNodeSetParams,
          (CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams,
           CUcontext ctx),
          (hGraphExec, hNode, copyParams, ctx))
SET_NODE(cuGraphAddMemsetNode,
         (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
          size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx),
         (phGraphNode, hGraph, dependencies, numDependencies, memsetParams, ctx))
SET_NODE(cuGraphMemsetNodeSetParams,
         (CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *memsetParams), (hNode, memsetParams))
SET_NODE(cuGraphExecMemsetNodeSetParams,
         (CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *memsetParams,
          CUcontext ctx),
         (hGraphExec, hNode, memsetParams, ctx))

/* Nodes of memory operations. Like bound_copy, but the caller frees the room's operations. */
static CUresult bound_values(const CUDA_BATCH_MEM_OP_NODE_PARAMS *values,
                             CUDA_BATCH_MEM_OP_NODE_PARAMS *room)
{
    *room = (CUDA_BATCH_MEM_OP_NODE_PARAMS){0};
    if (values == NULL)
        return CUDA_SUCCESS;
    *room = *values;
    return ms_memory_values_bound(values->paramArray, values->count, &room->paramArray);
}

#define VALUES_NODE(symbol, parameters, arguments)                    \
    MS_QUICK_COPY(symbol, parameters, arguments)                      \
    {                                                                 \
        CUDA_BATCH_MEM_OP_NODE_PARAMS room;                           \
        CUresult result = bound_values(nodeParams, &room);            \
        CUstreamBatchMemOpParams *const operations = room.paramArray; \
        nodeParams = operations != NULL ? &room : nodeParams;         \
        if (result == CUDA_SUCCESS)                                   \
            result = ms_move_seal();                                  \
        if (result == CUDA_SUCCESS)                                   \
            result = MS_REAL(symbol) arguments;                       \
        ms_heap_free(operations);                                     \
        return result;                                                \
    }
VALUES_NODE(cuGraphAddBatchMemOpNode,
            (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
             size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams),
            (phGraphNode, hGraph, dependencies, numDependencies, nodeParams))
VALUES_NODE(cuGraphBatchMemOpNodeSetParams,
            (CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams),
            (hNode, nodeParams))
VALUES_NODE(cuGraphExecBatchMemOpNodeSetParams,
            (CUgraphExec hGraphExec, CUgraphNode hNode,
             const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams),
            (hGraphExec, hNode, nodeParams))

/* --- nodes of any type. Parameters that the driver writes results into are passed on unchanged */

struct any {
    CUgraphNodeParams room;
    CUstreamBatchMemOpParams *operations;
    CUgraphNodeParams *bounded; /* the program's own, or room */
};

static bool any_strays(const CUgraphNodeParams *params)
{
    const CUDA_MEMSET_NODE_PARAMS_v2 *set = &params->memset;
    if (params->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        return copy_strays(&params->memcpy.copyParams);
    return params->type == CU_GRAPH_NODE_TYPE_MEMSET &&
           set_strays(set->dst, set->pitch, set->elementSize, set->width, set->height);
}

static CUresult bound_any(CUgraphNodeParams *params, struct any *any)
{
    CUresult result = CUDA_SUCCESS;
    any->operations = NULL;
    any->bounded = params;
    if (params == NULL)
        return CUDA_SUCCESS;
    if (params->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        result =
            ms_memory_values_bound(params->memOp.paramArray, params->memOp.count, &any->operations);
    if (any->operations == NULL && !any_strays(params))
        return result;
    any->room = *params;
    any->bounded = &any->room;
    if (any->operations != NULL)
        any->room.memOp.paramArray = any->operations;
    else if (params->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        bound_copy(&params->memcpy.copyParams, &any->room.memcpy.copyParams);
    else
        any->room.memset.dst = MS_NOWHERE;
    return result;
}

#define ANY_NODE(symbol, parameters, arguments)        \
    MS_QUICK_COPY(symbol, parameters, arguments)       \
    {                                                  \
        struct any any;                                \
        CUresult result = bound_any(nodeParams, &any); \
        nodeParams = any.bounded;                      \
        if (result == CUDA_SUCCESS)                    \
            result = ms_move_seal();                   \
        if (result == CUDA_SUCCESS)                    \
            result = MS_REAL(symbol) arguments;        \
        ms_heap_free(any.operations);                  \
        return result;                                 \
    }
ANY_NODE(cuGraphAddNode,
         (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
          size_t numDependencies, CUgraphNodeParams *nodeParams),
         (phGraphNode, hGraph, dependencies, numDependencies, nodeParams))
ANY_NODE(cuGraphAddNode_v2,
         (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *dependencyData, size_t numDependencies,
          CUgraphNodeParams *nodeParams),
         (phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams))
ANY_NODE(cuGraphAddNode_v3,
         (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *dependencyData, size_t numDependencies,
          CUgraphNodeParams *nodeParams),
         (phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams))
ANY_NODE(cuGraphNodeSetParams, (CUgraphNode hNode, CUgraphNodeParams *nodeParams),
         (hNode, nodeParams))
ANY_NODE(cuGraphNodeSetParams_v2, (CUgraphNode hNode, CUgraphNodeParams *nodeParams),
         (hNode, nodeParams))
ANY_NODE(cuGraphExecNodeSetParams,
         (CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams),
         (hGraphExec, hNode, nodeParams))
