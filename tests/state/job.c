/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job FILE KERNELS [WAIT]: a CUDA program that loads 16 MiB of FILE, behind its first 4096 bytes,
 * in two tensors, uses a part of one, and does what cannot stay deferred: a launch of a kernel
 * without a rule, and a call that is not modelled. Then it says "ready" and, with WAIT, stays until
 * it is killed.
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
enum { HEADER_BYTES = 4096 };

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "job: %s: CUDA error %d\n", what, (int)result);
    exit(1);
}

static void launch(CUmodule module, CUdeviceptr address)
{
    CUfunction function;
    uint32_t value = 7;
    uint64_t count = 1024;
    void *arguments[] = {&address, &value, &count};
    must(cuModuleGetFunction(&function, module, "fill32"), "cuModuleGetFunction");
    must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
}

static void copy_unmodelled(CUcontext context, CUdeviceptr to, CUdeviceptr from)
{
    const CUDA_MEMCPY3D_PEER copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .srcDevice = from,
                                     .srcContext = context,
                                     .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .dstDevice = to,
                                     .dstContext = context,
                                     .WidthInBytes = 16,
                                     .Height = 1,
                                     .Depth = 1};
    must(cuMemcpy3DPeer(&copy), "cuMemcpy3DPeer");
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUmodule module;
    CUdeviceptr freed, first, second, scratch, small;
    unsigned char bytes[64];
    const int file = argc >= 3 ? open(argv[1], O_RDONLY) : -1;
    const char *mapped = mmap(NULL, 16 * MIB + HEADER_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) {
        perror("job");
        return 2;
    }
    mapped += HEADER_BYTES;
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuModuleLoad(&module, argv[2]), "cuModuleLoad");
    must(cuMemAlloc(&freed, 5 * MIB), "cuMemAlloc");
    must(cuMemFree(freed), "cuMemFree");
    must(cuMemAlloc(&first, 8 * MIB), "cuMemAlloc");
    must(cuMemAlloc(&second, 8 * MIB), "cuMemAlloc");
    must(cuMemAlloc(&scratch, 4 * MIB), "cuMemAlloc");
    must(cuMemcpyHtoD(first, mapped, 8 * MIB), "cuMemcpyHtoD");
    must(cuMemcpyHtoD(second, mapped + 8 * MIB, 8 * MIB), "cuMemcpyHtoD");
    must(cuMemsetD8(scratch, 1, 4 * MIB), "cuMemsetD8");
    must(cuMemcpyDtoH(bytes, first, sizeof(bytes)), "cuMemcpyDtoH");
    launch(module, scratch);
    must(cuMemAlloc(&small, 3 * MIB), "cuMemAlloc");
    must(cuMemsetD8(small, 2, 3 * MIB), "cuMemsetD8");
    if (getenv("JOB_SEALS") != NULL)
        copy_unmodelled(context, small, scratch);
    puts("ready");
    fflush(stdout);
    if (getenv("JOB_HOLDS") != NULL) /* until standard input ends */
        getchar();
    while (argc > 3)
        pause();
    return 0;
}
