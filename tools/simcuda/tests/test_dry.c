/* SPDX-License-Identifier: Apache-2.0 */
/* SIMCUDA_DRY: memory is given and nothing is computed; and what the devices say that they are. */
#include "tools/simcuda/tests/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static CUdeviceptr memory_with(unsigned word)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, 4 * MIB));
    OK(cuMemcpyHtoD(address, &word, sizeof(word)));
    return address;
}

static unsigned word_at(CUdeviceptr address)
{
    unsigned word;
    OK(cuMemcpyDtoH(&word, address, sizeof(word)));
    return word;
}

MS_TEST(small_copies_are_made_and_nothing_else)
{
    static char large[4 * MIB];
    setenv("SIMCUDA_DRY", "1", 1);
    start();
    const CUdeviceptr from = memory_with(7), to = memory_with(8);
    CHECK_EQ(word_at(from), 7u);
    OK(cuMemcpyDtoD(to, from, MIB));
    OK(cuMemsetD32(to, 9, MIB / 4));
    CHECK_EQ(word_at(to), 8u);
    memset(large, 1, sizeof(large));
    OK(cuMemcpyHtoD(to, large, sizeof(large)));
    OK(cuMemcpyDtoH(large, from, sizeof(large)));
    CHECK_EQ(word_at(to), 8u);
    CHECK_EQ(large[0], 1);
}

MS_TEST(small_fills_and_copies_within_a_device_are_made)
{
    setenv("SIMCUDA_DRY", "1", 1);
    start();
    const CUdeviceptr from = memory_with(7), to = memory_with(8);
    OK(cuMemcpyDtoD(to, from, sizeof(unsigned)));
    CHECK_EQ(word_at(to), 7u);
    OK(cuMemsetD32(to, 9, 1));
    CHECK_EQ(word_at(to), 9u);
}

MS_TEST(a_device_that_is_behind_has_done_what_the_host_waited_for)
{
    CUevent early, late;
    CUstream stream;
    setenv("SIMCUDA_BEHIND", "1", 1);
    start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&early, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&late, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(early));
    OK(cuEventRecord(early, stream));
    OK(cuEventRecord(late, stream));
    CHECK_EQ(cuEventQuery(early), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(early));
    OK(cuEventQuery(early));
    CHECK_EQ(cuEventQuery(late), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(stream));
    OK(cuEventQuery(late));
    OK(cuEventRecord(early, stream));
    OK(cuCtxSynchronize());
    OK(cuEventQuery(early));
    OK(cuEventRecord(late, stream));
    usleep(1100 * 1000);
    int asked = 0;
    while (cuEventQuery(late) == CUDA_ERROR_NOT_READY && asked < 100)
        asked++;
    CHECK(asked > 0 && asked < 100);
}

/* SIMCUDA_DRY=2. */
MS_TEST(a_dry_run_that_computes_leaves_nothing_out)
{
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    unsigned word = 5;
    setenv("SIMCUDA_DRY", "2", 1);
    start();
    CUdeviceptr from = memory_with(7);
    const CUdeviceptr to = memory_with(8);
    OK(cuMemcpyDtoD(to, from, MIB));
    CHECK_EQ(word_at(to), 7u);
    OK(cuMemsetD32(to, 9, MIB / 4));
    CHECK_EQ(word_at(to), 9u);
    uint64_t items = MIB;
    void *params[] = {&from, &word, &items};
    OK(cuModuleLoad(&module, getenv("SIM_KERNELS")));
    OK(cuModuleGetFunction(&function, module, "fill32"));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    CHECK_EQ(word_at(from), 5u);
    OK(cuLibraryLoadData(&library, ".version 9.0\n", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    CHECK_EQ(word_at(from), 5u);
}

/* A dry run still refuses memory that is not there. */
MS_TEST(memory_that_is_not_there_is_refused)
{
    setenv("SIMCUDA_DRY", "1", 1);
    start();
    const CUdeviceptr address = reserve(2 * MIB);
    FAILS(cuMemsetD32(address, 9, 1), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(kernels_need_no_host_version_and_no_layout)
{
    static const char ptx[] = ".version 9.0\n";
    CUmodule module;
    CUfunction function;
    int anything = 0;
    void *params[] = {&anything};
    size_t offset;
    setenv("SIMCUDA_DRY", "1", 1);
    start();
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, "no_such_kernel"));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
    FAILS(cuFuncGetParamInfo(function, 0, &offset, NULL), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL),
          CUDA_ERROR_INVALID_VALUE);
}

/* As Triton keeps what it compiled. */
MS_TEST(a_cubin_in_a_file_is_a_module)
{
    char path[] = "/tmp/simcuda-dry-XXXXXX";
    CUmodule module;
    CUfunction function;
    setenv("SIMCUDA_DRY", "1", 1);
    const int file = mkstemp(path);
    CHECK_EQ(write(file, "// any\n.version 9.0\n", 20), 20);
    close(file);
    start();
    OK(cuModuleLoad(&module, path));
    unlink(path);
    OK(cuModuleGetFunction(&function, module, "triton_"));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

/* Shared memory that the function of a kernel has asked for, the kernel has too. */
MS_TEST(a_kernel_has_what_its_function_asked_for)
{
    static const char ptx[] = ".version 9.0\n";
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    const unsigned shared = 80 << 10;
    setenv("SIMCUDA_DRY", "1", 1);
    start();
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "any"));
    FAILS(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, shared, NULL, NULL, NULL),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuKernelGetFunction(&function, kernel));
    OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, shared, NULL, NULL, NULL));
}

static int attribute(CUdevice_attribute name)
{
    int value;
    OK(cuDeviceGetAttribute(&value, name, 0));
    return value;
}

MS_TEST(a_device_is_what_the_environment_says)
{
    char name[64];
    setenv("SIMCUDA_NAME", "NVIDIA A10G", 1);
    setenv("SIMCUDA_CAPABILITY", "86", 1);
    setenv("SIMCUDA_MULTIPROCESSORS", "80", 1);
    start();
    OK(cuDeviceGetName(name, sizeof(name), 0));
    CHECK(strcmp(name, "NVIDIA A10G") == 0);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 8);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), 6);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 80);
    CHECK_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 101376);
}

MS_TEST(a_context_takes_memory)
{
    CUdeviceptr address;
    setenv("SIMCUDA_MEMORY_MIB", "64", 1);
    setenv("SIMCUDA_CONTEXT_MIB", "24", 1);
    start();
    CHECK_EQ(free_bytes(), 40 * MIB);
    FAILS(cuMemAlloc(&address, 42 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&address, 40 * MIB));
}

/* Code for 8.9 is that for 8.6 in most programs, and CUB looks for one that it was compiled for. */
MS_TEST(a_kernel_is_of_an_architecture_that_programs_are_compiled_for)
{
    static const char ptx[] = ".version 9.0\n";
    CUmodule module;
    CUfunction function;
    int version;
    setenv("SIMCUDA_DRY", "1", 1);
    setenv("SIMCUDA_CAPABILITY", "89", 1);
    start();
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, "any"));
    OK(cuFuncGetAttribute(&version, CU_FUNC_ATTRIBUTE_BINARY_VERSION, function));
    CHECK_EQ(version, 86);
}
