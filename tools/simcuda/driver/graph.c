/* SPDX-License-Identifier: Apache-2.0 */
/* The structure of graphs: nodes, dependencies, copies. */
#include "tools/simcuda/driver/graph.h"

#include <stdlib.h>
#include <string.h>

static CUgraph live_graphs; /* also the child graphs; guarded by sim_lock */

CUgraph sim_graph_find_locked(CUgraph handle)
{
    CUgraph graph = live_graphs;
    while (graph != NULL && graph != handle)
        graph = graph->next;
    return graph;
}

CUgraphNode sim_node_find_locked(CUgraphNode handle)
{
    for (CUgraph graph = live_graphs; graph != NULL; graph = graph->next) {
        for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
            if (node == handle)
                return node;
        }
    }
    return NULL;
}

CUgraph sim_graph_create_locked(void)
{
    CUgraph graph = sim_zalloc(sizeof *graph);
    graph->last_link = &graph->first;
    graph->next = live_graphs;
    live_graphs = graph;
    return graph;
}

struct sim_body *sim_body_new(CUgraphNodeType type, void (*drop)(struct sim_body *body))
{
    struct sim_body *body = sim_zalloc(sizeof *body);
    body->references = 1;
    body->type = type;
    body->drop = drop;
    return body;
}

struct sim_body *sim_body_keep(struct sim_body *body)
{
    atomic_fetch_add(&body->references, 1);
    return body;
}

void sim_body_drop(struct sim_body *body)
{
    if (atomic_fetch_sub(&body->references, 1) != 1)
        return;
    if (body->drop != NULL)
        body->drop(body);
    free(body);
}

static void drop_child(struct sim_body *body)
{
    sim_graph_destroy(body->child);
}

struct sim_body *sim_body_make_child(CUgraph owned)
{
    struct sim_body *body = sim_body_new(CU_GRAPH_NODE_TYPE_GRAPH, drop_child);
    owned->is_child = true;
    body->child = owned;
    return body;
}

void sim_node_destroy(CUgraphNode node)
{
    sim_body_drop(node->body);
    free(node->after);
    free(node);
}

void sim_graph_destroy(CUgraph graph)
{
    pthread_mutex_lock(&sim_lock);
    CUgraph *place = &live_graphs;
    while (*place != graph)
        place = &(*place)->next;
    *place = graph->next;
    pthread_mutex_unlock(&sim_lock);

    while (graph->first != NULL) {
        CUgraphNode node = graph->first;
        graph->first = node->next;
        sim_node_destroy(node);
    }
    sim_held_drop(graph->held);
    free(graph);
}

void sim_node_depend(CUgraphNode node, CUgraphNode after)
{
    node->after = reallocarray(node->after, node->after_count + 1, sizeof node->after[0]);
    node->after[node->after_count++] = after;
}

bool sim_node_depends(const struct CUgraphNode_st *node, const struct CUgraphNode_st *after)
{
    for (size_t i = 0; i < node->after_count; i++) {
        if (node->after[i] == after)
            return true;
    }
    return false;
}

void sim_node_forget(CUgraphNode node, CUgraphNode after)
{
    size_t kept = 0;
    for (size_t i = 0; i < node->after_count; i++) {
        if (node->after[i] != after)
            node->after[kept++] = node->after[i];
    }
    node->after_count = kept;
}

void sim_node_unlink_locked(CUgraphNode node)
{
    CUgraph graph = node->graph;
    CUgraphNode *place = &graph->first;
    for (CUgraphNode other = graph->first; other != NULL; other = other->next)
        sim_node_forget(other, node);
    while (*place != node)
        place = &(*place)->next;
    *place = node->next;
    if (node->next == NULL)
        graph->last_link = place;
    graph->count--;
}

CUresult sim_graph_add_locked(CUgraph graph, const CUgraphNode *after, size_t after_count,
                              struct sim_body *body, CUgraphNode *node_out)
{
    if (after == NULL && after_count > 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < after_count; i++) {
        CUgraphNode live = sim_node_find_locked(after[i]);
        if (live == NULL || live->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t k = 0; k < i; k++) {
            if (after[k] == after[i])
                return CUDA_ERROR_INVALID_VALUE;
        }
    }
    CUgraphNode node = sim_zalloc(sizeof *node);
    node->graph = graph;
    node->body = body;
    for (size_t i = 0; i < after_count; i++)
        sim_node_depend(node, after[i]);
    *graph->last_link = node;
    graph->last_link = &node->next;
    graph->count++;
    *node_out = node;
    return CUDA_SUCCESS;
}

bool sim_graph_is_fixed_locked(const struct CUgraph_st *graph)
{
    for (const struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        const struct sim_body *body = node->body;
        const bool is_child = body->type == CU_GRAPH_NODE_TYPE_GRAPH && body->work == NULL;
        if (body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            body->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            body->type == CU_GRAPH_NODE_TYPE_CONDITIONAL ||
            (is_child && sim_graph_is_fixed_locked(body->child)))
            return true;
    }
    return false;
}

static CUgraphNode find_clone(CUgraph clone, CUgraphNode original)
{
    CUgraphNode node = clone->first;
    while (node != NULL && node->original != original)
        node = node->next;
    return node;
}

CUgraph sim_graph_clone_locked(CUgraph original)
{
    CUgraph clone = sim_graph_create_locked();
    clone->held = sim_held_copy_locked(original->held);
    for (CUgraphNode node = original->first; node != NULL; node = node->next) {
        struct sim_body *body =
            node->body->type == CU_GRAPH_NODE_TYPE_GRAPH && node->body->work == NULL
                ? sim_body_make_child(sim_graph_clone_locked(node->body->child))
                : sim_body_keep(node->body);
        CUgraphNode copy;
        sim_graph_add_locked(clone, NULL, 0, body, &copy);
        copy->original = node;
    }
    for (CUgraphNode copy = clone->first; copy != NULL; copy = copy->next) {
        for (size_t i = 0; i < copy->original->after_count; i++)
            sim_node_depend(copy, find_clone(clone, copy->original->after[i]));
    }
    return clone;
}

static bool is_ready(const struct CUgraphNode_st *node)
{
    for (size_t i = 0; i < node->after_count; i++) {
        if (!node->after[i]->is_visited)
            return false;
    }
    return !node->is_visited;
}

static CUgraphNode find_ready(CUgraph graph)
{
    CUgraphNode node = graph->first;
    while (node != NULL && !is_ready(node))
        node = node->next;
    return node;
}

struct order {
    CUgraphNode *nodes;
    size_t count;
};

static CUresult append_in_order(CUgraph graph, struct order *order)
{
    size_t seen = 0;
    CUresult result = CUDA_SUCCESS;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        node->is_visited = false;
    for (; seen < graph->count && result == CUDA_SUCCESS; seen++) {
        CUgraphNode node = find_ready(graph);
        if (node == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        node->is_visited = true;
        order->nodes = reallocarray(order->nodes, order->count + 1, sizeof order->nodes[0]);
        order->nodes[order->count++] = node;
        if (node->body->type == CU_GRAPH_NODE_TYPE_GRAPH && node->body->work == NULL)
            result = append_in_order(node->body->child, order);
    }
    return result;
}

CUresult sim_graph_order_locked(CUgraph graph, CUgraphNode **nodes_out, size_t *count_out)
{
    struct order order = {NULL, 0};
    const CUresult result = append_in_order(graph, &order);
    if (result != CUDA_SUCCESS) {
        free(order.nodes);
        return result;
    }
    *nodes_out = order.nodes;
    *count_out = order.count;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SIM_ENTER(cuGraphCreate);
    if (phGraph == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    *phGraph = sim_graph_create_locked();
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    SIM_ENTER(cuGraphDestroy);
    pthread_mutex_lock(&sim_lock);
    CUgraph graph = sim_graph_find_locked(hGraph);
    const bool is_ours = graph != NULL && !graph->is_child;
    pthread_mutex_unlock(&sim_lock);
    if (!is_ours)
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_destroy(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    SIM_ENTER(cuGraphClone);
    if (phGraphClone == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUgraph original = sim_graph_find_locked(originalGraph);
    CUresult result = original != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (original != NULL && sim_graph_is_fixed_locked(original))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        *phGraphClone = sim_graph_clone_locked(original);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph)
{
    SIM_ENTER(cuGraphNodeFindInClone);
    if (phNode == NULL || hOriginalNode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUgraph clone = sim_graph_find_locked(hClonedGraph);
    CUgraphNode node = clone != NULL ? find_clone(clone, hOriginalNode) : NULL;
    pthread_mutex_unlock(&sim_lock);
    if (node == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *phNode = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    SIM_ENTER(cuGraphNodeGetType);
    pthread_mutex_lock(&sim_lock);
    CUgraphNode node = sim_node_find_locked(hNode);
    if (node != NULL && type != NULL)
        *type = node->body->type;
    pthread_mutex_unlock(&sim_lock);
    return node != NULL && type != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A list that the program gets: up to *count rows, then *count says how many there are. */
struct answer {
    CUgraphNode *first, *second;
    CUgraphEdgeData *edges;
    size_t room, count;
};

static void answer_row(struct answer *answer, CUgraphNode first, CUgraphNode second)
{
    if (answer->count < answer->room) {
        answer->first[answer->count] = first;
        if (answer->second != NULL)
            answer->second[answer->count] = second;
        if (answer->edges != NULL)
            answer->edges[answer->count] = (CUgraphEdgeData){0};
    }
    answer->count++;
}

/* The driver fills the rows that are left over with NULL. */
static void finish_answer(struct answer *answer, size_t *count)
{
    if (answer->first == NULL) {
        *count = answer->count;
        return;
    }
    for (size_t i = answer->count; i < answer->room; i++) {
        answer->first[i] = NULL;
        if (answer->second != NULL)
            answer->second[i] = NULL;
    }
    *count = answer->count < answer->room ? answer->count : answer->room;
}

static CUresult list_nodes(CUgraph handle, bool only_roots, CUgraphNode *nodes, size_t *count)
{
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {.first = nodes, .room = nodes != NULL ? *count : 0};
    pthread_mutex_lock(&sim_lock);
    CUgraph graph = sim_graph_find_locked(handle);
    for (CUgraphNode node = graph != NULL ? graph->first : NULL; node != NULL; node = node->next) {
        if (!only_roots || node->after_count == 0)
            answer_row(&answer, node, NULL);
    }
    pthread_mutex_unlock(&sim_lock);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    finish_answer(&answer, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    SIM_ENTER(cuGraphGetNodes);
    return list_nodes(hGraph, false, nodes, numNodes);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    SIM_ENTER(cuGraphGetRootNodes);
    return list_nodes(hGraph, true, rootNodes, numRootNodes);
}

static CUresult list_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                           CUgraphEdgeData *edges, size_t *count)
{
    if (count == NULL || (from == NULL) != (to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {from, to, edges, from != NULL ? *count : 0, 0};
    pthread_mutex_lock(&sim_lock);
    CUgraph graph = sim_graph_find_locked(handle);
    for (CUgraphNode node = graph != NULL ? graph->first : NULL; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->after_count; i++)
            answer_row(&answer, node->after[i], node);
    }
    pthread_mutex_unlock(&sim_lock);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    finish_answer(&answer, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    SIM_ENTER(cuGraphGetEdges);
    return list_edges(hGraph, from, to, NULL, numEdges);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edgeData, size_t *numEdges)
{
    SIM_ENTER(cuGraphGetEdges_v2);
    return list_edges(hGraph, from, to, edgeData, numEdges);
}

static CUresult list_neighbours(CUgraphNode handle, bool before, CUgraphNode *nodes,
                                CUgraphEdgeData *edges, size_t *count)
{
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {nodes, NULL, edges, nodes != NULL ? *count : 0, 0};
    pthread_mutex_lock(&sim_lock);
    CUgraphNode node = sim_node_find_locked(handle);
    for (size_t i = 0; node != NULL && before && i < node->after_count; i++)
        answer_row(&answer, node->after[i], NULL);
    for (CUgraphNode other = node != NULL && !before ? node->graph->first : NULL; other != NULL;
         other = other->next) {
        if (sim_node_depends(other, node))
            answer_row(&answer, other, NULL);
    }
    pthread_mutex_unlock(&sim_lock);
    if (node == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    finish_answer(&answer, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                    size_t *numDependencies)
{
    SIM_ENTER(cuGraphNodeGetDependencies);
    return list_neighbours(hNode, true, dependencies, NULL, numDependencies);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                       CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    SIM_ENTER(cuGraphNodeGetDependencies_v2);
    return list_neighbours(hNode, true, dependencies, edgeData, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                      size_t *numDependentNodes)
{
    SIM_ENTER(cuGraphNodeGetDependentNodes);
    return list_neighbours(hNode, false, dependentNodes, NULL, numDependentNodes);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                         CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    SIM_ENTER(cuGraphNodeGetDependentNodes_v2);
    return list_neighbours(hNode, false, dependentNodes, edgeData, numDependentNodes);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags)
{
    SIM_ENTER(cuGraphRetainUserObject);
    const bool moves = flags == CU_GRAPH_USER_OBJECT_MOVE;
    pthread_mutex_lock(&sim_lock);
    const bool is_good = (moves || flags == 0) && sim_graph_find_locked(graph) != NULL &&
                         sim_held_take_locked(&graph->held, object, count, moves);
    pthread_mutex_unlock(&sim_lock);
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    SIM_ENTER(cuGraphReleaseUserObject);
    pthread_mutex_lock(&sim_lock);
    const bool is_good =
        sim_graph_find_locked(graph) != NULL && sim_held_give_locked(&graph->held, object, count);
    pthread_mutex_unlock(&sim_lock);
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
