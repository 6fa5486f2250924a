/* SPDX-License-Identifier: Apache-2.0 */
/* Hints for managed memory: checked, kept in stream order, and without effect. */
#include "tests/simcuda/driver/state.h"

#include <string.h>

static CUresult check_range(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(address);
    const bool is_managed = memory != NULL && memory->kind == SIM_MANAGED && bytes > 0 &&
                            bytes <= memory->region.bytes - (address - memory->region.begin);
    pthread_mutex_unlock(&sim_lock);
    return is_managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void do_nothing(struct sim_work *work)
{
    (void)work;
}

static CUresult hint_in_stream(CUdeviceptr address, size_t bytes, CUstream stream, bool per_thread)
{
    const CUresult result = check_range(address, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_work *work = sim_zalloc(sizeof(*work));
    work->run = do_nothing;
    work->name = "cuMemPrefetchAsync";
    return sim_stream_submit(stream, per_thread, work);
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    SIM_ENTER(cuMemAdvise);
    (void)advice;
    (void)device;
    return check_range(devPtr, count);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location)
{
    SIM_ENTER(cuMemAdvise_v2);
    (void)advice;
    (void)location;
    return check_range(devPtr, count);
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
    SIM_ENTER(cuMemPrefetchAsync);
    (void)dstDevice;
    return hint_in_stream(devPtr, count, hStream, false);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                 CUstream hStream)
{
    SIM_ENTER(cuMemPrefetchAsync_ptsz);
    (void)dstDevice;
    return hint_in_stream(devPtr, count, hStream, true);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                               unsigned int flags, CUstream hStream)
{
    SIM_ENTER(cuMemPrefetchAsync_v2);
    (void)location;
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : hint_in_stream(devPtr, count, hStream, false);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                    unsigned int flags, CUstream hStream)
{
    SIM_ENTER(cuMemPrefetchAsync_v2_ptsz);
    (void)location;
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : hint_in_stream(devPtr, count, hStream, true);
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                unsigned int flags)
{
    SIM_ENTER(cuStreamAttachMemAsync);
    (void)flags;
    return hint_in_stream(dptr, length == 0 ? 1 : length, hStream, false);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream hStream, CUdeviceptr dptr, size_t length,
                                     unsigned int flags)
{
    SIM_ENTER(cuStreamAttachMemAsync_ptsz);
    (void)flags;
    return hint_in_stream(dptr, length == 0 ? 1 : length, hStream, true);
}

/* Nothing was ever advised: no preferred location, read mostly is off. */
CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count)
{
    SIM_ENTER(cuMemRangeGetAttribute);
    if (data == NULL || dataSize == 0 || dataSize % sizeof(int) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = check_range(devPtr, count);
    if (result != CUDA_SUCCESS)
        return result;
    int value = CU_DEVICE_INVALID;
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY)
        value = 0;
    for (size_t i = 0; i < dataSize / sizeof(int); i++)
        memcpy((int *)data + i, &value, sizeof(value));
    return CUDA_SUCCESS;
}
