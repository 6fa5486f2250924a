/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of nvcc's host code: registration of fat binaries and their kernels when an object is
 * loaded, and launches. As with the real runtime, code is loaded lazily: a fat binary becomes a
 * library, and a name a kernel, at the first launch.
 */
#include "tools/simcuda/cudart/cudart.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct binary {
    const void *image; /* the wrapper that nvcc makes (fatbinary.h) */
    CUlibrary library; /* guarded by lock */
};

/* One registered kernel. */
struct entry {
    const void *host; /* address of the stub, by which host code names it */
    const char *name;
    struct binary *binary;
    CUkernel kernel; /* guarded by lock; NULL until it is first used */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries; /* a hash table by host; guarded by lock */
static size_t count, room;    /* room is a power of two; guarded by lock */

static struct entry *slot_of(struct entry *table, size_t slots, const void *host)
{
    size_t at = ((uintptr_t)host >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20;
    while (table[at & (slots - 1)].host != NULL && table[at & (slots - 1)].host != host)
        at++;
    return &table[at & (slots - 1)];
}

static void grow_locked(void)
{
    const size_t slots = room == 0 ? 1024 : 2 * room;
    struct entry *table = calloc(slots, sizeof(*table));
    if (table == NULL)
        abort();
    for (size_t i = 0; i < room; i++) {
        if (entries[i].host != NULL)
            *slot_of(table, slots, entries[i].host) = entries[i];
    }
    free(entries);
    entries = table;
    room = slots;
}

void **__cudaRegisterFatBinary(void *image);
void **__cudaRegisterFatBinary(void *image)
{
    struct binary *binary = calloc(1, sizeof(*binary));
    if (binary == NULL)
        abort();
    binary->image = image;
    return (void **)binary;
}

void __cudaRegisterFatBinaryEnd(void **binary);
void __cudaRegisterFatBinaryEnd(__attribute__((unused)) void **binary)
{
}

/* At the end of the process, when launches may still be queued: the driver keeps what they need. */
void __cudaUnregisterFatBinary(void **binary);
void __cudaUnregisterFatBinary(__attribute__((unused)) void **binary)
{
}

/* Asked for before the first use of a managed variable, of which there are none here. */
char __cudaInitModule(void **binary);
char __cudaInitModule(__attribute__((unused)) void **binary)
{
    return 1;
}

void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int is_external,
                       size_t bytes, int is_constant, int is_global);
void __cudaRegisterVar(__attribute__((unused)) void **binary, __attribute__((unused)) char *host,
                       __attribute__((unused)) char *device,
                       __attribute__((unused)) const char *name,
                       __attribute__((unused)) int is_external,
                       __attribute__((unused)) size_t bytes,
                       __attribute__((unused)) int is_constant,
                       __attribute__((unused)) int is_global)
{
}

void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name,
                            int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterFunction(void **binary, const char *host, __attribute__((unused)) char *device,
                            const char *name, __attribute__((unused)) int limit,
                            __attribute__((unused)) uint3 *tid, __attribute__((unused)) uint3 *bid,
                            __attribute__((unused)) dim3 *block, __attribute__((unused)) dim3 *grid,
                            __attribute__((unused)) int *warp)
{
    pthread_mutex_lock(&lock);
    if (4 * (count + 1) > 3 * room)
        grow_locked();
    *slot_of(entries, room, host) =
        (struct entry){.host = host, .name = name, .binary = (struct binary *)binary};
    count++;
    pthread_mutex_unlock(&lock);
}

/* Loads what is not loaded yet. */
static CUresult find_locked(struct entry *entry, CUkernel *kernel_out)
{
    CUresult result = CUDA_SUCCESS;
    if (entry->binary->library == NULL)
        result = rt.cuLibraryLoadData(&entry->binary->library, entry->binary->image, NULL, NULL, 0,
                                      NULL, NULL, 0);
    if (result == CUDA_SUCCESS && entry->kernel == NULL)
        result = rt.cuLibraryGetKernel(&entry->kernel, entry->binary->library, entry->name);
    *kernel_out = entry->kernel;
    return result;
}

static cudaError_t find(const void *host, CUkernel *kernel_out)
{
    RT_TRY(rt_enter());
    CUresult result = CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    if (room > 0 && host != NULL) {
        struct entry *entry = slot_of(entries, room, host);
        if (entry->host != NULL)
            result = find_locked(entry, kernel_out);
    }
    pthread_mutex_unlock(&lock);
    return rt_fail(result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidDeviceFunction
                                                  : (cudaError_t)result);
}

static cudaError_t find_function(const void *host, CUfunction *function_out)
{
    CUkernel kernel;
    RT_TRY(find(host, &kernel));
    return rt_done(rt.cuKernelGetFunction(function_out, kernel));
}

/* --- launches */

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    return find(host, (CUkernel *)kernel);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    RT_RETURN(rt.cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                block.z, (unsigned)shared, stream, args, NULL));
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    CUfunction function;
    RT_TRY(find_function(host, &function));
    return rt_done(rt.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                     (unsigned)shared, stream, args, NULL));
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args,
                                        size_t shared, cudaStream_t stream)
{
    CUfunction function;
    RT_TRY(find_function(host, &function));
    return rt_done(rt.cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y,
                                                block.z, (unsigned)shared, stream, args));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args)
{
    CUfunction function;
    RT_TRY(find_function(host, &function));
    const CUlaunchConfig same = {.gridDimX = config->gridDim.x,
                                 .gridDimY = config->gridDim.y,
                                 .gridDimZ = config->gridDim.z,
                                 .blockDimX = config->blockDim.x,
                                 .blockDimY = config->blockDim.y,
                                 .blockDimZ = config->blockDim.z,
                                 .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
                                 .hStream = config->stream,
                                 .attrs = (CUlaunchAttribute *)config->attrs,
                                 .numAttrs = config->numAttrs};
    return rt_done(rt.cuLaunchKernelEx(&same, function, args, NULL));
}

/* kernel<<<...>>>() of older host code: the configuration travels on a stack. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed[8];
static _Thread_local unsigned depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    if (depth == sizeof(pushed) / sizeof(pushed[0]))
        return cudaErrorMissingConfiguration;
    pushed[depth].grid = grid;
    pushed[depth].block = block;
    pushed[depth].shared = shared;
    pushed[depth].stream = stream;
    depth++;
    return cudaSuccess;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (depth == 0)
        return cudaErrorMissingConfiguration;
    depth--;
    *grid = pushed[depth].grid;
    *block = pushed[depth].block;
    *shared = pushed[depth].shared;
    *(void **)stream = pushed[depth].stream;
    return cudaSuccess;
}

/* --- properties */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host)
{
    CUfunction function;
    RT_TRY(find_function(host, &function));
    int values[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT + 1];
    for (int i = 0; i <= CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT; i++)
        RT_TRY(rt_done(rt.cuFuncGetAttribute(&values[i], (CUfunction_attribute)i, function)));
    *attributes = (struct cudaFuncAttributes){
        .maxThreadsPerBlock = values[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .sharedSizeBytes = (size_t)values[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES],
        .constSizeBytes = (size_t)values[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES],
        .localSizeBytes = (size_t)values[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES],
        .numRegs = values[CU_FUNC_ATTRIBUTE_NUM_REGS],
        .ptxVersion = values[CU_FUNC_ATTRIBUTE_PTX_VERSION],
        .binaryVersion = values[CU_FUNC_ATTRIBUTE_BINARY_VERSION],
        .cacheModeCA = values[CU_FUNC_ATTRIBUTE_CACHE_MODE_CA],
        .maxDynamicSharedSizeBytes = values[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES],
        .preferredShmemCarveout = values[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT]};
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value)
{
    CUfunction function;
    RT_TRY(find_function(host, &function));
    return rt_done(rt.cuFuncSetAttribute(function, (CUfunction_attribute)attribute, value));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host,
                                                                   int threads, size_t shared,
                                                                   unsigned int flags)
{
    CUfunction function;
    RT_TRY(find_function(host, &function));
    return rt_done(rt.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function,
                                                                           threads, shared, flags));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host,
                                                          int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}
