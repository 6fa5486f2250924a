/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is allocated and freed in the order of a stream, and what pools say about it. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/driver/differential/scenario.h"

static CUdeviceptr in_stream(size_t bytes, CUstream stream)
{
    CUdeviceptr at = 0;
    OK(cuMemAllocAsync(&at, bytes, stream));
    return at;
}

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static const CUmemPoolProps plain = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static CUmemoryPool make_pool(void)
{
    CUmemoryPool pool;
    OK(cuMemPoolCreate(&pool, &plain));
    return pool;
}

static CUdeviceptr from_pool(size_t bytes, CUmemoryPool pool, CUstream stream)
{
    CUdeviceptr at = 0;
    OK(cuMemAllocFromPoolAsync(&at, bytes, pool, stream));
    return at;
}

static void add(CUdeviceptr address, uint64_t count, uint32_t value, CUstream stream)
{
    OK(try_add(address, value, count, stream));
}

static void print_figures(const char *when, CUmemoryPool pool)
{
    static const CUmemPool_attribute all[] = {CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                              CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                                              CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                              CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH};
    printf("%s:", when);
    for (int i = 0; i < 4; i++) {
        uint64_t value = 0;
        OK(cuMemPoolGetAttribute(pool, all[i], &value));
        printf(" %llu", (unsigned long long)value);
    }
    printf("\n");
}

static void print_used(void)
{
    uint64_t used = 1;
    OK(cuMemPoolGetAttribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    printf("used: %llu\n", (unsigned long long)used);
}

static void set_figure(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t value)
{
    OK(cuMemPoolSetAttribute(pool, attribute, &value));
}

static size_t free_bytes(void)
{
    size_t free, total;
    OK(cuMemGetInfo(&free, &total));
    return free;
}

/* The program keeps a part of the loaded block. */
SCENARIO(sliced)
{
    const CUstream stream = make_stream();
    const CUdeviceptr loaded = load_file(8 * MIB);
    const CUdeviceptr whole = in_stream(8 * MIB, stream), part = in_stream(2 * MIB, stream);
    OK(cuMemcpyDtoDAsync(whole, loaded, 8 * MIB, stream));
    OK(cuMemFreeAsync(loaded, stream));
    OK(cuMemcpyDtoDAsync(part, whole + MIB, 2 * MIB, stream));
    OK(cuMemFreeAsync(whole, stream));
    OK(cuStreamSynchronize(stream));
    print_bytes("the part", part, 2 * MIB);
    OK(cuMemFree(part));
}

/* Neither the free nor what follows waits for a stream that stands still. */
SCENARIO(stands_still)
{
    const CUstream stream = make_stream();
    const size_t before = free_bytes();
    const CUdeviceptr pooled = in_stream(8 * MIB, stream);
    CUdeviceptr plain_memory = allocate(8 * MIB);
    OK(cuMemsetD32Async(pooled, 5, 2 * MIB, stream));
    OK(cuMemsetD32Async(plain_memory, 6, 2 * MIB, stream));
    add(pooled, 2 * MIB, 1, stream);
    add(plain_memory, 2 * MIB, 1, stream);
    OK(cuStreamSynchronize(stream));
    hold(stream);
    const CUdeviceptr kept = allocate(4096);
    OK(cuMemcpyDtoDAsync(kept, pooled + MIB, 2048, stream));
    OK(cuMemcpyDtoDAsync(kept + 2048, plain_memory + MIB, 2048, stream));
    OK(cuMemFreeAsync(pooled, stream));
    OK(cuMemFreeAsync(plain_memory, stream));
    printf("freed again: %d %d\n", cuMemFreeAsync(pooled, stream),
           cuMemFreeAsync(plain_memory, stream));
    print_figures("while it stands still", default_pool());
    const CUdeviceptr other = in_stream(16 * MIB, CU_STREAM_PER_THREAD);
    OK(cuMemsetD8Async(other, 3, 16 * MIB, CU_STREAM_PER_THREAD));
    printf("used: %d\n", before - free_bytes() >= 32 * MIB);
    let_go();
    OK(cuStreamSynchronize(stream));
    print_figures("afterwards", default_pool());
    print_bytes("kept", kept, 4096);
    print_bytes("other", other, 16 * MIB);
    OK(cuMemFree(other));
    OK(cuMemFree(kept));
    printf("%d\n", free_bytes() == before);
}

/* Made in one stream, used and freed in another that waits for it. */
SCENARIO(handed_on)
{
    CUevent made, used;
    const CUstream first = make_stream(), second = make_stream();
    OK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&used, CU_EVENT_DISABLE_TIMING));
    const CUdeviceptr result = allocate(4 * MIB);
    for (uint32_t i = 0; i < 20; i++) {
        const CUdeviceptr at = in_stream(4 * MIB, first);
        OK(cuMemsetD32Async(at, i, MIB, first));
        OK(cuEventRecord(made, first));
        OK(cuStreamWaitEvent(second, made, 0));
        add(at, MIB, 100, second);
        OK(cuMemcpyDtoDAsync(result, at, 4 * MIB, second));
        OK(cuEventRecord(used, second));
        OK(cuStreamWaitEvent(first, used, 0));
        OK(cuMemFreeAsync(at, i % 2 == 0 ? second : first));
    }
    OK(cuCtxSynchronize());
    print_bytes("the last", result, 4 * MIB);
}

SCENARIO(figures)
{
    const CUstream stream = make_stream();
    const CUmemoryPool pool = make_pool();
    CUmemoryPool seen = NULL;
    CUcontext context = NULL;
    print_figures("empty", pool);
    const CUdeviceptr first = from_pool(4 * MIB, pool, stream);
    const CUdeviceptr small = from_pool(1000, pool, stream);
    const CUdeviceptr second = from_pool(6 * MIB + 5, pool, stream);
    print_figures("three", pool);
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, second + MIB));
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, second));
    printf("handle %d, context %d\n", seen == pool, context != NULL);
    OK(cuMemFreeAsync(first, stream));
    OK(cuStreamSynchronize(stream));
    print_figures("two", pool);
    set_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
    set_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
    print_figures("set back", pool);
    OK(cuMemFreeAsync(small, stream));
    OK(cuStreamSynchronize(stream));
    set_figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
    const size_t before = free_bytes();
    OK(cuMemFreeAsync(second, stream));
    OK(cuStreamSynchronize(stream));
    print_figures("kept", pool);
    printf("%zu bytes more are free\n", free_bytes() - before);
    const CUdeviceptr third = from_pool(2 * MIB, pool, stream);
    print_figures("from what was kept", pool);
    OK(cuMemPoolTrimTo(pool, 4 * MIB));
    print_figures("trimmed to 4 MiB", pool);
    OK(cuMemPoolTrimTo(pool, 0));
    print_figures("trimmed", pool);
    const CUdeviceptr fourth = from_pool(8 * MIB, pool, stream);
    print_figures("larger", pool);
    OK(cuMemFree(fourth));
    print_figures("freed in no stream", pool);
    OK(cuMemsetD8(third, 1, 2 * MIB));
    OK(cuMemPoolDestroy(pool));
    printf("destroyed: %d\n", cuMemPoolTrimTo(pool, 0));
    print_bytes("of a pool that was destroyed", third, 2 * MIB);
    OK(cuMemFreeAsync(third, stream));
    OK(cuStreamSynchronize(stream));
    printf("%zu bytes more are free\n", free_bytes() - before);
    printf("the default pool is not destroyed: %d\n", cuMemPoolDestroy(default_pool()));
    print_figures("the default pool", default_pool());
}

/* The current pool is another one, and the default one again when that is destroyed. */
SCENARIO(current_pool)
{
    const CUmemoryPool pool = make_pool();
    OK(cuDeviceSetMemPool(0, pool));
    const CUdeviceptr first = in_stream(4 * MIB, NULL);
    print_figures("its pool", pool);
    print_figures("the default pool", default_pool());
    OK(cuMemFreeAsync(first, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(pool));
    const CUdeviceptr second = in_stream(4 * MIB, NULL);
    print_figures("the default pool", default_pool());
    OK(cuMemFree(second));
}

SCENARIO(refused)
{
    CUdeviceptr at = 0;
    CUgraph graph;
    CUstreamCaptureStatus status;
    const CUstream stream = make_stream(), gone = make_stream();
    OK(cuStreamDestroy(gone));
    printf("%d %d %d %d %d\n", cuMemAllocAsync(NULL, MIB, stream), cuMemAllocAsync(&at, 0, stream),
           cuMemAllocAsync(&at, 4 * MIB, gone), cuMemAllocFromPoolAsync(&at, 4 * MIB, NULL, stream),
           cuMemAllocAsync(&at, (size_t)1 << 50, stream));
    at = in_stream(4 * MIB, stream);
    OK(cuMemsetD8Async(at, 7, 4 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    printf("%d %d %d\n", cuMemFreeAsync(at + 4096, stream), cuMemFreeAsync(at, gone),
           cuMemFreeAsync(0, stream));
    /* The driver makes a node of it, for memory of a graph only. */
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf("captured: %d\n", cuMemFreeAsync(at, stream));
    OK(cuStreamIsCapturing(stream, &status));
    printf("still captured: %d\n", (int)status);
    OK(cuStreamEndCapture(stream, &graph));
    print_bytes("still there", at, 4 * MIB);
    OK(cuMemFreeAsync(at, stream));
    OK(cuStreamSynchronize(stream));
    printf("%d %d\n", cuMemFreeAsync(at, stream), cuMemFree(at));
}

/* Freed in one stream while another is captured. */
SCENARIO(freed_meanwhile)
{
    CUgraph graph;
    const CUstream stream = make_stream(), captured = make_stream();
    const CUdeviceptr at = in_stream(4 * MIB, stream);
    OK(cuMemsetD8Async(at, 7, 4 * MIB, stream));
    add(at, MIB, 1, stream);
    OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemFreeAsync(at, stream));
    const CUdeviceptr other = in_stream(4 * MIB, stream);
    OK(cuMemsetD8Async(other, 8, 4 * MIB, stream));
    OK(cuStreamEndCapture(captured, &graph));
    OK(cuStreamSynchronize(stream));
    print_bytes("other", other, 4 * MIB);
    OK(cuMemFreeAsync(other, stream));
    OK(cuStreamSynchronize(stream));
    print_used();
}

/* Each step allocates, sets, computes and frees, as with PyTorch's backend:cudaMallocAsync. */
SCENARIO(train)
{
    enum { STEPS = 150, TENSORS = 4 };
    const CUdeviceptr parameters = in_stream(8 * MIB, NULL);
    OK(cuMemsetD32(parameters, 1, 2 * MIB));
    const CUdeviceptr unused = in_stream(8 * MIB, NULL);
    OK(cuMemsetD32(unused, 2, 2 * MIB));
    for (uint32_t step = 0; step < STEPS; step++) {
        CUdeviceptr made[TENSORS];
        for (uint32_t i = 0; i < TENSORS; i++) {
            made[i] = in_stream(4 * MIB, NULL);
            OK(cuMemsetD32Async(made[i], step, MIB, NULL));
            add(made[i], MIB, i, NULL);
        }
        add(parameters, 1000, step, NULL);
        for (uint32_t i = 0; i < TENSORS; i++)
            OK(cuMemFreeAsync(made[i], NULL));
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    print_bytes("parameters", parameters, 8 * MIB);
    print_bytes("unused", unused, 8 * MIB);
}

/* The next model, when the first is gone. */
SCENARIO(train_and_load)
{
    const CUdeviceptr model = in_stream(16 * MIB, NULL);
    OK(cuMemsetD32(model, 1, 4 * MIB));
    const CUdeviceptr small = allocate(4096);
    for (uint32_t step = 0; step < 150; step++) {
        fill(small, step, 1024);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    const CUdeviceptr working = in_stream(8 * MIB, NULL); /* the driver's */
    OK(cuMemsetD8Async(working, 4, 8 * MIB, NULL));
    OK(cuMemFreeAsync(model, NULL));
    OK(cuCtxSynchronize());
    const CUdeviceptr next = in_stream(16 * MIB, NULL);
    OK(cuMemsetD32(next, 2, 4 * MIB));
    print_bytes("a part of the next model", next, 4096);
    print_bytes("working memory", working, 8 * MIB);
}

/* A capture settles, too, and is no sign that the program has loaded. */
SCENARIO(captured_early)
{
    CUgraph graph;
    const CUstream stream = make_stream();
    const CUdeviceptr early = in_stream(2 * MIB, stream);
    OK(cuMemsetD8Async(early, 4, 2 * MIB, stream));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamEndCapture(stream, &graph));
    const CUdeviceptr model = in_stream(16 * MIB, stream);
    OK(cuMemsetD8Async(model, 5, 16 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    print_bytes("a part of the model", model, 4096);
}

/* The other device has access when the pool gives it, and not by cuCtxEnablePeerAccess. */
SCENARIO(shared)
{
    CUcontext here, there;
    CUdevice device;
    const CUmemoryPool pool = make_pool();
    OK(cuCtxGetCurrent(&here));
    const CUdeviceptr at = from_pool(4 * MIB, pool, NULL);
    OK(cuMemsetD32(at, 7, MIB));
    const CUmemAccessDesc own = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccessDesc other = own;
    other.location.id = 1;
    OK(cuMemPoolSetAccess(pool, &own, 1));
    OK(cuMemPoolSetAccess(pool, &other, 1));
    const CUdeviceptr later = from_pool(4 * MIB, pool, NULL);
    OK(cuMemsetD32(later, 8, MIB));
    OK(cuCtxSynchronize());
    OK(cuDeviceGet(&device, 1));
    OK(cuDevicePrimaryCtxRetain(&there, device));
    OK(cuCtxSetCurrent(there));
    const CUdeviceptr result = allocate(8 * MIB);
    OK(cuMemcpyDtoD(result, at, 4 * MIB));
    OK(cuMemcpyDtoD(result + 4 * MIB, later, 4 * MIB));
    print_bytes("read there", result, 8 * MIB);
    OK(cuCtxSetCurrent(here));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuMemFreeAsync(later, NULL));
    OK(cuCtxSynchronize());
    print_figures("afterwards", pool);
}

/* Freed memory that the device is not done with is waited for only when there is no other. */
SCENARIO(short_of_memory)
{
    const CUstream stream = make_stream();
    for (uint32_t i = 0; i < 20; i++) {
        const CUdeviceptr at = in_stream(40 * MIB, stream);
        add(at, 10 * MIB, i, stream);
        OK(cuMemFreeAsync(at, stream));
    }
    OK(cuStreamSynchronize(stream));
    print_used();
}

/*
 * As RAPIDS' cuda_async_memory_resource: a pool of its own that keeps what is freed, warmed up by
 * half of the device, and shared by two streams that hand buffers to each other.
 */
SCENARIO(warmed_up)
{
    enum { COLUMNS = 6 };
    CUevent made;
    CUdeviceptr columns[COLUMNS];
    const CUmemoryPool pool = make_pool();
    const CUstream reading = make_stream(), computing = make_stream();
    const size_t half = free_bytes() / 2 / (2 * MIB) * (2 * MIB);
    int off = 0;
    OK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    set_figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &off));
    OK(cuMemFreeAsync(from_pool(half, pool, NULL), NULL));
    OK(cuCtxSynchronize());
    print_figures("warm", pool);
    const CUdeviceptr file = load_file(8 * MIB);
    for (uint32_t i = 0; i < COLUMNS; i++) {
        columns[i] = from_pool(4 * MIB, pool, reading);
        OK(cuMemcpyDtoDAsync(columns[i], file + i * (MIB / 2), 4 * MIB, reading));
        OK(cuEventRecord(made, reading));
        OK(cuStreamWaitEvent(computing, made, 0));
        const CUdeviceptr scratch = from_pool(6 * MIB, pool, computing);
        OK(cuMemcpyDtoDAsync(scratch, columns[i], 4 * MIB, computing));
        add(scratch, MIB, i, computing);
        OK(cuMemcpyDtoDAsync(columns[i], scratch + MIB, 2 * MIB, computing));
        OK(cuMemFreeAsync(scratch, computing));
    }
    OK(cuStreamSynchronize(computing));
    for (int i = 0; i < COLUMNS; i++) {
        print_bytes("column", columns[i], 4 * MIB);
        OK(cuMemFreeAsync(columns[i], i % 2 == 0 ? reading : computing));
    }
    OK(cuCtxSynchronize());
    print_figures("all freed", pool);
    OK(cuMemFree(file));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolDestroy(pool));
}

static void *work(void *argument)
{
    CUcontext context = argument;
    OK(cuCtxSetCurrent(context));
    const CUstream stream = make_stream();
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t seen = 0;
        const CUdeviceptr at = in_stream((2 + i % 3) * 2 * MIB, stream);
        OK(cuMemsetD32Async(at, i, MIB, stream));
        if (i % 2 == 0)
            add(at, 1000, 5, stream);
        OK(cuMemcpyDtoHAsync(&seen, at, sizeof(seen), stream));
        OK(cuMemFreeAsync(at, stream));
        OK(cuStreamSynchronize(stream));
        if (seen != i + (i % 2 == 0 ? 5 : 0))
            printf("wrong: %u at %u\n", seen, i);
    }
    return NULL;
}

SCENARIO(threads)
{
    pthread_t running[4];
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    function("add_in_place32");
    for (int i = 0; i < 4; i++)
        pthread_create(&running[i], NULL, work, context);
    for (int i = 0; i < 4; i++)
        pthread_join(running[i], NULL);
    OK(cuCtxSynchronize());
    print_used();
}

/* Which context is current while a call is made in the order of a stream. */
enum { OF_THE_MEMORY, ANOTHER, NONE, CURRENTS };

static void make_current(CUcontext memory, CUcontext another, int current)
{
    OK(cuCtxSetCurrent(current == OF_THE_MEMORY ? memory : current == ANOTHER ? another : NULL));
}

/* Memory of a pool (or not) of this context, which a stream has written to. */
static CUdeviceptr written(bool is_pooled, CUstream stream)
{
    const CUdeviceptr at = is_pooled ? in_stream(4 * MIB, stream) : allocate(4 * MIB);
    OK(cuMemsetD8Async(at, 3, 4 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    return at;
}

/* Frees in a stream that stands still until all is freed; the next one of them frees again. */
static void free_elsewhere(CUcontext memory, CUcontext another, CUstream stream, int current,
                           bool is_far)
{
    CUdeviceptr freed[2], made = 0;
    make_current(memory, another, OF_THE_MEMORY);
    for (int i = 0; i < 2; i++)
        freed[i] = written(i == 0, CU_STREAM_PER_THREAD);
    make_current(memory, another, current);
    hold(stream);
    for (int i = 0; i < 2; i++) {
        printf("%d", (int)cuMemFreeAsync(freed[i], stream));
        printf(" %d\n", (int)cuMemFreeAsync(freed[i], stream));
        printf("written then: %d\n", (int)cuMemsetD8(freed[i], 1, 16));
    }
    printf("allocated: %d\n", (int)cuMemAllocAsync(&made, 4 * MIB, stream));
    if (!is_far)
        printf("set: %d\n", (int)cuMemsetD8Async(made, 9, 4 * MIB, stream));
    printf("freed: %d\n", (int)cuMemFreeAsync(made, stream));
    let_go();
    OK(cuStreamSynchronize(stream));
}

/* No call in the order of a stream waits for it, whatever context is current: the memory's, that of
 * another one, of this device or of the second, or none. */
static void elsewhere(CUdevice device)
{
    CUcontext memory, another;
    CUstream streams[2];
    OK(cuCtxGetCurrent(&memory));
    streams[0] = make_stream();
    OK(cuCtxCreate(&another, NULL, 0, device));
    streams[1] = make_stream();
    for (int current = 0; current < CURRENTS; current++)
        for (int i = 0; i < 2; i++)
            free_elsewhere(memory, another, streams[i], current, device != 0);
    for (int current = OF_THE_MEMORY; current <= ANOTHER; current++) {
        free_elsewhere(memory, another, CU_STREAM_PER_THREAD, current, device != 0);
        free_elsewhere(memory, another, CU_STREAM_LEGACY, current, device != 0);
    }
    make_current(memory, another, OF_THE_MEMORY);
    print_used();
}

SCENARIO(in_another_context)
{
    elsewhere(0);
}

SCENARIO(on_another_device)
{
    elsewhere(1);
}

/* Its stream goes with its context, and the event of the free with both. */
SCENARIO(freed_in_what_ends)
{
    CUcontext memory, another;
    OK(cuCtxGetCurrent(&memory));
    const size_t before = free_bytes();
    const CUdeviceptr pooled = written(true, CU_STREAM_PER_THREAD);
    const CUdeviceptr plain_memory = written(false, CU_STREAM_PER_THREAD);
    OK(cuCtxCreate(&another, NULL, 0, 0));
    const CUstream stream = make_stream();
    OK(cuMemFreeAsync(pooled, stream));
    OK(cuMemFreeAsync(plain_memory, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxDestroy(another));
    OK(cuCtxSetCurrent(memory));
    print_used();
    printf("%d\n", free_bytes() == before);
    print_bytes("what comes then", load_file(4 * MIB), 4 * MIB);
}

/* --- memory of a pool is no context's */

struct outliving {
    CUdeviceptr of_file, set, unwritten, computed, freed;
};

/* Makes blocks of the current context; at its end only a kernel's output is in memory. */
static struct outliving make_outliving(void)
{
    struct outliving made = {in_stream(4 * MIB, NULL), in_stream(4 * MIB, NULL),
                             in_stream(4 * MIB, NULL), in_stream(4 * MIB, NULL),
                             in_stream(4 * MIB, NULL)};
    OK(cuMemcpyHtoD(made.of_file, map_file(4 * MIB), 4 * MIB));
    OK(cuMemsetD32(made.set, 7, MIB));
    OK(cuMemsetD32(made.computed, 1, MIB));
    add(made.computed, MIB, 2, NULL);
    OK(cuMemcpyDtoD(made.freed, made.of_file, 4 * MIB));
    OK(cuCtxSynchronize());
    return made;
}

/* In another context of the device. */
static void use_outliving(const struct outliving *made)
{
    unsigned ordinal = 7;
    CUcontext context = NULL;
    const CUresult result =
        cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, made->set);
    printf("device: %d %u\n", (int)result, ordinal);
    printf("context: %d %d\n",
           (int)cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, made->set),
           context == NULL);
    print_used();
    printf("freed: %d\n", (int)cuMemFreeAsync(made->freed, NULL));
    printf("freed again: %d\n", (int)cuMemFreeAsync(made->freed, NULL));
    OK(cuCtxSynchronize());
    print_used();
    print_bytes("of the file", made->of_file, 4 * MIB);
    print_bytes("set", made->set, 4 * MIB);
    print_bytes("computed", made->computed, 4 * MIB);
    OK(cuMemsetD32(made->unwritten, 9, MIB));
    print_bytes("written now", made->unwritten, 4 * MIB);
    printf("freed: %d\n", (int)cuMemFree(made->of_file));
    printf("freed: %d\n", (int)cuMemFreeAsync(made->set, NULL));
    printf("freed: %d\n", (int)cuMemFree(made->unwritten));
    printf("freed: %d\n", (int)cuMemFreeAsync(made->computed, NULL));
    OK(cuCtxSynchronize());
    print_used();
}

SCENARIO(outlives_context)
{
    CUcontext here, another;
    OK(cuCtxGetCurrent(&here));
    OK(cuCtxCreate(&another, NULL, 0, 0));
    const struct outliving made = make_outliving();
    OK(cuCtxDestroy(another));
    OK(cuCtxSetCurrent(here));
    use_outliving(&made);
}

/* The program's is the primary context of the device. */
static void end_primary(CUresult (*end)(CUdevice))
{
    CUcontext another, primary;
    OK(cuCtxGetCurrent(&primary));
    OK(cuCtxCreate(&another, NULL, 0, 0));
    OK(cuCtxSetCurrent(primary));
    const struct outliving made = make_outliving();
    OK(end(0));
    OK(cuCtxSetCurrent(another));
    use_outliving(&made);
}

SCENARIO(outlives_reset)
{
    end_primary(cuDevicePrimaryCtxReset);
}

SCENARIO(outlives_release)
{
    end_primary(cuDevicePrimaryCtxRelease);
}

/* The context that is retained then is another one. */
SCENARIO(outlives_only_context)
{
    CUcontext primary;
    const struct outliving made = make_outliving();
    OK(cuDevicePrimaryCtxReset(0));
    printf("without a context: %d\n", (int)cuMemFreeAsync(made.freed, CU_STREAM_PER_THREAD));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    use_outliving(&made);
}
