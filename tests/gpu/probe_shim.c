/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim does itself, with the properties and at the addresses that it uses. */
#include "tests/gpu/probe.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- granularity */

/* As memory_properties() of runtime/memory/backing.c. */
static CUmemAllocationProp shim_property(void)
{
    CUmemAllocationProp property = probe_property();
    int value = 0;
    if (CU(cuDeviceGetAttribute, &value,
           CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, probe_device) == 0 &&
        value != 0)
        property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    value = 0;
    CU(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
       probe_device);
    property.allocFlags.gpuDirectRDMACapable = value != 0;
    return property;
}

static void granularity(void *unused)
{
    (void)unused;
    const CUmemAllocationProp property = shim_property();
    CUmemGenericAllocationHandle handle = 0;
    size_t bytes = 0;
    js_bool("posix_fd", property.requestedHandleTypes != 0);
    js_bool("rdma", property.allocFlags.gpuDirectRDMACapable != 0);
    TRY(cuMemGetAllocationGranularity, &bytes, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    js_int("minimum", (long long)bytes);
    TRY(cuMemGetAllocationGranularity, &bytes, &property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    js_int("recommended", (long long)bytes);
    js_result("create_of_one", CU(cuMemCreate, &handle, bytes, &property, 0));
    if (handle != 0)
        TRY(cuMemRelease, handle);
}

/* --- address hints */

static void hints(void *unused)
{
    (void)unused;
    static const struct {
        const char *key;
        uint64_t address;
    } rows[] = {
        {"low_1_gib", GIB},
        {"low_64_gib", 64 * GIB},
        {"low_1_tib", TIB},
        {"middle_32_tib", 32 * TIB},
        {"shim", UINT64_C(0x5a5b00000000)}, /* runtime/memory/addresses.c */
        {"shim_for_programs", UINT64_C(0x5e5b00000000)},
        {"far_126_tib", 126 * TIB},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        CUdeviceptr address = 0;
        const CUresult result = CU(cuMemAddressReserve, &address, GIB, GRANULE, rows[i].address, 0);
        js_open(rows[i].key);
        js_result("result", result);
        js_address("address", address);
        js_bool("honoured", result == CUDA_SUCCESS && address == rows[i].address);
        js_close();
        if (result == CUDA_SUCCESS)
            TRY(cuMemAddressFree, address, GIB);
    }
}

/* --- copies over several handles */

enum { GRANULES = 8, ROWS = 5, ROW_BYTES = 5 << 19, PITCH = (3 << 20) + 512, BEGIN = 4096 };

/* A handle for each granule. */
static CUdeviceptr map_granules(void)
{
    const CUdeviceptr address = probe_reserve(GRANULES * GRANULE);
    for (size_t i = 0; i < GRANULES; i++) {
        const CUmemGenericAllocationHandle handle = probe_create(GRANULE);
        probe_map(address + i * GRANULE, GRANULE, handle);
        TRY(cuMemRelease, handle);
    }
    probe_require("cuMemSetAccess", probe_set_access(address, GRANULES * GRANULE,
                                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    TRY(cuMemsetD8_v2, address, 0, GRANULES * GRANULE);
    TRY(cuCtxSynchronize);
    return address;
}

static unsigned char expected(size_t row, size_t column)
{
    return (unsigned char)(1 + (row * 31 + column * 7 + (column >> 12)) % 251);
}

static unsigned char *host_memory(size_t bytes)
{
    unsigned char *const host = malloc(bytes);
    if (host == NULL)
        probe_fail("malloc");
    return host;
}

/* Read back granule by granule, so that no copy of the comparison meets two handles. */
static long long wrong_bytes(CUdeviceptr address)
{
    unsigned char *const seen = host_memory(GRANULES * GRANULE);
    TRY(cuCtxSynchronize);
    for (size_t i = 0; i < GRANULES; i++)
        TRY(cuMemcpyDtoH_v2, seen + i * GRANULE, address + i * GRANULE, GRANULE);
    long long wrong = 0;
    for (size_t at = 0; at < GRANULES * GRANULE; at++) {
        const size_t row = at < BEGIN ? ROWS : (at - BEGIN) / PITCH;
        const size_t column = at < BEGIN ? 0 : (at - BEGIN) % PITCH;
        const bool inside = row < ROWS && column < ROW_BYTES;
        wrong += seen[at] != (inside ? expected(row, column) : 0);
    }
    free(seen);
    return wrong;
}

static void copies_2d(void *unused)
{
    (void)unused;
    unsigned char *const host = host_memory((size_t)ROWS * ROW_BYTES);
    for (size_t row = 0; row < ROWS; row++)
        for (size_t column = 0; column < ROW_BYTES; column++)
            host[row * ROW_BYTES + column] = expected(row, column);
    const CUdeviceptr from = map_granules(), to = map_granules();
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = host,
        .srcPitch = ROW_BYTES,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = from + BEGIN,
        .dstPitch = PITCH,
        .WidthInBytes = ROW_BYTES,
        .Height = ROWS,
    };
    js_result("in", CU(cuMemcpy2D_v2, &copy));
    js_int("in_wrong_bytes", wrong_bytes(from));
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcHost = NULL;
    copy.srcDevice = from + BEGIN;
    copy.srcPitch = PITCH;
    copy.dstDevice = to + BEGIN;
    js_result("on_the_device", CU(cuMemcpy2DAsync_v2, &copy, NULL));
    js_int("on_the_device_wrong_bytes", wrong_bytes(to));
    memset(host, 0, (size_t)ROWS * ROW_BYTES);
    copy.srcDevice = to + BEGIN;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstDevice = 0;
    copy.dstHost = host;
    copy.dstPitch = ROW_BYTES;
    js_result("out", CU(cuMemcpy2D_v2, &copy));
    long long wrong = 0;
    for (size_t row = 0; row < ROWS; row++)
        for (size_t column = 0; column < ROW_BYTES; column++)
            wrong += host[row * ROW_BYTES + column] != expected(row, column);
    js_int("out_wrong_bytes", wrong);
    js_result("one_dimension", CU(cuMemcpyDtoD_v2, to, from, GRANULES * GRANULE));
    js_int("one_dimension_wrong_bytes", wrong_bytes(to));
    js_result("set", CU(cuMemsetD2D8_v2, to + BEGIN, PITCH, 0, ROW_BYTES, ROWS));
    js_result("set_of_all", CU(cuMemsetD8_v2, to, 0, GRANULES * GRANULE));
    js_result("synchronize", CU(cuCtxSynchronize));
    free(host);
}

/* --- calls of a thread that has no current context */

static struct {
    CUdeviceptr reserved, mapped, block, device, other;
    CUmemGenericAllocationHandle handle, spare;
    CUstream stream;
    CUevent event;
    char host[4096];
} it;

static CUresult call_granularity(void)
{
    const CUmemAllocationProp property = probe_property();
    size_t bytes;
    return CU(cuMemGetAllocationGranularity, &bytes, &property,
              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

static CUresult call_reserve(void)
{
    return CU(cuMemAddressReserve, &it.other, GRANULE, 0, 0, 0);
}

static CUresult call_address_free(void)
{
    return CU(cuMemAddressFree, it.other, GRANULE);
}

static CUresult call_create(void)
{
    const CUmemAllocationProp property = probe_property();
    return CU(cuMemCreate, &it.spare, GRANULE, &property, 0);
}

static CUresult call_release(void)
{
    return CU(cuMemRelease, it.spare);
}

static CUresult call_map(void)
{
    return CU(cuMemMap, it.reserved, GRANULE, 0, it.handle, 0);
}

static CUresult call_set_access(void)
{
    return probe_set_access(it.reserved, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static CUresult call_unmap(void)
{
    return CU(cuMemUnmap, it.reserved, GRANULE);
}

static CUresult call_alloc(void)
{
    CUdeviceptr address;
    return CU(cuMemAlloc_v2, &address, MIB);
}

static CUresult call_free(void)
{
    return CU(cuMemFree_v2, it.block);
}

static CUresult call_get_info(void)
{
    size_t free_bytes, total_bytes;
    return CU(cuMemGetInfo_v2, &free_bytes, &total_bytes);
}

static CUresult call_attribute(void)
{
    unsigned value[4];
    return CU(cuPointerGetAttribute, value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, it.device);
}

static CUresult call_copy(void)
{
    return CU(cuMemcpyHtoD_v2, it.device, it.host, sizeof(it.host));
}

static CUresult call_copy_on_stream(void)
{
    return CU(cuMemcpyHtoDAsync_v2, it.device, it.host, sizeof(it.host), it.stream);
}

static CUresult call_set_on_stream(void)
{
    return CU(cuMemsetD8Async, it.device, 1, 4096, it.stream);
}

static CUresult call_stream_query(void)
{
    return CU(cuStreamQuery, it.stream);
}

static CUresult call_stream_synchronize(void)
{
    return CU(cuStreamSynchronize, it.stream);
}

static CUresult call_legacy_query(void)
{
    return CU(cuStreamQuery, NULL);
}

static CUresult call_event_record(void)
{
    return CU(cuEventRecord, it.event, it.stream);
}

static CUresult call_event_query(void)
{
    return CU(cuEventQuery, it.event);
}

static CUresult call_event_synchronize(void)
{
    return CU(cuEventSynchronize, it.event);
}

static CUresult call_context_record(void)
{
    return CU(cuCtxRecordEvent, probe_context, it.event);
}

static CUresult call_event_destroy(void)
{
    return CU(cuEventDestroy_v2, it.event);
}

static const struct {
    const char *name;
    CUresult (*make)(void);
} calls[] = {
    {"cuMemGetAllocationGranularity", call_granularity},
    {"cuMemAddressReserve", call_reserve},
    {"cuMemAddressFree", call_address_free},
    {"cuMemCreate", call_create},
    {"cuMemRelease", call_release},
    {"cuMemMap", call_map},
    {"cuMemSetAccess", call_set_access},
    {"cuMemUnmap", call_unmap},
    {"cuMemAlloc", call_alloc},
    {"cuMemFree", call_free},
    {"cuMemGetInfo", call_get_info},
    {"cuPointerGetAttribute", call_attribute},
    {"cuMemcpyHtoD", call_copy},
    {"cuMemcpyHtoDAsync", call_copy_on_stream},
    {"cuMemsetD8Async", call_set_on_stream},
    {"cuStreamQuery", call_stream_query},
    {"cuStreamSynchronize", call_stream_synchronize},
    {"cuStreamQuery_legacy", call_legacy_query},
    {"cuEventRecord", call_event_record},
    {"cuEventQuery", call_event_query},
    {"cuEventSynchronize", call_event_synchronize},
    {"cuCtxRecordEvent", call_context_record},
    {"cuEventDestroy", call_event_destroy},
};

static CUresult results[ARRAY_COUNT(calls)];

static void *make_calls(void *unused)
{
    (void)unused;
    for (size_t i = 0; i < ARRAY_COUNT(calls); i++)
        results[i] = calls[i].make();
    return NULL;
}

/* A new thread has no current context; the device's primary one is retained, and used by others. */
static void no_context(void *unused)
{
    (void)unused;
    pthread_t thread;
    it.reserved = probe_reserve(GRANULE);
    it.handle = probe_create(GRANULE);
    it.block = probe_alloc(4 * MIB);
    it.device = probe_alloc(MIB);
    it.stream = probe_stream(CU_STREAM_NON_BLOCKING);
    TRY(cuEventCreate, &it.event, CU_EVENT_DISABLE_TIMING);
    TRY(cuEventRecord, it.event, it.stream);
    if (pthread_create(&thread, NULL, make_calls, NULL) != 0)
        probe_fail("pthread_create");
    pthread_join(thread, NULL);
    for (size_t i = 0; i < ARRAY_COUNT(calls); i++)
        js_result(calls[i].name, results[i]);
    js_result("synchronize_at_the_end", CU(cuCtxSynchronize));
}

void section_shim(void *unused)
{
    (void)unused;
    probe_driver_start();
    probe_step("granularity", granularity, NULL);
    probe_step("hints", hints, NULL);
    probe_step("copies_over_handles", copies_2d, NULL);
    probe_step("no_current_context", no_context, NULL);
}
