/* SPDX-License-Identifier: Apache-2.0 */
/* Making nodes, changing what they do and what they depend on. */
#include "tools/simcuda/driver/graph.h"
#include "tools/simcuda/driver/newer.h"

#include <stdlib.h>

/* Adds a node with this body; `made` is how the making of the body ended. */
static CUresult add_node(CUgraphNode *node_out, CUgraph handle, const CUgraphNode *after,
                         size_t after_count, CUresult made, struct sim_body *body)
{
    if (made != CUDA_SUCCESS)
        return made;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUgraph graph = sim_graph_find_locked(handle);
    if (graph != NULL && node_out != NULL)
        result = sim_graph_add_locked(graph, after, after_count, body, node_out);
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS)
        sim_body_drop(body);
    return result;
}

/* Gives the node a new body of the same type. */
static CUresult replace_body(CUgraphNode handle, CUresult made, struct sim_body *body)
{
    if (made != CUDA_SUCCESS)
        return made;
    struct sim_body *dropped = body;
    pthread_mutex_lock(&sim_lock);
    CUgraphNode node = sim_node_find_locked(handle);
    if (node != NULL && node->body->type == body->type && node->body->work == NULL) {
        dropped = node->body;
        node->body = body;
    }
    pthread_mutex_unlock(&sim_lock);
    sim_body_drop(dropped);
    return dropped != body ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The node's body, if it is of that type and has parameters; to be dropped. */
static struct sim_body *get_body(CUgraphNode handle, CUgraphNodeType type)
{
    pthread_mutex_lock(&sim_lock);
    CUgraphNode node = sim_node_find_locked(handle);
    const bool fits = node != NULL && node->body->type == type && node->body->work == NULL;
    struct sim_body *body = fits ? sim_body_keep(node->body) : NULL;
    pthread_mutex_unlock(&sim_lock);
    return body;
}

/* --- the shapes of the calls. `made` makes the body that it is given the address of. */

#define UNPACK(...) __VA_ARGS__
#define NODE(symbol, parameters, made, then) \
    CUresult symbol(UNPACK parameters)       \
    {                                        \
        SIM_ENTER(symbol);                   \
        struct sim_body *body = NULL;        \
        const CUresult result = made;        \
        return then;                         \
    }
#define ADD(symbol, parameters, made)                                                 \
    NODE(symbol,                                                                      \
         (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, \
          size_t numDependencies, UNPACK parameters),                                 \
         made, add_node(phGraphNode, hGraph, dependencies, numDependencies, result, body))
#define SET(symbol, type, made) \
    NODE(symbol, (CUgraphNode hNode, type), made, replace_body(hNode, result, body))
#define SET_IN_EXEC(symbol, parameters, made)                                          \
    NODE(symbol, (CUgraphExec hGraphExec, CUgraphNode hNode, UNPACK parameters), made, \
         sim_exec_replace_body(hGraphExec, hNode, result, body))
#define GET(symbol, node_type, type, member)                                            \
    CUresult symbol(CUgraphNode hNode, type *nodeParams)                                \
    {                                                                                   \
        SIM_ENTER(symbol);                                                              \
        struct sim_body *body = nodeParams != NULL ? get_body(hNode, node_type) : NULL; \
        if (body == NULL)                                                               \
            return CUDA_ERROR_INVALID_VALUE;                                            \
        *nodeParams = body->member;                                                     \
        sim_body_drop(body);                                                            \
        return CUDA_SUCCESS;                                                            \
    }

/* --- kernel nodes: the first struct is the beginning of the second */

static CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS_v1 *params, CUkernel kernel,
                            struct sim_body **body_out)
{
    const struct sim_launch_call call = {
        params->func != NULL ? (const void *)params->func : (const void *)kernel,
        {params->gridDimX, params->gridDimY, params->gridDimZ},
        {params->blockDimX, params->blockDimY, params->blockDimZ},
        params->sharedMemBytes,
        params->kernelParams,
        params->extra,
    };
    return sim_body_make_kernel(&call, body_out);
}

static CUresult make_kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *params, struct sim_body **body_out)
{
    return params == NULL ? CUDA_ERROR_INVALID_VALUE : make_kernel(params, NULL, body_out);
}

static CUresult make_kernel_v2(const CUDA_KERNEL_NODE_PARAMS_v2 *params, struct sim_body **body_out)
{
    if (params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return make_kernel((const CUDA_KERNEL_NODE_PARAMS_v1 *)params, params->kern, body_out);
}

#define KERNEL(suffix, version)                                                                  \
    ADD(cuGraphAddKernelNode##suffix, (const CUDA_KERNEL_NODE_PARAMS_##version *nodeParams),     \
        make_kernel_##version(nodeParams, &body))                                                \
    SET(cuGraphKernelNodeSetParams##suffix, const CUDA_KERNEL_NODE_PARAMS_##version *nodeParams, \
        make_kernel_##version(nodeParams, &body))                                                \
    SET_IN_EXEC(cuGraphExecKernelNodeSetParams##suffix,                                          \
                (const CUDA_KERNEL_NODE_PARAMS_##version *nodeParams),                           \
                make_kernel_##version(nodeParams, &body))
KERNEL(, v1)
KERNEL(_v2, v2)

static CUresult get_kernel_params(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1 *params_out)
{
    struct sim_body *body = params_out != NULL ? get_body(handle, CU_GRAPH_NODE_TYPE_KERNEL) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_launch_call call;
    sim_launch_describe(body->launch, &call);
    *params_out = (CUDA_KERNEL_NODE_PARAMS_v1){
        (CUfunction)(uintptr_t)call.function,
        call.grid[0],
        call.grid[1],
        call.grid[2],
        call.block[0],
        call.block[1],
        call.block[2],
        call.shared_bytes,
        call.params,
        call.extra,
    };
    sim_body_drop(body);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphKernelNodeGetParams);
    return get_kernel_params(hNode, nodeParams);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    SIM_ENTER(cuGraphKernelNodeGetParams_v2);
    const CUresult result = get_kernel_params(hNode, (CUDA_KERNEL_NODE_PARAMS_v1 *)nodeParams);
    if (result == CUDA_SUCCESS) {
        nodeParams->kern = NULL;
        nodeParams->ctx = NULL;
    }
    return result;
}

/* --- copies and sets. The context says where they run; here they run anywhere. */

#define MOVE(name, node_type, type, make, member)                                          \
    ADD(cuGraphAdd##name##Node, (const type *nodeParams, CUcontext ctx),                   \
        ((void)ctx, make(nodeParams, &body)))                                              \
    GET(cuGraph##name##NodeGetParams, node_type, type, member)                             \
    SET(cuGraph##name##NodeSetParams, const type *nodeParams, make(nodeParams, &body))     \
    SET_IN_EXEC(cuGraphExec##name##NodeSetParams, (const type *nodeParams, CUcontext ctx), \
                ((void)ctx, make(nodeParams, &body)))
MOVE(Memcpy, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, sim_body_make_copy, copy)
MOVE(Memset, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, sim_body_make_fill, fill)

/* --- memory operations and host functions */

static CUresult make_values(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, struct sim_body **body_out)
{
    return params == NULL || params->ctx == NULL
               ? CUDA_ERROR_INVALID_VALUE
               : sim_body_make_values(params->paramArray, params->count, params->flags, body_out);
}

ADD(cuGraphAddBatchMemOpNode, (const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams),
    make_values(nodeParams, &body))
SET(cuGraphBatchMemOpNodeSetParams, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams,
    make_values(nodeParams, &body))
SET_IN_EXEC(cuGraphExecBatchMemOpNodeSetParams, (const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams),
            make_values(nodeParams, &body))
ADD(cuGraphAddHostNode, (const CUDA_HOST_NODE_PARAMS *nodeParams),
    sim_body_make_host(nodeParams, &body))
GET(cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
SET(cuGraphHostNodeSetParams, const CUDA_HOST_NODE_PARAMS *nodeParams,
    sim_body_make_host(nodeParams, &body))
SET_IN_EXEC(cuGraphExecHostNodeSetParams, (const CUDA_HOST_NODE_PARAMS *nodeParams),
            sim_body_make_host(nodeParams, &body))

/* --- nodes without parameters, and child graphs */

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                             const CUgraphNode *dependencies, size_t numDependencies)
{
    SIM_ENTER(cuGraphAddEmptyNode);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, CUDA_SUCCESS,
                    sim_body_make_empty());
}

static CUresult make_child(CUgraph graph, CUgraph child, struct sim_body **body_out)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
    return sim_body_make(graph, &params, body_out);
}

ADD(cuGraphAddChildGraphNode, (CUgraph childGraph), make_child(hGraph, childGraph, &body))
GET(cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, child)

/* --- memory nodes */

static CUresult make_memory(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params,
                            struct sim_body **body_out)
{
    const CUresult result = sim_graph_memory_make(graph, params);
    if (result == CUDA_SUCCESS)
        *body_out = sim_body_make_memory(CU_GRAPH_NODE_TYPE_MEM_ALLOC, params->dptr);
    return result;
}

static CUresult make_free(CUgraph graph, CUdeviceptr address, struct sim_body **body_out)
{
    const CUresult result = sim_graph_memory_add_free(graph, address);
    if (result == CUDA_SUCCESS)
        *body_out = sim_body_make_memory(CU_GRAPH_NODE_TYPE_MEM_FREE, address);
    return result;
}

ADD(cuGraphAddMemAllocNode, (CUDA_MEM_ALLOC_NODE_PARAMS * nodeParams),
    make_memory(hGraph, nodeParams, &body))
ADD(cuGraphAddMemFreeNode, (CUdeviceptr dptr), make_free(hGraph, dptr, &body))
GET(cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr, memory)

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    SIM_ENTER(cuGraphMemAllocNodeGetParams);
    struct sim_body *body =
        params_out != NULL ? get_body(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_graph_memory_params(body->memory, params_out);
    sim_body_drop(body);
    return result;
}

/* --- nodes of any type. Nodes that 13.4 changed are not simulated. */

static CUresult make_any(CUgraph graph, CUgraphNodeParams *params, struct sim_body **body_out)
{
    return params == NULL ? CUDA_ERROR_INVALID_VALUE : sim_body_make(graph, params, body_out);
}

ADD(cuGraphAddNode, (CUgraphNodeParams * nodeParams), make_any(hGraph, nodeParams, &body))
SET(cuGraphNodeSetParams, CUgraphNodeParams *nodeParams, make_any(NULL, nodeParams, &body))
SET(cuGraphNodeSetParams_v2, CUgraphNodeParams *nodeParams, make_any(NULL, nodeParams, &body))
SET_IN_EXEC(cuGraphExecNodeSetParams, (CUgraphNodeParams * nodeParams),
            make_any(NULL, nodeParams, &body))

/* Edge data can only weaken a dependency; every one is a full one here. */
#define ADD_WITH_EDGES(symbol)                                                        \
    NODE(symbol,                                                                      \
         (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, \
          const CUgraphEdgeData *dependencyData, size_t numDependencies,              \
          CUgraphNodeParams *nodeParams),                                             \
         ((void)dependencyData, make_any(hGraph, nodeParams, &body)),                 \
         add_node(phGraphNode, hGraph, dependencies, numDependencies, result, body))
ADD_WITH_EDGES(cuGraphAddNode_v2)
ADD_WITH_EDGES(cuGraphAddNode_v3)
