/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory nodes. The address is there from the making of the node to the end of its last user; the
 * memory from the first launch on. The call that queues a launch decides what the launch allocates
 * and frees. So memory between a free and the next launch can still be reached, and graphs use all
 * that they reserve: nothing is kept for others, and trimming gives nothing back.
 */
#include "tools/simcuda/driver/graph.h"
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>

struct sim_graph_memory {
    CUgraph owner;
    CUgraphExec exec; /* the one instantiation */
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    bool has_node;     /* the node, or something that was launched, is still there */
    bool is_allocated; /* by a launch, and not freed since */
    bool is_freed_by_owner, is_freed_by_other;
};

static uint64_t bytes_now[SIM_DEVICES_MAX], bytes_high[2][SIM_DEVICES_MAX]; /* used, reserved */

static struct sim_memory *find_locked(CUdeviceptr address)
{
    struct sim_memory *memory = sim_memory_find_locked(address);
    return memory != NULL && memory->kind == SIM_GRAPHED && memory->region.begin == address ? memory
                                                                                            : NULL;
}

static void forget_locked(struct sim_memory *memory)
{
    if (memory->physical != NULL)
        bytes_now[memory->device] -= memory->backed_bytes;
    free(memory->in_graph);
}

static bool free_locked(struct sim_memory *memory)
{
    if (!memory->in_graph->is_allocated)
        return false;
    memory->in_graph->is_allocated = false;
    if (!memory->in_graph->has_node)
        sim_memory_destroy_locked(memory);
    return true;
}

static const struct sim_owner owner = {forget_locked, free_locked, NULL};

/* --- making nodes */

CUresult sim_graph_memory_make_locked(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct sim_memory *memory;
    if (params == NULL || params->bytesize == 0 ||
        params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        (params->accessDescs == NULL && params->accessDescCount > 0))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_device_check(params->poolProps.location.id);
    if (result != CUDA_SUCCESS)
        return result;
    result = sim_memory_reserve_locked(SIM_GRAPHED, params->poolProps.location.id, params->bytesize,
                                       &memory);
    if (result == CUDA_SUCCESS) {
        params->dptr = memory->region.begin;
        memory->owner = &owner;
        memory->in_graph = sim_zalloc(sizeof(*memory->in_graph));
        *memory->in_graph =
            (struct sim_graph_memory){.owner = graph, .params = *params, .has_node = true};
    }
    return result;
}

CUresult sim_graph_memory_make(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_graph_memory_make_locked(graph, params);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_graph_memory_add_free_locked(CUgraph graph, CUdeviceptr address)
{
    const struct sim_memory *memory = find_locked(address);
    struct sim_graph_memory *state = memory != NULL ? memory->in_graph : NULL;
    const bool is_legal = state != NULL && !state->is_freed_by_owner &&
                          (state->owner != graph || !state->is_freed_by_other);
    if (is_legal && state->owner == graph)
        state->is_freed_by_owner = true;
    else if (is_legal)
        state->is_freed_by_other = true;
    return is_legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_graph_memory_add_free(CUgraph graph, CUdeviceptr address)
{
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_graph_memory_add_free_locked(graph, address);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_graph_memory_params(CUdeviceptr address, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = find_locked(address);
    if (memory != NULL)
        *params_out = memory->in_graph->params;
    pthread_mutex_unlock(&sim_lock);
    return memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_graph_memory_leave(CUdeviceptr address)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory = find_locked(address);
    if (memory != NULL) {
        memory->in_graph->has_node = false;
        if (!memory->in_graph->is_allocated)
            sim_memory_destroy_locked(memory);
    }
    pthread_mutex_unlock(&sim_lock);
}

/* --- launching */

bool sim_graph_memory_instantiate_locked(CUdeviceptr address, CUgraphExec exec)
{
    const struct sim_memory *memory = find_locked(address);
    if (memory == NULL || memory->in_graph->exec != NULL)
        return false;
    memory->in_graph->exec = exec;
    return true;
}

void sim_graph_memory_end_exec_locked(CUdeviceptr address, CUgraphExec exec)
{
    const struct sim_memory *memory = find_locked(address);
    if (memory != NULL && memory->in_graph->exec == exec)
        memory->in_graph->exec = NULL;
}

CUresult sim_graph_memory_allocate_locked(CUdeviceptr address, bool frees_before)
{
    struct sim_memory *memory = find_locked(address);
    if (memory == NULL || (memory->in_graph->is_allocated && !frees_before))
        return CUDA_ERROR_INVALID_VALUE;
    if (memory->physical == NULL) {
        const CUresult result = sim_memory_back_locked(memory);
        if (result != CUDA_SUCCESS)
            return result;
        const CUdevice device = memory->device;
        bytes_now[device] += memory->backed_bytes;
        for (int i = 0; i < 2; i++) {
            if (bytes_high[i][device] < bytes_now[device])
                bytes_high[i][device] = bytes_now[device];
        }
    }
    memory->in_graph->is_allocated = true;
    return CUDA_SUCCESS;
}

bool sim_graph_memory_free_locked(CUdeviceptr address)
{
    struct sim_memory *memory = find_locked(address);
    return memory != NULL && free_locked(memory);
}

/* --- figures */

static CUresult check(CUdevice device, const void *value)
{
    return value == NULL ? CUDA_ERROR_INVALID_VALUE : sim_device_check(device);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    SIM_ENTER(cuDeviceGetGraphMemAttribute);
    CUresult result = check(device, value);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    switch ((int)attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = bytes_now[device];
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = bytes_high[attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH][device];
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Only the high marks, and only to zero: from then on they are those of what is there. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    SIM_ENTER(cuDeviceSetGraphMemAttribute);
    const CUresult result = check(device, value);
    if (result != CUDA_SUCCESS)
        return result;
    if ((attr != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) ||
        *(uint64_t *)value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    bytes_high[attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH][device] = bytes_now[device];
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    SIM_ENTER(cuDeviceGraphMemTrim);
    return sim_device_check(device);
}
