/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: whose memory comes back to whom, what a pool keeps, and where it lies. */
#include "tests/gpu/probe.h"

#define BLOCK (32 * MIB)

static CUmemoryPool make_pool(uint64_t threshold)
{
    const CUmemPoolProps property = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = probe_location()};
    CUmemoryPool pool = NULL;
    TRY(cuMemPoolCreate, &pool, &property);
    TRY(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    return pool;
}

static CUdeviceptr take(CUmemoryPool pool, size_t bytes, CUstream stream)
{
    CUdeviceptr address = 0;
    TRY(cuMemAllocFromPoolAsync, &address, bytes, pool, stream);
    return address;
}

/* --- does memory that was freed on one stream come back on another? */

enum order { NOTHING, EVENT, WAITED, SAME_STREAM, ORDER_COUNT };
static const char *const order_keys[ORDER_COUNT] = {"nothing_between", "event_between",
                                                    "synchronized_between", "same_stream"};

static void print_reuse(enum order order, bool busy)
{
    const CUmemoryPool pool = make_pool(UINT64_MAX);
    const CUstream first = probe_stream(CU_STREAM_NON_BLOCKING);
    const CUstream second = order == SAME_STREAM ? first : probe_stream(CU_STREAM_NON_BLOCKING);
    CUevent event;
    TRY(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    const CUdeviceptr before = take(pool, BLOCK, first);
    TRY(cuMemsetD8Async, before, 1, BLOCK, first);
    TRY(cuStreamSynchronize, first);
    if (busy)
        busy_start(first, busy_best(), 40);
    TRY(cuMemFreeAsync, before, first);
    TRY(cuEventRecord, event, first);
    if (order == EVENT)
        TRY(cuStreamWaitEvent, second, event, 0);
    if (order == WAITED)
        TRY(cuStreamSynchronize, first);
    const int64_t start_ns = probe_clock_ns();
    const CUdeviceptr after = take(pool, BLOCK, second);
    const int64_t alloc_ns = probe_clock_ns() - start_ns;
    const CUresult first_state = CU(cuStreamQuery, first), second_state = CU(cuStreamQuery, second);
    js_us("alloc_us", alloc_ns);
    js_bool("same_address", after == before);
    js_bool("first_stream_still_busy", first_state == CUDA_ERROR_NOT_READY);
    js_bool("second_stream_waits", second_state == CUDA_ERROR_NOT_READY);
    TRY(cuMemFreeAsync, after, second);
    TRY(cuCtxSynchronize);
    TRY(cuMemPoolDestroy, pool);
}

static void reuse_of(size_t busy)
{
    for (int order = 0; order < ORDER_COUNT; order++) {
        js_open(order_keys[order]);
        print_reuse((enum order)order, busy);
        js_close();
    }
}

/* --- figures of a pool */

static long long figure(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    uint64_t value = 0;
    TRY(cuMemPoolGetAttribute, pool, attribute, &value);
    return (long long)value;
}

static void print_figures(const char *key, CUmemoryPool pool, int64_t before)
{
    js_open(key);
    js_int("used", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    js_int("used_high", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    js_int("reserved", figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    js_int("reserved_high", figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
    js_int("taken_of_the_device", before - probe_free_bytes());
    js_close();
}

/* Three blocks; the one in the middle, and then all of them, are freed. */
static void figures_of(size_t threshold)
{
    const CUmemoryPool pool = make_pool(threshold);
    const CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
    const int64_t before = probe_free_bytes();
    CUdeviceptr blocks[3];
    print_figures("empty", pool, before);
    blocks[0] = take(pool, 3 * MIB, stream);
    print_figures("with_3_mib", pool, before);
    TRY(cuMemFreeAsync, blocks[0], stream);
    TRY(cuStreamSynchronize, stream);
    for (int i = 0; i < 3; i++)
        blocks[i] = take(pool, BLOCK, stream);
    print_figures("with_3_blocks", pool, before);
    busy_start(stream, busy_best(), 40);
    TRY(cuMemFreeAsync, blocks[1], stream);
    print_figures("freed_behind_work", pool, before);
    js_result("trim_behind_work", CU(cuMemPoolTrimTo, pool, 0));
    print_figures("trimmed_behind_work", pool, before);
    TRY(cuStreamSynchronize, stream);
    print_figures("synchronized", pool, before);
    js_result("trim_to_80_mib", CU(cuMemPoolTrimTo, pool, 80 * MIB));
    print_figures("trimmed_to_80_mib", pool, before);
    js_result("trim_to_0", CU(cuMemPoolTrimTo, pool, 0));
    print_figures("trimmed_to_0", pool, before);
    TRY(cuMemFreeAsync, blocks[0], stream);
    TRY(cuMemFreeAsync, blocks[2], stream);
    TRY(cuStreamSynchronize, stream);
    print_figures("all_freed", pool, before);
    TRY(cuMemPoolTrimTo, pool, 0);
    print_figures("all_trimmed", pool, before);
    TRY(cuMemPoolDestroy, pool);
}

/* --- addresses */

enum { COUNT = 16 };

static void print_addresses(const char *key, CUmemoryPool pool, size_t bytes, CUstream stream)
{
    CUdeviceptr blocks[COUNT], least = UINT64_MAX, most = 0, start = 0;
    size_t range = 0;
    int ascending = 0, adjacent = 0;
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = take(pool, bytes, stream);
        least = blocks[i] < least ? blocks[i] : least;
        most = blocks[i] > most ? blocks[i] : most;
        ascending += i > 0 && blocks[i] > blocks[i - 1];
        adjacent += i > 0 && blocks[i] == blocks[i - 1] + bytes;
    }
    js_open(key);
    js_address("least", least);
    js_address("most", most);
    js_int("span", (long long)(most + bytes - least));
    js_int("ascending", ascending);
    js_int("adjacent", adjacent);
    js_int("alignment", (long long)(blocks[0] & -blocks[0]));
    if (CU(cuPointerGetAttribute, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, blocks[1]) == 0 &&
        CU(cuPointerGetAttribute, &range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, blocks[1]) == 0) {
        js_int("range_start_minus_address", (long long)(start - blocks[1]));
        js_int("range_bytes", (long long)range);
    }
    js_close();
    for (int i = 0; i < COUNT; i++)
        TRY(cuMemFreeAsync, blocks[i], stream);
    TRY(cuStreamSynchronize, stream);
}

static void addresses(size_t unused)
{
    const CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = NULL;
    TRY(cuDeviceGetDefaultMemPool, &pool, probe_device);
    print_addresses("default_pool_1_mib", pool, MIB, stream);
    print_addresses("default_pool_20_mib", pool, 20 * MIB, stream);
    TRY(cuMemPoolTrimTo, pool, 0);
    print_addresses("default_pool_20_mib_after_trim", pool, 20 * MIB, stream);
    const CUmemoryPool other = make_pool(0);
    print_addresses("another_pool_20_mib", other, 20 * MIB, stream);
    TRY(cuMemPoolDestroy, other);
    js_address("cuMemAlloc_20_mib", probe_alloc(20 * MIB));
    js_address("cuMemAddressReserve", probe_reserve(20 * MIB));
}

const struct probe_row section_pools[] = {
    {NULL, busy_print},
    {"reuse_on_an_idle_device", reuse_of, false},
    {"reuse_behind_work", reuse_of, true},
    {"figures_with_threshold_0", figures_of, 0},
    {"figures_with_threshold_of_everything", figures_of, SIZE_MAX},
    {"addresses", addresses},
    {NULL},
};
