/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and their attributes. Limits are those published for compute capability 9.0. */
#include "tools/simcuda/driver/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_device sim_devices[SIM_DEVICES_MAX] = {
    [0 ... SIM_DEVICES_MAX - 1] = {.file = -1},
};

#define VALUE(name, value) [CU_DEVICE_ATTRIBUTE_##name] = value
/* Attributes that the table does not name are 0: not supported, or no limit to speak of. */
static const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    VALUE(MAX_THREADS_PER_BLOCK, 1024),
    VALUE(MAX_BLOCK_DIM_X, 1024),
    VALUE(MAX_BLOCK_DIM_Y, 1024),
    VALUE(MAX_BLOCK_DIM_Z, 64),
    VALUE(MAX_GRID_DIM_X, 0x7FFFFFFF),
    VALUE(MAX_GRID_DIM_Y, 65535),
    VALUE(MAX_GRID_DIM_Z, 65535),
    VALUE(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
    VALUE(TOTAL_CONSTANT_MEMORY, 65536),
    VALUE(WARP_SIZE, 32),
    VALUE(MAX_PITCH, 0x7FFFFFFF),
    VALUE(MAX_REGISTERS_PER_BLOCK, 65536),
    VALUE(CLOCK_RATE, 1000000),
    VALUE(TEXTURE_ALIGNMENT, 512),
    VALUE(GPU_OVERLAP, 1),
    VALUE(MULTIPROCESSOR_COUNT, 4),
    VALUE(CAN_MAP_HOST_MEMORY, 1),
    VALUE(MAXIMUM_TEXTURE1D_WIDTH, 131072),
    VALUE(MAXIMUM_TEXTURE2D_WIDTH, 131072),
    VALUE(MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    VALUE(MAXIMUM_TEXTURE3D_WIDTH, 16384),
    VALUE(MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    VALUE(MAXIMUM_TEXTURE3D_DEPTH, 16384),
    VALUE(MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768),
    VALUE(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768),
    VALUE(MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048),
    VALUE(SURFACE_ALIGNMENT, 512),
    VALUE(CONCURRENT_KERNELS, 1),
    VALUE(MEMORY_CLOCK_RATE, 1000000),
    VALUE(GLOBAL_MEMORY_BUS_WIDTH, 512),
    VALUE(L2_CACHE_SIZE, 4 << 20),
    VALUE(MAX_THREADS_PER_MULTIPROCESSOR, 2048),
    VALUE(ASYNC_ENGINE_COUNT, 2),
    VALUE(UNIFIED_ADDRESSING, 1),
    VALUE(TEXTURE_PITCH_ALIGNMENT, 32),
    VALUE(MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28),
    VALUE(MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131072),
    VALUE(MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000),
    VALUE(MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2097120),
    VALUE(COMPUTE_CAPABILITY_MAJOR, 9),
    VALUE(COMPUTE_CAPABILITY_MINOR, 0),
    VALUE(STREAM_PRIORITIES_SUPPORTED, 1),
    VALUE(GLOBAL_L1_CACHE_SUPPORTED, 1),
    VALUE(LOCAL_L1_CACHE_SUPPORTED, 1),
    VALUE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472),
    VALUE(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    VALUE(MANAGED_MEMORY, 1),
    VALUE(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
    VALUE(CONCURRENT_MANAGED_ACCESS, 1),
    VALUE(COMPUTE_PREEMPTION_SUPPORTED, 1),
    VALUE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    VALUE(CAN_USE_STREAM_MEM_OPS_V1, 1),
    VALUE(CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1),
    VALUE(CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1),
    VALUE(COOPERATIVE_LAUNCH, 1),
    VALUE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448),
    VALUE(HOST_REGISTER_SUPPORTED, 1),
    VALUE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    VALUE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    VALUE(MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    VALUE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1),
    VALUE(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    VALUE(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    VALUE(MEMORY_POOLS_SUPPORTED, 1),
    VALUE(GPU_DIRECT_RDMA_SUPPORTED, 1),
    VALUE(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1),
    VALUE(GPU_DIRECT_RDMA_WRITES_ORDERING, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES),
    VALUE(CLUSTER_LAUNCH, 1),
    VALUE(CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    VALUE(CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    VALUE(DMA_BUF_SUPPORTED, 1),
    VALUE(MEM_SYNC_DOMAIN_COUNT, 4),
    VALUE(TENSOR_MAP_ACCESS_SUPPORTED, 1),
    VALUE(UNIFIED_FUNCTION_POINTERS, 1),
    VALUE(NUMA_ID, -1),
    VALUE(HOST_NUMA_ID, -1),
};
#undef VALUE

/* Bytes of shared memory that a block can ask for (CUDA programming guide, capabilities). */
static int shared_bytes_of(int capability)
{
    switch (capability) {
    case 70:
        return 98304;
    case 75:
        return 65536;
    case 80:
    case 87:
        return 166912;
    case 86:
    case 89:
    case 120:
    case 121:
        return 101376;
    default:
        return 232448;
    }
}

/* The environment's value of an attribute, or else the table's. */
static int attribute_of(CUdevice_attribute attribute)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return sim_config.capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return sim_config.capability % 10;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return sim_config.multiprocessors;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return shared_bytes_of(sim_config.capability);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return shared_bytes_of(sim_config.capability) + 1024;
    default:
        return attributes[attribute];
    }
}

static const char *name_of_devices(void)
{
    const char *name = getenv("SIMCUDA_NAME");
    return name != NULL && name[0] != '\0' ? name : "Simulated CUDA device";
}

CUresult sim_device_check(CUdevice device)
{
    return device >= 0 && device < sim_config.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetCount(int *count)
{
    SIM_ENTER_QUERY(cuDeviceGetCount);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim_config.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    SIM_ENTER_QUERY(cuDeviceGet);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(ordinal);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetName);
    if (name == NULL || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)len, "%s", name_of_devices());
    return result;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(device);
    if (result != CUDA_SUCCESS)
        return result;
    const uint64_t settings = sim_settings_hash();
    memcpy(uuid->bytes, "simcuda", 7);
    memcpy(uuid->bytes + 7, &settings, sizeof(settings));
    uuid->bytes[sizeof(uuid->bytes) - 1] = (char)device;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetUuid);
    return get_uuid(uuid, dev);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetUuid_v2);
    return get_uuid(uuid, dev);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceTotalMem_v2);
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result == CUDA_SUCCESS)
        *bytes = sim_config.memory_bytes;
    return result;
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetAttribute);
    if (pi == NULL || (int)attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result != CUDA_SUCCESS)
        return result;
    if (attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *pi = dev + 1;
    else if (attrib == CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID)
        *pi = dev;
    else if (attrib == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
        *pi = sim_config.pageable;
    else if (attrib == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
        *pi = sim_config.has_switch;
    else if (attrib == CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED)
        *pi = sim_driver_version() >= 13000; /* the first that has this attribute */
    else
        *pi = attribute_of(attrib);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceComputeCapability);
    if (major == NULL || minor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result == CUDA_SUCCESS) {
        *major = sim_config.capability / 10;
        *minor = sim_config.capability % 10;
    }
    return result;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetProperties);
    if (prop == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result != CUDA_SUCCESS)
        return result;
    *prop = (CUdevprop){
        .maxThreadsPerBlock = attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {0x7FFFFFFF, 65535, 65535},
        .sharedMemPerBlock = attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
        .totalConstantMemory = attributes[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY],
        .SIMDWidth = attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE],
        .memPitch = attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH],
        .regsPerBlock = attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK],
        .clockRate = attributes[CU_DEVICE_ATTRIBUTE_CLOCK_RATE],
        .textureAlign = attributes[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT],
    };
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetPCIBusId);
    if (pciBusId == NULL || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result == CUDA_SUCCESS)
        snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", dev + 1);
    return result;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    SIM_ENTER_QUERY(cuDeviceGetByPCIBusId);
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    if (dev == NULL || pciBusId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (domain != 0 || slot != 0 || bus == 0 || sim_device_check((CUdevice)bus - 1) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    *dev = (CUdevice)bus - 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    SIM_ENTER_QUERY(cuDeviceCanAccessPeer);
    if (canAccessPeer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_device_check(dev) != CUDA_SUCCESS || sim_device_check(peerDev) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice)
{
    SIM_ENTER_QUERY(cuDeviceGetP2PAttribute);
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_device_check(srcDevice) != CUDA_SUCCESS ||
        sim_device_check(dstDevice) != CUDA_SUCCESS || srcDevice == dstDevice)
        return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format,
                                            unsigned numChannels, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetTexture1DLinearMaxWidth);
    (void)format;
    if (maxWidthInElements == NULL || numChannels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *maxWidthInElements = (size_t)1 << 28;
    return sim_device_check(dev);
}

CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    SIM_ENTER_QUERY(cuDeviceGetExecAffinitySupport);
    if (pi == NULL || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    *pi = 0;
    return sim_device_check(dev);
}
