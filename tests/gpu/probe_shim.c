/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's own calls, with the properties and at the addresses that it uses. */
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

static void granularity(size_t unused)
{
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

static void hints(size_t unused)
{
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
    probe_give_access(address, GRANULES * GRANULE);
    TRY(cuMemsetD8_v2, address, 0, GRANULES * GRANULE);
    TRY(cuCtxSynchronize);
    return address;
}

static unsigned char expected(size_t row, size_t column)
{
    return (unsigned char)(1 + (row * 31 + column * 7 + (column >> 12)) % 251);
}

/* Read back granule by granule, so that no copy of the comparison meets two handles. */
static long long wrong_bytes(CUdeviceptr address)
{
    unsigned char *const seen = probe_malloc(GRANULES * GRANULE);
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

static void copies_2d(size_t unused)
{
    unsigned char *const host = probe_malloc((size_t)ROWS * ROW_BYTES);
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
    CUdeviceptr reserved, block, device;
    CUmemGenericAllocationHandle handle, spare;
    CUstream stream;
    CUevent event;
    char host[4096];
} it;

static struct {
    const char *key;
    CUresult result;
} answers[32];
static size_t answer_count;

static void *make_calls(void *unused)
{
    const CUmemAllocationProp property = probe_property();
    CUdeviceptr other = 0;
    size_t free_bytes, total_bytes;
    unsigned value[4];
/* Printed later: nothing may take time between the calls. */
#define ANSWER(key_, ...) \
    (answers[answer_count].key = key_, answers[answer_count++].result = __VA_ARGS__)
#define ASK(key, ...) ANSWER(key, CU(__VA_ARGS__))
    ASK("cuMemGetAllocationGranularity", cuMemGetAllocationGranularity, &free_bytes, &property,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    ASK("cuMemAddressReserve", cuMemAddressReserve, &other, GRANULE, 0, 0, 0);
    ASK("cuMemAddressFree", cuMemAddressFree, other, GRANULE);
    ASK("cuMemCreate", cuMemCreate, &it.spare, GRANULE, &property, 0);
    ASK("cuMemRelease", cuMemRelease, it.spare);
    ASK("cuMemMap", cuMemMap, it.reserved, GRANULE, 0, it.handle, 0);
    ANSWER("cuMemSetAccess", probe_set_access(it.reserved, GRANULE));
    ASK("cuMemUnmap", cuMemUnmap, it.reserved, GRANULE);
    ASK("cuMemAlloc", cuMemAlloc_v2, &other, MIB);
    ASK("cuMemFree", cuMemFree_v2, it.block);
    ASK("cuMemGetInfo", cuMemGetInfo_v2, &free_bytes, &total_bytes);
    ASK("cuPointerGetAttribute", cuPointerGetAttribute, value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        it.device);
    ASK("cuMemcpyHtoD", cuMemcpyHtoD_v2, it.device, it.host, sizeof(it.host));
    ASK("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, it.device, it.host, sizeof(it.host), it.stream);
    ASK("cuMemsetD8Async", cuMemsetD8Async, it.device, 1, 4096, it.stream);
    ASK("cuStreamQuery", cuStreamQuery, it.stream);
    ASK("cuStreamSynchronize", cuStreamSynchronize, it.stream);
    ASK("cuStreamQuery_legacy", cuStreamQuery, NULL);
    ASK("cuEventRecord", cuEventRecord, it.event, it.stream);
    ASK("cuEventQuery", cuEventQuery, it.event);
    ASK("cuEventSynchronize", cuEventSynchronize, it.event);
    ASK("cuCtxRecordEvent", cuCtxRecordEvent, probe_context, it.event);
    ASK("cuEventDestroy", cuEventDestroy_v2, it.event);
    return NULL;
}

/* A new thread has no current context; the device's primary one is retained, and used by others. */
static void no_context(size_t unused)
{
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
    for (size_t i = 0; i < answer_count; i++)
        js_result(answers[i].key, answers[i].result);
    probe_wait(0);
}

const struct probe_row section_shim[] = {
    {"granularity", granularity},       {"hints", hints}, {"copies_over_handles", copies_2d},
    {"no_current_context", no_context}, {NULL},
};
