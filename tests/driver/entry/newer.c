/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that is newer than the entry table: the simulated one with a function that nobody knows.
 * It reads device memory, and has enough arguments to fill every argument register and the stack.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

__attribute__((visibility("default"))) CUresult
cuFutureRead(unsigned char *byte, CUdeviceptr address, long a, double b, int c, float d, long e,
             double f, int g, long h, double i, float j, long *sum);

CUresult cuFutureRead(unsigned char *byte, CUdeviceptr address, long a, double b, int c, float d,
                      long e, double f, int g, long h, double i, float j, long *sum)
{
    *sum = a + 2 * (long)b + 3 * c + 4 * (long)d + 5 * e + 6 * (long)f + 7 * g + 8 * h +
           9 * (long)i + 10 * (long)j;
    return cuMemcpyDtoH_v2(byte, address, 1);
}
