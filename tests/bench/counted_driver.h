/* SPDX-License-Identifier: Apache-2.0 */
/* A driver in which what is not measured costs nothing: addresses come from a counter, streams are
 * idle, and memory is not there. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

static CUdeviceptr next_address = (CUdeviceptr)0x7e0000000000;

static inline size_t random_below(size_t bound)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)((state >> 33) % bound);
}

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags)
{
    (void)hint, (void)flags;
    next_address = (next_address - bytes) / alignment * alignment;
    *address = next_address;
    return CUDA_SUCCESS;
}

static CUresult give_back(CUdeviceptr address, size_t bytes)
{
    (void)address, (void)bytes;
    return CUDA_SUCCESS;
}

static CUresult create_memory(CUmemGenericAllocationHandle *handle, size_t bytes,
                              const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)bytes, (void)prop, (void)flags;
    *handle = 1;
    return CUDA_SUCCESS;
}

static CUresult map_memory(CUdeviceptr address, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)address, (void)bytes, (void)offset, (void)handle, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult give_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                            size_t descriptions)
{
    (void)address, (void)bytes, (void)access, (void)descriptions;
    return CUDA_SUCCESS;
}

static CUresult release_memory(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}

static CUresult do_not_wait(void)
{
    return CUDA_SUCCESS;
}

/* Streams are idle: whether the simulated driver's threads get a processor in time is not what is
 * measured. */
static CUresult create_event(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = (CUevent)&next_address;
    return CUDA_SUCCESS;
}

static CUresult record_event(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

static CUresult record_context(CUcontext context, CUevent event)
{
    (void)context, (void)event;
    return CUDA_SUCCESS;
}

static CUresult query_event(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

static inline void use_idle_streams(bool idle)
{
    ms_driver.event_create = idle ? create_event : cuEventCreate;
    ms_driver.event_record = idle ? record_event : cuEventRecord;
    ms_driver.ctx_record_event = idle ? record_context : cuCtxRecordEvent;
    ms_driver.event_synchronize = idle ? query_event : cuEventSynchronize;
    ms_driver.event_query = idle ? query_event : cuEventQuery;
    ms_driver.event_destroy = idle ? query_event : cuEventDestroy_v2;
}

static inline void use_counted_addresses(bool counted)
{
    use_idle_streams(counted);
    ms_driver.mem_address_reserve = counted ? reserve : cuMemAddressReserve;
    ms_driver.mem_address_free = counted ? give_back : cuMemAddressFree;
    ms_driver.ctx_synchronize = counted ? do_not_wait : cuCtxSynchronize;
}

static inline void use_no_memory(bool no_memory)
{
    ms_driver.mem_create = no_memory ? create_memory : cuMemCreate;
    ms_driver.mem_map = no_memory ? map_memory : cuMemMap;
    ms_driver.mem_unmap = no_memory ? give_back : cuMemUnmap;
    ms_driver.mem_set_access = no_memory ? give_access : cuMemSetAccess;
    ms_driver.mem_release = no_memory ? release_memory : cuMemRelease;
}
