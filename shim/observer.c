/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block observer. PyTorch's caching allocator never gives memory back to the driver. But for
 * each block that the allocator hands out or takes back, it calls an exported function of libc10
 * through the PLT, with or without a profiler (c10/cuda/CUDACachingAllocator.cpp, alloc_found_block
 * and free; c10/core/Allocator.cpp). The dynamic linker finds the definitions here first; they
 * report to the runtime and call libc10's own function.
 *
 *     void c10::reportMemoryUsageToProfiler(void *ptr, int64_t alloc_size, size_t total_allocated,
 *                                           size_t total_reserved, c10::Device device)
 *
 * alloc_size is negative when the block is taken back. PyTorch's allocators of host memory call
 * this function, too.
 */
#include "shim/observer.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/log.h"
#include "runtime/calls/blocks.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/ready.h"
#include "shim/cancellation.h"
#include "shim/nccl_wrappers.h"
#include "shim/real.h"

struct device { /* c10::Device: passed in one register */
    int8_t type, index;
};

typedef void report_function(void *block, int64_t size, size_t allocated, size_t reserved,
                             struct device device);

/* The function's names: since 2.1, with unsigned totals, and before. */
#define REPORT _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define REPORT_OF_1_13 _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE

report_function REPORT, REPORT_OF_1_13;

static _Atomic bool has_reported;

/* Opens libc10: Python loads it outside the global scope, where RTLD_NEXT does not look. */
static report_function *find_report(const char *name)
{
    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    return (report_function *)ms_libc_dlsym()(library != NULL ? library : RTLD_NEXT, name);
}

static void observe(void *block, int64_t size)
{
    atomic_store_explicit(&has_reported, true, memory_order_relaxed);
    MS_ENTER("the caching allocator");
    ms_block_report((CUdeviceptr)(uintptr_t)block, size);
}

/* Separate functions, so that a report of a ready block needs no stack frame. `original` is
 * libc10's function, or NULL. */
static __attribute__((noinline)) void pass_on(void *block, int64_t size, size_t allocated,
                                              size_t reserved, struct device device,
                                              report_function *original)
{
    if (ms_owns_any())
        observe(block, size);
    if (original != NULL)
        original(block, size, allocated, reserved, device);
}

static __attribute__((noinline)) void find(_Atomic(report_function *) *original_out,
                                           const char *name, void *block, int64_t size,
                                           size_t allocated, size_t reserved, struct device device)
{
    report_function *original = find_report(name);
    atomic_store_explicit(original_out, original, memory_order_relaxed);
    pass_on(block, size, allocated, reserved, device, original);
}

#define DEFINE_REPORT(symbol, name)                                                     \
    void symbol(void *block, int64_t size, size_t allocated, size_t reserved,           \
                struct device device)                                                   \
    {                                                                                   \
        static _Atomic(report_function *) found;                                        \
        report_function *original = atomic_load_explicit(&found, memory_order_relaxed); \
        const bool is_noted = original != NULL && ms_owns_any() &&                      \
                              ms_ready_report((CUdeviceptr)(uintptr_t)block, size);     \
        original = atomic_load_explicit(&found, memory_order_relaxed);                  \
        if (is_noted)                                                                   \
            original(block, size, allocated, reserved, device);                         \
        else if (original != NULL)                                                      \
            pass_on(block, size, allocated, reserved, device, original);                \
        else                                                                            \
            find(&found, name, block, size, allocated, reserved, device);               \
    }
DEFINE_REPORT(REPORT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
DEFINE_REPORT(REPORT_OF_1_13, "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE")

void ms_observer_prepare(bool is_pooled)
{
    enum { ENOUGH = 16 }; /* deferred allocations, of which at least one is PyTorch's */
    static _Atomic uint32_t allocations;
    if (atomic_fetch_add(&allocations, 1) + 1 != ENOUGH)
        return;
    ms_nccl_prepare_detection();
    if (is_pooled || atomic_load_explicit(&has_reported, memory_order_relaxed) ||
        !ms_image_is_loaded("libc10_cuda.so"))
        return;
    ms_log(MS_WARN,
           "this PyTorch does not report the blocks of its allocator: whole allocations are "
           "materialised where a block would do");
}
