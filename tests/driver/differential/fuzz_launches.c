/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: of kernels that may be recorded, and of others, which read, write and mix. */
#include "tests/driver/differential/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/kernels/torch_kernels.h"

enum { MOST = 256 << 10 };

const char *fuzz_kernels_path;
static const char *torch_path;
static CUmodule kernels, torch;

static CUmodule load(const char *path)
{
    CUmodule module;
    if (CALL(cuModuleLoad)(&module, path) != CUDA_SUCCESS) {
        fprintf(stderr, "%s cannot be loaded\n", path);
        exit(2);
    }
    return module;
}

void fuzz_launches_init(const char *kernels_path, const char *path_of_torch)
{
    fuzz_kernels_path = kernels_path;
    torch_path = path_of_torch;
    kernels = load(kernels_path);
    torch = load(torch_path);
}

static CUfunction find(CUmodule module, const char *name)
{
    CUfunction function;
    if (CALL(cuModuleGetFunction)(&function, module, name) != CUDA_SUCCESS) {
        fprintf(stderr, "no kernel %s\n", name);
        exit(2);
    }
    return function;
}

CUfunction fuzz_kernel(const char *name)
{
    return find(kernels, name);
}

/* By one of the six calls; a cooperative one takes no packed parameters. */
static void launch(CUfunction function, unsigned grid, unsigned block, void **params, void **extra)
{
    const bool twin = fuzz_one_in(2);
    const CUstream stream = fuzz_stream(twin);
    const size_t way = fuzz_below(params == NULL ? 4 : 5);
    if (way == 4) {
        SEE(TWIN(twin, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz)(
            function, grid, 1, 1, block, 1, 1, 0, stream, params));
    } else if (way >= 2) {
        const CUlaunchConfig config = {.gridDimX = grid,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = block,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .hStream = stream};
        SEE(TWIN(twin, cuLaunchKernelEx, cuLaunchKernelEx_ptsz)(&config, function, params, extra));
    } else {
        SEE(TWIN(twin, cuLaunchKernel, cuLaunchKernel_ptsz)(function, grid, 1, 1, block, 1, 1, 0,
                                                            stream, params, extra));
    }
}

void fuzz_launch(CUfunction function, void **params)
{
    launch(function, 1 + (unsigned)fuzz_below(8), 32, params, NULL);
}

/* Parameters by pointers or packed. */
static void launch_packed(CUfunction function, unsigned grid, void **params, const size_t *sizes,
                          const size_t *offsets, int count)
{
    unsigned char packed[1024];
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        memcpy(packed + offsets[i], params[i], sizes[i]);
        bytes = offsets[i] + sizes[i];
    }
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    if (fuzz_one_in(4))
        launch(function, grid, 128, NULL, extra);
    else
        launch(function, grid, 128, params, NULL);
}

/* --- kernels of no framework */

static void fill(void)
{
    struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    uint32_t value = (uint32_t)fuzz_random();
    uint64_t count = range.bytes / 4;
    void *params[] = {&range.at, &value, &count};
    fuzz_launch(fuzz_kernel("fill32"), params);
}

static void copy_words(void)
{
    struct fuzz_range from, to;
    if (!fuzz_two_ranges(&from, &to, MOST, 4))
        return;
    uint64_t count = to.bytes / 4;
    void *params[] = {&to.at, &from.at, &count};
    fuzz_launch(fuzz_kernel("copy32"), params);
}

/* A struct by value with the address inside; by pointers or packed. */
static void add(void)
{
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } arguments;
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    memset(&arguments, 0, sizeof(arguments));
    arguments.address = range.at;
    arguments.count = range.bytes / 4;
    arguments.value = (uint32_t)fuzz_random();
    void *params[] = {&arguments};
    static const size_t sizes[] = {sizeof(arguments)}, offsets[] = {0};
    launch_packed(fuzz_kernel("add_in_place32"), 4, params, sizes, offsets, 1);
}

/* Nothing tells the driver its parameters. */
static void unknown(void)
{
    struct {
        CUdeviceptr address;
        uint32_t value;
    } arguments;
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    memset(&arguments, 0, sizeof(arguments));
    arguments.address = range.at;
    arguments.value = (uint32_t)fuzz_random();
    size_t bytes = sizeof(arguments);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    launch(fuzz_kernel("unknown_layout"), 1, 1, NULL, extra);
}

/* Recorded by a rule that `run` gives (METASHARD_KERNEL_RULES). */
static void launch_uniform(CUfunction function, CUdeviceptr at, size_t bytes)
{
    uint64_t count = bytes / 4, seed = fuzz_random(), offset = fuzz_below(1000);
    void *params[] = {&at, &count, &seed, &offset};
    fuzz_launch(function, params);
}

static void uniform(void)
{
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    launch_uniform(fuzz_kernel("uniform32"), range.at, range.bytes);
}

/* --- kernels with the names of a framework's, which the shim records */

static void draw(CUdeviceptr out, size_t bytes)
{
    int64_t count = (int64_t)(bytes / 4);
    struct torch_philox philox = {.seed.value = fuzz_below(1000),
                                  .offset.value = 4 * fuzz_below(1000)};
    char dist = 0;
    struct torch_transform to = {.out = out, .low = -1.0F, .high = 0.5F};
    void *params[] = {&count, &philox, &dist, &to};
    static const size_t sizes[] = {8, sizeof(philox), 1, sizeof(to)};
    static const size_t offsets[] = {0, 8, 32, 40};
    launch_packed(find(torch,
                       fuzz_one_in(2) ? TORCH_NAME(TORCH_NORMAL) : TORCH_NAME(TORCH_UNIFORM)),
                  1 + (unsigned)fuzz_below(50), params, sizes, offsets, 4);
}

static void fill_floats(CUdeviceptr out, size_t bytes)
{
    int count = (int)(bytes / 4);
    float value = (float)fuzz_below(100);
    void *params[] = {&count, &value, &out};
    static const size_t sizes[] = {4, 4, 8}, offsets[] = {0, 4, 8};
    launch_packed(find(torch, TORCH_NAME(TORCH_FILL)), 3, params, sizes, offsets, 3);
}

static void count_up(CUdeviceptr out, size_t bytes)
{
    int count = (int)(bytes / 4);
    struct torch_range from = {(float)fuzz_below(10), 0.5F};
    void *params[] = {&count, &from, &out};
    static const size_t sizes[] = {4, 8, 8}, offsets[] = {0, 4, 16};
    launch_packed(find(torch, TORCH_NAME(TORCH_ARANGE)), 3, params, sizes, offsets, 3);
}

static void initialise(void)
{
    static void (*const ways[])(CUdeviceptr, size_t) = {draw, draw, fill_floats, count_up};
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    /* Often a whole block, as a framework does. */
    const bool whole = fuzz_one_in(2);
    const CUdeviceptr at = whole ? range.block->at : range.at;
    ways[fuzz_below(4)](at, (whole ? range.block->bytes : range.bytes) / 4 * 4);
}

static void change_from(CUdeviceptr out, CUdeviceptr in, size_t bytes)
{
    int count = (int)(bytes / 4);
    float operand = 0.25F * (float)(1 + fuzz_below(8));
    CUdeviceptr data[2] = {out, in};
    void *params[] = {&count, &operand, data};
    static const size_t sizes[] = {4, 4, 16}, offsets[] = {0, 4, 8};
    launch_packed(find(torch, fuzz_one_in(2) ? TORCH_NAME(TORCH_ADD) : TORCH_NAME(TORCH_MUL)), 3,
                  params, sizes, offsets, 3);
}

static void change(void)
{
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    change_from(range.at, range.at, range.bytes);
}

static void change_other(void)
{
    struct fuzz_range from, to;
    if (fuzz_two_ranges(&from, &to, MOST, 4))
        change_from(to.at, from.at, to.bytes);
}

/* --- code that comes and goes */

/* Results of recorded launches must outlive the code. */
static void unload_module(void)
{
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    const CUmodule module = load(fuzz_kernels_path);
    launch_uniform(find(module, "uniform32"), range.at, range.bytes);
    fuzz_wait();
    SEE(CALL(cuModuleUnload)(module));
    fuzz_read(range.at, range.bytes);
}

static CUlibrary load_library(void)
{
    CUlibrary library = NULL;
    SEE(CALL(cuLibraryLoadFromFile)(&library, fuzz_kernels_path, NULL, NULL, 0, NULL, NULL, 0));
    return library;
}

static CUkernel find_in_library(CUlibrary library, const char *wanted)
{
    CUkernel all[64];
    unsigned count = 0;
    const char *name;
    if (fuzz_one_in(2)) {
        SEE(CALL(cuLibraryGetKernel)(&all[0], library, wanted));
        return all[0];
    }
    SEE(CALL(cuLibraryGetKernelCount)(&count, library));
    SEE(CALL(cuLibraryEnumerateKernels)(all, count, library));
    for (unsigned i = 0; i < count; i++) {
        CALL(cuKernelGetName)(&name, all[i]);
        if (strcmp(name, wanted) == 0)
            return all[i];
    }
    return NULL;
}

static void unload_library(void)
{
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    const CUlibrary library = load_library();
    launch_uniform((CUfunction)find_in_library(library, "uniform32"), range.at, range.bytes);
    fuzz_wait();
    SEE(CALL(cuLibraryUnload)(library));
    fuzz_read(range.at, range.bytes);
}

/* A kernel that is no function: if its parameters were not known, all memory would be needed. */
static void launch_of_library(void)
{
    const struct fuzz_witness witness = fuzz_witness_begin();
    struct fuzz_range range = fuzz_range(MOST, 4);
    const CUlibrary library = load_library();
    uint32_t value = 3;
    uint64_t count = range.bytes / 4;
    void *params[] = {&range.at, &value, &count};
    launch((CUfunction)find_in_library(library, "fill32"), 1, 1, params, NULL);
    fuzz_wait();
    fuzz_witness_end_launch(witness);
    SEE(CALL(cuLibraryUnload)(library));
}

/* --- addresses in memory */

void fuzz_gather(CUdeviceptr table, unsigned count)
{
    static CUdeviceptr out;
    uint32_t words[16] = {0};
    uint64_t number = count;
    if (out == 0)
        CALL(cuMemAlloc_v2)(&out, sizeof(words));
    void *params[] = {&out, &table, &number};
    launch(fuzz_kernel("gather32"), 1, 1, params, NULL);
    fuzz_wait();
    fuzz_default_stream(false);
    SEE(CALL(cuMemcpyDtoH_v2)(words, out, count * sizeof(words[0])));
    fuzz_see_bytes(words, sizeof(words));
}

const struct fuzz_operation fuzz_launches[] = {
    {"fill by a kernel", fill, 20},
    {"copy words by a kernel", copy_words, 20},
    {"add by a kernel", add, 20},
    {"a kernel of unknown parameters", unknown, 6},
    {"uniform numbers", uniform, 50},
    {"initialise", initialise, 60},
    {"change in place", change, 30},
    {"change from another", change_other, 30},
    {"unload a module", unload_module, 2},
    {"unload a library", unload_library, 2},
    {"launch of a library", launch_of_library, 2},
    {NULL, NULL, 0},
};
