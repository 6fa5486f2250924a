/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/launch_recorder.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* More than any program here makes; a place is filled by the thread that took its number. */
enum { LAUNCHES_MAX = 1 << 16, BLOCKS_MAX = 1 << 18 };
static struct recorder_launch *launches[LAUNCHES_MAX];
static struct recorder_block blocks[BLOCKS_MAX];
static atomic_int launch_count, block_count;

static int take_number(atomic_int *count, int most)
{
    const int number = atomic_fetch_add(count, 1);
    if (number >= most)
        abort();
    return number;
}

static atomic_bool recording;
static atomic_int dlsym_lookups, resolver_lookups;

typedef CUresult CUDAAPI ask_parameter(void *function, size_t index, size_t *offset_out,
                                       size_t *bytes_out);

/* Filled when the program asks the resolver for the launch entries; atomic as any thread may. */
static struct {
    _Atomic(PFN_cuGetProcAddress_v12000) resolve;
    _Atomic(__typeof__(&cuLaunchKernel)) launch[2];
    _Atomic(__typeof__(&cuLaunchKernelEx)) launch_ex[2];
    ask_parameter *parameter, *kernel_parameter;
    __typeof__(&cuFuncGetName) name;
    __typeof__(&cuKernelGetName) kernel_name;
    __typeof__(&cuFuncIsLoaded) is_loaded;
} real;

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* --- recording a launch */

static CUresult ask_layout(struct recorder_launch *launch, void *function, ask_parameter *ask)
{
    CUresult result = CUDA_ERROR_NOT_FOUND;
    int i = 0;
    for (; ask != NULL && i < RECORDER_PARAMETERS_MAX; i++) {
        result = ask(function, (size_t)i, &launch->offsets[i], &launch->sizes[i]);
        if (result != CUDA_SUCCESS)
            break;
    }
    launch->parameter_count = i;
    return result;
}

static void describe_function(struct recorder_launch *launch, CUfunction function)
{
    const char *name = NULL;
    CUfunctionLoadingState state;
    launch->loaded_before = -1;
    if (real.is_loaded != NULL && real.is_loaded(&state, function) == CUDA_SUCCESS)
        launch->loaded_before = (int)state;
    launch->name_from = "cuFuncGetName";
    if (real.name == NULL || real.name(&name, function) != CUDA_SUCCESS) {
        launch->name_from = "cuKernelGetName";
        if (real.kernel_name == NULL || real.kernel_name(&name, (CUkernel)function) != CUDA_SUCCESS)
            launch->name_from = "nowhere";
    }
    snprintf(launch->name, sizeof(launch->name), "%s", name != NULL ? name : "");
    const int64_t start_ns = clock_ns();
    launch->layout_from = "cuFuncGetParamInfo";
    launch->layout_end = ask_layout(launch, function, real.parameter);
    if (launch->parameter_count == 0) {
        launch->layout_end = ask_layout(launch, function, real.kernel_parameter);
        if (launch->parameter_count > 0)
            launch->layout_from = "cuKernelGetParamInfo";
    }
    launch->layout_ns = clock_ns() - start_ns;
}

static void pack_extra(struct recorder_launch *launch, void **extra)
{
    const void *buffer = NULL;
    size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *(const size_t *)extra[1];
    }
    launch->packed_by_caller = true;
    launch->packed = calloc(1, bytes + 8);
    if (launch->packed == NULL || buffer == NULL)
        return;
    memcpy(launch->packed, buffer, bytes);
    launch->packed_bytes = bytes;
}

static void pack_parameters(struct recorder_launch *launch, void **parameters)
{
    size_t bytes = 0;
    for (int i = 0; i < launch->parameter_count; i++)
        if (launch->offsets[i] + launch->sizes[i] > bytes)
            bytes = launch->offsets[i] + launch->sizes[i];
    launch->packed = calloc(1, bytes + 8);
    if (launch->packed == NULL || parameters == NULL)
        return;
    for (int i = 0; i < launch->parameter_count; i++)
        memcpy(launch->packed + launch->offsets[i], parameters[i], launch->sizes[i]);
    launch->packed_bytes = bytes;
}

static void record(const char *entry, const CUlaunchConfig *config, CUfunction function,
                   void **parameters, void **extra)
{
    if (!atomic_load(&recording))
        return;
    struct recorder_launch *const launch = calloc(1, sizeof(*launch));
    if (launch == NULL)
        abort();
    launch->entry = entry;
    launch->function = function;
    launch->config = *config;
    launch->config.attrs = launch->attributes;
    if (config->numAttrs <= RECORDER_ATTRIBUTES_MAX && config->numAttrs > 0)
        memcpy(launch->attributes, config->attrs, config->numAttrs * sizeof(config->attrs[0]));
    launch->thread = syscall(SYS_gettid);
    describe_function(launch, function);
    if (extra != NULL)
        pack_extra(launch, extra);
    else
        pack_parameters(launch, parameters);
    launches[take_number(&launch_count, LAUNCHES_MAX)] = launch;
}

#define DEFINE_LAUNCH(wrapper, index, entry)                                                  \
    static CUresult CUDAAPI wrapper(CUfunction function, unsigned grid_x, unsigned grid_y,    \
                                    unsigned grid_z, unsigned block_x, unsigned block_y,      \
                                    unsigned block_z, unsigned shared_bytes, CUstream stream, \
                                    void **parameters, void **extra)                          \
    {                                                                                         \
        const CUlaunchConfig config = {.gridDimX = grid_x,                                    \
                                       .gridDimY = grid_y,                                    \
                                       .gridDimZ = grid_z,                                    \
                                       .blockDimX = block_x,                                  \
                                       .blockDimY = block_y,                                  \
                                       .blockDimZ = block_z,                                  \
                                       .sharedMemBytes = shared_bytes,                        \
                                       .hStream = stream};                                    \
        record(entry, &config, function, parameters, extra);                                  \
        return atomic_load(&real.launch[index])(function, grid_x, grid_y, grid_z, block_x,    \
                                                block_y, block_z, shared_bytes, stream,       \
                                                parameters, extra);                           \
    }
DEFINE_LAUNCH(launch_kernel, 0, "cuLaunchKernel")
DEFINE_LAUNCH(launch_kernel_per_thread, 1, "cuLaunchKernel_ptsz")

#define DEFINE_LAUNCH_EX(wrapper, index, entry)                                          \
    static CUresult CUDAAPI wrapper(const CUlaunchConfig *config, CUfunction function,   \
                                    void **parameters, void **extra)                     \
    {                                                                                    \
        record(entry, config, function, parameters, extra);                              \
        return atomic_load(&real.launch_ex[index])(config, function, parameters, extra); \
    }
DEFINE_LAUNCH_EX(launch_kernel_ex, 0, "cuLaunchKernelEx")
DEFINE_LAUNCH_EX(launch_kernel_ex_per_thread, 1, "cuLaunchKernelEx_ptsz")

/* --- being in the way */

static CUresult CUDAAPI resolve(const char *symbol, void **function_out, int version,
                                cuuint64_t flags, CUdriverProcAddressQueryResult *status_out);

static void learn(const char *symbol, int version, void *function_out)
{
    CUdriverProcAddressQueryResult status;
    atomic_load (&real.resolve)(symbol, function_out, version, 0, &status);
}

static void learn_queries(void)
{
    if (real.name != NULL)
        return;
    learn("cuFuncGetParamInfo", 12040, &real.parameter);
    learn("cuKernelGetParamInfo", 12040, &real.kernel_parameter);
    learn("cuFuncIsLoaded", 12040, &real.is_loaded);
    learn("cuKernelGetName", 12030, &real.kernel_name);
    learn("cuFuncGetName", 12030, &real.name);
}

/* Keeps what the driver answered and gives ours in its place. */
static void substitute(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const int index = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    if (strcmp(symbol, "cuGetProcAddress") == 0 && version >= 12000) {
        *function = (void *)resolve;
    } else if (strcmp(symbol, "cuLaunchKernel") == 0) {
        learn_queries();
        atomic_store(&real.launch[index], (__typeof__(&cuLaunchKernel))*function);
        *function = index ? (void *)launch_kernel_per_thread : (void *)launch_kernel;
    } else if (strcmp(symbol, "cuLaunchKernelEx") == 0) {
        learn_queries();
        atomic_store(&real.launch_ex[index], (__typeof__(&cuLaunchKernelEx))*function);
        *function = index ? (void *)launch_kernel_ex_per_thread : (void *)launch_kernel_ex;
    }
}

static CUresult CUDAAPI resolve(const char *symbol, void **function_out, int version,
                                cuuint64_t flags, CUdriverProcAddressQueryResult *status_out)
{
    const CUresult result =
        atomic_load(&real.resolve)(symbol, function_out, version, flags, status_out);
    atomic_fetch_add(&resolver_lookups, 1);
    if (result == CUDA_SUCCESS && symbol != NULL && function_out != NULL && *function_out != NULL)
        substitute(symbol, function_out, version, flags);
    return result;
}

typedef void *dlsym_function(void *handle, const char *name);

static dlsym_function *libc_dlsym(void)
{
    static _Atomic(dlsym_function *) found;
    dlsym_function *function = atomic_load(&found);
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (int i = 0; function == NULL && i < 3; i++)
        function = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store(&found, function);
    return function;
}

static void *replacement(void *handle, const char *name)
{
    if (handle == RTLD_NEXT || strcmp(name, "cuGetProcAddress_v2") != 0)
        return NULL;
    void *const driver = libc_dlsym()(handle, name);
    atomic_fetch_add(&dlsym_lookups, 1);
    if (driver == NULL)
        return NULL;
    atomic_store(&real.resolve, (PFN_cuGetProcAddress_v12000)driver);
    return (void *)resolve;
}

/*
 * Must leave by a jump, as libc looks at its caller for RTLD_NEXT and for the scope of a plugin.
 * gcc does so at -O2, which the build sets for this file; clang is told.
 */
#if defined(__clang__) && __has_attribute(musttail)
#define JUMP __attribute__((musttail)) return
#else
#define JUMP return
#endif
RECORDER_EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    void *const ours = replacement(handle, name);
    if (ours != NULL)
        return ours;
    JUMP libc_dlsym()(handle, name);
}

/* --- what PyTorch's caching allocator says about its blocks */

/* c10::Device is two signed bytes, type and index, passed in one register. */
typedef void report_function(void *address, int64_t bytes, size_t allocated, size_t reserved,
                             uint16_t device);

/*
 * c10::reportMemoryUsageToProfiler; its second pair of arguments was int64_t up to PyTorch 1.13 and
 * is size_t since. libc10 is opened by Python outside the global scope, so RTLD_NEXT does not find
 * it; by its name as a library it is found.
 */
static void report(const char *symbol, void *address, int64_t bytes, size_t allocated,
                   size_t reserved, uint16_t device)
{
    blocks[take_number(&block_count, BLOCKS_MAX)] = (struct recorder_block){
        .address = (uint64_t)(uintptr_t)address,
        .bytes = bytes,
        .allocated_bytes = allocated,
        .reserved_bytes = reserved,
        .device_type = (int8_t)(device & 0xff),
        .device_index = (int8_t)(device >> 8),
        .thread = syscall(SYS_gettid),
    };
    static _Atomic(report_function *) found;
    report_function *function = atomic_load(&found);
    if (function == NULL) {
        void *const library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            function = (report_function *)dlsym(library, symbol);
        atomic_store(&found, function);
    }
    if (function != NULL)
        function(address, bytes, allocated, reserved, device);
}

#define DEFINE_REPORT(symbol)                                                                     \
    RECORDER_EXPORT report_function symbol;                                                       \
    void symbol(void *address, int64_t bytes, size_t allocated, size_t reserved, uint16_t device) \
    {                                                                                             \
        report(#symbol, address, bytes, allocated, reserved, device);                             \
    }
DEFINE_REPORT(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE)
DEFINE_REPORT(_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE)

/* --- for the program that measures */

void recorder_record(int on)
{
    atomic_store(&recording, on != 0);
}

int recorder_lookups(const char *way)
{
    return atomic_load(strcmp(way, "dlsym") == 0 ? &dlsym_lookups : &resolver_lookups);
}

int recorder_count(void)
{
    return atomic_load(&launch_count);
}

void recorder_clear(void)
{
    for (int i = 0; i < recorder_count(); i++) {
        free(launches[i]->packed);
        free(launches[i]);
    }
    atomic_store(&launch_count, 0);
}

const struct recorder_launch *recorder_launch(int number)
{
    return launches[number];
}

const struct recorder_block *recorder_blocks(int *count_out)
{
    *count_out = atomic_load(&block_count);
    return blocks;
}
