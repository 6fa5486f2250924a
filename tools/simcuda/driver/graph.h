/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs, as graph.c (structure), graph_edge.c, graph_body.c (what a node does), graph_node.c (to
 * make and change nodes), graph_exec.c (to run them) and user_object.c share them. Lists are
 * guarded by sim_lock. A body is immutable: new parameters are a new body, so what is queued keeps
 * what it was launched with.
 */
#pragma once

#include "tools/simcuda/driver/launch.h"

#include <stdatomic.h>

struct sim_body {
    atomic_int references;
    void (*drop)(struct sim_body *body); /* what the body owns; NULL: nothing */
    CUgraphNodeType type;
    struct sim_work *work; /* captured: it decides what to do; the rest is not used */
    union {
        struct sim_launch *launch;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_HOST_NODE_PARAMS host;
        struct sim_work *values; /* of a node of memory operations; owned */
        CUgraph child;           /* owned */
        CUdeviceptr memory;      /* of both kinds of memory nodes */
        struct {
            struct sim_condition *condition;
            CUgraphConditionalNodeType type;
            unsigned count;
            CUgraph *graphs; /* owned, each of them too */
        } choice;            /* of a conditional node */
    };
};

/* The number that decides, of a conditional handle. Never given back. */
struct sim_condition {
    struct sim_condition *next;
    CUgraphConditionalHandle handle;
    CUgraph graph;
    CUcontext context;
    unsigned flags, start;
    atomic_uint value;
};

struct CUgraphNode_st {
    struct CUgraphNode_st *next; /* in the order of adding */
    CUgraph graph;
    CUgraphNode original; /* of a clone */
    struct sim_body *body;
    CUgraphNode *after; /* dependencies */
    size_t after_count;
    bool is_visited; /* by the function that orders the nodes */
};

/* References to user objects (user_object.c), of a graph, an executable, or a launch. */
struct sim_held {
    struct sim_held *next;
    CUuserObject object;
    size_t count;
};

struct CUgraph_st {
    struct CUgraph_st *next;
    struct sim_held *held;
    bool is_child; /* owned by the body of a node, or by a capture that goes on */
    CUgraphNode first, *last_link;
    size_t count;
};

/* NULL for handles that are not live. */
CUgraph sim_graph_find_locked(CUgraph handle);
CUgraphNode sim_node_find_locked(CUgraphNode handle);

CUgraph sim_graph_create_locked(void);
void sim_graph_destroy(CUgraph graph); /* takes sim_lock; runs the destroy functions of works */
CUgraph sim_graph_clone_locked(CUgraph original);
/* Takes the body when it succeeds. */
CUresult sim_graph_add_locked(CUgraph graph, const CUgraphNode *after, size_t after_count,
                              struct sim_body *body, CUgraphNode *node_out);
/* It has memory or conditional nodes: it cannot be copied, and loses no nodes or edges. */
bool sim_graph_is_fixed_locked(const struct CUgraph_st *graph);
void sim_node_depend(CUgraphNode node, CUgraphNode after);
void sim_node_forget(CUgraphNode node, CUgraphNode after);
bool sim_node_depends(const struct CUgraphNode_st *node, const struct CUgraphNode_st *after);
void sim_node_unlink_locked(CUgraphNode node); /* out of its graph, with its edges */
void sim_node_destroy(CUgraphNode node);       /* without sim_lock */
/*
 * The nodes of the graph, and of its child graphs in their place, each after those that it depends
 * on; to be freed. CUDA_ERROR_INVALID_VALUE when there is a cycle.
 */
CUresult sim_graph_order_locked(CUgraph graph, CUgraphNode **nodes_out, size_t *count_out);

/* A body of nothing yet, a child graph as a body, and references (graph.c). */
struct sim_body *sim_body_new(CUgraphNodeType type, void (*drop)(struct sim_body *body));
struct sim_body *sim_body_make_child(CUgraph owned);
struct sim_body *sim_body_keep(struct sim_body *body);
void sim_body_drop(struct sim_body *body); /* without sim_lock */

/* Bodies (graph_body.c). These functions check the parameters as the driver does when a node is
 * added. */
CUresult sim_body_make_kernel(const struct sim_launch_call *call, struct sim_body **body_out);
CUresult sim_body_make_copy(const CUDA_MEMCPY3D *copy, struct sim_body **body_out);
CUresult sim_body_make_fill(const CUDA_MEMSET_NODE_PARAMS *fill, struct sim_body **body_out);
CUresult sim_body_make_host(const CUDA_HOST_NODE_PARAMS *host, struct sim_body **body_out);
CUresult sim_body_make_values(const CUstreamBatchMemOpParams *operations, unsigned count,
                              unsigned flags, struct sim_body **body_out);
struct sim_body *sim_body_make_empty(void);
struct sim_body *sim_body_make_captured(struct sim_work *owned);
struct sim_body *sim_body_make_memory(CUgraphNodeType type, CUdeviceptr address);
/* From the struct of cuGraphAddNode, for this graph (NULL: for one that is instantiated). A child
 * graph is copied. The call writes the values that nodes make into the struct. */
CUresult sim_body_make(CUgraph graph, CUgraphNodeParams *params, struct sim_body **body_out);
/* For the functions that set parameters: `made` is how the making of the body ended. */
CUresult sim_exec_replace_body(CUgraphExec exec, CUgraphNode node, CUresult made,
                               struct sim_body *body);
void sim_body_run(const struct sim_body *body);

/* A graph takes references, of its own or those of the program (moves), and gives some back; false:
 * there are not so many. */
bool sim_held_take_locked(struct sim_held **list, CUuserObject object, unsigned count, bool moves);
bool sim_held_give_locked(struct sim_held **list, CUuserObject object, unsigned count);
struct sim_held *sim_held_copy_locked(const struct sim_held *list);
void sim_held_drop(struct sim_held *list); /* takes sim_lock */

/* Memory nodes (graph_memory.c), by address. */
CUresult sim_graph_memory_make(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult sim_graph_memory_make_locked(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult sim_graph_memory_add_free(CUgraph graph, CUdeviceptr address);
CUresult sim_graph_memory_add_free_locked(CUgraph graph, CUdeviceptr address);
CUresult sim_graph_memory_params(CUdeviceptr address, CUDA_MEM_ALLOC_NODE_PARAMS *params_out);
void sim_graph_memory_leave(CUdeviceptr address); /* takes sim_lock: its last node is gone */
bool sim_graph_memory_instantiate_locked(CUdeviceptr address, CUgraphExec exec);
void sim_graph_memory_end_exec_locked(CUdeviceptr address, CUgraphExec exec);
/* By a launch. frees_before: what an earlier one has left is no error. */
CUresult sim_graph_memory_allocate_locked(CUdeviceptr address, bool frees_before);
bool sim_graph_memory_free_locked(CUdeviceptr address);
