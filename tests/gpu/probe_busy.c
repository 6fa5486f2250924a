/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls wait for work that is running on the device? Each call is made while a stream is kept
 * busy; when the stream is still busy afterwards, the call did not wait.
 */
#include "tests/gpu/probe.h"

#include <string.h>

enum { BIG = 64 * 1024 * 1024, SMALL = 256 * 1024 };

/* Everything a call may need, made before the stream is busy. */
static struct {
    CUdeviceptr reserved, mapped, spare, big, small, device, other_device, new_address;
    CUmemGenericAllocationHandle handle, spare_handle, new_handle;
    void *pageable, *pinned, *registered, *to_register, *new_host;
    CUstream busy, other, new_stream;
    CUevent event;
} it;

/* As the shim waits for a context: no capture is ended by the wait. */
static CUresult wait_for_event_of_context(void)
{
    const CUresult result = CU(cuCtxRecordEvent, probe_context, it.event);
    return result == CUDA_SUCCESS ? CU(cuEventSynchronize, it.event) : result;
}

static void prepare(void)
{
    it.reserved = probe_reserve(GRANULE);
    it.mapped = probe_mapped(GRANULE);
    it.spare = probe_reserve(GIB);
    it.handle = probe_create(GRANULE);
    it.spare_handle = probe_create(BIG);
    it.big = probe_alloc(BIG);
    it.small = probe_alloc(SMALL);
    it.device = probe_alloc(SMALL);
    it.other_device = probe_alloc(SMALL);
    TRY(cuEventCreate, &it.event, CU_EVENT_DISABLE_TIMING);
    it.pinned = probe_pinned(SMALL);
    it.pageable = memset(probe_malloc(SMALL), 0, SMALL);
    it.to_register = memset(probe_malloc(SMALL), 1, SMALL);
    it.registered = memset(probe_malloc(SMALL), 1, SMALL);
    TRY(cuMemHostRegister_v2, it.registered, SMALL, 0);
    it.other = probe_stream(CU_STREAM_NON_BLOCKING);
    /* Warm what is set up lazily, the pool and the first launch, so that only waiting is seen. */
    TRY(cuMemsetD8_v2, it.device, 0, SMALL);
    TRY(cuMemcpyHtoD_v2, it.device, it.pageable, SMALL);
    if (CU(cuMemAllocAsync, &it.new_address, BIG, it.other) == CUDA_SUCCESS)
        CU(cuMemFreeAsync, it.new_address, it.other);
    if (busy_kernel_available())
        probe_kernel_store(it.device, 1, it.other);
    TRY(cuCtxSynchronize);
}

static enum busy_kind kind;
static int64_t start_ns;

static void begin(const char *key)
{
    js_open(key);
    busy_start(it.busy, kind, probe_quick ? 50 : 60);
    start_ns = probe_clock_ns();
}

static void end(CUresult result)
{
    const int64_t call_ns = probe_clock_ns() - start_ns;
    const CUresult query = CU(cuStreamQuery, it.busy);
    js_result("result", result);
    js_us("us", call_ns);
    js_bool("waited", query == CUDA_SUCCESS);
    TRY(cuCtxSynchronize);
    js_close();
}

/* One call behind work. */
#define ASK_RESULT(key, ...) (begin(key), end(__VA_ARGS__))
#define ASK(key, name, ...) ASK_RESULT(key, CU(name, __VA_ARGS__))

static void ask_all(void)
{
    const CUmemAllocationProp property = probe_property();
    size_t free_bytes, total_bytes;
    unsigned value[4];
    ASK("cuMemAddressReserve", cuMemAddressReserve, &it.new_address, GIB, 0, 0, 0);
    ASK("cuMemCreate_64_mib", cuMemCreate, &it.new_handle, BIG, &property, 0);
    ASK("cuMemMap", cuMemMap, it.reserved, GRANULE, 0, it.handle, 0);
    ASK_RESULT("cuMemSetAccess", probe_set_access(it.reserved, GRANULE));
    ASK("cuMemUnmap", cuMemUnmap, it.mapped, GRANULE);
    ASK("cuMemRelease", cuMemRelease, it.spare_handle);
    ASK("cuMemAddressFree", cuMemAddressFree, it.spare, GIB);
    ASK("cuMemAlloc_64_mib", cuMemAlloc_v2, &it.new_address, BIG);
    ASK("cuMemAlloc_256_kib", cuMemAlloc_v2, &it.new_address, SMALL);
    ASK("cuMemFree_64_mib", cuMemFree_v2, it.big);
    ASK("cuMemFree_256_kib", cuMemFree_v2, it.small);
    ASK("cuMemAllocAsync_other_stream", cuMemAllocAsync, &it.new_address, BIG, it.other);
    ASK("cuMemHostAlloc", cuMemHostAlloc, &it.new_host, SMALL, 0);
    ASK("cuMemFreeHost", cuMemFreeHost, it.pinned);
    ASK("cuMemHostRegister", cuMemHostRegister_v2, it.to_register, SMALL, 0);
    ASK("cuMemHostUnregister", cuMemHostUnregister, it.registered);
    ASK("cuMemGetInfo", cuMemGetInfo_v2, &free_bytes, &total_bytes);
    ASK("cuPointerGetAttribute", cuPointerGetAttribute, value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        it.device);
    ASK("cuMemcpyHtoD_pageable", cuMemcpyHtoD_v2, it.device, it.pageable, SMALL);
    ASK("cuMemcpyDtoH_pageable", cuMemcpyDtoH_v2, it.pageable, it.device, SMALL);
    ASK("cuMemcpyDtoD", cuMemcpyDtoD_v2, it.device, it.other_device, SMALL);
    ASK("cuMemsetD8", cuMemsetD8_v2, it.device, 1, SMALL);
    ASK("cuMemsetD8Async_other_stream", cuMemsetD8Async, it.device, 1, SMALL, it.other);
    ASK("cuMemcpyHtoDAsync_pageable_other_stream", cuMemcpyHtoDAsync_v2, it.device, it.pageable,
        SMALL, it.other);
    ASK("cuMemcpyDtoHAsync_pageable_other_stream", cuMemcpyDtoHAsync_v2, it.pageable, it.device,
        SMALL, it.other);
    ASK("cuStreamCreate", cuStreamCreate, &it.new_stream, CU_STREAM_NON_BLOCKING);
    if (busy_kernel_available())
        ASK_RESULT("cuLaunchKernel_other_stream", probe_kernel_store(it.device, 1, it.other));
    ASK("cuStreamSynchronize_other_stream", cuStreamSynchronize, it.other);
    ASK("cuStreamSynchronize_legacy", cuStreamSynchronize, NULL);
    ASK_RESULT("cuCtxSynchronize", CU(cuCtxSynchronize));
    ASK_RESULT("cuEventSynchronize_of_context", wait_for_event_of_context());
}

static void try_all(enum busy_kind kind_, unsigned stream_flags)
{
    kind = kind_;
    if (kind == BUSY_KERNEL && !busy_kernel_available())
        probe_fail("no kernel could be loaded and run");
    prepare();
    it.busy = probe_stream(stream_flags);
    ask_all();
}

static void behind_kernel(size_t stream_flags)
{
    try_all(BUSY_KERNEL, (unsigned)stream_flags);
}

static void behind_host_function(size_t stream_flags)
{
    try_all(BUSY_HOST_FUNCTION, (unsigned)stream_flags);
}

const struct probe_row section_busy[] = {
    {"kernel_on_nonblocking_stream", behind_kernel, CU_STREAM_NON_BLOCKING},
    {"kernel_on_blocking_stream", behind_kernel, CU_STREAM_DEFAULT},
    {"host_function_on_nonblocking_stream", behind_host_function, CU_STREAM_NON_BLOCKING},
    {"host_function_on_blocking_stream", behind_host_function, CU_STREAM_DEFAULT},
    {NULL},
};
