/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, libraries, functions and launches of the simulated driver. */
#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/harness/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

enum { WORDS = 1000 };

static const char *kernels_path(void)
{
    const char *path = getenv("SIM_KERNELS");
    if (path == NULL)
        ms_test_fail(__FILE__, __LINE__, "SIM_KERNELS is not set; run this with meson test");
    return path;
}

static void start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static CUmodule load(void)
{
    CUmodule module;
    start();
    OK(cuModuleLoad(&module, kernels_path()));
    return module;
}

static CUfunction get(CUmodule module, const char *name)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static void launch(CUfunction function, void **params)
{
    OK(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

static void check_words(CUdeviceptr address, uint32_t wanted)
{
    uint32_t words[WORDS];
    OK(cuMemcpyDtoH(words, address, sizeof words));
    for (int i = 0; i < WORDS; i++)
        CHECK_EQ(words[i], wanted);
}

static CUdeviceptr filled(CUmodule module, uint32_t value)
{
    CUdeviceptr address;
    uint64_t count = WORDS;
    OK(cuMemAlloc(&address, WORDS * 4));
    void *params[] = {&address, &value, &count};
    launch(get(module, "fill32"), params);
    return address;
}

MS_TEST(fill_and_copy)
{
    CUmodule module = load();
    CUdeviceptr from = filled(module, 7);
    CUdeviceptr to = filled(module, 8);
    uint64_t count = WORDS;
    check_words(to, 8);
    void *params[] = {&to, &from, &count};
    launch(get(module, "copy32"), params);
    check_words(to, 7);
    OK(cuMemFree(from));
    OK(cuMemFree(to));
}

MS_TEST(arguments_are_copied_at_the_call)
{
    setenv("SIMCUDA_DELAY_US", "20000", 1);
    CUmodule module = load();
    CUdeviceptr address;
    OK(cuMemAlloc(&address, WORDS * 4));
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {address, WORDS, 5};
    OK(cuMemsetD32(address, 1, WORDS));
    void *params[] = {&add};
    launch(get(module, "add_in_place32"), params);
    memset(&add, 0xff, sizeof add);
    check_words(address, 6);
}

MS_TEST(packed_arguments)
{
    CUmodule module = load();
    CUdeviceptr address = filled(module, 1);
    struct {
        CUdeviceptr address;
        uint32_t value;
        uint64_t count;
    } packed = {address, 11, WORDS};
    size_t size = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, &packed,
                     CU_LAUNCH_PARAM_END};
    CUfunction fill = get(module, "fill32");
    OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    check_words(address, 11);
    void *params[] = {&packed.address, &packed.value, &packed.count};
    CHECK_EQ(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra),
             CUDA_ERROR_INVALID_VALUE);
    const struct {
        __typeof__(packed) packed;
        uint64_t more;
    } wider = {packed, 0};
    void *too_many[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &(size_t){sizeof wider},
                        CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)&wider, CU_LAUNCH_PARAM_END};
    CHECK_EQ(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, too_many),
             CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

/* The arguments lack bytes that the kernel would read. */
MS_TEST(too_few_arguments_are_refused)
{
    CUfunction fill = get(load(), "fill32");
    CUdeviceptr address;
    OK(cuMemAlloc(&address, WORDS * 4));
    size_t size = sizeof address;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, &address,
                     CU_LAUNCH_PARAM_END};
    CHECK_EQ(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra),
             CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(parameter_layouts)
{
    CUmodule module = load();
    CUfunction fill = get(module, "fill32");
    size_t offset = 0;
    size_t size = 0;
    OK(cuFuncGetParamInfo(fill, 0, &offset, &size));
    CHECK_EQ(offset, 0);
    CHECK_EQ(size, 8);
    OK(cuFuncGetParamInfo(fill, 1, &offset, NULL));
    CHECK_EQ(offset, 8);
    OK(cuFuncGetParamInfo(fill, 2, &offset, &size));
    CHECK_EQ(offset, 16);
    CHECK_EQ(cuFuncGetParamInfo(fill, 3, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuFuncGetParamInfo(get(module, "no_params"), 0, &offset, &size),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuFuncGetParamInfo(get(module, "unknown_layout"), 0, &offset, &size),
             CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQ(cuFuncGetParamInfo((CUfunction)module, 0, &offset, &size), CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(kernels_without_parameters_or_layout)
{
    CUmodule module = load();
    CUdeviceptr address = filled(module, 1);
    CUfunction unknown = get(module, "unknown_layout");
    launch(get(module, "no_params"), NULL);

    struct {
        CUdeviceptr address;
        uint32_t value;
    } packed = {address, 99};
    size_t size = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(unknown, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    uint32_t word;
    OK(cuMemcpyDtoH(&word, address, sizeof word));
    CHECK_EQ(word, 99);
    void *params[] = {&packed};
    CHECK_EQ(cuLaunchKernel(unknown, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
             CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(wrong_launches)
{
    CUmodule module = load();
    CUfunction none = get(module, "no_params");
    CHECK_EQ(cuLaunchKernel(none, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuLaunchKernel(none, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuLaunchKernel(none, 1, 1, 1, 32, 32, 2, 0, NULL, NULL, NULL),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 64 << 10, NULL, NULL, NULL),
             CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncSetAttribute(none, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10));
    OK(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 64 << 10, NULL, NULL, NULL));
    CHECK_EQ(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
             CUDA_ERROR_INVALID_HANDLE);
    void *params[] = {NULL, NULL, NULL};
    CHECK_EQ(cuLaunchKernel(get(module, "fill32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
             CUDA_ERROR_INVALID_VALUE);
    OK(cuModuleUnload(module));
    CHECK_EQ(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
             CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(random_numbers_depend_on_seed_offset_and_grid)
{
    CUmodule module = load();
    CUfunction uniform = get(module, "uniform32");
    static float seen[4][WORDS];
    CUdeviceptr address;
    OK(cuMemAlloc(&address, sizeof seen[0]));
    const struct {
        unsigned grid;
        uint64_t seed, offset;
    } runs[4] = {{4, 1, 0}, {4, 1, 0}, {4, 1, 1000}, {2, 1, 0}};
    for (int i = 0; i < 4; i++) {
        uint64_t count = WORDS;
        uint64_t seed = runs[i].seed;
        uint64_t offset = runs[i].offset;
        void *params[] = {&address, &count, &seed, &offset};
        OK(cuLaunchKernel(uniform, runs[i].grid, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        OK(cuMemcpyDtoH(seen[i], address, sizeof seen[i]));
        for (int k = 0; k < WORDS; k++)
            CHECK(seen[i][k] >= 0.0F && seen[i][k] < 1.0F);
    }
    CHECK_BYTES(seen[1], seen[0], sizeof seen[0]);
    CHECK(memcmp(seen[2], seen[0], sizeof seen[0]) != 0);
    CHECK(memcmp(seen[3], seen[0], sizeof seen[0]) != 0);
}

MS_TEST(pointers_in_device_memory)
{
    CUmodule module = load();
    CUdeviceptr words = filled(module, 3);
    CUdeviceptr table;
    CUdeviceptr to;
    CUdeviceptr addresses[WORDS];
    uint64_t count = WORDS;
    for (int i = 0; i < WORDS; i++)
        addresses[i] = words + 4 * (CUdeviceptr)(WORDS - 1 - i);
    OK(cuMemAlloc(&to, WORDS * 4));
    OK(cuMemAlloc(&table, sizeof addresses));
    OK(cuMemcpyHtoD(table, addresses, sizeof addresses));
    void *params[] = {&to, &table, &count};
    launch(get(module, "gather32"), params);
    check_words(to, 3);
}

MS_TEST(illegal_access_is_sticky)
{
    CUmodule module = load();
    CUdeviceptr address;
    uint32_t value = 1;
    uint64_t count = WORDS;
    OK(cuMemAddressReserve(&address, 2 << 20, 0, 0, 0));
    void *params[] = {&address, &value, &count};
    launch(get(module, "fill32"), params);
    CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(cuMemAlloc(&address, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(other_ways_to_launch)
{
    CUmodule module = load();
    CUfunction fill = get(module, "fill32");
    CUdeviceptr address = filled(module, 0);
    CUstream stream;
    uint32_t value = 1;
    uint64_t count = WORDS;
    void *params[] = {&address, &value, &count};
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    OK(cuLaunchCooperativeKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, params));
    OK(cuStreamSynchronize(stream));
    check_words(address, 1);

    value = 2;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, &attribute, 1};
    OK(cuLaunchKernelEx(&config, fill, params, NULL));
    OK(cuStreamSynchronize(stream));
    check_words(address, 2);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
MS_TEST(launch_as_in_cuda_3)
{
    CUmodule module = load();
    CUfunction fill = get(module, "fill32");
    CUdeviceptr address = filled(module, 0);
    uint64_t count = WORDS;
    OK(cuFuncSetBlockShape(fill, 16, 1, 1));
    OK(cuParamSetv(fill, 0, &address, sizeof address));
    OK(cuParamSeti(fill, 8, 12));
    OK(cuParamSetv(fill, 16, &count, sizeof count));
    OK(cuParamSetSize(fill, 24));
    OK(cuLaunchGrid(fill, 2, 2));
    check_words(address, 12);
    OK(cuParamSetf(fill, 8, 1.0F));
    OK(cuLaunch(fill));
    check_words(address, 0x3f800000);
}

MS_TEST(a_launch_as_in_cuda_3_without_a_size_is_refused)
{
    CUfunction fill = get(load(), "fill32");
    OK(cuFuncSetBlockShape(fill, 16, 1, 1));
    CHECK_EQ(cuLaunchGrid(fill, 2, 2), CUDA_ERROR_INVALID_VALUE);
}
#pragma GCC diagnostic pop

MS_TEST(functions_tell_about_themselves)
{
    CUmodule module = load();
    CUfunction fill = get(module, "fill32");
    CUmodule owner;
    const char *name;
    int value;
    CUfunctionLoadingState state;
    CHECK(get(module, "fill32") == fill);
    OK(cuFuncGetName(&name, fill));
    CHECK(strcmp(name, "fill32") == 0);
    CHECK_EQ(cuFuncGetName(&name, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuKernelGetName(&name, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncGetModule(&owner, fill));
    CHECK(owner == module);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fill));
    CHECK_EQ(value, 1024);
    OK(cuFuncIsLoaded(&state, fill));
    CHECK_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
    OK(cuFuncLoad(fill));
    OK(cuFuncIsLoaded(&state, fill));
    CHECK_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
    int grid;
    int block;
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, fill, NULL, 0, 0));
    CHECK(grid > 0 && block > 0);
    CUfunction nothing;
    CHECK_EQ(cuModuleGetFunction(&nothing, module, "nothing"), CUDA_ERROR_NOT_FOUND);
}

MS_TEST(functions_of_a_module_are_listed)
{
    CUmodule module = load();
    unsigned count;
    OK(cuModuleGetFunctionCount(&count, module));
    CHECK_EQ(count, 13);
    CUfunction functions[13];
    OK(cuModuleEnumerateFunctions(functions, 13, module));
    CHECK(functions[0] == get(module, "fill32"));
    CHECK(functions[12] == get(module, "unknown_layout"));
}

MS_TEST(ways_to_load)
{
    CUmodule module;
    CUfunction function;
    char text[4200];
    const uint32_t fatbin[4] = {0xba55ed50, 0x00100001, 0, 0};
    start();
    snprintf(text, sizeof text, "SIMCUDA:%s", kernels_path());
    OK(cuModuleLoadData(&module, text));
    get(module, "fill32");
    OK(cuModuleLoadDataEx(&module, text, 0, NULL, NULL));
    OK(cuModuleLoadFatBinary(&module, fatbin));
    CHECK_EQ(cuModuleGetFunction(&function, module, "fill32"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(module));
    CHECK_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuModuleLoadData(&module, ".version 8.0"), CUDA_ERROR_INVALID_IMAGE);
    setenv("SIMCUDA_PTX_KERNELS", kernels_path(), 1);
    OK(cuModuleLoadData(&module, "\n// a comment\n//\n  .version 8.0"));
    CHECK_EQ(cuModuleLoadData(&module, "// .version 8.0"), CUDA_ERROR_INVALID_IMAGE);
    unsetenv("SIMCUDA_PTX_KERNELS");
    CHECK_EQ(cuModuleLoad(&module, "/no/such/file"), CUDA_ERROR_FILE_NOT_FOUND);
    CUmoduleLoadingMode mode;
    OK(cuModuleGetLoadingMode(&mode));
    CHECK_EQ(mode, CU_MODULE_LAZY_LOADING);
}

MS_TEST(variables_of_a_module)
{
    CUmodule first = load();
    CUmodule second;
    CUdeviceptr a;
    CUdeviceptr b;
    CUdeviceptr again;
    size_t bytes;
    uint32_t word;
    OK(cuModuleLoad(&second, kernels_path()));
    OK(cuModuleGetGlobal(&a, &bytes, first, "answer"));
    CHECK_EQ(bytes, 4);
    OK(cuModuleGetGlobal(&b, NULL, second, "answer"));
    CHECK(a != b);
    OK(cuMemsetD32(a, 1, 1));
    OK(cuModuleGetGlobal(&again, NULL, first, "answer"));
    CHECK_EQ(again, a);
    OK(cuMemcpyDtoH(&word, b, 4));
    CHECK_EQ(word, 42);
    CHECK_EQ(cuModuleGetGlobal(&a, NULL, first, "nothing"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(second));
    CHECK(cuMemcpyDtoH(&word, b, 4) != CUDA_SUCCESS);
}

MS_TEST(libraries_and_kernels)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUmodule module;
    CUmodule owner;
    start();
    OK(cuLibraryLoadFromFile(&library, kernels_path(), NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "fill32"));
    OK(cuKernelGetFunction(&function, kernel));
    CHECK((void *)function != (void *)kernel);
    OK(cuLibraryGetModule(&module, library));
    OK(cuFuncGetModule(&owner, function));
    CHECK(owner == module);
    CHECK(get(module, "fill32") == function);
    CHECK_EQ(cuModuleUnload(module), CUDA_ERROR_NOT_PERMITTED);
    size_t offset;
    OK(cuKernelGetParamInfo(kernel, 2, &offset, NULL));
    CHECK_EQ(offset, 16);
    OK(cuKernelGetParamInfo(kernel, 2, &offset, NULL));
    CHECK_EQ(cuFuncGetParamInfo((CUfunction)kernel, 2, &offset, NULL), CUDA_ERROR_INVALID_HANDLE);
    unsigned count;
    OK(cuLibraryGetKernelCount(&count, library));
    CHECK_EQ(count, 13);

    CUdeviceptr address;
    uint32_t value = 21;
    uint64_t words = WORDS;
    OK(cuMemAlloc(&address, WORDS * 4));
    void *params[] = {&address, &value, &words};
    launch((CUfunction)kernel, params);
    check_words(address, 21);
    value = 22;
    launch(function, params);
    check_words(address, 22);

    CUdeviceptr answer;
    CUdeviceptr same;
    OK(cuLibraryGetGlobal(&answer, NULL, library, "answer"));
    OK(cuModuleGetGlobal(&same, NULL, module, "answer"));
    CHECK_EQ(same, answer);
    OK(cuLibraryUnload(library));
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
             CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(a_module_may_go_while_its_kernels_are_queued)
{
    setenv("SIMCUDA_DELAY_US", "20000", 1);
    CUmodule module = load();
    CUdeviceptr address = filled(module, 5);
    OK(cuModuleUnload(module));
    check_words(address, 5);
}
