/* SPDX-License-Identifier: Apache-2.0 */
/* The launch recorder's other half: what PyTorch's caching allocator says about its blocks. */
#include "tests/gpu/launch_recorder.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct recorder_block *blocks;
static int block_count, block_capacity;

static void keep_block(const struct recorder_block *block)
{
    pthread_mutex_lock(&lock);
    if (block_count == block_capacity) {
        block_capacity = block_capacity * 2 + 256;
        blocks = realloc(blocks, (size_t)block_capacity * sizeof(*blocks));
        if (blocks == NULL)
            abort();
    }
    blocks[block_count++] = *block;
    pthread_mutex_unlock(&lock);
}

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
    const struct recorder_block block = {
        .address = (uint64_t)(uintptr_t)address,
        .bytes = bytes,
        .allocated_bytes = allocated,
        .reserved_bytes = reserved,
        .device_type = (int8_t)(device & 0xff),
        .device_index = (int8_t)(device >> 8),
        .thread = syscall(SYS_gettid),
    };
    keep_block(&block);
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

int recorder_block_count(void)
{
    pthread_mutex_lock(&lock);
    const int count = block_count;
    pthread_mutex_unlock(&lock);
    return count;
}

int recorder_block_get(int index, struct recorder_block *block_out)
{
    pthread_mutex_lock(&lock);
    const bool valid = index >= 0 && index < block_count;
    if (valid)
        *block_out = blocks[index];
    pthread_mutex_unlock(&lock);
    return valid;
}
