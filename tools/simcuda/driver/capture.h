/* SPDX-License-Identifier: Apache-2.0 */
/* A capture that goes on, as capture.c (what it forbids) and capture_graph.c (its graph) share. */
#pragma once

#include "tools/simcuda/driver/graph.h"
#include "tools/simcuda/driver/state.h"

struct sim_capture {
    struct sim_capture *next;
    /* Puts work of one of its streams into the graph, and takes the work. */
    CUresult (*add_locked)(struct CUstream_st *stream, struct sim_work *work);
    uint64_t id;
    CUstreamCaptureMode mode;
    const struct sim_thread *thread; /* that began it */
    struct CUstream_st *origin;
    CUgraph graph; /* to which it is added */
    bool has_own_graph;
    CUgraphNode *after; /* what the next node depends on */
    size_t after_count;
    bool is_invalid;
    struct CUstream_st *streams[SIM_CAPTURE_STREAMS_MAX];
    unsigned seen[SIM_CAPTURE_STREAMS_MAX][SIM_CAPTURE_STREAMS_MAX];
    int streams_count;
};
extern struct sim_capture *sim_captures;

bool sim_capture_join_locked(struct sim_capture *capture, struct CUstream_st *stream);
bool sim_capture_has_stream_of(const struct sim_capture *capture, const struct CUctx_st *context,
                               bool blocking_only);
