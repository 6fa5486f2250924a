/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios (scenario.h) of calls that the driver refuses: they are refused with the shim as well,
 * by the same result, and nothing is changed. refused.py runs them.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/differential/scenario.h"
#include "tests/driver/groups/moves.h"

enum { TAIL = 5 };                                /* bytes in a granule that no other block has */
static const size_t block_bytes = 2 * MIB + TAIL; /* shapes below cover all of it */

static void see(const char *what, CUresult result)
{
    printf("%s: %d\n", what, (int)result);
}
#define SEE(call) see(#call, call)

/* In memory, and nothing else is known of it: written by the driver after it was read. */
static void make_resident(CUdeviceptr address, size_t bytes)
{
    void *host = malloc(bytes);
    OK(cuMemcpyDtoH(host, address, bytes));
    OK(cuMemsetD8(address, 1, bytes));
    OK(cuCtxSynchronize());
    free(host);
}

/* --- without a context, and with one that is gone */

static void ask_all(CUdeviceptr block, CUdeviceptr other)
{
    static unsigned char host[64];
    CUdeviceptr base = 0, made = 0;
    size_t bytes = 0, total = 0;
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle shared;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *places[] = {&bytes};
    SEE(cuMemGetAddressRange(&base, &bytes, block));
    SEE(cuMemGetAddressRange(NULL, NULL, block + 4096));
    SEE(cuMemGetInfo(&bytes, &total));
    SEE(cuMemAlloc(&made, 8 * MIB));
    SEE(cuMemcpyHtoD(block, host, sizeof(host)));
    SEE(cuMemcpyHtoDAsync(block, host, sizeof(host), NULL));
    SEE(cuMemcpyDtoH(host, block, sizeof(host)));
    SEE(cuMemcpyDtoD(block, other, MIB));
    SEE(cuMemcpyDtoDAsync(block, other, MIB, NULL));
    SEE(cuMemcpy(block, other, MIB));
    SEE(cuMemsetD8(block, 9, MIB));
    SEE(cuMemsetD32Async(block, 9, MIB / 4, NULL));
    SEE(cuMemsetD2D8(block, 4096, 9, 64, 8));
    SEE(cuIpcGetMemHandle(&shared, block));
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block));
    SEE(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block));
    SEE(cuPointerGetAttributes(1, which, places, block));
    SEE(cuMemcpyHtoD(block + block_bytes, host, 0));
    SEE(cuMemFree(block + 4096));
    SEE(cuMemFree(block));
    SEE(cuMemFreeAsync(block, NULL));
}

static void without_context(bool resident)
{
    CUcontext context;
    const CUdeviceptr block = allocate(8 * MIB), other = allocate(8 * MIB);
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(other, 2, 8 * MIB));
    if (resident) {
        make_resident(block, 8 * MIB);
        make_resident(other, 8 * MIB);
    }
    OK(cuCtxPopCurrent(&context));
    ask_all(block, other);
    OK(cuCtxPushCurrent(context));
    OK(cuCtxSynchronize());
    print_bytes("still there", block, 8 * MIB);
    SEE(cuMemFree(block));
}

SCENARIO(no_context)
{
    without_context(false);
}

SCENARIO(no_context_resident)
{
    without_context(true);
}

static CUcontext doomed;

static void *destroy(void *unused)
{
    OK(cuCtxDestroy(doomed));
    return unused;
}

/* Current here, and destroyed by another thread. */
SCENARIO(destroyed_context)
{
    CUcontext context;
    pthread_t thread;
    const CUdeviceptr block = allocate(8 * MIB), other = allocate(8 * MIB);
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(other, 2, 8 * MIB));
    OK(cuCtxGetCurrent(&context));
    OK(cuCtxCreate(&doomed, NULL, 0, 0));
    pthread_create(&thread, NULL, destroy, NULL);
    pthread_join(thread, NULL);
    ask_all(block, other);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxSynchronize());
    print_bytes("still there", block, 8 * MIB);
    SEE(cuMemFree(block));
}

/* --- device memory where a call says host memory */

static void copy_rows(CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type,
                      CUdeviceptr from)
{
    const CUDA_MEMCPY2D rows = {.srcMemoryType = from_type,
                                .srcHost = (const void *)(uintptr_t)from,
                                .srcDevice = from,
                                .srcPitch = 4096,
                                .dstMemoryType = to_type,
                                .dstHost = (void *)(uintptr_t)to,
                                .dstDevice = to,
                                .dstPitch = 4096,
                                .WidthInBytes = 64,
                                .Height = 8};
    SEE(cuMemcpy2D(&rows));
    SEE(cuMemcpy2DUnaligned(&rows));
    SEE(cuMemcpy2DAsync(&rows, NULL));
}

static void copy_boxes(CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type,
                       CUdeviceptr from)
{
    const CUDA_MEMCPY3D boxes = {.srcMemoryType = from_type,
                                 .srcHost = (const void *)(uintptr_t)from,
                                 .srcDevice = from,
                                 .srcPitch = 4096,
                                 .srcHeight = 16,
                                 .dstMemoryType = to_type,
                                 .dstHost = (void *)(uintptr_t)to,
                                 .dstDevice = to,
                                 .dstPitch = 4096,
                                 .dstHeight = 16,
                                 .WidthInBytes = 64,
                                 .Height = 8,
                                 .Depth = 3};
    SEE(cuMemcpy3D(&boxes));
    SEE(cuMemcpy3DAsync(&boxes, NULL));
}

SCENARIO(called_host)
{
    static unsigned char host[3 * 16 * 4096];
    const CUdeviceptr block = allocate(8 * MIB), other = allocate(8 * MIB);
    const CUdeviceptr here = (CUdeviceptr)(uintptr_t)host;
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(other, 2, 8 * MIB));
    copy_rows(CU_MEMORYTYPE_DEVICE, block, CU_MEMORYTYPE_HOST, other);
    copy_rows(CU_MEMORYTYPE_HOST, block, CU_MEMORYTYPE_DEVICE, other);
    copy_rows(CU_MEMORYTYPE_HOST, block, CU_MEMORYTYPE_HOST, here);
    copy_rows(CU_MEMORYTYPE_HOST, here, CU_MEMORYTYPE_HOST, other);
    copy_boxes(CU_MEMORYTYPE_DEVICE, block + 77, CU_MEMORYTYPE_HOST, other + 99);
    copy_boxes(CU_MEMORYTYPE_HOST, block + 77, CU_MEMORYTYPE_DEVICE, other + 99);
    SEE(cuMemcpyHtoD(block, (const void *)(uintptr_t)other, MIB));
    SEE(cuMemcpyDtoH((void *)(uintptr_t)block, other, MIB));
    OK(cuCtxSynchronize());
    print_bytes("to", block, 8 * MIB);
    print_bytes("from", other, 8 * MIB);
}

/* --- in a stream that is gone */

SCENARIO(destroyed_stream)
{
    static unsigned char bytes[64];
    CUstream gone;
    const CUdeviceptr block = allocate(8 * MIB), from = allocate(8 * MIB);
    OK(cuMemsetD8(block, 1, 8 * MIB));
    OK(cuMemsetD8(from, 2, 8 * MIB));
    OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    OK(cuStreamDestroy(gone));
    SEE(cuMemsetD8Async(block, 3, MIB, gone));
    SEE(cuMemcpyHtoDAsync(block, bytes, sizeof(bytes), gone));
    SEE(cuMemcpyDtoDAsync(block + 4 * MIB, from, MIB, gone));
    SEE(cuMemFreeAsync(block, gone));
    OK(cuCtxSynchronize());
    print_bytes("still there", block, 8 * MIB);
}

/* --- another device's memory */

static void current(CUdevice device)
{
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

/* Set, and done: another device's work does not wait for it. */
static CUdeviceptr make_set(size_t bytes)
{
    const CUdeviceptr block = allocate(bytes);
    OK(cuMemsetD8(block, 1, bytes));
    OK(cuCtxSynchronize());
    return block;
}

/* Without access of one device to the other. The error is sticky, so there is one call in a run. */
static void far_access(bool resident)
{
    unsigned long long flags = 7;
    const CUdeviceptr block = make_set(8 * MIB);
    if (resident)
        make_resident(block, 8 * MIB);
    current(1);
    SEE(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, block));
    printf("access %llu\n", flags);
    SEE(cuMemsetD8(block, 2, MIB));
    SEE(cuCtxSynchronize());
}

SCENARIO(far_set)
{
    far_access(false);
}

SCENARIO(far_set_resident)
{
    far_access(true);
}

SCENARIO(far_set_async)
{
    const CUdeviceptr block = make_set(8 * MIB);
    current(1);
    SEE(cuMemsetD32Async(block, 2, MIB, NULL));
    SEE(cuCtxSynchronize());
}

/* One that has access sets it. */
SCENARIO(far_set_by_peer)
{
    CUcontext owner;
    const CUdeviceptr block = make_set(8 * MIB);
    OK(cuCtxGetCurrent(&owner));
    current(1);
    OK(cuCtxEnablePeerAccess(owner, 0));
    SEE(cuMemsetD8(block, 2, MIB));
    SEE(cuCtxSynchronize());
    print_bytes("set", block, 8 * MIB);
}

/* --- ranges that are not all in an allocation: moves.h has who reads or writes them */

/* The result of one of them, of an entry that the driver has. */
static void try_move(const struct move *move, CUdeviceptr at, size_t bytes)
{
    static void *driver;
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_LAZY);
    tested = dlsym(driver, move->symbol);
    printf(" %d", tested != NULL ? (int)move->call(at, bytes) : -1);
}

/* All of the block, and one byte more at either end; and beside it. */
static void try_ends(const struct move *move, bool resident)
{
    const size_t hole = 4 * MIB;
    const CUdeviceptr room = allocate(hole);
    const CUdeviceptr block = allocate(block_bytes);
    OK(cuMemFree(room)); /* what lies before the block is nobody's, unless it went elsewhere */
    OK(cuMemsetD8(block, 1, block_bytes));
    OK(cuCtxSynchronize()); /* the other stream does not wait for this one */
    if (resident)
        make_resident(block, block_bytes);
    printf("%s %s:", move->symbol, move->way);
    try_move(move, block, block_bytes);
    try_move(move, block, block_bytes + 1);
    try_move(move, block + 1, block_bytes);
    if (move->kind != MOVE_UNIFIED) {
        try_move(move, block - 1, block_bytes);
        try_move(move, block + block_bytes + TAIL, block_bytes);
        try_move(move, block - 64, 2 * MIB + 1);
    }
    printf(" %d\n", (int)cuCtxSynchronize());
    print_bytes("block", block, block_bytes);
    OK(cuMemFree(block));
}

static void overruns(bool resident)
{
    moves_begin();
    if (resident)
        make_resident(sides.other, MOVES_BYTES);
    for (const struct move *move = moves; move->symbol != NULL; move++)
        try_ends(move, resident);
}

SCENARIO(overruns)
{
    overruns(false);
}

SCENARIO(overruns_resident)
{
    overruns(true);
}

/* --- memory that is freed, and not gone yet */

static void try_all(CUdeviceptr freed)
{
    for (const struct move *move = moves; move->symbol != NULL; move++) {
        if (move->kind == MOVE_UNIFIED)
            continue;
        printf("%s %s:", move->symbol, move->way);
        try_move(move, freed, block_bytes);
        printf("\n");
    }
    OK(cuStreamSynchronize(sides.stream));
}

/* In the order of a stream. */
SCENARIO(freed_in_stream)
{
    CUdeviceptr pooled;
    CUstream own;
    moves_begin();
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&pooled, block_bytes, own));
    OK(cuMemsetD8Async(pooled, 1, block_bytes, own));
    OK(cuMemFreeAsync(pooled, own));
    try_all(pooled);
}

/* Freed by one thread while another one captures. */
static void free_and_try(CUdeviceptr block)
{
    OK(cuMemFree(block));
    try_all(block);
}

SCENARIO(freed_beside_capture)
{
    moves_begin();
    const CUdeviceptr block = allocate(block_bytes);
    OK(cuMemsetD8(block, 1, block_bytes));
    OK(cuCtxSynchronize());
    beside_capture(free_and_try, block);
}

/* The other side is the driver's own memory, whose bounds the shim does not know. */
SCENARIO(overruns_small)
{
    const CUdeviceptr small = allocate(4096), block = allocate(block_bytes);
    OK(cuMemsetD8(small, 3, 4096));
    OK(cuMemsetD8(block, 1, block_bytes));
    OK(cuCtxSynchronize());
    SEE(cuMemcpyDtoD(block + 100, small, 4096));
    SEE(cuMemcpyDtoD(block + 9000, small, 4097));
    SEE(cuMemcpyDtoDAsync(block + 20000, small + 4000, MIB, NULL));
    SEE(cuMemcpy(block + 30000, small + 4095, 2));
    OK(cuCtxSynchronize());
    print_bytes("block", block, block_bytes);
}

/* --- what is said of addresses beside an allocation, and of its memory */

SCENARIO(beside)
{
    const CUpointer_attribute all[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
    };
    enum { COUNT = sizeof(all) / sizeof(all[0]) };
    const CUdeviceptr room = allocate(4 * MIB);
    const CUdeviceptr block = allocate(block_bytes);
    OK(cuMemFree(room));
    const CUdeviceptr places[] = {block - 1, block + block_bytes, block + block_bytes + MIB};
    for (size_t at = 0; at < sizeof(places) / sizeof(places[0]); at++) {
        CUdeviceptr base = 0;
        size_t bytes = 0;
        SEE(cuMemGetAddressRange(&base, &bytes, places[at]));
        SEE(cuMemFree(places[at]));
        for (int i = 0; i < COUNT; i++) {
            uint64_t value = 0, values = 7;
            void *to[] = {&values};
            CUpointer_attribute which[] = {all[i]};
            printf("%d: %d", (int)all[i], (int)cuPointerGetAttribute(&value, all[i], places[at]));
            printf(" %d", (int)cuPointerGetAttributes(1, which, to, places[at]));
            printf(" %d\n", (uint32_t)values != 0);
        }
    }
}

SCENARIO(retained)
{
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long types = 7;
    const CUdeviceptr block = allocate(8 * MIB);
    SEE(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block));
    printf("handle types %llu\n", types);
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block));
    OK(cuMemsetD8(block, 1, 8 * MIB));
    make_resident(block, 8 * MIB);
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block));
    SEE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(block + 4096)));
}

/* Bytes that a batch does not touch stay as they are. */
SCENARIO(batches)
{
    const CUdeviceptr to = allocate(8 * MIB), from = allocate(8 * MIB), rest = allocate(8 * MIB);
    unsigned char seen[2] = {0};
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8(to, 1, 8 * MIB));
    OK(cuMemsetD8(from, 2, 8 * MIB));
    OK(cuMemsetD8(rest, 3, 8 * MIB));
    OK(cuCtxSynchronize());
    CUdeviceptr tos[] = {to, to + 2 * MIB}, froms[] = {from, from + MIB};
    size_t sizes[] = {64, MIB}, starts[] = {0};
    CUmemcpyAttributes attributes[] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    SEE(cuMemcpyBatchAsync(tos, froms, sizes, 2, attributes, starts, 1, stream));
    CUDA_MEMCPY3D_BATCH_OP box = {
        .src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = from},
        .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = to + 4 * MIB},
        .extent = {MIB, 1, 1},
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    SEE(cuMemcpy3DBatchAsync(1, &box, 0, stream));
    OK(cuStreamSynchronize(stream));
    for (size_t at = 0; at < 8 * MIB; at += MIB / 2) {
        OK(cuMemcpyDtoH(seen, to + at, 2));
        printf("%d %d\n", seen[0], seen[1]);
    }
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(to));
    OK(cuMemFree(from));
    OK(cuMemFree(rest));
}
