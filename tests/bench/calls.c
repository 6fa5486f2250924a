/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls [ROUNDS]: nanoseconds per driver call, for calls that the shim intercepts, when nothing is
 * deferred and when something else is. calls.py runs it without and with the preload and prints the
 * ratios. Linked with the driver directly.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "calls: CUDA error %d\n", result);
    exit(1);
}

static CUdeviceptr real;

static void address_range(void)
{
    CUdeviceptr base;
    size_t size;
    must(cuMemGetAddressRange(&base, &size, real));
}

static void memory_type(void)
{
    unsigned type;
    must(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, real));
}

static void copy_nothing(void)
{
    must(cuMemcpyDtoDAsync(real, real + 4096, 0, NULL));
}

static void copy(void)
{
    must(cuMemcpyDtoD(real, real + 4096, 64));
}

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {{"cuMemGetAddressRange", address_range},
             {"cuPointerGetAttribute", memory_type},
             {"cuMemcpyDtoDAsync of nothing", copy_nothing},
             {"cuMemcpyDtoD of 64 bytes", copy}};

static void measure(const char *state, long rounds)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const double began = now_ns();
        for (long round = 0; round < rounds; round++)
            calls[i].call();
        must(cuCtxSynchronize());
        printf("%s, %s\t%.1f\n", calls[i].name, state, (now_ns() - began) / (double)rounds);
    }
}

int main(int argc, char **argv)
{
    const long rounds = argc > 1 ? atol(argv[1]) : 20000;
    CUcontext context;
    CUdeviceptr other;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc(&real, 65536));
    measure("nothing deferred", rounds);
    must(cuMemAlloc(&other, (size_t)64 << 20));
    must(cuMemsetD8(other, 1, (size_t)64 << 20));
    measure("another block deferred", rounds);
    return 0;
}
