/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is allocated and freed in the order of a stream, and the pools that it comes from. */
#include "tests/driver/differential/fuzz.h"

#include <stdlib.h>

enum { GRANULE = 64 << 10, MOST = 4 };

static CUmemoryPool make_pool(void)
{
    CUmemoryPool pool = NULL;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    SEE(CALL(cuMemPoolCreate)(&pool, &props));
    return pool;
}

static CUdeviceptr allocate(CUmemoryPool pool, size_t bytes)
{
    CUdeviceptr at = 0;
    const bool twin = fuzz_one_in(2);
    SEE_QUEUED(twin, cuMemAllocFromPoolAsync, &at, bytes, pool);
    fuzz_say("  %zu bytes\n", bytes);
    return at;
}

static void free_in_stream(CUdeviceptr at)
{
    const bool twin = fuzz_one_in(2);
    SEE_QUEUED(twin, cuMemFreeAsync, at);
}

static void see_figure(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    uint64_t value = 0;
    SEE(CALL(cuMemPoolGetAttribute)(pool, attribute, &value));
    fuzz_see(value);
    fuzz_say("  %d: %llu\n", (int)attribute, (unsigned long long)value);
}

static void see_used(CUmemoryPool pool)
{
    fuzz_wait();
    see_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    see_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
}

static void see_all(CUmemoryPool pool)
{
    see_used(pool);
    see_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    see_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
}

static void set(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t value)
{
    SEE(CALL(cuMemPoolSetAttribute)(pool, attribute, &value));
}

/* The program makes allocations of any sizes and keeps none. */
static void figures(void)
{
    CUdeviceptr made[MOST] = {0};
    const CUmemoryPool pool = make_pool();
    for (size_t steps = 3 + fuzz_below(6); steps > 0; steps--) {
        const size_t i = fuzz_below(MOST), bytes = 1 + fuzz_below(3 * GRANULE);
        if (made[i] == 0) {
            made[i] = allocate(pool, bytes);
            if (fuzz_one_in(2))
                fuzz_define(made[i], bytes);
        } else {
            free_in_stream(made[i]);
            made[i] = 0;
        }
        see_all(pool);
        if (fuzz_one_in(4))
            set(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
        if (fuzz_one_in(4))
            set(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
    }
    if (fuzz_one_in(2)) { /* its memory outlives it */
        SEE(CALL(cuMemPoolDestroy)(pool));
        SEE(CALL(cuMemPoolDestroy)(pool));
    }
    for (size_t i = 0; i < MOST; i++) {
        if (made[i] != 0)
            free_in_stream(made[i]);
    }
    fuzz_wait();
    CALL(cuMemPoolDestroy)(pool);
}

/* Whole granules, which the pool keeps. Where the shim settles meanwhile, the driver keeps a part
 * of its own, so not every figure is observed. */
static void kept(void)
{
    const size_t granule = fuzz_granule();
    const CUmemoryPool pool = make_pool();
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, fuzz_one_in(2) ? UINT64_MAX : 2 * granule);
    const CUdeviceptr first = allocate(pool, (1 + fuzz_below(4)) * granule);
    const CUdeviceptr second = allocate(pool, (1 + fuzz_below(4)) * granule);
    free_in_stream(first);
    fuzz_wait();
    const CUdeviceptr third = allocate(pool, (1 + fuzz_below(4)) * granule);
    see_used(pool);
    free_in_stream(second);
    fuzz_wait();
    if (fuzz_one_in(2))
        SEE(CALL(cuMemPoolTrimTo)(pool, fuzz_below(6) * granule));
    free_in_stream(third);
    see_used(pool);
    SEE(CALL(cuMemPoolTrimTo)(pool, 0));
    see_used(pool);
    SEE(CALL(cuMemPoolDestroy)(pool));
}

/* The handle of a pool that is gone may be the next one's, which is of host memory. */
static void handle_again(void)
{
    CUdeviceptr there = 0;
    CUmemoryPool pool = make_pool();
    free_in_stream(allocate(pool, GRANULE));
    fuzz_wait();
    SEE(CALL(cuMemPoolDestroy)(pool));
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
    SEE(CALL(cuMemPoolCreate)(&pool, &props));
    there = allocate(pool, 4096);
    fuzz_wait();
    for (int i = 0; i < 4096; i++)
        ((volatile unsigned char *)(uintptr_t)there)[i] = (unsigned char)i;
    fuzz_read(there, 4096);
    free_in_stream(there);
    fuzz_wait();
    SEE(CALL(cuMemPoolDestroy)(pool));
}

/* A pool without properties defers; what it gives stays out of memory until it is needed. */
static void deferred(void)
{
    const CUmemoryPool pool = make_pool();
    const bool is_current = fuzz_one_in(2);
    CUmemoryPool before = NULL;
    CUdeviceptr at = 0;
    const bool twin = fuzz_one_in(2);
    fuzz_wait();
    if (is_current) {
        SEE(CALL(cuDeviceGetMemPool)(&before, 0));
        SEE(CALL(cuDeviceSetMemPool)(0, pool));
        SEE(TWIN(twin, cuMemAllocAsync, cuMemAllocAsync_ptsz)(&at, GRANULE, fuzz_stream(twin)));
        SEE(CALL(cuDeviceSetMemPool)(0, before));
    } else {
        at = allocate(pool, GRANULE);
    }
    fuzz_default_stream(false);
    SEE(CALL(cuMemsetD8_v2)(at, 5, GRANULE));
    fuzz_see_deferred(at);
    free_in_stream(at);
    see_used(pool);
    SEE(CALL(cuMemPoolDestroy)(pool));
}

/* The other device reaches what the pool gave before and gives later. */
static void shared(void)
{
    CUcontext reader = NULL;
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUmemoryPool pool = make_pool();
    const CUdeviceptr before = allocate(pool, GRANULE);
    fuzz_define(before, GRANULE);
    SEE(CALL(cuMemPoolSetAccess)(pool, &access, 1));
    const CUdeviceptr later = allocate(pool, GRANULE);
    fuzz_define(later, GRANULE);
    fuzz_wait();
    const CUdeviceptr from = (fuzz_one_in(2) ? before : later) + 4 * fuzz_below(GRANULE / 8);
    SEE(CALL(cuCtxCreate_v2)(&reader, 0, 1));
    fuzz_read_from(reader, from);
    SEE(CALL(cuCtxDestroy_v2)(reader));
    SEE(CALL(cuCtxSetCurrent)(fuzz_context));
    free_in_stream(before);
    free_in_stream(later);
    see_used(pool);
    SEE(CALL(cuMemPoolDestroy)(pool));
}

/* Made in one stream; used in others, each after the one before it; freed without a wait. */
static void handed_on(void)
{
    const size_t bytes = GRANULE / 4 + fuzz_below(2 * GRANULE);
    const struct fuzz_range to = fuzz_range(GRANULE / 4, 1);
    CUdeviceptr at = 0;
    const bool twin = fuzz_one_in(2);
    SEE(TWIN(twin, cuMemAllocAsync, cuMemAllocAsync_ptsz)(&at, bytes, fuzz_stream(twin)));
    for (size_t times = 1 + fuzz_below(3); times > 0; times--)
        SEE(CALL(cuMemsetD8Async)(at, (unsigned char)fuzz_random(), bytes, fuzz_stream(false)));
    if (fuzz_one_in(2)) {
        uint32_t word = (uint32_t)fuzz_random();
        uint64_t count = bytes / 4;
        void *params[] = {&at, &word, &count};
        fuzz_launch(fuzz_kernel("fill32"), params);
    }
    SEE(CALL(cuMemcpyDtoDAsync_v2)(to.at, at, to.bytes, fuzz_stream(false)));
    free_in_stream(at);
    fuzz_read(to.at, to.bytes);
}

const struct fuzz_operation fuzz_pools[] = {
    {"figures of a pool", figures, 4},
    {"what a pool keeps", kept, 3},
    {"the handle of a pool again", handle_again, 1},
    {"a deferred block of a pool", deferred, 4},
    {"share a pool", shared, 1},
    {"hand on between streams", handed_on, 16},
    {NULL, NULL, 0},
};
