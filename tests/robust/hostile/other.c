/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second library that is preloaded and replaces functions of the driver, as profilers and quotas
 * do: by names that are linked, and, as the CUDA runtime asks for them, by cuGetProcAddress. It
 * counts what comes through and goes on with what RTLD_NEXT finds. OTHER_REPORT: a file that gets
 * the count at the end.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static _Atomic unsigned count;

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    count++;
    if (found == NULL) {
        fprintf(stderr, "other: no %s behind\n", name);
        abort();
    }
    return found;
}
#define NEXT(name) ((__typeof__(&name))next(#name))

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    return NEXT(cuMemAlloc_v2)(address, bytes);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    return NEXT(cuMemFree_v2)(address);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return NEXT(cuMemcpyHtoD_v2)(to, from, bytes);
}

EXPORT CUresult cuInit(unsigned flags)
{
    return NEXT(cuInit)(flags);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    const CUresult result = NEXT(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && strcmp(symbol, "cuMemAlloc") == 0)
        *function = (void *)cuMemAlloc_v2;
    return result;
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("OTHER_REPORT");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%u\n", count);
    fclose(file);
}
