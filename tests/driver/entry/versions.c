/* SPDX-License-Identifier: Apache-2.0 */
/* A name has several ABIs. Whatever version a program asks for, the function that it gets hands the
 * driver the arguments of that ABI. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/entry/newer.h"
#include "tools/simcuda/harness/test.h"

static const struct row {
    const char *symbol, *base;
    int version, per_thread;
} rows[] = {
#define SIM_FUNCTION(symbol, base, version, per_thread) {#symbol, #base, version, per_thread},
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]), BLOCK_BYTES = 1 << 20 };

static void *driver;

#define FIND(symbol) ((__typeof__(&symbol))find(#symbol))
static void *find(const char *symbol)
{
    void *found = dlsym(driver, symbol);
    if (found == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s is not exported", symbol);
    return found;
}

/* By the newer of the two functions that look up, and by the older one. */
static void *look_up(const char *base, int version, int per_thread, bool is_old)
{
    const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    const CUresult result = is_old
                                ? FIND(cuGetProcAddress)(base, &found, version, flags)
                                : FIND(cuGetProcAddress_v2)(base, &found, version, flags, &status);
    if (result != CUDA_SUCCESS)
        ms_test_fail(__FILE__, __LINE__, "%s %d: %d", base, version, (int)result);
    return found;
}

static void start(const char *library)
{
    CUcontext context;
    driver = dlopen(getenv(library), RTLD_NOW);
    CHECK(driver != NULL);
    CHECK_EQ(FIND(cuInit)(0), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuCtxSetCurrent)(context), CUDA_SUCCESS);
}

/* Its arguments arrive, and what is deferred is in memory before. */
static void check_future(int row, read_function *read_byte)
{
    CUdeviceptr address;
    unsigned char byte = 0;
    long sum = 0;
    const unsigned char value = (unsigned char)(row % 255 + 1);
    CHECK_EQ(FIND(cuMemAlloc_v2)(&address, BLOCK_BYTES), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuMemsetD8_v2)(address, value, BLOCK_BYTES), CUDA_SUCCESS);
    const CUresult result = read_byte(&byte, address + BLOCK_BYTES / 2, 1, 2.0, 3, 4.0F, 5, 6.0, 7,
                                      8, 9.0, 10.0F, &sum);
    if (result != CUDA_SUCCESS || byte != value || sum != 385 + row)
        ms_test_fail(__FILE__, __LINE__, "%s at %d: %d, byte %d for %d, sum %ld for %d",
                     rows[row].base, FUTURE_VERSION, (int)result, byte, value, sum, 385 + row);
    CHECK_EQ(FIND(cuMemFree_v2)(address), CUDA_SUCCESS);
}

/* The driver gives the function of the first row of that name and kind. */
static bool is_first(int row)
{
    for (int i = 0; i < row; i++) {
        if (strcmp(rows[i].base, rows[row].base) == 0 && rows[i].per_thread == rows[row].per_thread)
            return false;
    }
    return true;
}

MS_TEST(a_new_abi_of_every_name)
{
    start("NEWER_DRIVER");
    for (int i = 0; i < ROWS; i++) {
        if (!is_first(i))
            continue;
        void *found = look_up(rows[i].base, FUTURE_VERSION, rows[i].per_thread, i % 2 == 0);
        check_future(i, (read_function *)found);
        CHECK(look_up(rows[i].base, FUTURE_VERSION, rows[i].per_thread, i % 2 != 0) == found);
    }
}

/* As many names are not sealed one for another, and the version before is still served. */
MS_TEST(every_row_at_its_own_version)
{
    start("NEWER_DRIVER");
    for (int i = 0; i < ROWS; i++) {
        if (look_up(rows[i].base, rows[i].version, rows[i].per_thread, i % 2 == 0) !=
            find(rows[i].symbol))
            ms_test_fail(__FILE__, __LINE__, "%s at %d is not %s", rows[i].base, rows[i].version,
                         rows[i].symbol);
    }
}

/* An address that the driver does not export is of the newest ABI that the table has, if the table
 * has all that there are; it may lack one of a newer version. */
MS_TEST(addresses_that_are_not_exported)
{
    start("NEWER_DRIVER");
    void *known = find("cuMemAlloc_v2");
    CHECK(look_up("cuMemAlloc", CERTAIN_VERSION, 0, false) == known);
    CHECK(look_up("cuMemAlloc", CERTAIN_VERSION, 1, true) == known);
    CHECK(look_up("cuMemAlloc", UNCERTAIN_VERSION, 0, false) != known);
    CHECK(look_up("cuMemAlloc", UNCERTAIN_VERSION, 1, true) != known);
}

static void set_to_one(void *value)
{
    *(int *)value = 1;
}

/* A driver that has an ABI of the table, and does not export it. */
MS_TEST(an_abi_that_is_not_exported)
{
    typedef CUresult launch_function(CUstream, CUhostFn, void *, unsigned);
    int value = 0;
    setenv("SIMCUDA_PROFILE", "13.4", 1);
    start("OLDER_DRIVER");
    CHECK(dlsym(driver, "cuLaunchHostFunc_v2") == NULL);
    launch_function *launch = (launch_function *)look_up("cuLaunchHostFunc", 13020, 0, false);
    CHECK_EQ(launch(NULL, set_to_one, &value, 2), CUDA_ERROR_INVALID_VALUE); /* no such mode */
    CHECK_EQ(launch(NULL, set_to_one, &value, 1), CUDA_SUCCESS);
    CHECK_EQ(FIND(cuCtxSynchronize)(), CUDA_SUCCESS);
    CHECK_EQ(value, 1);
}
