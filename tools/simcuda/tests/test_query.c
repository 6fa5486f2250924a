/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about devices and pointers. */
#include "tools/simcuda/tests/program.h"

#include <stdlib.h>

static uint64_t ask(CUpointer_attribute attribute, CUdeviceptr address, size_t bytes)
{
    uint64_t value = 0x1111111111111111;
    OK(cuPointerGetAttribute(&value, attribute, address));
    return bytes == 4 ? (uint32_t)value : value;
}

#define INT(name, address) (int)ask(CU_POINTER_ATTRIBUTE_##name, address, 4)
#define LONG(name, address) ask(CU_POINTER_ATTRIBUTE_##name, address, 8)

static CUresult fails(CUpointer_attribute attribute, CUdeviceptr address)
{
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS value; /* the largest */
    return cuPointerGetAttribute(&value, attribute, address);
}

/* How many bytes are written. */
static size_t width(CUpointer_attribute attribute, CUdeviceptr address)
{
    unsigned char first[32], second[32];
    size_t bytes = 0;
    memset(first, 0x11, sizeof(first));
    memset(second, 0x22, sizeof(second));
    OK(cuPointerGetAttribute(first, attribute, address));
    OK(cuPointerGetAttribute(second, attribute, address));
    for (size_t i = 0; i < sizeof(first); i++)
        bytes += first[i] == second[i];
    return bytes;
}

#define FIRST CU_POINTER_ATTRIBUTE_CONTEXT
#define LAST CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE

MS_TEST(answers_have_a_width)
{
    start();
    CUdeviceptr address;
    OK(cuMemAlloc(&address, 4 * MIB));
    static const unsigned char widths[] = {
        [CU_POINTER_ATTRIBUTE_CONTEXT] = 8,
        [CU_POINTER_ATTRIBUTE_MEMORY_TYPE] = 4,
        [CU_POINTER_ATTRIBUTE_DEVICE_POINTER] = 8,
        [CU_POINTER_ATTRIBUTE_P2P_TOKENS] = 12,
        [CU_POINTER_ATTRIBUTE_SYNC_MEMOPS] = 4,
        [CU_POINTER_ATTRIBUTE_BUFFER_ID] = 8,
        [CU_POINTER_ATTRIBUTE_IS_MANAGED] = 4,
        [CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL] = 4,
        [CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] = 4,
        [CU_POINTER_ATTRIBUTE_RANGE_START_ADDR] = 8,
        [CU_POINTER_ATTRIBUTE_RANGE_SIZE] = 8,
        [CU_POINTER_ATTRIBUTE_MAPPED] = 4,
        [CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES] = 8,
        [CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE] = 4,
        [CU_POINTER_ATTRIBUTE_ACCESS_FLAGS] = 4,
        [CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE] = 8,
        [CU_POINTER_ATTRIBUTE_MAPPING_SIZE] = 8,
        [CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR] = 8,
        [CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID] = 8,
        [CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE] = 4,
    };
    for (int i = FIRST; i <= LAST; i++) {
        if (widths[i] != 0)
            CHECK_EQ(width((CUpointer_attribute)i, address), widths[i]);
    }
}

MS_TEST(reserved_addresses_have_no_attributes)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_CONTEXT;
    unsigned sync = 1;
    uint64_t value = 77;
    void *data = &value;
    back(address, 2 * MIB);
    for (int i = FIRST; i <= LAST; i++)
        CHECK_EQ(fails((CUpointer_attribute)i, address + 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttributes(1, &attribute, &data, address + 2 * MIB));
    CHECK_EQ(value, 0);
    FAILS(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address + 2 * MIB),
          CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(mappings_without_access_are_no_addresses_of_the_device)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    CUdeviceptr base;
    size_t bytes;
    uint64_t value = 77;
    void *data = &value;
    OK(cuMemMap(address, 4 * MIB, 0, create(4 * MIB), 0));
    FAILS(cuPointerGetAttribute(&value, attribute, address + 100), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(value, 0);
    OK(cuPointerGetAttributes(1, &attribute, &data, address));
    CHECK_EQ(value, 0);
    FAILS(cuMemGetAddressRange(&base, &bytes, address), CUDA_ERROR_NOT_FOUND);
    CHECK_EQ(INT(MEMORY_TYPE, address), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(INT(ACCESS_FLAGS, address), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK_EQ(LONG(RANGE_SIZE, address), 8 * MIB);
    CHECK_EQ(LONG(MAPPING_SIZE, address), 4 * MIB);
    OK(set_access(address, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CHECK_EQ(LONG(DEVICE_POINTER, address + 100), address + 100);
    OK(cuMemGetAddressRange(&base, &bytes, address));
    CHECK_EQ(bytes, 4 * MIB);
}

MS_TEST(allocations)
{
    const CUcontext context = start();
    CUdeviceptr address;
    CUdeviceptr base;
    size_t bytes;
    OK(cuMemAlloc(&address, 3000000));
    const CUdeviceptr inside = address + 2999999;
    CHECK_EQ(LONG(CONTEXT, inside), (uint64_t)context);
    CHECK_EQ(INT(MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(LONG(DEVICE_POINTER, inside), inside);
    CHECK_EQ(fails(CU_POINTER_ATTRIBUTE_HOST_POINTER, inside), CUDA_ERROR_INVALID_VALUE);
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    OK(cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, inside));
    CHECK_EQ(INT(IS_MANAGED, inside), 0);
    CHECK_EQ(INT(DEVICE_ORDINAL, inside), 0);
    CHECK_EQ(INT(IS_LEGACY_CUDA_IPC_CAPABLE, inside), 1);
    CHECK_EQ(LONG(RANGE_START_ADDR, inside), address);
    CHECK_EQ(LONG(RANGE_SIZE, inside), 3000000);
    CHECK_EQ(INT(MAPPED, inside), 1);
    CHECK_EQ(LONG(ALLOWED_HANDLE_TYPES, inside), 0);
    CHECK_EQ(INT(IS_GPU_DIRECT_RDMA_CAPABLE, inside), 1);
    CHECK_EQ(INT(ACCESS_FLAGS, inside), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQ(LONG(MEMPOOL_HANDLE, inside), 0);
    OK(cuMemGetAddressRange(&base, &bytes, inside));
    CHECK_EQ(base, address);
    CHECK_EQ(bytes, 3000000);
    const uint64_t id = LONG(BUFFER_ID, address);
    OK(cuMemFree(address));
    CHECK_EQ(fails(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&address, 3000000));
    CHECK(LONG(BUFFER_ID, address) != id);
    CHECK_EQ(fails((CUpointer_attribute)99, address), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(mapped_memory)
{
    start();
    CUdeviceptr base;
    size_t bytes;
    unsigned sync = 1;
    const CUdeviceptr address = reserve(8 * MIB);
    CHECK_EQ(fails(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemGetAddressRange(&base, &bytes, address), CUDA_ERROR_NOT_FOUND);
    back(address + 2 * MIB, 2 * MIB);
    back(address + 4 * MIB, 4 * MIB);
    const CUdeviceptr inside = address + 5 * MIB;
    OK(cuMemGetAddressRange(&base, &bytes, inside));
    CHECK_EQ(base, address + 4 * MIB);
    CHECK_EQ(bytes, 4 * MIB);
    CHECK_EQ(LONG(MAPPING_BASE_ADDR, inside), address + 4 * MIB);
    CHECK_EQ(LONG(MAPPING_SIZE, inside), 4 * MIB);
    CHECK_EQ(LONG(RANGE_START_ADDR, inside), address);
    CHECK_EQ(LONG(RANGE_SIZE, inside), 8 * MIB);
    CHECK_EQ(LONG(CONTEXT, inside), 0);
    CHECK_EQ(INT(MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(INT(IS_LEGACY_CUDA_IPC_CAPABLE, inside), 0);
    CHECK_EQ(INT(IS_GPU_DIRECT_RDMA_CAPABLE, inside), 0);
    CHECK_EQ(INT(MAPPED, inside), 1);
    CHECK_EQ(INT(DEVICE_ORDINAL, inside), 0);
    CHECK(LONG(BUFFER_ID, inside) != LONG(BUFFER_ID, address + 2 * MIB));
    FAILS(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside),
          CUDA_ERROR_NOT_SUPPORTED);
}

MS_TEST(host_and_managed_memory)
{
    const CUcontext context = start();
    CUdeviceptr managed;
    void *pinned;
    unsigned sync = 1;
    OK(cuMemAllocHost(&pinned, 100));
    const CUdeviceptr address = (CUdeviceptr)pinned;
    CHECK_EQ(INT(MEMORY_TYPE, address), CU_MEMORYTYPE_HOST);
    CHECK_EQ(LONG(HOST_POINTER, address + 1), address + 1);
    CHECK_EQ(LONG(DEVICE_POINTER, address), address);
    CHECK_EQ(LONG(CONTEXT, address), (uint64_t)context);
    OK(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    CHECK_EQ(INT(SYNC_MEMOPS, address), 1);
    OK(cuMemAllocManaged(&managed, 100, CU_MEM_ATTACH_GLOBAL));
    CHECK_EQ(INT(IS_MANAGED, managed), 1);
    CHECK_EQ(INT(MEMORY_TYPE, managed), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(LONG(HOST_POINTER, managed), managed);
}

MS_TEST(unknown_pointers)
{
    start();
    int on_stack;
    const CUdeviceptr address = (CUdeviceptr)&on_stack;
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };
    unsigned type = 77;
    CUcontext context = (CUcontext)&on_stack;
    unsigned managed = 77;
    size_t bytes = 77;
    void *data[] = {&type, &context, &managed, &bytes};
    CHECK_EQ(fails(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(fails(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttributes(4, attributes, data, address));
    CHECK_EQ(type, 0);
    CHECK(context == NULL);
    CHECK_EQ(managed, 0);
    CHECK_EQ(bytes, 77);
    FAILS(cuPointerGetAttributes(0, attributes, data, address), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemGetAddressRange(NULL, &bytes, address), CUDA_ERROR_NOT_FOUND);
}

MS_TEST(several_attributes_at_once)
{
    const CUcontext context = start();
    CUdeviceptr address;
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    };
    unsigned type = 77;
    void *host = &address;
    CUcontext owner = NULL;
    int device = 77;
    void *data[] = {&type, &host, &owner, &device};
    OK(cuMemAlloc(&address, 100));
    OK(cuPointerGetAttributes(4, attributes, data, address));
    CHECK_EQ(type, CU_MEMORYTYPE_DEVICE);
    CHECK(host == NULL);
    CHECK(owner == context);
    CHECK_EQ(device, 0);
}

static int attribute(CUdevice_attribute name)
{
    int value;
    OK(cuDeviceGetAttribute(&value, name, 0));
    return value;
}

MS_TEST(devices)
{
    setenv("SIMCUDA_DEVICES", "3", 1);
    setenv("SIMCUDA_MEMORY_MIB", "100", 1);
    OK(cuInit(0));
    int count;
    CUdevice device;
    char name[64];
    char bus[32];
    size_t bytes;
    CUuuid first;
    CUuuid second;
    OK(cuDeviceGetCount(&count));
    CHECK_EQ(count, 3);
    OK(cuDeviceGet(&device, 2));
    FAILS(cuDeviceGet(&device, 3), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetName(name, sizeof(name), 2));
    CHECK_EQ(strcmp(name, "Simulated CUDA device"), 0);
    OK(cuDeviceTotalMem(&bytes, 2));
    CHECK_EQ(bytes, 100 * MIB);
    OK(cuDeviceGetUuid(&first, 0));
    OK(cuDeviceGetUuid(&second, 1));
    CHECK(memcmp(&first, &second, sizeof(first)) != 0);
    OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 2));
    OK(cuDeviceGetByPCIBusId(&device, bus));
    CHECK_EQ(device, 2);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED), 1);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED), 0);
    FAILS(cuDeviceGetAttribute(&count, (CUdevice_attribute)9999, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 3),
          CUDA_ERROR_INVALID_DEVICE);
}

MS_TEST(errors_have_names)
{
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK_EQ(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"), 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK_EQ(strcmp(text, "out of memory"), 0);
    FAILS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(text == NULL);
}

MS_TEST(there_are_no_export_tables)
{
    const void *table = &table;
    const CUuuid id = {{1}};
    FAILS(cuGetExportTable(&table, &id), CUDA_ERROR_INVALID_VALUE);
    CHECK(table == NULL);
}
