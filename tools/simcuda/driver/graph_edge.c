/* SPDX-License-Identifier: Apache-2.0 */
/* Adding and removing dependencies and nodes. Edge data is accepted and not kept. */
#include "tools/simcuda/driver/graph.h"

#include <stdlib.h>

static bool edge_is_valid_locked(CUgraph graph, CUgraphNode from, CUgraphNode to)
{
    CUgraphNode live_from = sim_node_find_locked(from);
    CUgraphNode live_to = sim_node_find_locked(to);
    return live_from != NULL && live_to != NULL && from != to && live_from->graph == graph &&
           live_to->graph == graph;
}

/* Adds the edge or removes it. To add one that exists, or remove one that does not, is an error. */
static CUresult change_edge_locked(CUgraph graph, CUgraphNode from, CUgraphNode to, bool add)
{
    if (!edge_is_valid_locked(graph, from, to))
        return CUDA_ERROR_INVALID_VALUE;
    const bool exists = sim_node_depends(to, from);
    if (exists == add)
        return CUDA_ERROR_INVALID_VALUE;
    if (add)
        sim_node_depend(to, from);
    else
        sim_node_forget(to, from);
    return CUDA_SUCCESS;
}

static CUresult change_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                             size_t count, bool add)
{
    if (count > 0 && (from == NULL || to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUgraph graph = sim_graph_find_locked(handle);
    CUresult result = graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (graph != NULL && !add && sim_graph_is_fixed_locked(graph))
        result = CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = change_edge_locked(graph, from[i], to[i], add);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies)
{
    SIM_ENTER(cuGraphAddDependencies);
    return change_edges(hGraph, from, to, numDependencies, true);
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    SIM_ENTER(cuGraphAddDependencies_v2);
    (void)edgeData;
    return change_edges(hGraph, from, to, numDependencies, true);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies)
{
    SIM_ENTER(cuGraphRemoveDependencies);
    return change_edges(hGraph, from, to, numDependencies, false);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                      const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                      size_t numDependencies)
{
    SIM_ENTER(cuGraphRemoveDependencies_v2);
    (void)edgeData;
    return change_edges(hGraph, from, to, numDependencies, false);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    SIM_ENTER(cuGraphDestroyNode);
    pthread_mutex_lock(&sim_lock);
    CUgraphNode node = sim_node_find_locked(hNode);
    CUresult result = node != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (node != NULL && sim_graph_is_fixed_locked(node->graph))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        sim_node_unlink_locked(node);
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS)
        sim_node_destroy(node);
    return result;
}
