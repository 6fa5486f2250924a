/* SPDX-License-Identifier: Apache-2.0 */
/* Reaching the driver, and what every call begins and ends with. */
#include "tools/simcuda/cudart/cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct rt_driver rt;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t started = cudaErrorInitializationError;
static _Thread_local int device;
static _Thread_local cudaError_t last_error;

typedef CUresult resolver(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static bool ask(const char *name, int version, void **address_out)
{
    CUdriverProcAddressQueryResult status;
    if (rt.getProcAddress(name, address_out, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) ==
            CUDA_SUCCESS &&
        *address_out != NULL)
        return true;
    fprintf(stderr, "cudart stand-in: the driver has no %s of version %d\n", name, version);
    return false;
}

static void start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    resolver *first = library != NULL ? (resolver *)dlsym(library, "cuGetProcAddress_v2") : NULL;
    started = cudaErrorInsufficientDriver;
    if (first == NULL)
        return;
    rt.getProcAddress = first;
    void *again;
    if (!ask("cuGetProcAddress", CUDART_VERSION, &again))
        return;
    rt.getProcAddress = (resolver *)again;
#define RT_DRIVER(name, version)                 \
    if (!ask(#name, version, (void **)&rt.name)) \
        return;
#include "tools/simcuda/cudart/driver.def"
#undef RT_DRIVER
    started = (cudaError_t)rt.cuInit(0);
}

cudaError_t rt_fail(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* The numbers of the driver's results are those of the runtime's errors, by design
 * (driver_types.h). */
cudaError_t rt_done(CUresult result)
{
    return rt_fail((cudaError_t)result);
}

cudaError_t rt_enter_early(void)
{
    pthread_once(&once, start);
    return rt_fail(started);
}

static cudaError_t use_primary(int ordinal)
{
    CUcontext context;
    CUresult result = rt.cuDevicePrimaryCtxRetain(&context, ordinal);
    if (result == CUDA_SUCCESS)
        result = rt.cuCtxSetCurrent(context);
    return rt_done(result);
}

cudaError_t rt_enter(void)
{
    RT_TRY(rt_enter_early());
    CUcontext context;
    RT_TRY(rt_done(rt.cuCtxGetCurrent(&context)));
    return context != NULL ? cudaSuccess : use_primary(device);
}

int rt_current_device(void)
{
    return device;
}

cudaError_t cudaSetDevice(int ordinal)
{
    RT_TRY(rt_enter_early());
    int count;
    RT_TRY(rt_done(rt.cuDeviceGetCount(&count)));
    if (ordinal < 0 || ordinal >= count)
        return rt_fail(cudaErrorInvalidDevice);
    device = ordinal;
    return use_primary(ordinal);
}

cudaError_t cudaGetDevice(int *ordinal)
{
    RT_TRY(rt_enter_early());
    *ordinal = device;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    const char *name = NULL;
    if (error == cudaErrorInvalidDeviceFunction)
        return "cudaErrorInvalidDeviceFunction";
    if (rt_enter_early() == cudaSuccess)
        rt.cuGetErrorName((CUresult)error, &name);
    return name != NULL ? name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;
    if (error == cudaErrorInvalidDeviceFunction)
        return "invalid device function";
    if (rt_enter_early() == cudaSuccess)
        rt.cuGetErrorString((CUresult)error, &text);
    return text != NULL ? text : "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    RT_TRY(rt_enter_early());
    return rt_done(rt.cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **address,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    RT_TRY(rt_enter_early());
    CUdriverProcAddressQueryResult status;
    *address = NULL;
    const CUresult result = rt.getProcAddress(symbol, address, (int)version, flags, &status);
    if (found != NULL)
        *found = (enum cudaDriverEntryPointQueryResult)status;
    return rt_done(result);
}

#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **address, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found)
{
    return cudaGetDriverEntryPointByVersion(symbol, address, CUDART_VERSION, flags, found);
}
#endif
