/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/launch_recorder.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ATTRIBUTES_MAX = 16 };

enum entry { LAUNCH, LAUNCH_PER_THREAD, LAUNCH_EX, LAUNCH_EX_PER_THREAD, ENTRY_COUNT };
static const char *const entry_names[ENTRY_COUNT] = {"cuLaunchKernel", "cuLaunchKernel_ptsz",
                                                     "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"};

struct launch {
    struct recorder_launch told;
    enum entry entry;
    CUfunction function;
    CUlaunchConfig config;
    CUlaunchAttribute attributes[ATTRIBUTES_MAX];
};

/* guarded by lock: the list. No driver call is made under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct launch **launches;
static int launch_count, launch_capacity;

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

static void keep(struct launch *launch)
{
    pthread_mutex_lock(&lock);
    if (launch_count == launch_capacity) {
        launch_capacity = launch_capacity * 2 + 64;
        launches = realloc(launches, (size_t)launch_capacity * sizeof(*launches));
        if (launches == NULL)
            abort();
    }
    launches[launch_count++] = launch;
    pthread_mutex_unlock(&lock);
}

static void record(enum entry entry, const CUlaunchConfig *config, CUfunction function,
                   void **parameters, void **extra)
{
    if (!atomic_load(&recording))
        return;
    struct launch *const launch = calloc(1, sizeof(*launch));
    if (launch == NULL)
        return;
    launch->entry = entry;
    launch->function = function;
    launch->config = *config;
    if (config->numAttrs <= ATTRIBUTES_MAX && config->numAttrs > 0)
        memcpy(launch->attributes, config->attrs, config->numAttrs * sizeof(config->attrs[0]));
    launch->config.attrs = launch->attributes;
    struct recorder_launch *const told = &launch->told;
    *told = (struct recorder_launch){
        .entry = entry_names[entry],
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .attributes = config->numAttrs,
        .stream = (uint64_t)(uintptr_t)config->hStream,
        .thread = syscall(SYS_gettid),
    };
    describe_function(told, function);
    if (extra != NULL)
        pack_extra(told, extra);
    else
        pack_parameters(told, parameters);
    keep(launch);
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
DEFINE_LAUNCH(launch_kernel, 0, LAUNCH)
DEFINE_LAUNCH(launch_kernel_per_thread, 1, LAUNCH_PER_THREAD)

#define DEFINE_LAUNCH_EX(wrapper, index, entry)                                          \
    static CUresult CUDAAPI wrapper(const CUlaunchConfig *config, CUfunction function,   \
                                    void **parameters, void **extra)                     \
    {                                                                                    \
        record(entry, config, function, parameters, extra);                              \
        return atomic_load(&real.launch_ex[index])(config, function, parameters, extra); \
    }
DEFINE_LAUNCH_EX(launch_kernel_ex, 0, LAUNCH_EX)
DEFINE_LAUNCH_EX(launch_kernel_ex_per_thread, 1, LAUNCH_EX_PER_THREAD)

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
    pthread_mutex_lock(&lock);
    const int count = launch_count;
    pthread_mutex_unlock(&lock);
    return count;
}

void recorder_clear(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < launch_count; i++) {
        free(launches[i]->told.packed);
        free(launches[i]);
    }
    launch_count = 0;
    pthread_mutex_unlock(&lock);
}

static const struct launch *find(int index)
{
    pthread_mutex_lock(&lock);
    const struct launch *const launch = index >= 0 && index < launch_count ? launches[index] : NULL;
    pthread_mutex_unlock(&lock);
    return launch;
}

const struct recorder_launch *recorder_launch(int index)
{
    const struct launch *const launch = find(index);
    return launch != NULL ? &launch->told : NULL;
}

static int move_words(const struct recorder_launch *launch, unsigned char *packed,
                      uint64_t old_begin, uint64_t old_end, uint64_t new_begin)
{
    int moved = 0;
    for (size_t offset = 0; offset + 8 <= launch->packed_bytes; offset += 8) {
        uint64_t word;
        memcpy(&word, packed + offset, sizeof(word));
        if (word < old_begin || word >= old_end)
            continue;
        word += new_begin - old_begin;
        memcpy(packed + offset, &word, sizeof(word));
        moved++;
    }
    return moved;
}

static CUresult launch_again(const struct launch *launch, void **parameters, void **extra)
{
    const CUlaunchConfig *const config = &launch->config;
    const int index = launch->entry == LAUNCH_PER_THREAD || launch->entry == LAUNCH_EX_PER_THREAD;
    if (launch->entry == LAUNCH_EX || launch->entry == LAUNCH_EX_PER_THREAD)
        return atomic_load(&real.launch_ex[index])(config, launch->function, parameters, extra);
    return atomic_load(&real.launch[index])(launch->function, config->gridDimX, config->gridDimY,
                                            config->gridDimZ, config->blockDimX, config->blockDimY,
                                            config->blockDimZ, config->sharedMemBytes,
                                            config->hStream, parameters, extra);
}

int recorder_relaunch(int index, uint64_t old_begin, uint64_t old_end, uint64_t new_begin,
                      int *words_moved_out)
{
    const struct launch *const launch = find(index);
    if (launch == NULL || launch->told.packed == NULL || launch->config.numAttrs > ATTRIBUTES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    const struct recorder_launch *const told = &launch->told;
    unsigned char *const packed = malloc(told->packed_bytes + 8);
    if (packed == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(packed, told->packed, told->packed_bytes);
    *words_moved_out = move_words(told, packed, old_begin, old_end, new_begin);
    size_t bytes = told->packed_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    void *parameters[RECORDER_PARAMETERS_MAX];
    for (int i = 0; i < told->parameter_count; i++)
        parameters[i] = packed + told->offsets[i];
    const CUresult result = told->packed_by_caller ? launch_again(launch, NULL, extra)
                                                   : launch_again(launch, parameters, NULL);
    free(packed);
    return (int)result;
}
