/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs. A launch is one work item that runs all bodies in order. */
#include "tools/simcuda/driver/graph.h"
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>

/*
 * Bodies to run in order, and for each conditional node the programs that it chooses from. Programs
 * do not change after the instantiation, so they are shared.
 */
struct program {
    atomic_int references;
    size_t count;
    struct item {
        struct sim_body *body;
        struct program **branches;
    } items[];
};

static struct program *make_program(size_t room)
{
    struct program *program = sim_zalloc(sizeof(*program) + room * sizeof(program->items[0]));
    program->references = 1;
    return program;
}

static void drop_program(struct program *program);

static void drop_item(const struct item *item)
{
    for (unsigned i = 0; item->branches != NULL && i < item->body->choice.count; i++)
        drop_program(item->branches[i]);
    free(item->branches);
    sim_body_drop(item->body);
}

static void drop_program(struct program *program)
{
    if (program == NULL || atomic_fetch_sub(&program->references, 1) != 1)
        return;
    for (size_t i = 0; i < program->count; i++)
        drop_item(&program->items[i]);
    free(program);
}

static void add_item(struct program *program, struct sim_body *body, struct program **branches)
{
    struct item *item = &program->items[program->count++];
    item->body = sim_body_keep(body);
    if (branches == NULL)
        return;
    item->branches = sim_zalloc(body->choice.count * sizeof(item->branches[0]));
    for (unsigned i = 0; i < body->choice.count; i++) {
        item->branches[i] = branches[i];
        atomic_fetch_add(&branches[i]->references, 1);
    }
}

/* One node of an executable graph. The node handle is only a name: its graph may be gone. */
struct step {
    CUgraphNode node;
    struct sim_body *body;
    struct program **branches; /* of a conditional node */
    bool is_enabled;
};

struct CUgraphExec_st {
    struct CUgraphExec_st *next;
    unsigned long long flags;
    struct sim_held *held;
    size_t count;
    struct step steps[];
};

static CUgraphExec live_execs; /* guarded by sim_lock */

static CUgraphExec find_exec_locked(CUgraphExec handle)
{
    CUgraphExec exec = live_execs;
    while (exec != NULL && exec != handle)
        exec = exec->next;
    return exec;
}

static struct step *find_step(CUgraphExec exec, CUgraphNode node)
{
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->steps[i].node == node)
            return &exec->steps[i];
    }
    return NULL;
}

CUresult sim_exec_replace_body(CUgraphExec handle, CUgraphNode node, CUresult made,
                               struct sim_body *body)
{
    if (made != CUDA_SUCCESS)
        return made;
    struct sim_body *dropped = body;
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(handle);
    struct step *step = exec != NULL ? find_step(exec, node) : NULL;
    /* The steps of a child graph are its nodes' own; replacing it as a whole is not simulated. */
    if (step != NULL && step->body->type == body->type && step->body->work == NULL &&
        body->type != CU_GRAPH_NODE_TYPE_GRAPH) {
        dropped = step->body;
        step->body = body;
    }
    pthread_mutex_unlock(&sim_lock);
    sim_body_drop(dropped);
    return dropped != body ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult make_branches_locked(const struct sim_body *body, struct program ***branches_out);

/* Nodes that the body of a conditional node may have. */
static bool is_allowed_in_branch(const struct sim_body *body)
{
    return body->type == CU_GRAPH_NODE_TYPE_KERNEL || body->type == CU_GRAPH_NODE_TYPE_EMPTY ||
           body->type == CU_GRAPH_NODE_TYPE_GRAPH || body->type == CU_GRAPH_NODE_TYPE_MEMSET ||
           body->type == CU_GRAPH_NODE_TYPE_MEMCPY || body->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

static CUresult make_branch_locked(CUgraph graph, struct program **branch_out)
{
    CUgraphNode *nodes;
    size_t count;
    CUresult result = sim_graph_order_locked(graph, &nodes, &count);
    if (result != CUDA_SUCCESS)
        return result;
    *branch_out = make_program(count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct program **branches = NULL;
        result = is_allowed_in_branch(nodes[i]->body) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
            result = make_branches_locked(nodes[i]->body, &branches);
        if (result != CUDA_SUCCESS)
            break;
        struct item *item = &(*branch_out)->items[(*branch_out)->count++];
        *item = (struct item){sim_body_keep(nodes[i]->body), branches};
    }
    free(nodes);
    return result;
}

/* NULL for a node that is not conditional. On failure what was made is left: bodies are not
 * dropped with the lock held, and a program that makes such a graph is at its end. */
static CUresult make_branches_locked(const struct sim_body *body, struct program ***branches_out)
{
    CUresult result = CUDA_SUCCESS;
    *branches_out = NULL;
    if (body->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return CUDA_SUCCESS;
    struct program **branches = sim_zalloc(body->choice.count * sizeof(branches[0]));
    for (unsigned i = 0; i < body->choice.count && result == CUDA_SUCCESS; i++)
        result = make_branch_locked(body->choice.graphs[i], &branches[i]);
    if (result == CUDA_SUCCESS)
        *branches_out = branches;
    return result;
}

static bool is_allocation(const struct sim_body *body)
{
    return body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

static CUresult instantiate_locked(CUgraph handle, unsigned long long flags, CUgraphExec *exec_out)
{
    CUgraph graph = sim_graph_find_locked(handle);
    CUgraphNode *nodes;
    size_t count;
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_order_locked(graph, &nodes, &count);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraphExec exec = sim_zalloc(sizeof *exec + count * sizeof exec->steps[0]);
    exec->flags = flags;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct program **branches = NULL;
        result = make_branches_locked(nodes[i]->body, &branches);
        if (result == CUDA_SUCCESS && is_allocation(nodes[i]->body) &&
            !sim_graph_memory_instantiate_locked(nodes[i]->body->memory, exec))
            result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
            exec->steps[exec->count++] =
                (struct step){nodes[i], sim_body_keep(nodes[i]->body), branches, true};
    }
    free(nodes);
    if (result != CUDA_SUCCESS) {
        *exec_out = exec;
        return result;
    }
    exec->held = sim_held_copy_locked(graph->held);
    exec->next = live_execs;
    live_execs = exec;
    *exec_out = exec;
    return CUDA_SUCCESS;
}

static void end_exec_locked(CUgraphExec exec)
{
    for (size_t i = 0; i < exec->count; i++) {
        if (is_allocation(exec->steps[i].body))
            sim_graph_memory_end_exec_locked(exec->steps[i].body->memory, exec);
    }
}

static void free_exec(CUgraphExec exec)
{
    for (size_t i = 0; i < exec->count; i++)
        drop_item(&(struct item){exec->steps[i].body, exec->steps[i].branches});
    sim_held_drop(exec->held);
    free(exec);
}

/* Launching from the device is not simulated. */
static CUresult instantiate(CUgraphExec *exec_out, CUgraph graph, unsigned long long flags)
{
    CUdevice device;
    if (exec_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraphExec exec = NULL;
    pthread_mutex_lock(&sim_lock);
    result = instantiate_locked(graph, flags, &exec);
    if (result != CUDA_SUCCESS && exec != NULL)
        end_exec_locked(exec);
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS)
        *exec_out = exec;
    else if (exec != NULL)
        free_exec(exec);
    return result;
}

static CUresult instantiate_with_log(CUgraphExec *exec_out, CUgraph graph, CUgraphNode *error_node,
                                     char *log, size_t log_bytes)
{
    if (error_node != NULL)
        *error_node = NULL;
    if (log != NULL && log_bytes > 0)
        log[0] = '\0';
    return instantiate(exec_out, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                            char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(cuGraphInstantiate);
    return instantiate_with_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                               char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(cuGraphInstantiate_v2);
    return instantiate_with_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                     unsigned long long flags)
{
    SIM_ENTER(cuGraphInstantiateWithFlags);
    return instantiate(phGraphExec, hGraph, flags);
}

static CUresult instantiate_with_params(CUgraphExec *exec_out, CUgraph graph,
                                        CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = instantiate(exec_out, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    SIM_ENTER(cuGraphInstantiateWithParams);
    return instantiate_with_params(phGraphExec, hGraph, instantiateParams);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    SIM_ENTER(cuGraphInstantiateWithParams_ptsz);
    return instantiate_with_params(phGraphExec, hGraph, instantiateParams);
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    SIM_ENTER(cuGraphExecGetFlags);
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(hGraphExec);
    if (exec != NULL && flags != NULL)
        *flags = exec->flags;
    pthread_mutex_unlock(&sim_lock);
    return exec != NULL && flags != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    SIM_ENTER(cuGraphExecDestroy);
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(hGraphExec);
    for (CUgraphExec *place = &live_execs; exec != NULL && *place != NULL;) {
        if (*place == exec)
            *place = exec->next;
        else
            place = &(*place)->next;
    }
    if (exec != NULL)
        end_exec_locked(exec);
    pthread_mutex_unlock(&sim_lock);
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    free_exec(exec);
    return CUDA_SUCCESS;
}

static CUresult set_enabled(CUgraphExec handle, CUgraphNode node, const unsigned *set,
                            unsigned *get_out)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(handle);
    struct step *step = exec != NULL ? find_step(exec, node) : NULL;
    /* Only these three types can be switched off. */
    if (step != NULL && (step->body->type == CU_GRAPH_NODE_TYPE_KERNEL ||
                         step->body->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                         step->body->type == CU_GRAPH_NODE_TYPE_MEMSET)) {
        if (set != NULL)
            step->is_enabled = *set != 0;
        if (get_out != NULL)
            *get_out = step->is_enabled;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    SIM_ENTER(cuGraphNodeSetEnabled);
    return set_enabled(hGraphExec, hNode, &isEnabled, NULL);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    SIM_ENTER(cuGraphNodeGetEnabled);
    return isEnabled == NULL ? CUDA_ERROR_INVALID_VALUE
                             : set_enabled(hGraphExec, hNode, NULL, isEnabled);
}

/* A launch holds the bodies as they were when it was made, and the user objects. */
struct graph_work {
    struct sim_work work;
    struct program *program;
    struct sim_held *held;
};

static bool is_over(void)
{
    return sim_sticky_error() != CUDA_SUCCESS || sim_streams_are_stopping();
}

static void run_program(const struct program *program);

static void run_choice(const struct item *item)
{
    const struct sim_body *body = item->body;
    struct sim_condition *condition = body->choice.condition;
    unsigned value = condition->value;
    if (body->choice.type == CU_GRAPH_COND_TYPE_IF)
        value = value != 0 ? 0 : 1;
    if (body->choice.type != CU_GRAPH_COND_TYPE_WHILE && value < body->choice.count)
        run_program(item->branches[value]);
    while (body->choice.type == CU_GRAPH_COND_TYPE_WHILE && condition->value != 0 && !is_over())
        run_program(item->branches[0]);
}

static void run_program(const struct program *program)
{
    for (size_t i = 0; i < program->count && !is_over(); i++) {
        if (program->items[i].branches != NULL)
            run_choice(&program->items[i]);
        else
            sim_body_run(program->items[i].body);
    }
}

static void set_conditions(const struct program *program)
{
    for (size_t i = 0; i < program->count; i++) {
        const struct item *item = &program->items[i];
        if (item->branches == NULL)
            continue;
        struct sim_condition *condition = item->body->choice.condition;
        if ((condition->flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0)
            condition->value = condition->start;
        for (unsigned branch = 0; branch < item->body->choice.count; branch++)
            set_conditions(item->branches[branch]);
    }
}

static void run_graph(struct sim_work *work)
{
    const struct program *program = ((const struct graph_work *)work)->program;
    set_conditions(program);
    run_program(program);
}

static void destroy_graph_work(struct sim_work *work)
{
    drop_program(((struct graph_work *)work)->program);
    sim_held_drop(((struct graph_work *)work)->held);
    free(work);
}

/* Allocates and frees the memory of a launch, in the launch's order. */
static CUresult change_memory_locked(CUgraphExec exec)
{
    const bool frees_before = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    for (size_t i = 0; i < exec->count; i++) {
        const struct sim_body *body = exec->steps[i].body;
        CUresult result = CUDA_SUCCESS;
        if (body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            result = sim_graph_memory_allocate_locked(body->memory, frees_before);
        else if (body->type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
                 !sim_graph_memory_free_locked(body->memory))
            result = CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static struct graph_work *make_work_locked(CUgraphExec exec)
{
    struct graph_work *item = sim_zalloc(sizeof *item);
    item->program = make_program(exec->count);
    item->held = sim_held_copy_locked(exec->held);
    item->work.run = run_graph;
    item->work.destroy = destroy_graph_work;
    item->work.name = "graph";
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->steps[i].is_enabled)
            add_item(item->program, exec->steps[i].body, exec->steps[i].branches);
        /* A host function, or what was captured, which may be anything. */
        item->work.may_wait |=
            exec->steps[i].body->type == CU_GRAPH_NODE_TYPE_HOST ||
            (exec->steps[i].body->work != NULL && exec->steps[i].body->work->may_wait) ||
            exec->steps[i].body->type == CU_GRAPH_NODE_TYPE_GRAPH ||
            exec->steps[i].body->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    }
    return item;
}

static CUresult launch(CUgraphExec handle, CUstream stream, bool per_thread)
{
    struct graph_work *item = NULL;
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(handle);
    CUresult result = exec != NULL ? change_memory_locked(exec) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        item = make_work_locked(exec);
    pthread_mutex_unlock(&sim_lock);
    return result != CUDA_SUCCESS ? result : sim_stream_submit(stream, per_thread, &item->work);
}

SIM_TWINS(cuGraphLaunch, _ptsz, (CUgraphExec hGraphExec, CUstream hStream),
          launch(hGraphExec, hStream, per_thread))

/* There is nothing to upload; the handle is checked. */
static CUresult upload(CUgraphExec handle)
{
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(handle);
    pthread_mutex_unlock(&sim_lock);
    return exec != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(cuGraphUpload);
    (void)hStream;
    return upload(hGraphExec);
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(cuGraphUpload_ptsz);
    (void)hStream;
    return upload(hGraphExec);
}

/* Node by node, in order of running: same number, same types. Edges are not compared. */
static CUgraphExecUpdateResult compare(CUgraphExec exec, const CUgraphNode *nodes, size_t count,
                                       CUgraphNode *error_out)
{
    if (count != exec->count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < count; i++) {
        const struct sim_body *body = nodes[i]->body;
        if (body->type != exec->steps[i].body->type) {
            *error_out = nodes[i];
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        }
        /* The memory and branches of such a node belong to the instantiated graph. */
        if ((body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
             body->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) &&
            body != exec->steps[i].body) {
            *error_out = nodes[i];
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        }
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/*
 * Swaps the bodies of the nodes into the executable graph, and the old ones into `old`. The steps
 * keep the names that they got from the graph which was instantiated.
 */
static void swap_bodies(CUgraphExec exec, const CUgraphNode *nodes, struct sim_body **old)
{
    for (size_t i = 0; i < exec->count; i++) {
        old[i] = exec->steps[i].body;
        exec->steps[i].body = sim_body_keep(nodes[i]->body);
    }
}

static CUresult update(CUgraphExec exec_handle, CUgraph graph_handle,
                       CUgraphExecUpdateResult *result_out, CUgraphNode *error_out)
{
    CUgraphNode *nodes = NULL;
    struct sim_body **old = NULL;
    struct sim_held *old_held = NULL;
    size_t count = 0;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    *result_out = CU_GRAPH_EXEC_UPDATE_ERROR;
    *error_out = NULL;
    pthread_mutex_lock(&sim_lock);
    CUgraphExec exec = find_exec_locked(exec_handle);
    CUgraph graph = sim_graph_find_locked(graph_handle);
    if (exec != NULL && graph != NULL)
        result = sim_graph_order_locked(graph, &nodes, &count);
    if (result == CUDA_SUCCESS)
        *result_out = compare(exec, nodes, count, error_out);
    if (result == CUDA_SUCCESS && *result_out == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        old = sim_zalloc(count * sizeof old[0] + 1);
        swap_bodies(exec, nodes, old);
        old_held = exec->held;
        exec->held = sim_held_copy_locked(graph->held);
    } else if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    pthread_mutex_unlock(&sim_lock);
    for (size_t i = 0; old != NULL && i < count; i++)
        sim_body_drop(old[i]);
    sim_held_drop(old_held);
    free(old);
    free(nodes);
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out)
{
    SIM_ENTER(cuGraphExecUpdate);
    if (hErrorNode_out == NULL || updateResult_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return update(hGraphExec, hGraph, updateResult_out, hErrorNode_out);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo *resultInfo)
{
    SIM_ENTER(cuGraphExecUpdate_v2);
    if (resultInfo == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    resultInfo->errorFromNode = NULL;
    return update(hGraphExec, hGraph, &resultInfo->result, &resultInfo->errorNode);
}
