/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start: one process of many (starts). Begins as each CUDA program does, with one allocation that
 * the shim may defer, writes a byte to standard output, waits until standard input ends, and reads
 * back what it has written.
 */
#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

enum { BYTES = 4 << 20, VALUE = 0x5a };

static unsigned char bytes[BYTES];

static int check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
    return result != CUDA_SUCCESS;
}

int main(void)
{
    CUcontext context;
    CUdeviceptr at;
    char byte;
    if (check(cuInit(0), "cuInit") ||
        check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain") ||
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent") ||
        check(cuMemAlloc(&at, BYTES), "cuMemAlloc") ||
        check(cuMemsetD8(at, VALUE, BYTES), "cuMemsetD8") || write(1, "+", 1) != 1)
        return 1;
    while (read(0, &byte, 1) > 0)
        ;
    if (check(cuMemcpyDtoH(bytes, at, BYTES), "cuMemcpyDtoH") || check(cuMemFree(at), "cuMemFree"))
        return 1;
    for (int i = 0; i < BYTES; i++) {
        if (bytes[i] != VALUE) {
            fprintf(stderr, "byte %d is %02x\n", i, bytes[i]);
            return 1;
        }
    }
    return 0;
}
