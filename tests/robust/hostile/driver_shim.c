/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another shim of the driver: it answers dlsym, dlopen and cuGetProcAddress, has functions of its
 * own under the driver's names, makes cuMemAlloc of virtual memory, and gives numbers of its own
 * for handles and for shared memory. In the ways of
 *
 *     NVIDIA's cuInterpose   https://github.com/ai-dynamo/snapshot, docs/development/cuinterpose.md
 *     HAMi-core              https://github.com/Project-HAMi/HAMi-core, src/libvgpu.c
 *
 * As the first does, it replaces only what is in libcuda by its address, and goes on to what
 * RTLD_NEXT finds. With SHIM_BY_NAME, as the second, it replaces by name, and takes all from the
 * driver's library. With SHIM_AROUND it asks libc's own dlsym for that, whatever stands behind it.
 * With SHIM_KEEPS_INIT it has no cuInit.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef SHIM_KEEPS_INIT
#define OWN_INIT(ROW)
#else
#define OWN_INIT(ROW) ROW(cuInit)
EXPORT CUresult cuInit(unsigned flags);
#endif
#define OWN(ROW)                 \
    OWN_INIT(ROW)                \
    ROW(cuGetProcAddress)        \
    ROW(cuGetProcAddress_v2)     \
    ROW(cuMemAlloc_v2)           \
    ROW(cuMemFree_v2)            \
    ROW(cuMemGetAddressRange_v2) \
    ROW(cuMemCreate)             \
    ROW(cuMemMap)                \
    ROW(cuMemRelease)            \
    ROW(cuIpcGetMemHandle)       \
    ROW(cuIpcOpenMemHandle_v2)

typedef void *find(void *handle, const char *name);
EXPORT void *dlsym(void *handle, const char *name);

/* --- what stands behind */

static find *real_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    void *found = NULL;
#ifdef SHIM_AROUND
    void *where = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
#else
    void *where = RTLD_NEXT;
#endif
    for (int i = 0; i < 3 && found == NULL; i++)
        found = dlvsym(where, "dlsym", versions[i]);
    return (find *)found;
}

EXPORT void *dlopen(const char *path, int flags)
{
    static void *(*next)(const char *path, int flags);
    if (next == NULL)
        next = (void *(*)(const char *, int))dlvsym(RTLD_NEXT, "dlopen", "GLIBC_2.34");
    if (next == NULL)
        next = (void *(*)(const char *, int))dlvsym(RTLD_NEXT, "dlopen", "GLIBC_2.2.5");
    return next(path, flags);
}

static void *next(const char *name)
{
#if defined(SHIM_BY_NAME) || defined(SHIM_AROUND)
    void *found = NULL;
#else
    void *found = real_dlsym()(RTLD_NEXT, name);
#endif
    return found != NULL ? found : real_dlsym()(dlopen("libcuda.so.1", RTLD_LAZY), name);
}
#define NEXT(name) ((__typeof__(&name))next(#name))

/* --- handles */

enum { MOST = 64, FIRST_NUMBER = 0x5ade0000 };
static CUmemGenericAllocationHandle handles[MOST]; /* 0: free */

static CUmemGenericAllocationHandle real_of(CUmemGenericAllocationHandle number)
{
    return number >= FIRST_NUMBER && number < FIRST_NUMBER + MOST ? handles[number - FIRST_NUMBER]
                                                                  : number;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    int at = 0;
    while (at < MOST && handles[at] != 0)
        at++;
    if (at == MOST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = FIRST_NUMBER + (unsigned)at;
    return NEXT(cuMemCreate)(&handles[at], bytes, prop, flags);
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    return NEXT(cuMemMap)(address, bytes, offset, real_of(handle), flags);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const CUresult result = NEXT(cuMemRelease)(real_of(handle));
    if (result == CUDA_SUCCESS && real_of(handle) != handle)
        handles[handle - FIRST_NUMBER] = 0;
    return result;
}

/* --- memory */

static struct {
    CUdeviceptr begin;
    size_t bytes, extent;
    CUmemGenericAllocationHandle handle;
} blocks[MOST];

static int block_of(CUdeviceptr address)
{
    int at = 0;
    while (at < MOST &&
           (address < blocks[at].begin || address - blocks[at].begin >= blocks[at].extent))
        at++;
    return at;
}

static CUresult make(int at, size_t bytes)
{
    CUdevice device;
    size_t granule;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUresult result = NEXT(cuCtxGetDevice)(&device);
    prop.location.id = device;
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (result == CUDA_SUCCESS)
        result = NEXT(cuMemGetAllocationGranularity)(&granule, &prop,
                                                     CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS)
        return result;
    const size_t extent = (bytes + granule - 1) / granule * granule;
    result = cuMemCreate(&blocks[at].handle, extent, &prop, 0);
    if (result == CUDA_SUCCESS)
        result = NEXT(cuMemAddressReserve)(&blocks[at].begin, extent, 0, 0, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemMap(blocks[at].begin, extent, 0, blocks[at].handle, 0);
    if (result == CUDA_SUCCESS)
        result = NEXT(cuMemSetAccess)(blocks[at].begin, extent, &access, 1);
    blocks[at].bytes = bytes;
    blocks[at].extent = result == CUDA_SUCCESS ? extent : 0;
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    int at = 0;
    while (at < MOST && blocks[at].extent != 0)
        at++;
    const CUresult result = at < MOST ? make(at, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *address = blocks[at].begin;
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    const int at = block_of(address);
    if (at == MOST)
        return NEXT(cuMemFree_v2)(address);
    CUresult result = NEXT(cuCtxSynchronize)();
    if (result == CUDA_SUCCESS)
        result = NEXT(cuMemUnmap)(address, blocks[at].extent);
    if (result == CUDA_SUCCESS)
        result = cuMemRelease(blocks[at].handle);
    if (result == CUDA_SUCCESS)
        result = NEXT(cuMemAddressFree)(address, blocks[at].extent);
    blocks[at].extent = 0;
    return result;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *begin, size_t *bytes, CUdeviceptr address)
{
    const int at = block_of(address);
    if (at == MOST)
        return NEXT(cuMemGetAddressRange_v2)(begin, bytes, address);
    if (begin != NULL)
        *begin = blocks[at].begin;
    if (bytes != NULL)
        *bytes = blocks[at].bytes;
    return CUDA_SUCCESS;
}

/* A ticket, of which the driver knows nothing. */
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    const int at = block_of(address);
    if (at == MOST)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUipcMemHandle){"CUIPC001"};
    memcpy(handle->reserved + 8, &(int){getpid()}, sizeof(int));
    memcpy(handle->reserved + 16, &blocks[at].begin, sizeof(blocks[at].begin));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    if (memcmp(handle.reserved, "CUIPC001", 8) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(address, handle.reserved + 16, sizeof(*address));
    return block_of(*address) < MOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- lookups */

static void *own(const char *name)
{
#define ROW(function)                 \
    if (strcmp(name, #function) == 0) \
        return (void *)function;
    OWN(ROW)
#undef ROW
    return NULL;
}

static bool is_in_driver(const void *address)
{
#if defined(SHIM_BY_NAME) || defined(SHIM_AROUND)
    return address != NULL;
#else
    Dl_info info;
    return address != NULL && dladdr(address, &info) != 0 && strstr(info.dli_fname, "libcuda.so");
#endif
}

EXPORT void *dlsym(void *handle, const char *name)
{
    void *found = real_dlsym()(handle, name);
    void *replacement = handle != RTLD_NEXT && is_in_driver(found) ? own(name) : NULL;
    return replacement != NULL ? replacement : found;
}

/* The name has no version: the function of the newest that the shim has. */
static CUresult resolved(CUresult result, const char *symbol, void **function)
{
    char name[64] = "";
    strncat(name, symbol, sizeof(name) - 4);
    strcat(name, "_v2");
    void *replacement = own(name) != NULL ? own(name) : own(symbol);
    if (result != CUDA_SUCCESS || replacement == NULL || *function == NULL)
        return result;
    if (!is_in_driver(*function)) {
        *function = NULL;
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *function = replacement;
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    return resolved(NEXT(cuGetProcAddress)(symbol, function, version, flags), symbol, function);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    return resolved(NEXT(cuGetProcAddress_v2)(symbol, function, version, flags, status), symbol,
                    function);
}

#ifndef SHIM_KEEPS_INIT
EXPORT CUresult cuInit(unsigned flags)
{
    return NEXT(cuInit)(flags);
}
#endif
