/* SPDX-License-Identifier: Apache-2.0 */
/* Making nodes, changing what they do and what they depend on. */
#include "tests/simcuda/driver/newer.h"
#include "tests/simcuda/driver/graph.h"

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

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphAddKernelNode);
    struct sim_body *body = NULL;
    const CUresult made = make_kernel_v1(nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    SIM_ENTER(cuGraphAddKernelNode_v2);
    struct sim_body *body = NULL;
    const CUresult made = make_kernel_v2(nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

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

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphKernelNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = make_kernel_v1(nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    SIM_ENTER(cuGraphKernelNodeSetParams_v2);
    struct sim_body *body = NULL;
    const CUresult made = make_kernel_v2(nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphExecKernelNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = make_kernel_v1(nodeParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    SIM_ENTER(cuGraphExecKernelNodeSetParams_v2);
    struct sim_body *body = NULL;
    const CUresult made = make_kernel_v2(nodeParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}

/* --- copy nodes. The context says where a copy runs; copies here run anywhere. */

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SIM_ENTER(cuGraphAddMemcpyNode);
    struct sim_body *body = NULL;
    (void)ctx;
    const CUresult made = sim_body_make_copy(copyParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    SIM_ENTER(cuGraphMemcpyNodeGetParams);
    struct sim_body *body = nodeParams != NULL ? get_body(hNode, CU_GRAPH_NODE_TYPE_MEMCPY) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = body->copy;
    sim_body_drop(body);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    SIM_ENTER(cuGraphMemcpyNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = sim_body_make_copy(nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SIM_ENTER(cuGraphExecMemcpyNodeSetParams);
    struct sim_body *body = NULL;
    (void)ctx;
    const CUresult made = sim_body_make_copy(copyParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}

/* --- fill nodes */

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    SIM_ENTER(cuGraphAddMemsetNode);
    struct sim_body *body = NULL;
    (void)ctx;
    const CUresult made = sim_body_make_fill(memsetParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphMemsetNodeGetParams);
    struct sim_body *body = nodeParams != NULL ? get_body(hNode, CU_GRAPH_NODE_TYPE_MEMSET) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = body->fill;
    sim_body_drop(body);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphMemsetNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = sim_body_make_fill(nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    SIM_ENTER(cuGraphExecMemsetNodeSetParams);
    struct sim_body *body = NULL;
    (void)ctx;
    const CUresult made = sim_body_make_fill(memsetParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}

/* --- nodes of memory operations */

static CUresult make_values(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, struct sim_body **body_out)
{
    return params == NULL
               ? CUDA_ERROR_INVALID_VALUE
               : sim_body_make_values(params->paramArray, params->count, params->flags, body_out);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddBatchMemOpNode);
    struct sim_body *body = NULL;
    const CUresult made = make_values(nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphBatchMemOpNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = make_values(nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphExecBatchMemOpNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = make_values(nodeParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}

/* --- host function nodes */

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                            const CUgraphNode *dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddHostNode);
    struct sim_body *body = NULL;
    const CUresult made = sim_body_make_host(nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphHostNodeGetParams);
    struct sim_body *body = nodeParams != NULL ? get_body(hNode, CU_GRAPH_NODE_TYPE_HOST) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = body->host;
    sim_body_drop(body);
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphHostNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = sim_body_make_host(nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphExecHostNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = sim_body_make_host(nodeParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}

/* --- nodes without parameters, and child graphs */

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                             const CUgraphNode *dependencies, size_t numDependencies)
{
    SIM_ENTER(cuGraphAddEmptyNode);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, CUDA_SUCCESS,
                    sim_body_make_empty());
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  CUgraph childGraph)
{
    SIM_ENTER(cuGraphAddChildGraphNode);
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = childGraph}};
    struct sim_body *body = NULL;
    const CUresult made = sim_body_make(hGraph, &params, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    SIM_ENTER(cuGraphChildGraphNodeGetGraph);
    struct sim_body *body = phGraph != NULL ? get_body(hNode, CU_GRAPH_NODE_TYPE_GRAPH) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = body->child;
    sim_body_drop(body);
    return CUDA_SUCCESS;
}

/* --- memory nodes */

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddMemAllocNode);
    struct sim_body *body = NULL;
    const CUresult made = sim_graph_memory_make(hGraph, nodeParams);
    if (made == CUDA_SUCCESS)
        body = sim_body_make_memory(CU_GRAPH_NODE_TYPE_MEM_ALLOC, nodeParams->dptr);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

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

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                               const CUgraphNode *dependencies, size_t numDependencies,
                               CUdeviceptr dptr)
{
    SIM_ENTER(cuGraphAddMemFreeNode);
    struct sim_body *body = NULL;
    const CUresult made = sim_graph_memory_add_free(hGraph, dptr);
    if (made == CUDA_SUCCESS)
        body = sim_body_make_memory(CU_GRAPH_NODE_TYPE_MEM_FREE, dptr);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    SIM_ENTER(cuGraphMemFreeNodeGetParams);
    struct sim_body *body = dptr_out != NULL ? get_body(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE) : NULL;
    if (body == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = body->memory;
    sim_body_drop(body);
    return CUDA_SUCCESS;
}

/* --- nodes of any type */

static CUresult make_any(CUgraph graph, CUgraphNodeParams *params, struct sim_body **body_out)
{
    return params == NULL ? CUDA_ERROR_INVALID_VALUE : sim_body_make(graph, params, body_out);
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                        size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode);
    struct sim_body *body = NULL;
    const CUresult made = make_any(hGraph, nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

/* Edge data can only weaken a dependency; every one is a full one here. */
CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                           const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode_v2);
    struct sim_body *body = NULL;
    (void)dependencyData;
    const CUresult made = make_any(hGraph, nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = make_any(NULL, nodeParams, &body);
    return replace_body(hNode, made, body);
}

/* What 13.4 changed is no node that is simulated. */
CUresult cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph,
                           const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode_v3);
    struct sim_body *body = NULL;
    (void)dependencyData;
    const CUresult made = make_any(hGraph, nodeParams, &body);
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made, body);
}

CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphNodeSetParams_v2);
    struct sim_body *body = NULL;
    const CUresult made = make_any(NULL, nodeParams, &body);
    return replace_body(hNode, made, body);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                  CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphExecNodeSetParams);
    struct sim_body *body = NULL;
    const CUresult made = make_any(NULL, nodeParams, &body);
    return sim_exec_replace_body(hGraphExec, hNode, made, body);
}
