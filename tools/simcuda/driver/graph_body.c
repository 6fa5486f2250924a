/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/copy.h"
#include "tools/simcuda/driver/graph.h"
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>

static void drop_launch(struct sim_body *body)
{
    sim_launch_drop(body->launch);
}

CUresult sim_body_make_kernel(const struct sim_launch_call *call, struct sim_body **body_out)
{
    struct sim_launch *launch;
    const CUresult result = sim_launch_make(call, &launch);
    if (result != CUDA_SUCCESS)
        return result;
    *body_out = sim_body_new(CU_GRAPH_NODE_TYPE_KERNEL, drop_launch);
    (*body_out)->launch = launch;
    return CUDA_SUCCESS;
}

/* One end of a copy: host, device or unified memory; arrays are not simulated in graphs. */
static bool end_is_valid(CUmemorytype type, const void *host, CUdeviceptr device)
{
    if (type == CU_MEMORYTYPE_HOST)
        return host != NULL;
    return (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED) && device != 0;
}

static bool pitch_is_valid(const CUDA_MEMCPY3D *copy, size_t x, size_t pitch, size_t height)
{
    const bool has_rows = copy->Height > 1 || copy->Depth > 1;
    return (!has_rows || pitch >= x + copy->WidthInBytes) &&
           (copy->Depth <= 1 || height >= copy->Height);
}

/* The bytes have to begin in memory that the device knows, and may not run past its end. An
 * unknown address may be pageable memory, if the address may be one of the host. */
static bool is_in_memory(CUmemorytype type, CUdeviceptr address, size_t pitch, size_t slice,
                         const size_t extent[3])
{
    size_t bytes;
    const struct sim_box box = {.type = type, .address = address, .pitch = pitch, .slice = slice};
    if (type == CU_MEMORYTYPE_HOST)
        return true;
    if (!sim_box_span(&box, extent[0], extent[1], extent[2], &bytes))
        return false;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(address);
    const bool is_inside =
        memory == NULL
            ? type == CU_MEMORYTYPE_UNIFIED
            : !memory->freeing && bytes <= memory->region.bytes - (address - memory->region.begin);
    pthread_mutex_unlock(&sim_lock);
    return is_inside;
}

static bool ends_are_in_memory(const CUDA_MEMCPY3D *copy)
{
    const size_t extent[] = {copy->WidthInBytes, copy->Height, copy->Depth};
    const size_t from_slice = copy->srcPitch * copy->srcHeight;
    const size_t to_slice = copy->dstPitch * copy->dstHeight;
    return is_in_memory(copy->srcMemoryType,
                        copy->srcDevice + copy->srcZ * from_slice + copy->srcY * copy->srcPitch +
                            copy->srcXInBytes,
                        copy->srcPitch, from_slice, extent) &&
           is_in_memory(copy->dstMemoryType,
                        copy->dstDevice + copy->dstZ * to_slice + copy->dstY * copy->dstPitch +
                            copy->dstXInBytes,
                        copy->dstPitch, to_slice, extent);
}

CUresult sim_body_make_copy(const CUDA_MEMCPY3D *copy, struct sim_body **body_out)
{
    if (copy == NULL || copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!end_is_valid(copy->srcMemoryType, copy->srcHost, copy->srcDevice) ||
        !end_is_valid(copy->dstMemoryType, copy->dstHost, copy->dstDevice) ||
        !pitch_is_valid(copy, copy->srcXInBytes, copy->srcPitch, copy->srcHeight) ||
        !pitch_is_valid(copy, copy->dstXInBytes, copy->dstPitch, copy->dstHeight) ||
        !ends_are_in_memory(copy))
        return CUDA_ERROR_INVALID_VALUE;
    *body_out = sim_body_new(CU_GRAPH_NODE_TYPE_MEMCPY, NULL);
    (*body_out)->copy = *copy;
    return CUDA_SUCCESS;
}

CUresult sim_body_make_fill(const CUDA_MEMSET_NODE_PARAMS *fill, struct sim_body **body_out)
{
    if (fill == NULL || fill->dst == 0 || fill->width == 0 || fill->height == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (fill->dst % fill->elementSize != 0 ||
        (fill->height > 1 && fill->pitch < fill->width * fill->elementSize))
        return CUDA_ERROR_INVALID_VALUE;
    const size_t extent[] = {fill->width * fill->elementSize, fill->height, 1};
    if (!is_in_memory(CU_MEMORYTYPE_DEVICE, fill->dst, fill->pitch, 0, extent))
        return CUDA_ERROR_INVALID_VALUE;
    *body_out = sim_body_new(CU_GRAPH_NODE_TYPE_MEMSET, NULL);
    (*body_out)->fill = *fill;
    return CUDA_SUCCESS;
}

CUresult sim_body_make_host(const CUDA_HOST_NODE_PARAMS *host, struct sim_body **body_out)
{
    if (host == NULL || host->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *body_out = sim_body_new(CU_GRAPH_NODE_TYPE_HOST, NULL);
    (*body_out)->host = *host;
    return CUDA_SUCCESS;
}

static void drop_values(struct sim_body *body)
{
    free(body->values);
}

CUresult sim_body_make_values(const CUstreamBatchMemOpParams *operations, unsigned count,
                              unsigned flags, struct sim_body **body_out)
{
    struct sim_work *work;
    const CUresult result = sim_memop_make(operations, count, flags, &work);
    if (result != CUDA_SUCCESS)
        return result;
    *body_out = sim_body_new(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, drop_values);
    (*body_out)->values = work;
    return CUDA_SUCCESS;
}

struct sim_body *sim_body_make_empty(void)
{
    return sim_body_new(CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

/* The type of node for a captured call other than a launch, by the call's name. */
static CUgraphNodeType type_of_work(const char *name)
{
    if (name != NULL && strcasestr(name, "memcpy") != NULL)
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    if (name != NULL && strcasestr(name, "memset") != NULL)
        return CU_GRAPH_NODE_TYPE_MEMSET;
    if (name != NULL && strcasestr(name, "host") != NULL)
        return CU_GRAPH_NODE_TYPE_HOST;
    if (name != NULL && strcasestr(name, "graph") != NULL)
        return CU_GRAPH_NODE_TYPE_GRAPH;
    return CU_GRAPH_NODE_TYPE_EMPTY;
}

static void drop_work(struct sim_body *body)
{
    sim_work_discard(body->work);
}

struct sim_body *sim_body_make_captured(struct sim_work *owned)
{
    struct sim_launch *launch = sim_launch_of_work(owned);
    struct sim_body *body = launch != NULL ? sim_body_new(CU_GRAPH_NODE_TYPE_KERNEL, drop_launch)
                                           : sim_body_new(type_of_work(owned->name), drop_work);
    if (launch == NULL) {
        body->work = owned;
    } else {
        body->launch = sim_launch_keep(launch);
        owned->destroy(owned);
    }
    return body;
}

static void drop_memory(struct sim_body *body)
{
    sim_graph_memory_leave(body->memory);
}

struct sim_body *sim_body_make_memory(CUgraphNodeType type, CUdeviceptr address)
{
    const bool is_first = type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    struct sim_body *body = sim_body_new(type, is_first ? drop_memory : NULL);
    body->memory = address;
    return body;
}

/* --- conditions */

static struct sim_condition *conditions; /* guarded by sim_lock */

static struct sim_condition *find_condition_locked(CUgraphConditionalHandle handle)
{
    struct sim_condition *condition = conditions;
    while (condition != NULL && condition->handle != handle)
        condition = condition->next;
    return condition;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph,
                                        CUcontext ctx, unsigned int defaultLaunchValue,
                                        unsigned int flags)
{
    SIM_ENTER(cuGraphConditionalHandleCreate);
    if (pHandle_out == NULL || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (ctx == NULL)
        ctx = sim_context_current();
    pthread_mutex_lock(&sim_lock);
    const bool is_valid =
        sim_graph_find_locked(hGraph) != NULL && sim_context_check_locked(ctx) == CUDA_SUCCESS;
    if (is_valid) {
        struct sim_condition *condition = sim_zalloc(sizeof(*condition));
        condition->handle = sim_new_id_locked();
        condition->graph = hGraph;
        condition->context = ctx;
        condition->flags = flags;
        condition->start = defaultLaunchValue;
        condition->next = conditions;
        conditions = condition;
        *pHandle_out = condition->handle;
    }
    pthread_mutex_unlock(&sim_lock);
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void simcuda_set_conditional(CUgraphConditionalHandle handle, unsigned value)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_condition *condition = find_condition_locked(handle);
    pthread_mutex_unlock(&sim_lock);
    if (condition != NULL)
        condition->value = value;
}

static bool has_size(CUgraphConditionalNodeType type, unsigned size)
{
    switch ((int)type) {
    case CU_GRAPH_COND_TYPE_IF:
        return size == 1 || size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return size > 0;
    default:
        return false;
    }
}

static void drop_choice(struct sim_body *body)
{
    for (unsigned i = 0; i < body->choice.count; i++)
        sim_graph_destroy(body->choice.graphs[i]);
    free(body->choice.graphs);
}

static CUresult make_conditional(CUDA_CONDITIONAL_NODE_PARAMS *params, struct sim_body **body_out)
{
    if (!has_size(params->type, params->size))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_condition *condition = find_condition_locked(params->handle);
    const bool is_valid =
        condition != NULL && (params->ctx == NULL || params->ctx == condition->context);
    if (is_valid) {
        struct sim_body *body = sim_body_new(CU_GRAPH_NODE_TYPE_CONDITIONAL, drop_choice);
        body->choice.condition = condition;
        body->choice.type = params->type;
        body->choice.count = params->size;
        body->choice.graphs = sim_zalloc(params->size * sizeof(body->choice.graphs[0]));
        for (unsigned i = 0; i < params->size; i++) {
            body->choice.graphs[i] = sim_graph_create_locked();
            body->choice.graphs[i]->is_child = true;
        }
        params->phGraph_out = body->choice.graphs;
        *body_out = body;
    }
    pthread_mutex_unlock(&sim_lock);
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult make_memory(CUgraph graph, CUgraphNodeParams *params, struct sim_body **body_out)
{
    const bool is_free = params->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    CUDA_MEM_ALLOC_NODE_PARAMS_v2 *given = &params->alloc;
    CUDA_MEM_ALLOC_NODE_PARAMS own = {.poolProps = given->poolProps,
                                      .accessDescs = given->accessDescs,
                                      .accessDescCount = given->accessDescCount,
                                      .bytesize = given->bytesize};
    const CUresult result = is_free ? sim_graph_memory_add_free(graph, params->free.dptr)
                                    : sim_graph_memory_make(graph, &own);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_free)
        given->dptr = own.dptr;
    *body_out = sim_body_make_memory(params->type, is_free ? params->free.dptr : own.dptr);
    return CUDA_SUCCESS;
}

static CUresult make_child_copy(CUgraph original, struct sim_body **body_out)
{
    pthread_mutex_lock(&sim_lock);
    CUgraph live = sim_graph_find_locked(original);
    CUresult result = live != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (live != NULL && sim_graph_is_fixed_locked(live))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        *body_out = sim_body_make_child(sim_graph_clone_locked(live));
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_body_make(CUgraph graph, CUgraphNodeParams *params, struct sim_body **body_out)
{
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const CUDA_KERNEL_NODE_PARAMS_v3 *kernel = &params->kernel;
        const struct sim_launch_call call = {
            kernel->func != NULL ? (const void *)kernel->func : (const void *)kernel->kern,
            {kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ},
            {kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ},
            kernel->sharedMemBytes,
            kernel->kernelParams,
            kernel->extra,
        };
        return sim_body_make_kernel(&call, body_out);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (params->memcpy.flags != 0 || params->memcpy.reserved != 0)
            return CUDA_ERROR_INVALID_VALUE;
        return sim_body_make_copy(&params->memcpy.copyParams, body_out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const CUDA_MEMSET_NODE_PARAMS_v2 *set = &params->memset;
        const CUDA_MEMSET_NODE_PARAMS fill = {set->dst,         set->pitch, set->value,
                                              set->elementSize, set->width, set->height};
        return sim_body_make_fill(&fill, body_out);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        if (params->memOp.ctx == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        return sim_body_make_values(params->memOp.paramArray, params->memOp.count,
                                    params->memOp.flags, body_out);
    case CU_GRAPH_NODE_TYPE_HOST: {
        const CUDA_HOST_NODE_PARAMS host = {params->host.fn, params->host.userData};
        return sim_body_make_host(&host, body_out);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return make_child_copy(params->graph.graph, body_out);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *body_out = sim_body_make_empty();
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph == NULL ? CUDA_ERROR_INVALID_VALUE : make_memory(graph, params, body_out);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return graph == NULL ? CUDA_ERROR_INVALID_VALUE
                             : make_conditional(&params->conditional, body_out);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* One end of a copy: where its first byte is, and how far rows and slices are apart. */
struct end {
    const char *begin;
    size_t pitch, slice;
    bool is_device;
};

static struct end find_end(CUmemorytype type, const void *host, CUdeviceptr device,
                           const size_t at[3], size_t pitch, size_t height)
{
    const bool is_device = type != CU_MEMORYTYPE_HOST;
    const char *base = is_device ? (const char *)(uintptr_t)device : host;
    const size_t slice = pitch * height;
    return (struct end){base + at[2] * slice + at[1] * pitch + at[0], pitch, slice, is_device};
}

static void count_copy(const struct end *from, const struct end *to, size_t bytes)
{
    pthread_mutex_lock(&sim_lock);
    if (from->is_device && to->is_device)
        sim_stats.d2d_bytes += bytes;
    else if (from->is_device)
        sim_stats.d2h_bytes += bytes;
    else if (to->is_device)
        sim_stats.h2d_bytes += bytes;
    pthread_mutex_unlock(&sim_lock);
}

static void run_copy(const CUDA_MEMCPY3D *copy)
{
    const size_t from_at[3] = {copy->srcXInBytes, copy->srcY, copy->srcZ};
    const size_t to_at[3] = {copy->dstXInBytes, copy->dstY, copy->dstZ};
    const struct end from = find_end(copy->srcMemoryType, copy->srcHost, copy->srcDevice, from_at,
                                     copy->srcPitch, copy->srcHeight);
    const struct end to = find_end(copy->dstMemoryType, copy->dstHost, copy->dstDevice, to_at,
                                   copy->dstPitch, copy->dstHeight);
    for (size_t i = 0; i < copy->Height * copy->Depth; i++) {
        const size_t y = i % copy->Height;
        const size_t z = i / copy->Height;
        const char *row = from.begin + z * from.slice + y * from.pitch;
        const char *target = to.begin + z * to.slice + y * to.pitch;
        const struct end *ends[] = {&from, &to};
        const char *rows[] = {row, target};
        for (int end = 0; end < 2; end++) {
            const CUdeviceptr address = (uintptr_t)rows[end];
            if (ends[end]->is_device && !sim_device_can_touch(address, copy->WidthInBytes)) {
                sim_fault(address, copy->WidthInBytes, "memcpy node");
                return;
            }
        }
        memmove((void *)(uintptr_t)target, row, copy->WidthInBytes);
    }
    count_copy(&from, &to, copy->WidthInBytes * copy->Height * copy->Depth);
}

static void run_fill(const CUDA_MEMSET_NODE_PARAMS *fill)
{
    const size_t row_bytes = fill->width * fill->elementSize;
    for (size_t y = 0; y < fill->height; y++) {
        const CUdeviceptr row = fill->dst + y * fill->pitch;
        if (!sim_device_can_touch(row, row_bytes)) {
            sim_fault(row, row_bytes, "memset node");
            return;
        }
        /* The low bytes of the value come first in memory: this is a little-endian machine. */
        for (size_t at = 0; at < row_bytes; at += fill->elementSize)
            memcpy((char *)(uintptr_t)row + at, &fill->value, fill->elementSize);
    }
    pthread_mutex_lock(&sim_lock);
    sim_stats.memset_bytes += row_bytes * fill->height;
    pthread_mutex_unlock(&sim_lock);
}

void sim_body_run(const struct sim_body *body)
{
    if (body->work != NULL)
        body->work->run(body->work);
    else if (body->type == CU_GRAPH_NODE_TYPE_KERNEL)
        sim_launch_run(body->launch);
    else if (body->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        run_copy(&body->copy);
    else if (body->type == CU_GRAPH_NODE_TYPE_MEMSET)
        run_fill(&body->fill);
    else if (body->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        body->values->run(body->values);
    else if (body->type == CU_GRAPH_NODE_TYPE_HOST)
        body->host.fn(body->host.userData);
}
