/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls KERNELS [ROUNDS]: nanoseconds per driver call, for calls that the shim intercepts, when
 * nothing is deferred and when something else is. calls.py runs it without and with the preload and
 * prints the ratios. Linked with the driver directly.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static CUstream stream;
static void *pinned;
static CUfunction takes_16, takes_256, takes_4096;
enum { IN_MEMORY = 64, WORDS = 4096 / sizeof(CUdeviceptr) };
static CUdeviceptr near[WORDS], scattered[WORDS]; /* to an allocation in memory; to many */
static unsigned numbers[4096 / sizeof(unsigned)];

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

/* A copy of the program's own, on a stream that is busy with the copies before it. */
static void copy_pinned(void)
{
    must(cuMemcpyHtoDAsync(real, pinned, 64, stream));
}

static void launch(CUfunction kernel, void *parameters)
{
    void *places[] = {parameters};
    must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, places, NULL));
}

static void launch_16(void)
{
    launch(takes_16, numbers);
}

static void launch_256(void)
{
    launch(takes_256, numbers);
}

static void launch_4096(void)
{
    launch(takes_4096, numbers);
}

static void launch_256_near(void)
{
    launch(takes_256, near);
}

static void launch_4096_near(void)
{
    launch(takes_4096, near);
}

static void launch_4096_scattered(void)
{
    launch(takes_4096, scattered);
}

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {{"cuMemGetAddressRange", address_range},
             {"cuPointerGetAttribute", memory_type},
             {"cuMemcpyDtoDAsync of nothing", copy_nothing},
             {"cuMemcpyDtoD of 64 bytes", copy},
             {"cuMemcpyHtoDAsync of 64 pinned bytes", copy_pinned},
             {"launch, 16 bytes of numbers", launch_16},
             {"launch, 256 bytes of numbers", launch_256},
             {"launch, 4 KiB of numbers", launch_4096},
             {"launch, 256 bytes of pointers", launch_256_near},
             {"launch, 4 KiB of pointers", launch_4096_near},
             {"launch, 4 KiB of pointers to 64 allocations", launch_4096_scattered}};

/* All of them lie among what is deferred, and are in memory from the first launch on. */
static void make_pointers(void)
{
    const size_t bytes = (size_t)2 << 20;
    CUdeviceptr all[IN_MEMORY];
    for (size_t i = 0; i < IN_MEMORY; i++) {
        must(cuMemAlloc(&all[i], bytes));
        must(cuMemsetD8(all[i], 1, bytes));
    }
    for (size_t i = 0; i < WORDS; i++) {
        near[i] = all[0] + 8 * i;
        scattered[i] = all[i * 7 % IN_MEMORY] + 8 * i;
        numbers[2 * i] = (unsigned)i;
    }
}

/* The best of a hundred times: other programs want the processor, too. */
static void measure(const char *state, long rounds)
{
    enum { TIMES = 100 };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        calls[i].call(); /* what is done once */
        must(cuCtxSynchronize());
        double best = 0;
        for (int time = 0; time < TIMES; time++) {
            const double began = now_ns();
            for (long round = 0; round < rounds / TIMES; round++)
                calls[i].call();
            const double ns = (now_ns() - began) / (double)(rounds / TIMES);
            best = best == 0 || ns < best ? ns : best;
            must(cuCtxSynchronize());
        }
        printf("%s, %s\t%.1f\n", calls[i].name, state, best);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    const long rounds = argc > 2 ? atol(argv[2]) : 20000;
    CUcontext context;
    CUmodule module;
    CUdeviceptr other;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoad(&module, argv[1]));
    must(cuModuleGetFunction(&takes_16, module, "takes_16"));
    must(cuModuleGetFunction(&takes_256, module, "takes_256"));
    must(cuModuleGetFunction(&takes_4096, module, "takes_4096"));
    must(cuMemAlloc(&real, 65536));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must(cuMemHostAlloc(&pinned, 64, 0));
    memset(pinned, 1, 64);
    measure("nothing deferred", rounds);
    must(cuMemAlloc(&other, (size_t)16 << 20));
    must(cuMemsetD8(other, 1, (size_t)16 << 20));
    make_pointers();
    must(cuMemAlloc(&other, (size_t)64 << 20));
    must(cuMemsetD8(other, 1, (size_t)64 << 20));
    measure("another block deferred", rounds);
    return 0;
}
