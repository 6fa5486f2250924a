/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. The work of all its streams goes into the graph in the order in which it came,
 * which is an order that the graph may run in: each node depends on the one before. One vector
 * for each stream keeps the dependencies by the rules: how much of every stream's work lies before
 * the stream's present point. When the capture ends, the vectors show work that was forked off and
 * never joined.
 */
#include "tools/simcuda/driver/capture.h"
#include "tools/simcuda/driver/newer.h"

#include <stdlib.h>
#include <string.h>

static void set_dependencies_locked(struct sim_capture *capture, const CUgraphNode *nodes,
                                    size_t count)
{
    CUgraphNode *after = sim_zalloc((count + 1) * sizeof(after[0]));
    if (count > 0)
        memcpy(after, nodes, count * sizeof(after[0]));
    free(capture->after);
    capture->after = after;
    capture->after_count = count;
}

static void add_dependency_locked(struct sim_capture *capture, CUgraphNode node)
{
    for (size_t i = 0; i < capture->after_count; i++) {
        if (capture->after[i] == node)
            return;
    }
    CUgraphNode *after = sim_zalloc((capture->after_count + 1) * sizeof(after[0]));
    memcpy(after, capture->after, capture->after_count * sizeof(after[0]));
    after[capture->after_count] = node;
    free(capture->after);
    capture->after = after;
    capture->after_count++;
}

static CUresult add_body_locked(struct CUstream_st *stream, struct sim_body *body)
{
    struct sim_capture *capture = stream->capture;
    const int index = stream->capture_index;
    CUgraphNode node;
    const CUresult result =
        sim_graph_add_locked(capture->graph, capture->after, capture->after_count, body, &node);
    if (result != CUDA_SUCCESS) /* the program has destroyed a node of it */
        return result;
    set_dependencies_locked(capture, &node, 1);
    capture->seen[index][index]++;
    return CUDA_SUCCESS;
}

static CUresult add_work_locked(struct CUstream_st *stream, struct sim_work *work)
{
    if (stream->capture->is_invalid) {
        sim_work_discard(work);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return add_body_locked(stream, sim_body_make_captured(work));
}

CUresult sim_capture_allocate_locked(struct CUstream_st *stream, const CUmemPoolProps *props,
                                     size_t bytes, CUdeviceptr *address_out)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = *props, .bytesize = bytes};
    if (stream->capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = sim_graph_memory_make_locked(stream->capture->graph, &params);
    if (result != CUDA_SUCCESS)
        return result;
    *address_out = params.dptr;
    return add_body_locked(stream, sim_body_make_memory(CU_GRAPH_NODE_TYPE_MEM_ALLOC, params.dptr));
}

CUresult sim_capture_free_locked(struct CUstream_st *stream, CUdeviceptr address)
{
    if (stream->capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const CUresult result = sim_graph_memory_add_free_locked(stream->capture->graph, address);
    return result != CUDA_SUCCESS
               ? result
               : add_body_locked(stream,
                                 sim_body_make_memory(CU_GRAPH_NODE_TYPE_MEM_FREE, address));
}

/* --- begin and end */

static CUresult check_nodes_locked(CUgraph graph, const CUgraphNode *nodes, size_t count)
{
    if (nodes == NULL && count > 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const struct CUgraphNode_st *node = sim_node_find_locked(nodes[i]);
        if (node == NULL || node->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Into a graph of its own (NULL), or behind these nodes of one. */
static CUresult begin_to(CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
                         const CUgraphNode *after, size_t after_count, bool per_thread)
{
    struct CUstream_st *stream;
    if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
        mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = graph == NULL || sim_graph_find_locked(graph) != NULL
                          ? check_nodes_locked(graph, after, after_count)
                          : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->is_legacy)
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS && stream->capture != NULL)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS) {
        struct sim_capture *capture = sim_zalloc(sizeof(*capture));
        capture->id = sim_new_id_locked();
        capture->add_locked = add_work_locked;
        capture->mode = mode;
        capture->thread = &sim_thread;
        capture->origin = stream;
        capture->has_own_graph = graph == NULL;
        capture->graph = graph != NULL ? graph : sim_graph_create_locked();
        capture->graph->is_child |= capture->has_own_graph;
        set_dependencies_locked(capture, after, after_count);
        capture->next = sim_captures;
        sim_captures = capture;
        sim_capture_join_locked(capture, stream);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, bool per_thread)
{
    return begin_to(handle, mode, NULL, NULL, 0, per_thread);
}

static CUresult begin_to_graph(CUstream handle, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, CUstreamCaptureMode mode, bool per_thread)
{
    return graph == NULL ? CUDA_ERROR_INVALID_VALUE
                         : begin_to(handle, mode, graph, dependencies, count, per_thread);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode)
{
    SIM_ENTER(cuStreamBeginCaptureToGraph);
    (void)dependencyData;
    return begin_to_graph(hStream, hGraph, dependencies, numDependencies, mode, false);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *dependencyData,
                                          size_t numDependencies, CUstreamCaptureMode mode)
{
    SIM_ENTER(cuStreamBeginCaptureToGraph_ptsz);
    (void)dependencyData;
    return begin_to_graph(hStream, hGraph, dependencies, numDependencies, mode, true);
}

/* Takes only a graph without nodes: captured work is compared with none. */
static CUresult begin_recapture(CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
                                CUgraphRecaptureCallback callback, bool per_thread)
{
    size_t count = 0;
    if (graph == NULL || callback == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuGraphGetNodes(graph, NULL, &count);
    if (result != CUDA_SUCCESS || count > 0)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED;
    return begin_to_graph(handle, graph, NULL, 0, mode, per_thread);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                       CUgraphRecaptureCallback callbackFunc, void *userData)
{
    SIM_ENTER(cuStreamBeginRecaptureToGraph);
    (void)userData;
    return begin_recapture(hStream, mode, hGraph, callbackFunc, false);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode,
                                            CUgraph hGraph, CUgraphRecaptureCallback callbackFunc,
                                            void *userData)
{
    SIM_ENTER(cuStreamBeginRecaptureToGraph_ptsz);
    (void)userData;
    return begin_recapture(hStream, mode, hGraph, callbackFunc, true);
}

/* Sets the dependencies of the next captured work; its nodes are also chained, as all are here. */
static CUresult update_dependencies(CUstream handle, const CUgraphNode *nodes, size_t count,
                                    unsigned flags, bool per_thread)
{
    struct CUstream_st *stream;
    if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES && flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    struct sim_capture *capture = result == CUDA_SUCCESS ? stream->capture : NULL;
    if (result == CUDA_SUCCESS && capture == NULL)
        result = CUDA_ERROR_ILLEGAL_STATE;
    else if (result == CUDA_SUCCESS && capture->is_invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (result == CUDA_SUCCESS)
        result = check_nodes_locked(capture->graph, nodes, count);
    if (result == CUDA_SUCCESS && flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        set_dependencies_locked(capture, nodes, count);
    for (size_t i = 0;
         result == CUDA_SUCCESS && flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES && i < count; i++)
        add_dependency_locked(capture, nodes[i]);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_TWINS(cuStreamUpdateCaptureDependencies, _ptsz,
          (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned int flags),
          update_dependencies(hStream, dependencies, numDependencies, flags, per_thread))

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData,
                                              size_t numDependencies, unsigned int flags)
{
    SIM_ENTER(cuStreamUpdateCaptureDependencies_v2);
    (void)dependencyData;
    return update_dependencies(hStream, dependencies, numDependencies, flags, false);
}

CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream hStream, CUgraphNode *dependencies,
                                                   const CUgraphEdgeData *dependencyData,
                                                   size_t numDependencies, unsigned int flags)
{
    SIM_ENTER(cuStreamUpdateCaptureDependencies_v2_ptsz);
    (void)dependencyData;
    return update_dependencies(hStream, dependencies, numDependencies, flags, true);
}

SIM_TWINS(cuStreamBeginCapture_v2, _ptsz, (CUstream hStream, CUstreamCaptureMode mode),
          begin(hStream, mode, per_thread))

SIM_TWINS(cuStreamBeginCapture, _ptsz, (CUstream hStream),
          begin(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL, per_thread))

static void remove_locked(struct sim_capture *capture)
{
    struct sim_capture **link = &sim_captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    for (int i = 0; i < capture->streams_count; i++) {
        if (capture->streams[i] != NULL)
            capture->streams[i]->capture = NULL;
    }
}

static CUresult check_end_locked(const struct sim_capture *capture)
{
    const int origin = capture->origin->capture_index;
    if (capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &sim_thread)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    for (int i = 0; i < capture->streams_count; i++) {
        if (capture->seen[origin][i] < capture->seen[i][i])
            return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    return CUDA_SUCCESS;
}

/* The capture ends, whatever the result, but for a stream that did not begin it. */
static CUresult end(CUstream handle, CUgraph *graph_out, bool per_thread)
{
    struct CUstream_st *stream;
    struct sim_capture *capture = NULL;
    if (graph_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *graph_out = NULL;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->capture == NULL)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS && stream->capture->origin != stream) {
        stream->capture->is_invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (result == CUDA_SUCCESS) {
        capture = stream->capture;
        result = check_end_locked(capture);
        remove_locked(capture);
        if (result == CUDA_SUCCESS) {
            *graph_out = capture->graph;
            capture->graph->is_child &= !capture->has_own_graph;
        }
    }
    pthread_mutex_unlock(&sim_lock);
    if (capture == NULL)
        return result;
    if (result != CUDA_SUCCESS && capture->has_own_graph)
        sim_graph_destroy(capture->graph);
    free(capture->after);
    free(capture);
    return result;
}

SIM_TWINS(cuStreamEndCapture, _ptsz, (CUstream hStream, CUgraph *phGraph),
          end(hStream, phGraph, per_thread))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER(cuThreadExchangeStreamCaptureMode);
    if (mode == NULL ||
        (*mode != CU_STREAM_CAPTURE_MODE_GLOBAL && *mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
         *mode != CU_STREAM_CAPTURE_MODE_RELAXED))
        return CUDA_ERROR_INVALID_VALUE;
    const CUstreamCaptureMode before = sim_thread.capture_mode;
    sim_thread.capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* --- queries */

/* The places for a query's answer; the list is the capture's, until the capture's next call. */
struct answer {
    CUstreamCaptureStatus *status;
    cuuint64_t *id;
    CUgraph *graph;
    const CUgraphNode **dependencies;
    size_t *count;
};

static void describe_locked(const struct sim_capture *capture, const struct answer *out)
{
    *out->status = capture == NULL       ? CU_STREAM_CAPTURE_STATUS_NONE
                   : capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture == NULL)
        return;
    if (out->id != NULL)
        *out->id = capture->id;
    if (capture->is_invalid)
        return;
    if (out->graph != NULL)
        *out->graph = capture->graph;
    if (out->dependencies != NULL)
        *out->dependencies = capture->after;
    if (out->count != NULL)
        *out->count = capture->after_count;
}

/* Asking on the legacy stream is an error, but one that leaves the captures alone. */
static CUresult info(CUstream handle, bool per_thread, const struct answer *out)
{
    struct CUstream_st *stream;
    if (out->status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->is_legacy) {
        for (const struct sim_capture *capture = sim_captures; capture != NULL;
             capture = capture->next) {
            if (sim_capture_has_stream_of(capture, stream->context, true))
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    if (result == CUDA_SUCCESS)
        describe_locked(stream->capture, out);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_TWINS(cuStreamIsCapturing, _ptsz, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
          info(hStream, per_thread, &(struct answer){.status = captureStatus}))

SIM_TWINS(cuStreamGetCaptureInfo, _ptsz,
          (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
          info(hStream, per_thread, &(struct answer){.status = captureStatus_out, .id = id_out}))

SIM_TWINS(cuStreamGetCaptureInfo_v2, _ptsz,
          (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
           CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out),
          info(hStream, per_thread,
               &(struct answer){captureStatus_out, id_out, graph_out, dependencies_out,
                                numDependencies_out}))

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                   cuuint64_t *id_out, CUgraph *graph_out,
                                   const CUgraphNode **dependencies_out,
                                   const CUgraphEdgeData **edgeData_out,
                                   size_t *numDependencies_out)
{
    SIM_ENTER(cuStreamGetCaptureInfo_v3);
    if (edgeData_out != NULL)
        *edgeData_out = NULL;
    return info(hStream, false,
                &(struct answer){captureStatus_out, id_out, graph_out, dependencies_out,
                                 numDependencies_out});
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out, CUgraph *graph_out,
                                        const CUgraphNode **dependencies_out,
                                        const CUgraphEdgeData **edgeData_out,
                                        size_t *numDependencies_out)
{
    SIM_ENTER(cuStreamGetCaptureInfo_v3_ptsz);
    if (edgeData_out != NULL)
        *edgeData_out = NULL;
    return info(hStream, true,
                &(struct answer){captureStatus_out, id_out, graph_out, dependencies_out,
                                 numDependencies_out});
}
