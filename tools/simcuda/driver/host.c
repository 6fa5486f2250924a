/* SPDX-License-Identifier: Apache-2.0 */
/* Page-locked host memory. Its device address is its address; write-combined memory has another
 * one. */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ALLOC_FLAGS =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED,
    REGISTER_FLAGS = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                     CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY
};

static void *map(int file, size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
}

/* The same memory at two addresses; the second is NULL for plain memory. False when memory is
 * out. */
static bool map_twice(size_t bytes, bool twice, void *memory[2])
{
    int file = -1;
    memory[1] = NULL;
    if (twice) {
        file = memfd_create("write-combined", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)bytes) != 0 ||
            (memory[1] = map(file, bytes)) == MAP_FAILED) {
            close(file);
            return false;
        }
    }
    memory[0] = map(file, bytes);
    if (memory[0] == MAP_FAILED && twice)
        munmap(memory[1], bytes);
    if (twice)
        close(file);
    return memory[0] != MAP_FAILED;
}

static struct sim_memory *add_locked(const void *address, size_t bytes, unsigned flags,
                                     struct CUctx_st *context)
{
    struct sim_memory *host = sim_memory_add_locked(SIM_HOST, (uint64_t)address, bytes, context);
    host->backed_bytes = bytes;
    host->flags = flags;
    return host;
}

static CUresult allocate(void **pointer_out, size_t bytes, unsigned flags)
{
    struct CUctx_st *context;
    if (pointer_out == NULL || bytes == 0 || (flags & ~(unsigned)ALLOC_FLAGS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    void *memory[2];
    if (!map_twice(bytes, (flags & CU_MEMHOSTALLOC_WRITECOMBINED) != 0, memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *host = add_locked(memory[0], bytes, flags, context);
    if (memory[1] != NULL) {
        host->alias = (CUdeviceptr)memory[1];
        struct sim_memory *device = add_locked(memory[1], bytes, flags, context);
        device->alias = (CUdeviceptr)memory[0];
        device->internal = true; /* not the program's to free */
    }
    pthread_mutex_unlock(&sim_lock);
    *pointer_out = memory[0];
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(cuMemHostAlloc);
    return allocate(pp, bytesize, Flags);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    SIM_ENTER(cuMemAllocHost_v2);
    return allocate(pp, bytesize, 0);
}

CUresult cuMemAllocHost(void **pp, unsigned int bytesize)
{
    SIM_ENTER(cuMemAllocHost);
    return allocate(pp, bytesize, 0);
}

/* Takes the memory away from the driver once the device is done with it. `otherwise`: the error
 * for an address that lies in none. */
static CUresult retire(void *pointer, enum sim_kind kind, CUresult otherwise)
{
    struct CUctx_st *context;
    CUresult result = kind == SIM_HOST ? sim_context_get_to_free((uint64_t)pointer, &context)
                                       : sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    sim_context_drain(NULL);
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory = sim_memory_find_locked((uint64_t)pointer);
    if (memory == NULL || memory->kind != kind || memory->internal || memory->pool != NULL ||
        memory->region.begin != (uint64_t)pointer) {
        result = memory != NULL && memory->kind == kind ? CUDA_ERROR_INVALID_VALUE : otherwise;
    } else {
        if (memory->alias != 0)
            sim_memory_destroy_locked(sim_memory_find_locked(memory->alias));
        sim_memory_destroy_locked(memory);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemFreeHost(void *p)
{
    SIM_ENTER(cuMemFreeHost);
    return p == NULL ? CUDA_SUCCESS : retire(p, SIM_HOST, CUDA_ERROR_INVALID_VALUE);
}

static CUresult register_memory(void *pointer, size_t bytes, unsigned flags)
{
    struct CUctx_st *context;
    if (pointer == NULL || bytes == 0 || bytes > SIZE_MAX - (uintptr_t)pointer ||
        (flags & ~(unsigned)REGISTER_FLAGS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    if (sim_table_overlaps(&sim_memories, (uint64_t)pointer, bytes))
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else
        sim_memory_add_locked(SIM_REGISTERED, (uint64_t)pointer, bytes, context)->flags = flags;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(cuMemHostRegister_v2);
    return register_memory(p, bytesize, Flags);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(cuMemHostRegister);
    return register_memory(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p)
{
    SIM_ENTER(cuMemHostUnregister);
    return p == NULL ? CUDA_ERROR_INVALID_VALUE
                     : retire(p, SIM_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUdeviceptr sim_host_device_address_locked(const struct sim_memory *memory, CUdeviceptr address)
{
    const bool is_host_side = memory->alias != 0 && !memory->internal;
    return is_host_side ? memory->alias + (address - memory->region.begin) : address;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    SIM_ENTER(cuMemHostGetDevicePointer_v2);
    if (pdptr == NULL || Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked((uint64_t)p);
    const bool is_host =
        memory != NULL && (memory->kind == SIM_HOST || memory->kind == SIM_REGISTERED);
    if (is_host)
        *pdptr = sim_host_device_address_locked(memory, (CUdeviceptr)p);
    pthread_mutex_unlock(&sim_lock);
    return is_host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    SIM_ENTER(cuMemHostGetFlags);
    if (pFlags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked((uint64_t)p);
    const bool is_host = memory != NULL && memory->kind == SIM_HOST;
    /* With unified addressing all of it is mapped for the device. */
    if (is_host)
        *pFlags = memory->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    pthread_mutex_unlock(&sim_lock);
    return is_host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
