/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other APIs: a file descriptor of something that can be mapped, such as a memory
 * file. */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct CUextMemory_st {
    struct sim_region region; /* begin: the handle */
    int file;
    unsigned long long bytes;
};
static struct sim_table externals;

/* NULL: it is none. */
static struct CUextMemory_st *find_locked(CUexternalMemory handle)
{
    struct sim_region *row = sim_table_find(&externals, (uint64_t)handle);
    return row != NULL && row == &handle->region ? handle : NULL;
}

/* The file is the driver's from then on. */
CUresult cuImportExternalMemory(CUexternalMemory *extMem_out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc)
{
    SIM_ENTER(cuImportExternalMemory);
    struct CUctx_st *context;
    const CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (extMem_out == NULL || memHandleDesc == NULL || memHandleDesc->size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (memHandleDesc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct CUextMemory_st *external = sim_zalloc(sizeof(*external));
    external->region = (struct sim_region){(uint64_t)external, 1};
    external->file = memHandleDesc->handle.fd;
    external->bytes = memHandleDesc->size;
    pthread_mutex_lock(&sim_lock);
    sim_table_add(&externals, &external->region);
    pthread_mutex_unlock(&sim_lock);
    *extMem_out = external;
    return CUDA_SUCCESS;
}

static CUresult map_locked(CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc,
                           struct CUctx_st *context, CUdeviceptr *address_out)
{
    const struct CUextMemory_st *external = find_locked(handle);
    if (external == NULL || desc->size == 0 || desc->size > external->bytes ||
        desc->offset > external->bytes - desc->size)
        return CUDA_ERROR_INVALID_VALUE;
    void *address = mmap(NULL, desc->size, PROT_READ | PROT_WRITE, MAP_SHARED, external->file,
                         (off_t)desc->offset);
    if (address == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    sim_memory_add_locked(SIM_EXTERNAL, (uint64_t)address, desc->size, context)->backed_bytes =
        desc->size;
    *address_out = (CUdeviceptr)address;
    return CUDA_SUCCESS;
}

/* Freed by cuMemFree. Here the offset must be one of pages. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc)
{
    SIM_ENTER(cuExternalMemoryGetMappedBuffer);
    struct CUctx_st *context;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (devPtr == NULL || bufferDesc == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    result = map_locked(extMem, bufferDesc, context, devPtr);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem)
{
    SIM_ENTER(cuDestroyExternalMemory);
    pthread_mutex_lock(&sim_lock);
    struct CUextMemory_st *external = find_locked(extMem);
    if (external != NULL)
        sim_table_remove(&externals, &external->region);
    pthread_mutex_unlock(&sim_lock);
    if (external == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    close(external->file);
    free(external);
    return CUDA_SUCCESS;
}
