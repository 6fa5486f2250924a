/* SPDX-License-Identifier: Apache-2.0 */
/* A closed world: a driver function that the table does not know is sealed, not trusted. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "tests/driver/entry/newer.h"
#include "tools/simcuda/harness/test.h"

static _Thread_local volatile int takes; /* of locks, by this thread; dlsym may change it */

/* The shim's calls come here, since the program's own functions are found first. */
__attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int result;
    takes++;
    while ((result = pthread_mutex_trylock(mutex)) == EBUSY)
        sched_yield();
    return result;
}

MS_TEST(an_unknown_function_sees_what_was_written)
{
    void *driver = dlopen(getenv("NEWER_DRIVER"), RTLD_NOW);
    CHECK(driver != NULL);
    __typeof__(&cuInit) init = (__typeof__(init))dlsym(driver, "cuInit");
    __typeof__(&cuDevicePrimaryCtxRetain) retain =
        (__typeof__(retain))dlsym(driver, "cuDevicePrimaryCtxRetain");
    __typeof__(&cuCtxSetCurrent) set_current =
        (__typeof__(set_current))dlsym(driver, "cuCtxSetCurrent");
    __typeof__(&cuMemAlloc_v2) allocate = (__typeof__(allocate))dlsym(driver, "cuMemAlloc_v2");
    __typeof__(&cuMemsetD8_v2) set = (__typeof__(set))dlsym(driver, "cuMemsetD8_v2");
    read_function *read_byte = (read_function *)dlsym(driver, "cuFutureRead");
    CHECK(init != NULL && retain != NULL && set_current != NULL && allocate != NULL &&
          set != NULL && read_byte != NULL);
    takes = 0;
    CHECK(read_byte == (read_function *)dlsym(driver, "cuFutureRead")); /* one thunk for it */
    CHECK_EQ(takes, 1); /* another thread may want a thunk for another function */

    CUcontext context;
    CUdeviceptr address;
    CHECK_EQ(init(0), CUDA_SUCCESS);
    CHECK_EQ(retain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(set_current(context), CUDA_SUCCESS);
    CHECK_EQ(allocate(&address, 8 << 20), CUDA_SUCCESS);
    CHECK_EQ(set(address, 0x5c, 8 << 20), CUDA_SUCCESS);
    for (int round = 0; round < 2; round++) { /* with something deferred, and with nothing */
        unsigned char byte = 0;
        long sum = 0;
        CHECK_EQ(read_byte(&byte, address + 5000000, 1, 2.0, 3, 4.0F, 5, 6.0, 7, 8, 9.0, 10.0F,
                           &sum),
                 CUDA_SUCCESS);
        CHECK_EQ(byte, 0x5c);
        CHECK_EQ(sum, 1 + 4 + 9 + 16 + 25 + 36 + 49 + 64 + 81 + 100);
    }
}
