/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/device_memory.h"

#include <stdint.h>

/* As cuMemAlloc's memory: pinned on the device, and where the device can, exportable and reachable
 * by RDMA. A handle cannot get the latter two later. */
CUmemAllocationProp ms_device_memory_properties(CUdevice device)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    if (ms_driver_has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable =
        ms_driver_has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    return prop;
}

size_t ms_device_memory_rounded(CUdevice device, size_t bytes)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(device);
    size_t granule;
    if (ms_driver.mem_get_granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
            CUDA_SUCCESS ||
        bytes > SIZE_MAX - granule)
        return bytes;
    return (bytes + granule - 1) / granule * granule;
}
