/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/launch.h"

#include <stdlib.h>
#include <string.h>

/*
 *     struct sim_launch | params[count] | packed arguments
 * in one allocation; params[] points into the packed arguments. A kernel of unknown layout has one
 * params[] that points at all of them.
 */
struct sim_launch {
    atomic_int references;
    struct sim_function *function;
    struct sim_launch_call call;
    void *extra[5]; /* how a kernel of unknown layout is described */
    size_t args_bytes;
    unsigned char *args;
    void *params[];
};

/* The packed buffer that `extra` hands over. */
struct packed {
    const void *bytes;
    size_t size;
};

static bool sizes_are_valid(const struct sim_launch_call *call)
{
    const uint64_t threads = (uint64_t)call->block[0] * call->block[1] * call->block[2];
    return call->grid[0] > 0 && call->grid[0] <= INT32_MAX && call->grid[1] > 0 &&
           call->grid[1] <= UINT16_MAX && call->grid[2] > 0 && call->grid[2] <= UINT16_MAX &&
           threads > 0 && call->block[0] <= SIM_MAX_THREADS && call->block[1] <= SIM_MAX_THREADS &&
           call->block[2] <= 64 && threads <= SIM_MAX_THREADS &&
           call->shared_bytes <= SIM_MAX_SHARED_BYTES;
}

static CUresult read_extra(void **extra, struct packed *packed_out)
{
    const void *bytes = NULL;
    const size_t *size = NULL;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            bytes = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (size == NULL || *size > SIM_MAX_PARAM_BYTES || (bytes == NULL && *size > 0))
        return CUDA_ERROR_INVALID_VALUE;
    *packed_out = (struct packed){bytes, *size};
    return CUDA_SUCCESS;
}

/* How many bytes of arguments the launch has; checks that they are all there. */
static CUresult measure(const struct sim_function *function, const struct sim_launch_call *call,
                        struct packed *packed_out)
{
    *packed_out = (struct packed){NULL, function->params_bytes};
    if (call->params != NULL && call->extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (call->extra != NULL) {
        const CUresult result = read_extra(call->extra, packed_out);
        if (result != CUDA_SUCCESS)
            return result;
        if (function->params != NULL && packed_out->size > function->params_bytes)
            return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        /* Driver 580 takes it, and the kernel reads what was there. */
        return packed_out->size < function->params_bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    /* Without a layout nobody can tell how many pointers to follow; a dry run follows none. */
    if (function->params == NULL)
        return sim_is_dry() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < function->params_count; i++) {
        if (call->params == NULL || call->params[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Copies the arguments and points params[] at the copies. */
static void fill(struct sim_launch *launch, const struct packed *packed)
{
    const struct sim_function *function = launch->function;
    if (packed->bytes != NULL)
        memcpy(launch->args, packed->bytes, packed->size);
    if (function->params == NULL)
        launch->params[0] = launch->args;
    for (size_t i = 0; i < function->params_count; i++) {
        const struct simcuda_param *param = &function->params[i];
        launch->params[i] = launch->args + param->offset;
        if (packed->bytes == NULL)
            memcpy(launch->params[i], launch->call.params[i], param->size);
    }
}

static void describe_by_extra(struct sim_launch *launch)
{
    launch->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    launch->extra[1] = launch->args;
    launch->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    launch->extra[3] = &launch->args_bytes;
    launch->extra[4] = CU_LAUNCH_PARAM_END;
}

static CUresult make_launch(struct sim_function *function, const struct sim_launch_call *call,
                            struct sim_launch **launch_out)
{
    struct packed packed;
    const CUresult result = measure(function, call, &packed);
    if (result != CUDA_SUCCESS)
        return result;
    const size_t pointers = function->params == NULL ? 1 : function->params_count;
    const size_t head = sizeof(struct sim_launch) + pointers * sizeof(void *);
    const size_t args_at = (head + 15) / 16 * 16;
    struct sim_launch *launch = sim_zalloc(args_at + packed.size + 1);
    launch->references = 1;
    launch->function = function;
    launch->call = *call;
    launch->args_bytes = packed.size;
    launch->args = (unsigned char *)launch + args_at;
    fill(launch, &packed);
    describe_by_extra(launch);
    launch->call.params = function->params == NULL ? NULL : launch->params;
    launch->call.extra = function->params == NULL ? launch->extra : NULL;
    *launch_out = launch;
    return CUDA_SUCCESS;
}

/* A kernel is launched as its function in the library's module, if there is one already: what was
 * set of that holds too. */
static unsigned dynamic_shared_locked(const struct sim_function *function)
{
    const int attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    const struct sim_module *module = function->module;
    const struct sim_function *twin =
        module != NULL && module->inner != NULL ? module->inner->functions : NULL;
    while (twin != NULL && strcmp(twin->name, function->name) != 0)
        twin = twin->next;
    const int own = function->attributes[attribute];
    return (unsigned)(twin != NULL && twin->attributes[attribute] > own
                          ? twin->attributes[attribute]
                          : own);
}

CUresult sim_launch_make(const struct sim_launch_call *call, struct sim_launch **launch_out)
{
    if (call->function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sizes_are_valid(call))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_function *function = sim_function_find_locked(call->function);
    bool shared_fits = true;
    if (function != NULL) {
        shared_fits = call->shared_bytes <= SIM_DEFAULT_SHARED_BYTES ||
                      call->shared_bytes <= dynamic_shared_locked(function);
        function->is_loaded = true;
        atomic_fetch_add(&function->references, 1);
    }
    pthread_mutex_unlock(&sim_lock);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result =
        shared_fits ? make_launch(function, call, launch_out) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        sim_function_drop(function);
    return result;
}

struct sim_launch *sim_launch_keep(struct sim_launch *launch)
{
    atomic_fetch_add(&launch->references, 1);
    return launch;
}

void sim_launch_drop(struct sim_launch *launch)
{
    if (atomic_fetch_sub(&launch->references, 1) != 1)
        return;
    sim_function_drop(launch->function);
    free(launch);
}

void sim_launch_describe(const struct sim_launch *launch, struct sim_launch_call *call_out)
{
    *call_out = launch->call;
}

static void *touch(const struct simcuda_launch *launch, CUdeviceptr address, size_t bytes)
{
    if (sim_device_can_touch(address, bytes))
        return (void *)(uintptr_t)address;
    sim_fault(address, bytes, launch->name);
    return NULL;
}

static CUdeviceptr find_global(const struct simcuda_launch *launch, const char *name)
{
    return sim_module_global_address(launch->module, name);
}

void sim_launch_run(const struct sim_launch *launch)
{
    struct simcuda_launch seen = {
        .name = launch->function->name,
        .shared_bytes = launch->call.shared_bytes,
        .args_bytes = launch->args_bytes,
        .touch = touch,
        .global = find_global,
    };
    memcpy(seen.grid, launch->call.grid, sizeof seen.grid);
    memcpy(seen.block, launch->call.block, sizeof seen.block);
    pthread_mutex_lock(&sim_lock);
    seen.module = launch->function->module; /* it may be unloaded meanwhile */
    sim_stats.launches++;
    const bool is_empty = sim_leaves_out() || launch->function->run == sim_dry_kernel;
    sim_stats.empty_launches += is_empty;
    pthread_mutex_unlock(&sim_lock);
    if (!is_empty)
        launch->function->run(&seen, (void **)launch->params);
}

struct launch_work {
    struct sim_work work;
    struct sim_launch *launch;
};

static void run_work(struct sim_work *work)
{
    sim_launch_run(((struct launch_work *)work)->launch);
}

static void destroy_work(struct sim_work *work)
{
    sim_launch_drop(((struct launch_work *)work)->launch);
    free(work);
}

struct sim_launch *sim_launch_of_work(const struct sim_work *work)
{
    return work->run == run_work ? ((const struct launch_work *)work)->launch : NULL;
}

CUresult sim_launch_submit(const struct sim_launch_call *call, CUstream stream, bool per_thread)
{
    CUdevice device;
    CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_launch *launch;
    result = sim_launch_make(call, &launch);
    if (result != CUDA_SUCCESS)
        return result;
    struct launch_work *item = sim_zalloc(sizeof *item);
    item->work.run = run_work;
    item->work.destroy = destroy_work;
    item->work.name = launch->function->name;
    item->launch = launch;
    return sim_stream_submit(stream, per_thread, &item->work);
}

/* The body of four entry points that have the same parameters, twice with `extra`. */
#define CALL_OF_ARGUMENTS(extra_)                                                             \
    {                                                                                         \
        f, {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, \
            kernelParams, extra_                                                              \
    }

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void **kernelParams, void **extra)
{
    SIM_ENTER(cuLaunchKernel);
    const struct sim_launch_call call = CALL_OF_ARGUMENTS(extra);
    return sim_launch_submit(&call, hStream, false);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void **kernelParams, void **extra)
{
    SIM_ENTER(cuLaunchKernel_ptsz);
    const struct sim_launch_call call = CALL_OF_ARGUMENTS(extra);
    return sim_launch_submit(&call, hStream, true);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void **kernelParams)
{
    SIM_ENTER(cuLaunchCooperativeKernel);
    const struct sim_launch_call call = CALL_OF_ARGUMENTS(NULL);
    return sim_launch_submit(&call, hStream, false);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX,
                                        unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams)
{
    SIM_ENTER(cuLaunchCooperativeKernel_ptsz);
    const struct sim_launch_call call = CALL_OF_ARGUMENTS(NULL);
    return sim_launch_submit(&call, hStream, true);
}

/* Attributes change how fast a kernel runs, or when; a stream here runs one thing at a time. */
static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function, void **params,
                                  void **extra, bool per_thread)
{
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if ((unsigned)config->attrs[i].id >= CU_LAUNCH_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
    }
    const struct sim_launch_call call = {
        function,
        {config->gridDimX, config->gridDimY, config->gridDimZ},
        {config->blockDimX, config->blockDimY, config->blockDimZ},
        config->sharedMemBytes,
        params,
        extra,
    };
    return sim_launch_submit(&call, config->hStream, per_thread);
}

SIM_TWINS(cuLaunchKernelEx, _ptsz,
          (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
          launch_configured(config, f, kernelParams, extra, per_thread))

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                              unsigned int numDevices, unsigned int flags)
{
    SIM_ENTER(cuLaunchCooperativeKernelMultiDevice);
    if (launchParamsList == NULL || numDevices == 0 || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numDevices; i++) {
        const CUDA_LAUNCH_PARAMS *row = &launchParamsList[i];
        /* The default streams are not allowed here. */
        if (row->hStream == NULL || row->hStream == CU_STREAM_LEGACY ||
            row->hStream == CU_STREAM_PER_THREAD)
            return CUDA_ERROR_INVALID_VALUE;
        const struct sim_launch_call call = {
            row->function,
            {row->gridDimX, row->gridDimY, row->gridDimZ},
            {row->blockDimX, row->blockDimY, row->blockDimZ},
            row->sharedMemBytes,
            row->kernelParams,
            NULL,
        };
        const CUresult result = sim_launch_submit(&call, row->hStream, false);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
