/* SPDX-License-Identifier: Apache-2.0 */
/* Host functions in streams. */
#include "tools/simcuda/driver/newer.h"
#include "tools/simcuda/driver/state.h"

struct host_work {
    struct sim_work work;
    CUhostFn function;
    CUstreamCallback callback;
    CUstream stream;
    void *data;
};

static void run_function(struct sim_work *work)
{
    struct host_work *host = (struct host_work *)work;
    host->function(host->data);
}

static void run_callback(struct sim_work *work)
{
    struct host_work *host = (struct host_work *)work;
    host->callback(host->stream, sim_sticky_error(), host->data);
}

static CUresult launch(CUstream stream, CUhostFn function, void *data, bool per_thread)
{
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct host_work *host = sim_zalloc(sizeof(*host));
    host->work.run = run_function;
    host->work.may_wait = true;
    host->work.name = "cuLaunchHostFunc";
    host->function = function;
    host->data = data;
    return sim_stream_submit(stream, per_thread, &host->work);
}

SIM_TWINS(cuLaunchHostFunc, _ptsz, (CUstream hStream, CUhostFn fn, void *userData),
          launch(hStream, fn, userData, per_thread))

static CUresult launch_in_mode(CUstream stream, CUhostFn function, void *data, unsigned mode,
                               bool per_thread)
{
    const unsigned spin_wait = 1; /* CU_HOST_TASK_SPINWAIT */
    return mode > spin_wait ? CUDA_ERROR_INVALID_VALUE : launch(stream, function, data, per_thread);
}

SIM_TWINS(cuLaunchHostFunc_v2, _ptsz,
          (CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode),
          launch_in_mode(hStream, fn, userData, syncMode, per_thread))

static CUresult add(CUstream stream, CUstreamCallback callback, void *data, unsigned flags,
                    bool per_thread)
{
    if (callback == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct CUstream_st *found;
    CUresult result = sim_stream_find_locked(stream, per_thread, &found);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream_locked(found);
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS)
        return result;
    struct host_work *host = sim_zalloc(sizeof(*host));
    host->work.run = run_callback;
    host->work.may_wait = true;
    host->work.name = "cuStreamAddCallback";
    host->work.runs_after_error = true;
    host->callback = callback;
    host->stream = stream;
    host->data = data;
    return sim_stream_submit(stream, per_thread, &host->work);
}

SIM_TWINS(cuStreamAddCallback, _ptsz,
          (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
          add(hStream, callback, userData, flags, per_thread))
