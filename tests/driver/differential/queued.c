/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios: work is queued while nothing is deferred. Then memory is allocated, and its address
 * comes to that work by way of host memory. Each kind of work, on the legacy stream and on one that
 * does not block with it, before each way to allocate, with and without a part in memory.
 */
#include "tests/driver/differential/scenario.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/driver/differential/c10.h"

enum { WORDS = 8 };
static const size_t block_bytes = 8 * MIB;

static _Atomic int may_go;

static void CUDA_CB wait_until_it_may_go(void *unused)
{
    (void)unused;
    while (!may_go)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Work in a stream that is held: it reads words where the table in host memory points. */
struct work {
    CUstream stream;
    uint64_t *table; /* host memory */
    CUdeviceptr copied, out;
    CUgraphExec graph;
};

static uint64_t *pin(unsigned flags)
{
    void *pinned;
    OK(cuMemHostAlloc(&pinned, 8 * WORDS, flags));
    memset(pinned, 0, 8 * WORDS);
    return pinned;
}

static uint64_t *manage_bytes(size_t bytes)
{
    CUdeviceptr managed;
    OK(cuMemAllocManaged(&managed, bytes, CU_MEM_ATTACH_GLOBAL));
    memset((void *)(uintptr_t)managed, 0, bytes);
    return (uint64_t *)(uintptr_t)managed;
}

static uint64_t *manage(void)
{
    return manage_bytes(8 * WORDS);
}

static void gather(const struct work *work, CUdeviceptr table)
{
    const uint64_t count = WORDS;
    void *params[] = {(void *)&work->out, &table, (void *)&count};
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, work->stream, params, NULL));
}

static CUdeviceptr small(void)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, 8 * WORDS));
    OK(cuMemsetD8(address, 0, 8 * WORDS));
    return address;
}

static void copy_and_kernel(struct work *work)
{
    OK(cuMemcpyHtoDAsync(work->copied, work->table, 8 * WORDS, work->stream));
    gather(work, work->copied);
}

static void kernel_of_host_memory(struct work *work)
{
    gather(work, (CUdeviceptr)(uintptr_t)work->table);
}

static uint64_t copy_of_table[WORDS];

static void CUDA_CB write_table(void *table)
{
    memcpy(table, copy_of_table, sizeof(copy_of_table));
}

/* The host function writes what the copy behind it reads. */
static void host_function(struct work *work)
{
    uint64_t *written = pin(0);
    OK(cuLaunchHostFunc(work->stream, write_table, written));
    OK(cuMemcpyHtoDAsync(work->copied, written, 8 * WORDS, work->stream));
    gather(work, work->copied);
}

static void graph(struct work *work)
{
    OK(cuGraphLaunch(work->graph, work->stream));
}

struct kind {
    void (*queue)(struct work *work);
    uint64_t *(*make_table)(void);
    bool has_graph;
};

static uint64_t *pin_mapped(void)
{
    return pin(CU_MEMHOSTALLOC_DEVICEMAP);
}

static struct work make_work(const struct kind *kind)
{
    struct work work = {.table = kind->make_table(), .copied = small(), .out = small()};
    function("gather32"); /* the module is loaded before the stream is held */
    if (!kind->has_graph)
        return work;
    CUgraph captured;
    OK(cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    copy_and_kernel(&work);
    OK(cuStreamEndCapture(work.stream, &captured));
    OK(cuGraphInstantiateWithFlags(&work.graph, captured, 0));
    return work;
}

/* What is deferred ends with the earlier blocks, so each starts with nothing deferred. */
static struct work hold(const struct kind *kind, unsigned flags)
{
    struct work work = make_work(kind);
    OK(cuCtxSynchronize());
    may_go = 0;
    if (flags == CU_STREAM_DEFAULT)
        work.stream = CU_STREAM_LEGACY;
    else
        OK(cuStreamCreate(&work.stream, flags));
    OK(cuLaunchHostFunc(work.stream, wait_until_it_may_go, NULL));
    kind->queue(&work);
    return work;
}

static void go(struct work *work, CUdeviceptr block)
{
    for (int i = 0; i < WORDS; i++)
        copy_of_table[i] = block + (CUdeviceptr)i * (MIB / 2 + 8);
    memcpy(work->table, copy_of_table, sizeof(copy_of_table));
    may_go = 1;
    OK(cuStreamSynchronize(work->stream));
    print_bytes("gathered", work->out, 4 * WORDS);
}

/* --- ways to allocate */

struct memory {
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
};

static struct memory of_allocation(CUstream stream)
{
    (void)stream;
    return (struct memory){.address = allocate(block_bytes)};
}

static void free_allocation(const struct memory *memory)
{
    OK(cuMemFree(memory->address));
}

static struct memory of_pool(CUstream stream)
{
    struct memory memory = {0};
    OK(cuMemAllocAsync(&memory.address, block_bytes, stream));
    return memory;
}

static void free_to_pool(const struct memory *memory)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemFreeAsync(memory->address, stream));
    OK(cuStreamSynchronize(stream));
}

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static void set_access(const struct memory *memory)
{
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemMap(memory->address, block_bytes, 0, memory->handle, 0));
    OK(cuMemSetAccess(memory->address, block_bytes, &access, 1));
}

static struct memory make_handle(void)
{
    struct memory memory;
    OK(cuMemAddressReserve(&memory.address, 2 * block_bytes, 0, 0, 0));
    OK(cuMemCreate(&memory.handle, block_bytes, &prop, 0));
    return memory;
}

static struct memory of_mapping(CUstream stream)
{
    (void)stream;
    const struct memory memory = make_handle();
    set_access(&memory);
    return memory;
}

static void unmap(const struct memory *memory)
{
    OK(cuMemUnmap(memory->address, block_bytes));
    OK(cuMemRelease(memory->handle));
    OK(cuMemAddressFree(memory->address, 2 * block_bytes));
}

static const struct way {
    const char *name;
    struct memory (*allocate)(CUstream stream);
    void (*free)(const struct memory *memory);
} ways[] = {{"cuMemAlloc", of_allocation, free_allocation},
            {"cuMemAllocAsync", of_pool, free_to_pool},
            {"cuMemMap", of_mapping, unmap}};

/* By a stream of its own, because the legacy one may be held. */
static void write_block(CUdeviceptr block, CUstream stream, bool part)
{
    unsigned char some[1000];
    OK(cuMemcpyHtoDAsync(block, map_file(block_bytes), block_bytes, stream));
    OK(cuStreamSynchronize(stream));
    if (part) {
        OK(cuMemcpyDtoHAsync(some, block + MIB / 2, sizeof(some), stream));
        OK(cuStreamSynchronize(stream));
        print_host("some", some, sizeof(some));
    }
}

static void try_way(const struct kind *kind, unsigned flags, const struct way *way, bool part)
{
    CUstream own;
    printf("%s, %s, %s\n", flags == CU_STREAM_DEFAULT ? "legacy" : "another stream", way->name,
           part ? "a part in memory" : "nothing in memory");
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    struct work work = hold(kind, flags);
    const struct memory memory = way->allocate(own);
    write_block(memory.address, own, part);
    go(&work, memory.address);
    print_bytes("block", memory.address, block_bytes);
    way->free(&memory);
}

static void each(const struct kind *kind)
{
    for (size_t i = 0; i < 4 * sizeof(ways) / sizeof(ways[0]); i++)
        try_way(kind, i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT, &ways[i / 4],
                i / 2 % 2 != 0);
}

static const struct kind copies = {copy_and_kernel, pin_mapped, false},
                         of_managed = {copy_and_kernel, manage, false},
                         kernels = {kernel_of_host_memory, pin_mapped, false},
                         kernels_of_managed = {kernel_of_host_memory, manage, false},
                         host_functions = {host_function, pin_mapped, false},
                         graphs = {graph, pin_mapped, true};

#define EACH(kind)                \
    static void each_##kind(void) \
    {                             \
        each(&kind);              \
    }
EACH(copies)
EACH(of_managed)
EACH(kernels)
EACH(kernels_of_managed)
EACH(host_functions)
EACH(graphs)

/* --- other places and moments */

/* The handle is made before the work is queued. */
static void made_before(void)
{
    const struct memory memory = make_handle();
    CUstream own;
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    struct work work = hold(&copies, CU_STREAM_NON_BLOCKING);
    set_access(&memory);
    write_block(memory.address, own, true);
    go(&work, memory.address);
    unmap(&memory);
}

/* The work is that of another context of the device. */
static void in_another_context(void)
{
    CUcontext first, second;
    CUstream own;
    OK(cuCtxGetCurrent(&first));
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(cuCtxCreate(&second, NULL, 0, 0));
    struct work work = hold(&copies, CU_STREAM_NON_BLOCKING);
    OK(cuCtxSetCurrent(first));
    const CUdeviceptr block = allocate(block_bytes);
    write_block(block, own, true);
    OK(cuCtxSetCurrent(second));
    go(&work, block);
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(first));
    print_bytes("block", block, block_bytes);
}

static CUcontext context_of_thread;

static void *queue_in_thread(void *work)
{
    OK(cuCtxSetCurrent(context_of_thread));
    *(struct work *)work = hold(&kernels, CU_STREAM_NON_BLOCKING);
    return NULL;
}

static void by_another_thread(void)
{
    pthread_t thread;
    struct work work;
    CUstream own;
    OK(cuCtxGetCurrent(&context_of_thread));
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    pthread_create(&thread, NULL, queue_in_thread, &work);
    pthread_join(thread, NULL);
    const CUdeviceptr block = allocate(block_bytes);
    write_block(block, own, true);
    go(&work, block);
    print_bytes("block", block, block_bytes);
}

/* Something was deferred when the work was queued, which needed all of it. */
static void in_a_window(void)
{
    for (int i = 0; i < 2; i++) {
        const CUdeviceptr other = load_file(block_bytes);
        CUstream own;
        OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
        struct work work = hold(i == 0 ? &graphs : &kernels, CU_STREAM_NON_BLOCKING);
        const CUdeviceptr block = allocate(block_bytes);
        write_block(block, own, true);
        go(&work, block);
        print_bytes("other", other, block_bytes);
    }
}

/* Idle before it is queued, or done before something is allocated: deferred as ever. */
static void over_by_then(void)
{
    CUstream own;
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    struct work work = hold(&copies, CU_STREAM_NON_BLOCKING);
    go(&work, (CUdeviceptr)(uintptr_t)manage_bytes(block_bytes));
    const CUdeviceptr block = allocate(block_bytes);
    write_block(block, own, false);
    OK(cuMemFree(block));
}

/* As a caching allocator does; without the shim nobody listens. */
static void report(CUdeviceptr block, int64_t bytes)
{
    __typeof__(&REPORT) tell =
        (__typeof__(tell))dlsym(RTLD_DEFAULT,
                                "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    if (tell != NULL)
        tell((void *)(uintptr_t)block, bytes, 1, 2, (struct c10_device){1, 0});
}

/* By a kernel that is not recorded. */
static void use(CUdeviceptr block)
{
    const CUdeviceptr from = block + block_bytes / 2;
    const uint64_t count = 16;
    void *params[] = {(void *)&block, (void *)&from, (void *)&count};
    OK(cuMemsetD8(block, 7, block_bytes));
    OK(cuLaunchKernel(function("copy32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

/* The allocation is older than the work, but the block in it is not. */
static void handed_out(void)
{
    const CUdeviceptr segment = allocate(2 * block_bytes), block = segment + block_bytes;
    CUstream own;
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    report(segment, block_bytes);
    use(segment);
    OK(cuCtxSynchronize());
    struct work work = hold(&copies, CU_STREAM_NON_BLOCKING);
    report(block, block_bytes);
    write_block(block, own, true);
    go(&work, block);
    print_bytes("block", block, block_bytes);
}

/* --- addresses that no call shows: byte by byte, and what stands beside other bytes in memory */

static void point_unseen(CUdeviceptr table, CUdeviceptr block)
{
    for (int i = 0; i < WORDS; i++) {
        const CUdeviceptr address = block + (CUdeviceptr)i * (MIB / 4);
        for (unsigned byte = 0; byte < sizeof(address); byte++)
            OK(cuMemsetD8(table + 8 * i + byte, (unsigned char)(address >> 8 * byte), 1));
    }
}

static void gather_unseen(CUdeviceptr block)
{
    const CUdeviceptr table = small();
    const struct work work = {.out = small(), .stream = CU_STREAM_LEGACY};
    point_unseen(table, block);
    gather(&work, table);
    print_bytes("gathered", work.out, 4 * WORDS);
}

static void write_file(CUdeviceptr block)
{
    OK(cuMemcpyHtoD(block, map_file(block_bytes), block_bytes));
}

static void write_snapshot(CUdeviceptr block)
{
    unsigned char *bytes = malloc(block_bytes);
    for (size_t i = 0; i < block_bytes; i++)
        bytes[i] = (unsigned char)(i * 2654435761U >> 17);
    OK(cuMemcpyHtoD(block, bytes, block_bytes));
    free(bytes);
}

static void write_fill(CUdeviceptr block)
{
    OK(cuMemsetD32(block, 0x12345678, block_bytes / 4));
}

static void write_copy(CUdeviceptr block)
{
    const CUdeviceptr from = load_file(block_bytes);
    OK(cuMemcpyDtoD(block, from, block_bytes));
    OK(cuMemFree(from));
}

static void write_rows(CUdeviceptr block)
{
    const CUdeviceptr from = load_file(block_bytes);
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcPitch = 4096,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = block,
                                .dstPitch = 4096,
                                .WidthInBytes = 4000,
                                .Height = block_bytes / 4096};
    OK(cuMemsetD8(block, 9, block_bytes));
    OK(cuMemcpy2D(&copy));
    OK(cuMemFree(from));
}

static void (*const writes[])(CUdeviceptr block) = {write_file, write_snapshot, write_fill,
                                                    write_copy, write_rows};
enum { WRITES = sizeof(writes) / sizeof(writes[0]) };

/* A part comes into memory after the rest was written. */
static void beside_what_is_read(void)
{
    for (int i = 0; i < WRITES; i++) {
        const CUdeviceptr block = allocate(block_bytes);
        writes[i](block);
        print_bytes("some", block + 5000, 1000);
        gather_unseen(block);
        OK(cuMemFree(block));
    }
}

static void beside_what_is_used(void)
{
    for (int i = 0; i < WRITES; i++) {
        const CUdeviceptr block = allocate(block_bytes);
        writes[i](block);
        OK(cuMemcpyDtoD(small(), block + 5000, 8)); /* by the driver, as it was queued */
        print_bytes("some", block + MIB + 5000, 1000);
        gather_unseen(block);
        OK(cuMemFree(block));
    }
}

/* The memory is there before the rest is written. */
static void beside_what_was_there(void)
{
    for (int i = 0; i < WRITES; i++) {
        const CUdeviceptr block = allocate(block_bytes);
        OK(cuMemsetD8(block + 5000, 3, 1000));
        print_bytes("some", block + 5000, 1000);
        writes[i](block);
        gather_unseen(block);
        OK(cuMemFree(block));
    }
}

/* --- tensors that are sent in a bucket, and copied back over what they were */

enum { TENSORS = 3 };
static const size_t tensor_bytes = 5 * MIB / 2; /* three of them share granules */

static CUdeviceptr load_tensors(void)
{
    const CUdeviceptr block = allocate(TENSORS * tensor_bytes);
    unsigned char *bytes = malloc(TENSORS * tensor_bytes);
    for (size_t i = 0; i < TENSORS * tensor_bytes; i++)
        bytes[i] = (unsigned char)(i * 2654435761U >> 17);
    for (size_t i = 0; i < TENSORS; i++)
        OK(cuMemcpyHtoD(block + i * tensor_bytes, bytes + i * tensor_bytes, tensor_bytes));
    free(bytes);
    return block;
}

/* It is read, as it is for other ranks. */
static CUdeviceptr make_bucket(CUdeviceptr block, size_t tensors)
{
    const CUdeviceptr bucket = allocate(tensors * tensor_bytes);
    for (size_t i = 0; i < tensors; i++)
        OK(cuMemcpyDtoD(bucket + i * tensor_bytes, block + i * tensor_bytes, tensor_bytes));
    print_bytes("bucket", bucket, tensors * tensor_bytes);
    return bucket;
}

static void copy_back(CUdeviceptr block, CUdeviceptr bucket, size_t tensors)
{
    for (size_t i = 0; i < tensors; i++)
        OK(cuMemcpyDtoD(block + i * tensor_bytes, bucket + i * tensor_bytes, tensor_bytes));
}

static void copied_back(void)
{
    const CUdeviceptr block = load_tensors();
    copy_back(block, make_bucket(block, TENSORS), TENSORS);
    gather_unseen(block + 4 * MIB);
    print_bytes("tensors", block, TENSORS * tensor_bytes);
}

/* The last tensor begins in the last granule of the one before. */
static void copied_back_in_part(void)
{
    const CUdeviceptr block = load_tensors();
    copy_back(block, make_bucket(block, TENSORS - 1), TENSORS - 1);
    gather_unseen(block + 4 * MIB);
}

/* A kernel that is queued may come to what stands beside the copy. */
static void copied_back_behind_a_kernel(void)
{
    const CUdeviceptr block = load_tensors(), bucket = make_bucket(block, TENSORS - 1);
    struct work work = {.out = small()};
    const CUdeviceptr table = small();
    CUstream own;
    point_unseen(table, block + 4 * MIB);
    function("gather32");
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
    OK(cuCtxSynchronize());
    may_go = 0;
    OK(cuLaunchHostFunc(work.stream, wait_until_it_may_go, NULL));
    gather(&work, table);
    for (size_t i = 0; i < TENSORS - 1; i++)
        OK(cuMemcpyDtoDAsync(block + i * tensor_bytes, bucket + i * tensor_bytes, tensor_bytes,
                             own));
    OK(cuStreamSynchronize(own));
    may_go = 1;
    OK(cuStreamSynchronize(work.stream));
    print_bytes("gathered", work.out, 4 * WORDS);
}

const struct scenario scenarios[] = {
    {"copied_back", copied_back},
    {"copied_back_in_part", copied_back_in_part},
    {"copied_back_behind_a_kernel", copied_back_behind_a_kernel},
    {"beside_what_is_read", beside_what_is_read},
    {"beside_what_is_used", beside_what_is_used},
    {"beside_what_was_there", beside_what_was_there},
    {"copies", each_copies},
    {"of_managed", each_of_managed},
    {"kernels", each_kernels},
    {"kernels_of_managed", each_kernels_of_managed},
    {"host_functions", each_host_functions},
    {"graphs", each_graphs},
    {"made_before", made_before},
    {"in_another_context", in_another_context},
    {"by_another_thread", by_another_thread},
    {"in_a_window", in_a_window},
    {"over_by_then", over_by_then},
    {"handed_out", handed_out},
    {NULL, NULL},
};
