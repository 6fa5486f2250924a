/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that is newer than the entry table: the simulated one with a function that nobody knows,
 * and with a new ABI of every name at version 99990. They read device memory, and have enough
 * arguments to fill every argument register and the stack. And it has functions that it does not
 * export under the name that they are looked up by.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "tests/driver/entry/newer.h"

void *sim_own_function(const char *base, int version, bool per_thread);

/* Not a part of each of hundreds of functions below. */
__attribute__((visibility("default"), noinline)) read_function cuFutureRead;

CUresult cuFutureRead(unsigned char *byte, CUdeviceptr address, long a, double b, int c, float d,
                      long e, double f, int g, long h, double i, float j, long *sum)
{
    *sum = a + 2 * (long)b + 3 * c + 4 * (long)d + 5 * e + 6 * (long)f + 7 * g + 8 * h +
           9 * (long)i + 10 * (long)j;
    return cuMemcpyDtoH_v2(byte, address, 1);
}

/* One for each row, which adds the row's number to the sum. */
enum {
#define SIM_FUNCTION(symbol, base, version, per_thread) ROW_##symbol,
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
    ROWS
};
#define SIM_FUNCTION(symbol, base, version, per_thread)                                         \
    static CUresult future_##symbol(unsigned char *byte, CUdeviceptr address, long a, double b, \
                                    int c, float d, long e, double f, int g, long h, double i,  \
                                    float j, long *sum)                                         \
    {                                                                                           \
        const CUresult result = cuFutureRead(byte, address, a, b, c, d, e, f, g, h, i, j, sum); \
        *sum += ROW_##symbol;                                                                   \
        return result;                                                                          \
    }
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION

static const struct {
    const char *base;
    bool per_thread;
    read_function *function;
} futures[ROWS] = {
#define SIM_FUNCTION(symbol, base, version, per_thread) {#base, per_thread, future_##symbol},
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
};

static CUresult own_allocate(CUdeviceptr *address, size_t bytes)
{
    return cuMemAlloc_v2(address, bytes);
}

void *sim_own_function(const char *base, int version, bool per_thread)
{
    if (strcmp(base, "cuMemAlloc") == 0 &&
        (version == CERTAIN_VERSION || version == UNCERTAIN_VERSION))
        return (void *)own_allocate;
    for (size_t i = 0; version == FUTURE_VERSION && i < ROWS; i++) {
        if (futures[i].per_thread == per_thread && strcmp(futures[i].base, base) == 0)
            return (void *)futures[i].function;
    }
    return version == FUTURE_VERSION && per_thread ? sim_own_function(base, version, false) : NULL;
}
