/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's out-of-memory errors. Deferred bytes get memory in the call that needs them, a copy or
 * a launch. Without memory that call fails, and PyTorch raises a torch.AcceleratorError. No program
 * expects this error from a shortage: programs catch torch.OutOfMemoryError, which PyTorch's
 * caching allocator raises. PyTorch checks each result by a function of libc10_cuda that it calls
 * through the PLT (c10/cuda/CUDAException.cpp):
 *
 *     void c10::cuda::c10_cuda_check_implementation(int32_t error, const char *file,
 *         const char *function, uint32_t line, bool include_device_assertions
 *         [, CUDAErrorLogCapture *])
 *
 * Before PyTorch 2.10 `line` is an int, which has the same calling convention.
 *
 * The dynamic linker finds the definition here first. For the shim's shortage, it makes PyTorch's
 * allocator throw its own exception, by a request for more than any device has: the allocator
 * refuses 1 EiB at once (c10/cuda/CUDACachingAllocator.cpp, malloc), and touches nothing. For every
 * other error, it calls libc10_cuda's own function.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/log.h"
#include "runtime/fill/overcommit.h"
#include "shim/real.h"

typedef void check_function(int32_t error, const char *file, const char *function, uint32_t line,
                            bool with_assertions, void *log);

/* The names in PyTorch since 2.14, in 2.10 to 2.13, and in 2.1 to 2.9. The older two functions have
 * no last parameter, and do not read it. */
#define CHECK _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jbPNS0_19CUDAErrorLogCaptureE
#define CHECK_OF_2_13 _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb
#define CHECK_OF_2_9 _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib

check_function CHECK, CHECK_OF_2_13, CHECK_OF_2_9;

static void *find(const char *library_name, const char *name)
{
    void *library = dlopen(library_name, RTLD_LAZY | RTLD_NOLOAD);
    return library != NULL ? ms_libc_dlsym()(library, name) : NULL;
}

/* The needed part of c10::Allocator: the third virtual function is DataPtr allocate(size_t). */
struct data_ptr {
    void *words[8]; /* larger than a c10::DataPtr; like it returned in memory */
};
struct allocator {
    const struct {
        void *destroy[2];
        struct data_ptr (*allocate)(struct allocator *self, size_t bytes);
    } * functions;
};

/* Returns only if this PyTorch differs from the known versions. */
static void throw_out_of_memory(void)
{
    static const int8_t cuda = 1; /* c10::DeviceType */
    static const size_t exbibyte = (size_t)1 << 60;
    struct allocator *(*get_allocator)(const int8_t *) = (struct allocator * (*)(const int8_t *))
        find("libc10.so", "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE");
    int (*forget_error)(void) = (int (*)(void))find("libc10_cuda.so", "cudaGetLastError");
    struct allocator *allocator = get_allocator != NULL ? get_allocator(&cuda) : NULL;
    if (allocator == NULL || forget_error == NULL)
        return;
    forget_error();
    ms_log(MS_INFO, "out of memory: raising PyTorch's own exception by a request to its allocator");
    allocator->functions->allocate(allocator, exbibyte);
}

#define DEFINE_CHECK(symbol, name)                                                     \
    void symbol(int32_t error, const char *file, const char *function, uint32_t line,  \
                bool with_assertions, void *log)                                       \
    {                                                                                  \
        static _Atomic(check_function *) original;                                     \
        check_function *go_on = atomic_load_explicit(&original, memory_order_relaxed); \
        if (go_on == NULL) {                                                           \
            go_on = (check_function *)find("libc10_cuda.so", name);                    \
            atomic_store_explicit(&original, go_on, memory_order_relaxed);             \
        }                                                                              \
        if (error == CUDA_ERROR_OUT_OF_MEMORY && ms_overcommit_take_failed())          \
            throw_out_of_memory();                                                     \
        if (go_on != NULL)                                                             \
            go_on(error, file, function, line, with_assertions, log);                  \
    }
DEFINE_CHECK(CHECK,
             "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jbPNS0_19CUDAErrorLogCaptureE")
DEFINE_CHECK(CHECK_OF_2_13, "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb")
DEFINE_CHECK(CHECK_OF_2_9, "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib")
