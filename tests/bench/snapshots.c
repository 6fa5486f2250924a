/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshots KERNELS: processor time of copies from host memory that no file explains, until a
 * kernel has them: each row copies all of a block in pieces, launches a kernel with its address,
 * and waits. Under the shim the pieces become snapshots, which the launch brings into memory.
 * snapshots.py runs it without and with the preload. Prints seconds, the best of ROUNDS.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUNDS = 5 };
#define MIB ((size_t)1 << 20)

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "snapshots: CUDA error %d\n", (int)result);
    exit(1);
}

static double now(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static const struct {
    const char *name;
    size_t piece, total;
    int is_pinned, is_async;
} rows[] = {
    {"64 KiB of pageable memory", 64 << 10, 64 << 20, 0, 0},
    {"1 MiB of pageable memory", 1 << 20, 64 << 20, 0, 0},
    {"16 MiB of pageable memory", 16 << 20, 256 << 20, 0, 0},
    {"256 MiB of pageable memory", 256 << 20, 256 << 20, 0, 0},
    {"16 MiB of pageable memory, asynchronous", 16 << 20, 256 << 20, 0, 1},
    {"16 MiB of pinned memory, asynchronous", 16 << 20, 256 << 20, 1, 1},
};

static CUfunction kernel;

static double copy_once(size_t row, const char *host)
{
    CUdeviceptr block, words[2];
    void *parameters[] = {words};
    must(cuMemAlloc(&block, rows[row].total));
    words[0] = words[1] = block;
    const double began = now();
    for (size_t at = 0; at < rows[row].total; at += rows[row].piece)
        must(rows[row].is_async ? cuMemcpyHtoDAsync(block + at, host + at, rows[row].piece, NULL)
                                : cuMemcpyHtoD(block + at, host + at, rows[row].piece));
    must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    must(cuCtxSynchronize());
    const double seconds = now() - began;
    must(cuMemFree(block));
    return seconds;
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUmodule module;
    if (argc != 2)
        return 2;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoad(&module, argv[1]));
    must(cuModuleGetFunction(&kernel, module, "takes_16"));
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        void *host;
        if (rows[row].is_pinned)
            must(cuMemHostAlloc(&host, rows[row].total, 0));
        else
            host = malloc(rows[row].total);
        for (size_t i = 0; i < rows[row].total / sizeof(uint32_t); i++)
            ((uint32_t *)host)[i] = (uint32_t)i * 2654435761u;
        double best = copy_once(row, host);
        for (int round = 1; round < ROUNDS; round++) {
            const double seconds = copy_once(row, host);
            best = seconds < best ? seconds : best;
        }
        printf("%s\t%.6f\n", rows[row].name, best);
        if (rows[row].is_pinned)
            must(cuMemFreeHost(host));
        else
            free(host);
    }
    return 0;
}
