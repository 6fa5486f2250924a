/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void *probe_library, *probe_functions[PLACE_COUNT];
CUdevice probe_device;
CUcontext probe_context;
bool probe_quick;
int64_t probe_start_ns;
const char *probe_kernel_file;

bool probe_driver_load(char *error, size_t capacity)
{
#define NAME(name) #name
    static const char *const names[PLACE_COUNT] = {PROBE_DRIVER(NAME)};
    probe_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (probe_library == NULL) {
        snprintf(error, capacity, "%s", dlerror());
        return false;
    }
    for (int i = 0; i < PLACE_COUNT; i++)
        probe_functions[i] = dlsym(probe_library, names[i]);
    return true;
}

void probe_driver_load_or_fail(void)
{
    char error[512];
    if (!probe_driver_load(error, sizeof(error)))
        probe_fail("%s", error);
}

void probe_driver_start(void)
{
    if (probe_context != NULL)
        return;
    const int64_t start_ns = probe_clock_ns();
    probe_driver_load_or_fail();
    TRY(cuInit, 0);
    TRY(cuDeviceGet, &probe_device, 0);
    TRY(cuDevicePrimaryCtxRetain, &probe_context, probe_device);
    TRY(cuCtxSetCurrent, probe_context);
    probe_start_ns = probe_clock_ns() - start_ns;
}

void probe_wait(size_t unused)
{
    js_result("synchronize_at_the_end", CU(cuCtxSynchronize));
}

int64_t probe_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t probe_free_bytes(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    TRY(cuMemGetInfo_v2, &free_bytes, &total_bytes);
    return (int64_t)free_bytes;
}

CUmemLocation probe_location(void)
{
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device};
}

CUmemAllocationProp probe_property(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = probe_location()};
}

CUdeviceptr probe_reserve(size_t bytes)
{
    CUdeviceptr address = 0;
    TRY(cuMemAddressReserve, &address, bytes, 0, 0, 0);
    return address;
}

CUmemGenericAllocationHandle probe_create(size_t bytes)
{
    const CUmemAllocationProp property = probe_property();
    CUmemGenericAllocationHandle handle = 0;
    TRY(cuMemCreate, &handle, bytes, &property, 0);
    return handle;
}

void probe_map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    TRY(cuMemMap, address, bytes, 0, handle, 0);
}

CUresult probe_set_access_to(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags)
{
    const CUmemAccessDesc access = {.location = probe_location(), .flags = flags};
    return CU(cuMemSetAccess, address, bytes, &access, 1);
}

CUresult probe_set_access(CUdeviceptr address, size_t bytes)
{
    return probe_set_access_to(address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

void probe_give_access(CUdeviceptr address, size_t bytes)
{
    probe_require("cuMemSetAccess", probe_set_access(address, bytes));
}

CUdeviceptr probe_mapped(size_t bytes)
{
    const CUdeviceptr address = probe_reserve(bytes);
    const CUmemGenericAllocationHandle handle = probe_create(bytes);
    probe_map(address, bytes, handle);
    probe_give_access(address, bytes);
    TRY(cuMemRelease, handle);
    return address;
}

CUdeviceptr probe_alloc(size_t bytes)
{
    CUdeviceptr address = 0;
    TRY(cuMemAlloc_v2, &address, bytes);
    return address;
}

CUstream probe_stream(unsigned flags)
{
    CUstream stream = NULL;
    TRY(cuStreamCreate, &stream, flags);
    return stream;
}

void *probe_pinned(size_t bytes)
{
    void *host = NULL;
    TRY(cuMemHostAlloc, &host, bytes, 0);
    return host;
}

void *probe_malloc(size_t bytes)
{
    void *host = NULL;
    if (posix_memalign(&host, 4096, bytes) != 0)
        probe_fail("malloc");
    return host;
}

void samples_add(struct samples *samples, int64_t ns)
{
    if (samples->count < (int)ARRAY_COUNT(samples->ns))
        samples->ns[samples->count++] = ns;
}

static int compare_ns(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

void samples_print(struct samples *samples, const char *key)
{
    js_open(key);
    const int count = samples->count;
    js_int("count", count);
    if (count > 0) {
        qsort(samples->ns, (size_t)count, sizeof(samples->ns[0]), compare_ns);
        js_us("median_us", samples->ns[count / 2]);
        js_us("p90_us", samples->ns[count * 9 / 10]);
        js_us("least_us", samples->ns[0]);
        js_us("most_us", samples->ns[count - 1]);
    }
    js_close();
}
