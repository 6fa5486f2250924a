/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second library that is preloaded and replaces functions of the driver, as profilers and quotas
 * do: by names that are linked, and, as the CUDA runtime asks for them, by cuGetProcAddress. With
 * OTHER_HOOKS_DLSYM it answers dlsym, too. It counts what comes through, by function, and goes on
 * with what RTLD_NEXT finds. OTHER_REPORT (a macro) names the variable with the path of a file that
 * gets the counts at the end.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define WRAPPED(ROW)     \
    ROW(cuInit)          \
    ROW(cuMemAlloc_v2)   \
    ROW(cuMemFree_v2)    \
    ROW(cuMemcpyHtoD_v2) \
    ROW(cuMemcpyDtoH_v2) \
    ROW(cuGetProcAddress_v2)

enum {
#define ROW(name) COUNT_##name,
    WRAPPED(ROW)
#undef ROW
        COUNTS
};

static _Atomic unsigned counts[COUNTS];

#ifdef OTHER_HOOKS_DLSYM
typedef void *find(void *handle, const char *name);
EXPORT void *dlsym(void *handle, const char *name);

/* The dlsym of the libraries that come behind. */
static find *libc_dlsym(void)
{
    find *found = (find *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (found == NULL)
        found = (find *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return found != NULL ? found : (find *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
}
#define FIND(name) libc_dlsym()(RTLD_NEXT, name)
#else
#define FIND(name) dlsym(RTLD_NEXT, name)
#endif

static void *next(const char *name, int count)
{
    void *found = FIND(name);
    counts[count]++;
    if (found == NULL) {
        fprintf(stderr, "other: no %s behind\n", name);
        abort();
    }
    return found;
}
#define NEXT(name) ((__typeof__(&name))next(#name, COUNT_##name))

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

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return NEXT(cuMemcpyDtoH_v2)(to, from, bytes);
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

#ifdef OTHER_HOOKS_DLSYM
EXPORT void *dlsym(void *handle, const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } own[] = {
#define ROW(function) {#function, (void *)function},
        WRAPPED(ROW)
#undef ROW
    };
    void *found = libc_dlsym()(handle, name);
    for (int i = 0; i < COUNTS && found != NULL && handle != RTLD_NEXT; i++) {
        if (strcmp(own[i].name, name) == 0)
            return own[i].function;
    }
    return found;
}
#endif

__attribute__((destructor)) static void report(void)
{
    static const char *const names[] = {
#define ROW(name) #name,
        WRAPPED(ROW)
#undef ROW
    };
    const char *path = getenv(OTHER_REPORT);
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    for (int i = 0; i < COUNTS; i++)
        fprintf(file, "%s %u\n", names[i], counts[i]);
    fclose(file);
}
