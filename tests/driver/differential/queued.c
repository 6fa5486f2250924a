/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios: work is queued while nothing is deferred. Then memory is allocated, and its address
 * comes to that work by way of host memory. Each kind of work, on the legacy stream and on one that
 * does not block with it, before each way to allocate, with and without a part in memory.
 */
#include "tests/driver/differential/scenario.h"
#include "tests/harness/scrambled.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS = 8 };
static const size_t block_bytes = 8 * MIB;

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
    gather_words(work->out, table, WORDS, work->stream);
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
    work.stream = make_stream();
    OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    copy_and_kernel(&work);
    OK(cuStreamEndCapture(work.stream, &captured));
    OK(cuGraphInstantiateWithFlags(&work.graph, captured, 0));
    return work;
}

/* Deferred bytes go with the earlier blocks, so each kind starts with nothing deferred. */
static struct work queue_work(const struct kind *kind, unsigned flags)
{
    struct work work = make_work(kind);
    OK(cuCtxSynchronize());
    if (flags == CU_STREAM_DEFAULT)
        work.stream = CU_STREAM_LEGACY;
    else
        OK(cuStreamCreate(&work.stream, flags));
    hold(work.stream);
    kind->queue(&work);
    return work;
}

static void go(struct work *work, CUdeviceptr block)
{
    for (int i = 0; i < WORDS; i++)
        copy_of_table[i] = block + (CUdeviceptr)i * (MIB / 2 + 8);
    memcpy(work->table, copy_of_table, sizeof(copy_of_table));
    let_go();
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
    const CUstream stream = make_stream();
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
    printf("%s, %s, %s\n", flags == CU_STREAM_DEFAULT ? "legacy" : "another stream", way->name,
           part ? "a part in memory" : "nothing in memory");
    const CUstream own = make_stream();
    struct work work = queue_work(kind, flags);
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

#define EACH(kind)   \
    SCENARIO(kind)   \
    {                \
        each(&kind); \
    }
EACH(copies)
EACH(of_managed)
EACH(kernels)
EACH(kernels_of_managed)
EACH(host_functions)
EACH(graphs)

/* --- other places and moments */

/* The handle is made before the work is queued. */
SCENARIO(made_before)
{
    const struct memory memory = make_handle();
    const CUstream own = make_stream();
    struct work work = queue_work(&copies, CU_STREAM_NON_BLOCKING);
    set_access(&memory);
    write_block(memory.address, own, true);
    go(&work, memory.address);
    unmap(&memory);
}

/* The work is that of another context of the device. */
SCENARIO(in_another_context)
{
    CUcontext first, second;
    OK(cuCtxGetCurrent(&first));
    const CUstream own = make_stream();
    OK(cuCtxCreate(&second, NULL, 0, 0));
    struct work work = queue_work(&copies, CU_STREAM_NON_BLOCKING);
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
    *(struct work *)work = queue_work(&kernels, CU_STREAM_NON_BLOCKING);
    return NULL;
}

SCENARIO(by_another_thread)
{
    pthread_t thread;
    struct work work;
    OK(cuCtxGetCurrent(&context_of_thread));
    const CUstream own = make_stream();
    pthread_create(&thread, NULL, queue_in_thread, &work);
    pthread_join(thread, NULL);
    const CUdeviceptr block = allocate(block_bytes);
    write_block(block, own, true);
    go(&work, block);
    print_bytes("block", block, block_bytes);
}

/* Something was deferred when the work was queued, which needed all of it. */
SCENARIO(in_a_window)
{
    for (int i = 0; i < 2; i++) {
        const CUdeviceptr other = load_file(block_bytes);
        const CUstream own = make_stream();
        struct work work = queue_work(i == 0 ? &graphs : &kernels, CU_STREAM_NON_BLOCKING);
        const CUdeviceptr block = allocate(block_bytes);
        write_block(block, own, true);
        go(&work, block);
        print_bytes("other", other, block_bytes);
    }
}

/* Idle before it is queued, or done before something is allocated: deferred as ever. */
SCENARIO(over_by_then)
{
    const CUstream own = make_stream();
    struct work work = queue_work(&copies, CU_STREAM_NON_BLOCKING);
    go(&work, (CUdeviceptr)(uintptr_t)manage_bytes(block_bytes));
    const CUdeviceptr block = allocate(block_bytes);
    write_block(block, own, false);
    OK(cuMemFree(block));
}

/* By a kernel that is not recorded. */
static void use(CUdeviceptr block)
{
    OK(cuMemsetD8(block, 7, block_bytes));
    copy_words(block, block + block_bytes / 2, 16, NULL);
}

/* The allocation is older than the work, but the block in it is not. */
SCENARIO(handed_out)
{
    const CUdeviceptr segment = allocate(2 * block_bytes), block = segment + block_bytes;
    const CUstream own = make_stream();
    report(segment, block_bytes);
    use(segment);
    OK(cuCtxSynchronize());
    struct work work = queue_work(&copies, CU_STREAM_NON_BLOCKING);
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
    scramble(bytes, block_bytes, 0, 17);
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
SCENARIO(beside_what_is_read)
{
    for (int i = 0; i < WRITES; i++) {
        const CUdeviceptr block = allocate(block_bytes);
        writes[i](block);
        print_bytes("some", block + 5000, 1000);
        gather_unseen(block);
        OK(cuMemFree(block));
    }
}

SCENARIO(beside_what_is_used)
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
SCENARIO(beside_what_was_there)
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
    scramble(bytes, TENSORS * tensor_bytes, 0, 17);
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

SCENARIO(copied_back)
{
    const CUdeviceptr block = load_tensors();
    copy_back(block, make_bucket(block, TENSORS), TENSORS);
    gather_unseen(block + 4 * MIB);
    print_bytes("tensors", block, TENSORS * tensor_bytes);
}

/* The last tensor begins in the last granule of the one before. */
SCENARIO(copied_back_in_part)
{
    const CUdeviceptr block = load_tensors();
    copy_back(block, make_bucket(block, TENSORS - 1), TENSORS - 1);
    gather_unseen(block + 4 * MIB);
}

/* A kernel that is queued may come to what stands beside the copy. */
SCENARIO(copied_back_behind_a_kernel)
{
    const CUdeviceptr block = load_tensors(), bucket = make_bucket(block, TENSORS - 1);
    struct work work = {.out = small()};
    const CUdeviceptr table = small();
    point_unseen(table, block + 4 * MIB);
    function("gather32");
    const CUstream own = make_stream();
    work.stream = make_stream();
    OK(cuCtxSynchronize());
    hold(work.stream);
    gather(&work, table);
    for (size_t i = 0; i < TENSORS - 1; i++)
        OK(cuMemcpyDtoDAsync(block + i * tensor_bytes, bucket + i * tensor_bytes, tensor_bytes,
                             own));
    OK(cuStreamSynchronize(own));
    let_go();
    OK(cuStreamSynchronize(work.stream));
    print_bytes("gathered", work.out, 4 * WORDS);
}
