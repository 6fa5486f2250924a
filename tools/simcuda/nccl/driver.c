/* SPDX-License-Identifier: Apache-2.0 */
/* Reaching the driver: as NCCL, whose CUDA runtime asks cuGetProcAddress for everything. */
#include "tools/simcuda/nccl/internal.h"

#include <dlfcn.h>

struct nc_driver nc_cuda;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_there;

typedef CUresult resolver(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static bool ask(resolver *get, const char *name, int version, void **address_out)
{
    CUdriverProcAddressQueryResult status;
    if (get(name, address_out, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS &&
        *address_out != NULL)
        return true;
    nc_say("the driver has no %s of version %d", name, version);
    return false;
}

static bool find_hook(void *library, const char *name, void **address_out)
{
    *address_out = dlsym(library, name);
    if (*address_out == NULL)
        nc_say("libcuda.so.1 has no %s: this library works on the simulated driver only", name);
    return *address_out != NULL;
}

static void start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    resolver *get = library != NULL ? (resolver *)dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (get == NULL) {
        nc_say("there is no libcuda.so.1");
        return;
    }
#define NC_DRIVER(name, version)                           \
    if (!ask(get, #name, version, (void **)&nc_cuda.name)) \
        return;
#include "tools/simcuda/nccl/driver.def"
#undef NC_DRIVER
    is_there = find_hook(library, "simcuda_submit", (void **)&nc_cuda.submit) &&
               find_hook(library, "simcuda_can_touch", (void **)&nc_cuda.can_touch) &&
               find_hook(library, "simcuda_fault", (void **)&nc_cuda.fault) &&
               find_hook(library, "simcuda_is_over", (void **)&nc_cuda.is_over) &&
               find_hook(library, "simcuda_find_piece", (void **)&nc_cuda.find_piece) &&
               nc_cuda.cuInit(0) == CUDA_SUCCESS;
}

ncclResult_t nc_driver_done(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return ncclSuccess;
    nc_say("%s failed with CUDA error %d", what, (int)result);
    return ncclUnhandledCudaError;
}

ncclResult_t nc_driver_enter(void)
{
    CUcontext context;
    CUdevice device;
    pthread_once(&once, start);
    if (!is_there)
        return ncclUnhandledCudaError;
    NC_TRY(nc_driver_done(nc_cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
    if (context != NULL)
        return ncclSuccess;
    NC_TRY(nc_driver_done(nc_cuda.cuDeviceGet(&device, 0), "cuDeviceGet"));
    NC_TRY(nc_driver_done(nc_cuda.cuDevicePrimaryCtxRetain(&context, device),
                          "cuDevicePrimaryCtxRetain"));
    return nc_driver_done(nc_cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}
