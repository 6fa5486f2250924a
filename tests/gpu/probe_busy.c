/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls wait for work that is running on the device? Each call is made while a stream is kept
 * busy; when the stream is still busy afterwards, the call did not wait.
 */
#include "tests/gpu/probe.h"

#include <stdlib.h>
#include <string.h>

enum { BIG = 64 * 1024 * 1024, SMALL = 256 * 1024 };

/* Everything a call may need, made before the stream is busy. */
static struct {
    CUdeviceptr reserved, mapped, unmapped_again, spare, big, small, device, other_device;
    CUmemGenericAllocationHandle handle, spare_handle, new_handle;
    void *pageable, *pinned, *registered, *to_register;
    CUstream busy, other, new_stream;
    CUdeviceptr new_address, new_alloc, async_alloc;
    CUevent event;
} it;

static CUresult call_create(void)
{
    const CUmemAllocationProp property = probe_property();
    return CU(cuMemCreate, &it.new_handle, BIG, &property, 0);
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
    return CU(cuMemUnmap, it.mapped, GRANULE);
}

static CUresult call_release(void)
{
    return CU(cuMemRelease, it.spare_handle);
}

static CUresult call_reserve(void)
{
    return CU(cuMemAddressReserve, &it.new_address, GIB, 0, 0, 0);
}

static CUresult call_address_free(void)
{
    return CU(cuMemAddressFree, it.spare, GIB);
}

static CUresult call_alloc_big(void)
{
    return CU(cuMemAlloc_v2, &it.new_alloc, BIG);
}

static CUresult call_alloc_small(void)
{
    return CU(cuMemAlloc_v2, &it.new_alloc, SMALL);
}

static CUresult call_free_big(void)
{
    return CU(cuMemFree_v2, it.big);
}

static CUresult call_free_small(void)
{
    return CU(cuMemFree_v2, it.small);
}

static CUresult call_alloc_async(void)
{
    return CU(cuMemAllocAsync, &it.async_alloc, BIG, it.other);
}

static CUresult call_host_alloc(void)
{
    void *host;
    return CU(cuMemHostAlloc, &host, SMALL, 0);
}

static CUresult call_free_host(void)
{
    return CU(cuMemFreeHost, it.pinned);
}

static CUresult call_host_register(void)
{
    return CU(cuMemHostRegister_v2, it.to_register, SMALL, 0);
}

static CUresult call_host_unregister(void)
{
    return CU(cuMemHostUnregister, it.registered);
}

static CUresult call_get_info(void)
{
    size_t free_bytes, total_bytes;
    return CU(cuMemGetInfo_v2, &free_bytes, &total_bytes);
}

static CUresult call_pointer_attribute(void)
{
    unsigned value[4];
    return CU(cuPointerGetAttribute, value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, it.device);
}

static CUresult call_copy_in(void)
{
    return CU(cuMemcpyHtoD_v2, it.device, it.pageable, SMALL);
}

static CUresult call_copy_out(void)
{
    return CU(cuMemcpyDtoH_v2, it.pageable, it.device, SMALL);
}

static CUresult call_copy_device(void)
{
    return CU(cuMemcpyDtoD_v2, it.device, it.other_device, SMALL);
}

static CUresult call_memset(void)
{
    return CU(cuMemsetD8_v2, it.device, 1, SMALL);
}

static CUresult call_memset_other_stream(void)
{
    return CU(cuMemsetD8Async, it.device, 1, SMALL, it.other);
}

static CUresult call_copy_in_other_stream(void)
{
    return CU(cuMemcpyHtoDAsync_v2, it.device, it.pageable, SMALL, it.other);
}

static CUresult call_copy_out_other_stream(void)
{
    return CU(cuMemcpyDtoHAsync_v2, it.pageable, it.device, SMALL, it.other);
}

static CUresult call_stream_create(void)
{
    return CU(cuStreamCreate, &it.new_stream, CU_STREAM_NON_BLOCKING);
}

static CUresult call_launch_other_stream(void)
{
    CUdeviceptr address = it.device;
    uint32_t value = 1;
    void *parameters[] = {&address, &value};
    return CU(cuLaunchKernel, probe_kernel("probe_store"), 1, 1, 1, 1, 1, 1, 0, it.other,
              parameters, NULL);
}

static CUresult call_other_stream_synchronize(void)
{
    return CU(cuStreamSynchronize, it.other);
}

static CUresult call_legacy_synchronize(void)
{
    return CU(cuStreamSynchronize, NULL);
}

static CUresult call_context_synchronize(void)
{
    return CU(cuCtxSynchronize);
}

/* As the shim waits for a context: no capture is ended by the wait. */
static CUresult call_context_event(void)
{
    const CUresult result = CU(cuCtxRecordEvent, probe_context, it.event);
    return result == CUDA_SUCCESS ? CU(cuEventSynchronize, it.event) : result;
}

static const struct call {
    const char *name;
    CUresult (*make)(void);
} calls[] = {
    {"cuMemAddressReserve", call_reserve},
    {"cuMemCreate_64_mib", call_create},
    {"cuMemMap", call_map},
    {"cuMemSetAccess", call_set_access},
    {"cuMemUnmap", call_unmap},
    {"cuMemRelease", call_release},
    {"cuMemAddressFree", call_address_free},
    {"cuMemAlloc_64_mib", call_alloc_big},
    {"cuMemAlloc_256_kib", call_alloc_small},
    {"cuMemFree_64_mib", call_free_big},
    {"cuMemFree_256_kib", call_free_small},
    {"cuMemAllocAsync_other_stream", call_alloc_async},
    {"cuMemHostAlloc", call_host_alloc},
    {"cuMemFreeHost", call_free_host},
    {"cuMemHostRegister", call_host_register},
    {"cuMemHostUnregister", call_host_unregister},
    {"cuMemGetInfo", call_get_info},
    {"cuPointerGetAttribute", call_pointer_attribute},
    {"cuMemcpyHtoD_pageable", call_copy_in},
    {"cuMemcpyDtoH_pageable", call_copy_out},
    {"cuMemcpyDtoD", call_copy_device},
    {"cuMemsetD8", call_memset},
    {"cuMemsetD8Async_other_stream", call_memset_other_stream},
    {"cuMemcpyHtoDAsync_pageable_other_stream", call_copy_in_other_stream},
    {"cuMemcpyDtoHAsync_pageable_other_stream", call_copy_out_other_stream},
    {"cuStreamCreate", call_stream_create},
    {"cuLaunchKernel_other_stream", call_launch_other_stream},
    {"cuStreamSynchronize_other_stream", call_other_stream_synchronize},
    {"cuStreamSynchronize_legacy", call_legacy_synchronize},
    {"cuCtxSynchronize", call_context_synchronize},
    {"cuEventSynchronize_of_context", call_context_event},
};

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
    it.pageable = calloc(1, SMALL);
    it.pinned = probe_pinned(SMALL);
    it.to_register = aligned_alloc(4096, SMALL);
    it.registered = aligned_alloc(4096, SMALL);
    if (it.pageable == NULL || it.to_register == NULL || it.registered == NULL)
        probe_fail("malloc");
    memset(it.to_register, 1, SMALL);
    memset(it.registered, 1, SMALL);
    TRY(cuMemHostRegister_v2, it.registered, SMALL, 0);
    it.other = probe_stream(CU_STREAM_NON_BLOCKING);
    /* Warm what is set up lazily, the pool and the first launch, so that only waiting is seen. */
    TRY(cuMemsetD8_v2, it.device, 0, SMALL);
    TRY(cuMemcpyHtoD_v2, it.device, it.pageable, SMALL);
    if (CU(cuMemAllocAsync, &it.async_alloc, BIG, it.other) == CUDA_SUCCESS)
        CU(cuMemFreeAsync, it.async_alloc, it.other);
    if (busy_kernel_available())
        call_launch_other_stream();
    TRY(cuCtxSynchronize);
}

struct way {
    enum busy_kind kind;
    unsigned stream_flags;
};

static void make_call(const struct call *call, enum busy_kind kind)
{
    js_open(call->name);
    busy_start(it.busy, kind, probe_quick ? 50 : 60);
    const int64_t start_ns = probe_clock_ns();
    const CUresult result = call->make();
    const int64_t call_ns = probe_clock_ns() - start_ns;
    const CUresult query = CU(cuStreamQuery, it.busy);
    js_result("result", result);
    js_number("us", (double)call_ns / 1e3);
    js_bool("waited", query == CUDA_SUCCESS);
    TRY(cuCtxSynchronize);
    js_close();
}

static void try_all(void *way_)
{
    const struct way *const way = way_;
    if (way->kind == BUSY_KERNEL && !busy_kernel_available())
        probe_fail("no kernel could be loaded and run");
    prepare();
    it.busy = probe_stream(way->stream_flags);
    for (size_t i = 0; i < ARRAY_COUNT(calls); i++) {
        const bool launches = calls[i].make == call_launch_other_stream;
        if (!launches || busy_kernel_available())
            make_call(&calls[i], way->kind);
    }
}

void section_busy(void *unused)
{
    (void)unused;
    static struct way ways[] = {
        {BUSY_KERNEL, CU_STREAM_NON_BLOCKING},
        {BUSY_KERNEL, CU_STREAM_DEFAULT},
        {BUSY_HOST_FUNCTION, CU_STREAM_NON_BLOCKING},
        {BUSY_HOST_FUNCTION, CU_STREAM_DEFAULT},
    };
    static const char *const keys[] = {"kernel_on_nonblocking_stream", "kernel_on_blocking_stream",
                                       "host_function_on_nonblocking_stream",
                                       "host_function_on_blocking_stream"};
    probe_driver_start();
    for (size_t i = 0; i < ARRAY_COUNT(ways); i++)
        probe_step(keys[i], try_all, &ways[i]);
}
