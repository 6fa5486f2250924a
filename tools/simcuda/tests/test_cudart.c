/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in for the CUDA runtime, and host versions of PyTorch's kernels: what nvcc's host code
 * does at start-up and for a launch, by hand.
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

#define OK(call) CHECK_EQ(call, cudaSuccess)
#define MIB ((size_t)1 << 20)

void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name,
                            int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

/* As the wheel of PyTorch 2.15 has them. */
#define FILL                                                                                     \
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EELb0E" \
    "EEviT0_T1_"
#define UNIFORM                                                                                    \
    "_ZN2at6native55_GLOBAL__N__3bce53d0_22_DistributionUniform_cu_67fa25cf43distribution_"        \
    "elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda21uniform_and_transformIffPNS_17CUDA" \
    "GeneratorImplEZZZNS4_14uniform_kernelIS7_EEvRNS_18TensorIteratorBaseEddT_ENKUlvE_clEvENKUlvE" \
    "0_clEvEUlfE_EEvSA_T1_T2_EUlP24curandStatePhilox4_32_10E_ZNS1_27distribution_nullary_"         \
    "kernelIff6float4S7_SJ_SE_EEvSA_SG_RKT3_T4_EUlifE_EEvlNS_15PhiloxCudaStateESF_SG_"
#define UNKNOWN "_Z7unknownv"

/* fatbinary.h: the wrapper that nvcc makes. Nobody reads what it wraps. */
static struct {
    int magic, version;
    const void *data;
    void *file;
} wrapper = {0x466243b1, 1, "", NULL};

static char stubs[3]; /* addresses by which host code names its kernels */

static void write_layouts(void)
{
    static char path[] = "/tmp/simcuda-layouts-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    /* sorted by name */
    CHECK(dprintf(file, "%s 0:4 4:4 8:8\n%s 0:8 8:32 40:1 48:24\n", FILL, UNIFORM) > 0);
    close(file);
    setenv("SIMCUDA_FATBIN_LAYOUTS", path, 1);
}

static void start(void)
{
    write_layouts();
    void **binary = __cudaRegisterFatBinary(&wrapper);
    const char *const names[] = {FILL, UNIFORM, UNKNOWN};
    for (int i = 0; i < 3; i++)
        __cudaRegisterFunction(binary, &stubs[i], NULL, names[i], -1, NULL, NULL, NULL, NULL, NULL);
}

static cudaError_t launch(const void *stub, unsigned blocks, unsigned threads, void **args)
{
    cudaKernel_t kernel;
    const cudaError_t found = __cudaGetKernel(&kernel, stub);
    return found != cudaSuccess ? found
                                : __cudaLaunchKernel(kernel, (dim3){blocks, 1, 1},
                                                     (dim3){threads, 1, 1}, args, 0, NULL);
}

static float *read_floats(const void *device, size_t count)
{
    float *host = malloc(count * sizeof(*host));
    OK(cudaMemcpy(host, device, count * sizeof(*host), cudaMemcpyDeviceToHost));
    return host;
}

/* Not called here, and yet PyTorch 2.11 is not loaded without them. */
MS_TEST(names_that_pytorch_imports_are_there)
{
    CHECK(dlsym(RTLD_DEFAULT, "cudaGraphDebugDotPrint") != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "__cudaInitModule") != NULL);
}

MS_TEST(a_kernel_of_a_fat_binary_runs)
{
    start();
    void *device;
    int numel = 1000;
    float value = 2.5F;
    OK(cudaMalloc(&device, 4 * MIB));
    OK(cudaMemset(device, 0, 4 * MIB));
    void *args[] = {&numel, &value, &device};
    OK(launch(&stubs[0], 2, 128, args));
    float *seen = read_floats(device, 1001);
    for (int i = 0; i < 1000; i++)
        CHECK(seen[i] == value);
    CHECK(seen[1000] == 0);
    free(seen);
    OK(cudaLaunchKernel(&stubs[0], (dim3){2, 1, 1}, (dim3){128, 1, 1}, args, 0, NULL));
    OK(cudaFree(device));
}

/* torch.manual_seed(0); torch.rand(5, device="cuda") gives these on every GPU. */
MS_TEST(random_numbers_are_those_of_a_gpu)
{
    static const float wanted[] = {0.3990F, 0.5167F, 0.0249F, 0.9401F, 0.9459F};
    start();
    uint64_t state[4] = {0, 0, 0, 0}; /* at::PhiloxCudaState: seed, offset, of graphs, captured */
    struct {
        void *out;
        int stride;
        float range, from, to;
    } transform = {.stride = sizeof(float), .range = 1, .from = 0, .to = 1};
    int64_t numel = 5;
    char distribution = 0;
    OK(cudaMalloc(&transform.out, MIB));
    void *args[] = {&numel, state, &distribution, &transform};
    OK(launch(&stubs[1], 1, 256, args));
    float *seen = read_floats(transform.out, 5);
    for (int i = 0; i < 5; i++)
        CHECK(seen[i] > wanted[i] - 5e-5F && seen[i] < wanted[i] + 5e-5F);
    free(seen);
}

MS_TEST(a_kernel_without_a_host_version_is_not_there)
{
    start();
    CHECK_EQ(launch(&stubs[2], 1, 1, NULL), cudaErrorInvalidDeviceFunction);
    CHECK_EQ(launch(&wrapper, 1, 1, NULL), cudaErrorInvalidDeviceFunction);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

MS_TEST(memory_streams_and_events)
{
    struct cudaDeviceProp prop;
    struct cudaPointerAttributes attributes;
    cudaStream_t stream;
    cudaEvent_t event;
    int device, version, local;
    void *memory, *pinned, *there;
    OK(cudaGetDevice(&device));
    CHECK_EQ(device, 0);
    OK(cudaGetDeviceProperties(&prop, 0));
    CHECK(prop.multiProcessorCount > 0 && prop.warpSize == 32 && prop.totalGlobalMem > 0);
    OK(cudaRuntimeGetVersion(&version));
    CHECK_EQ(version, CUDART_VERSION);
    CHECK_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
    OK(cudaMalloc(&memory, MIB));
    OK(cudaHostAlloc(&pinned, MIB, cudaHostAllocDefault));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    memset(pinned, 7, MIB);
    OK(cudaMemcpyAsync(memory, pinned, MIB, cudaMemcpyHostToDevice, stream));
    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    memset(pinned, 0, MIB);
    OK(cudaMemcpyAsync(pinned, memory, MIB, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(((unsigned char *)pinned)[MIB - 1], 7);
    OK(cudaPointerGetAttributes(&attributes, memory));
    CHECK_EQ(attributes.type, cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&attributes, pinned));
    CHECK_EQ(attributes.type, cudaMemoryTypeHost);
    OK(cudaHostGetDevicePointer(&there, pinned, 0));
    CHECK(there == attributes.devicePointer);
    OK(cudaPointerGetAttributes(&attributes, &local));
    CHECK_EQ(attributes.type, cudaMemoryTypeUnregistered);
    OK(cudaFreeHost(pinned));
    OK(cudaFree(memory));
}
