/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launch recorder: a preload library, for measurements only. It sees the kernel launches of a
 * program that resolves the driver the way the CUDA runtime does, one dlsym of cuGetProcAddress_v2
 * and everything else through its answers; a program that links libcuda directly is not seen. It
 * also receives the reports of PyTorch's caching allocator about its blocks.
 *
 * The functions that are exported are for the same process (ctypes.CDLL of the preloaded file, in
 * probe_torch_tools.py). A launch is told before it is made, so whoever hears of a kernel that is
 * not loaded yet can ask the driver about an unloaded kernel.
 */
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef void on_launch(const char *entry, const CUlaunchConfig *config, CUfunction function,
                       void **parameters, void **extra);

/* Who is told of launches; NULL: nobody. */
EXPORT void recorder_tell(on_launch *listener);

/* Reports of the allocator, from the start of the process. */
struct block {
    uint64_t address;
    int64_t bytes; /* negative when the block was taken back */
    uint64_t allocated_bytes, reserved_bytes;
    int32_t device_type, device_index;
    int64_t thread;
};
EXPORT const struct block *recorder_blocks(int *count_out);

/* How many lookups came in by "dlsym" or "resolver": was the recorder in the way at all? */
EXPORT int recorder_lookups(const char *way);

static _Atomic(on_launch *) told;
static atomic_int dlsym_lookups, resolver_lookups;

/* Filled when the program asks the resolver for the launch entries; atomic as any thread may. */
static struct {
    _Atomic(PFN_cuGetProcAddress_v12000) resolve;
    _Atomic(__typeof__(&cuLaunchKernel)) launch[2];
    _Atomic(__typeof__(&cuLaunchKernelEx)) launch_ex[2];
} real;

/* --- launches */

static void tell(const char *entry, const CUlaunchConfig *config, CUfunction function,
                 void **parameters, void **extra)
{
    on_launch *const listener = atomic_load(&told);
    if (listener != NULL)
        listener(entry, config, function, parameters, extra);
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
        tell(entry, &config, function, parameters, extra);                                    \
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
        tell(entry, config, function, parameters, extra);                                \
        return atomic_load(&real.launch_ex[index])(config, function, parameters, extra); \
    }
DEFINE_LAUNCH_EX(launch_kernel_ex, 0, "cuLaunchKernelEx")
DEFINE_LAUNCH_EX(launch_kernel_ex_per_thread, 1, "cuLaunchKernelEx_ptsz")

void recorder_tell(on_launch *listener)
{
    atomic_store(&told, listener);
}

/* --- being in the way */

static CUresult CUDAAPI resolve(const char *symbol, void **function_out, int version,
                                cuuint64_t flags, CUdriverProcAddressQueryResult *status_out);

/* Keeps what the driver answered and gives ours in its place. */
static void substitute(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const int index = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    if (strcmp(symbol, "cuGetProcAddress") == 0 && version >= 12000) {
        *function = (void *)resolve;
    } else if (strcmp(symbol, "cuLaunchKernel") == 0) {
        atomic_store(&real.launch[index], (__typeof__(&cuLaunchKernel))*function);
        *function = index ? (void *)launch_kernel_per_thread : (void *)launch_kernel;
    } else if (strcmp(symbol, "cuLaunchKernelEx") == 0) {
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
EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    void *const ours = replacement(handle, name);
    if (ours != NULL)
        return ours;
    JUMP libc_dlsym()(handle, name);
}

/* --- what PyTorch's caching allocator says about its blocks */

/* A place is filled by the thread that took its number. */
enum { BLOCKS_MAX = 1 << 18 };
static struct block blocks[BLOCKS_MAX];
static atomic_int block_count;

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
    const int number = atomic_fetch_add(&block_count, 1);
    if (number >= BLOCKS_MAX)
        abort();
    blocks[number] = (struct block){
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
    EXPORT report_function symbol;                                                                \
    void symbol(void *address, int64_t bytes, size_t allocated, size_t reserved, uint16_t device) \
    {                                                                                             \
        report(#symbol, address, bytes, allocated, reserved, device);                             \
    }
DEFINE_REPORT(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE)
DEFINE_REPORT(_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE)

const struct block *recorder_blocks(int *count_out)
{
    *count_out = atomic_load(&block_count);
    return blocks;
}

int recorder_lookups(const char *way)
{
    return atomic_load(strcmp(way, "dlsym") == 0 ? &dlsym_lookups : &resolver_lookups);
}
