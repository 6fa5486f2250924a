/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the driver are looked up when somebody needs them first: by any thread, in any
 * order. Run on a whole driver and on one that lacks functions. Not linked with a driver.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

enum { THREADS = 8 };

/* Some of each class; a driver may lack the last ones. */
static const char *const names[] = {"cuInit",
                                    "cuDeviceGet",
                                    "cuDevicePrimaryCtxRetain",
                                    "cuCtxSetCurrent",
                                    "cuMemAlloc_v2",
                                    "cuMemFree_v2",
                                    "cuMemsetD8_v2",
                                    "cuMemcpyDtoH_v2",
                                    "cuLaunchKernel",
                                    "cuMemcpyHtoD_v2",
                                    "cuStreamCreate",
                                    "cuEventRecord",
                                    "cuGraphLaunch",
                                    "cuMemGetInfo_v2",
                                    "cuMemAlloc",
                                    "cuModuleUnload",
                                    "cuCtxRecordEvent",
                                    "cuFuncGetName",
                                    "cuDeviceGetUuid_v2",
                                    "cuLaunchKernelEx",
                                    "cuMemPoolTrimTo",
                                    "cuKernelGetName",
                                    "cuFuncGetParamInfo",
                                    "cuLibraryLoadData"};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static void *handle;
static pthread_barrier_t barrier;

struct seen {
    void *by_name[NAMES];
    unsigned char byte;
    size_t at; /* where the thread begins */
};

static void *find(const char *name)
{
    void *found = dlsym(handle, name);
    CHECK((found == NULL) == (dlerror() != NULL));
    return found;
}

static void *use(void *argument)
{
    struct seen *seen = argument;
    CUcontext context;
    CUdeviceptr address;
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < NAMES; i++) {
        const size_t at = (seen->at + i) % NAMES;
        seen->by_name[at] = find(names[at]);
    }
#define FIND(symbol) ((__typeof__(&symbol))find(#symbol))
    CHECK_EQ(FIND(cuInit)(0), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuCtxSetCurrent)(context), CUDA_SUCCESS);
    pthread_barrier_wait(&barrier);
    CHECK_EQ(FIND(cuMemAlloc_v2)(&address, 4 << 20), CUDA_SUCCESS);
    CHECK(dlerror() == NULL); /* the call looks more up, and not all of it is there */
    CHECK_EQ(FIND(cuMemsetD8_v2)(address, 0x5c, 4 << 20), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuMemcpyDtoH_v2)(&seen->byte, address + 12345, 1), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuMemFree_v2)(address), CUDA_SUCCESS);
#undef FIND
    return NULL;
}

MS_TEST(threads_that_come_first_find_the_same)
{
    static struct seen seen[THREADS];
    pthread_t threads[THREADS];
    handle = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(handle != NULL);
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (size_t i = 0; i < THREADS; i++) {
        seen[i].at = i * NAMES / THREADS;
        CHECK_EQ(pthread_create(&threads[i], NULL, use, &seen[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        CHECK_EQ(seen[i].byte, 0x5c);
        CHECK(memcmp(seen[i].by_name, seen[0].by_name, sizeof(seen[0].by_name)) == 0);
    }
}

/* A missing function is missing, also after the shim has asked for it itself. */
MS_TEST(a_function_the_driver_lacks_looks_missing)
{
    const bool is_bare = strcmp(getenv("IS_BARE"), "yes") == 0;
    handle = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(handle != NULL);
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, 1), 0);
    for (int round = 0; round < 2; round++) {
        static struct seen seen;
        int missing = 0;
        use(&seen); /* starts the shim, and defers */
        for (size_t i = 0; i < NAMES; i++)
            missing += seen.by_name[i] == NULL;
        CHECK(is_bare == (missing > 0));
    }
}
