/* SPDX-License-Identifier: Apache-2.0 */
/* Several devices, contexts that end, and threads. */
#include <pthread.h>
#include <time.h>

#include "tests/driver/groups/groups.h"

static CUcontext make_context(CUdevice device)
{
    CUcontext context;
    MUST(cuCtxCreate_v2(&context, 0, device));
    return context;
}

/* Memory of a context goes with it. */
static void ended(CUresult result, CUdeviceptr block)
{
    CUcontext context;
    CUdeviceptr base;
    size_t bytes;
    seen("ended", result);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    seen("asked about what is gone", cuMemGetAddressRange_v2(&base, &bytes, block));
    print_device("a new block", make_block(3), BLOCK_BYTES);
}

static void destroyed(void)
{
    const CUcontext context = make_context(0);
    const CUdeviceptr block = make_block(1);
    ended(TESTED(cuCtxDestroy_v2)(context), block);
}

static void detached(void)
{
    const CUcontext context = make_context(0);
    const CUdeviceptr block = make_block(1);
    ended(TESTED(cuCtxDetach)(context), block);
}

static void primary_released(void)
{
    const CUdeviceptr block = make_block(1);
    ended(TESTED(cuDevicePrimaryCtxRelease_v2)(0), block);
}

static void primary_reset(void)
{
    const CUdeviceptr block = make_block(1);
    ended(TESTED(cuDevicePrimaryCtxReset_v2)(0), block);
}

/* Memory that is allocated in a green context is the primary one's, and outlives it. */
static void green(void)
{
    CUdevResource resource;
    CUdevResourceDesc description;
    CUgreenCtx handle;
    CUcontext primary, context;
    MUST(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
    MUST(cuGreenCtxCreate(&handle, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    SEEN(TESTED(cuCtxFromGreenCtx)(&context, handle));
    MUST(cuCtxGetCurrent(&primary));
    MUST(cuCtxSetCurrent(context));
    const CUdeviceptr block = make_block(1);
    MUST(cuCtxSynchronize());
    MUST(cuCtxSetCurrent(primary));
    MUST(cuGreenCtxDestroy(handle));
    print_device("block", block, BLOCK_BYTES);
}

/* A kernel of another device reads the block. */
static void read_from(CUcontext reader, CUdeviceptr block)
{
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr out;
    uint64_t count = 1024;
    unsigned char host[4096] = {0};
    MUST(cuCtxSetCurrent(reader));
    MUST(cuModuleLoad(&module, getenv("GROUPS_KERNELS")));
    MUST(cuModuleGetFunction(&kernel, module, "copy32"));
    MUST(cuMemAlloc_v2(&out, sizeof(host)));
    void *params[] = {&out, &block, &count};
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    seen("synchronised", cuCtxSynchronize());
    if (cuMemcpyDtoH_v2(host, out, sizeof(host)) == CUDA_SUCCESS)
        print_host("read", host, sizeof(host));
}

static void peers_enabled(void)
{
    CUcontext owner;
    MUST(cuCtxGetCurrent(&owner));
    const CUdeviceptr block = make_block(1);
    const CUcontext reader = make_context(1);
    SEEN(TESTED(cuCtxEnablePeerAccess)(owner, 0));
    read_from(reader, block + MIB);
}

static void peers_disabled(void)
{
    CUcontext owner;
    MUST(cuCtxGetCurrent(&owner));
    const CUdeviceptr block = make_block(1);
    const CUcontext reader = make_context(1);
    MUST(cuCtxEnablePeerAccess(owner, 0));
    SEEN(TESTED(cuCtxDisablePeerAccess)(owner));
    read_from(reader, block + MIB);
}

/* Two threads with a stream each work on blocks of their own and on a common one, one after the
 * other. */
struct worker {
    CUcontext context;
    CUdeviceptr own, common;
    CUevent before, after;
    unsigned seed;
};

static void *work(void *argument)
{
    const struct worker *worker = argument;
    CUstream stream;
    unsigned char *bytes = make_bytes(BLOCK_BYTES, worker->seed);
    uint32_t value = worker->seed;
    uint64_t count = MIB;
    CUdeviceptr place = worker->common + worker->seed % 2 * 4 * MIB;
    MUST(cuCtxSetCurrent(worker->context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned round = 0; round < 8; round++) {
        MUST(cuMemcpyHtoDAsync_v2(worker->own, bytes + round, BLOCK_BYTES - 64, stream));
        MUST(cuMemsetD32Async(worker->own + 64 * round, round, 1000, stream));
        MUST(cuMemcpyDtoDAsync_v2(place, worker->own + MIB, 4 * MIB, stream));
        void *params[] = {&place, &value, &count};
        MUST(TESTED(cuLaunchKernel)(find_kernel("fill32"), 1, 1, 1, 1, 1, 1, 0, stream, params,
                                    NULL));
        CUdeviceptr fresh;
        MUST(cuMemAlloc_v2(&fresh, BLOCK_BYTES));
        MUST(cuMemcpyDtoDAsync_v2(fresh, place, 4 * MIB, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuMemcpyDtoDAsync_v2(worker->own, fresh + MIB, 2 * MIB, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuMemFree_v2(fresh));
    }
    MUST(cuEventRecord(worker->after, stream));
    free(bytes);
    return NULL;
}

static void threads(void)
{
    CUcontext context;
    pthread_t running[4];
    struct worker workers[4];
    const CUdeviceptr common[2] = {make_block(5), make_block(6)};
    MUST(cuCtxGetCurrent(&context));
    find_kernel("fill32");
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){
            .context = context, .own = make_block(i), .common = common[i / 2], .seed = 10 + i};
        MUST(cuEventCreate(&workers[i].after, CU_EVENT_DISABLE_TIMING));
        pthread_create(&running[i], NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(running[i], NULL);
        MUST(cuEventSynchronize(workers[i].after));
    }
    for (unsigned i = 0; i < 4; i++)
        print_device("own", workers[i].own, BLOCK_BYTES - 64);
    print_device("common", common[0], BLOCK_BYTES);
    print_device("common", common[1], BLOCK_BYTES);
}

/* Streams that hand a block on by events. */
static void streams(void)
{
    CUstream stream[3];
    CUevent event[3];
    const CUdeviceptr block = make_block(1);
    const CUdeviceptr other = make_block(2);
    uint64_t count = MIB;
    for (int i = 0; i < 3; i++) {
        MUST(cuStreamCreate(&stream[i], i == 1 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
        MUST(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
    }
    for (unsigned round = 0; round < 9; round++) {
        const int now = (int)(round % 3);
        CUdeviceptr place = block + round % 4 * MIB;
        CUdeviceptr from = other + round * 4096;
        uint32_t value = round;
        void *fill_params[] = {&place, &value, &count};
        void *copy_params[] = {&place, &from, &count};
        MUST(cuStreamWaitEvent(stream[now], event[(now + 2) % 3], 0));
        count = 50000;
        MUST(TESTED(cuLaunchKernel)(find_kernel(round % 2 == 0 ? "fill32" : "copy32"), 1, 1, 1, 1,
                                    1, 1, 0, stream[now],
                                    round % 2 == 0 ? fill_params : copy_params, NULL));
        MUST(cuMemcpyDtoDAsync_v2(other + 2 * MIB, place, MIB, stream[now]));
        MUST(cuMemsetD8Async(other + 3 * MIB + round, (unsigned char)round, 9999, stream[now]));
        MUST(cuEventRecord(event[now], stream[now]));
    }
    MUST(cuCtxSynchronize());
    print_device("block", block, BLOCK_BYTES);
    print_device("other", other, BLOCK_BYTES);
}

static _Atomic int may_go;

static void CUDA_CB wait_until_it_may_go(void *unused)
{
    (void)unused;
    while (!may_go)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Work waits in one context, and is given the address of a block that is allocated in another. */
static void print_gathered_late(CUcontext waiting, CUcontext allocating)
{
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUdeviceptr table, out;
    uint64_t *pinned, count = 1;
    uint32_t word = 0;
    MUST(cuCtxSetCurrent(waiting));
    MUST(cuModuleLoad(&module, getenv("GROUPS_KERNELS")));
    MUST(cuModuleGetFunction(&kernel, module, "gather32"));
    MUST(cuMemAllocManaged(&out, 4, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocManaged(&table, 8, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemHostAlloc((void **)&pinned, 8, 0));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void *params[] = {&out, &table, &count};
    MUST(cuLaunchHostFunc(stream, wait_until_it_may_go, NULL));
    MUST(cuMemcpyHtoDAsync_v2(table, pinned, 8, stream));
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    MUST(cuCtxSetCurrent(allocating));
    pinned[0] = make_block(1);
    MUST(cuCtxSetCurrent(waiting));
    may_go = 1;
    seen("synchronised", cuStreamSynchronize(stream));
    if (cuMemcpyDtoH_v2(&word, out, 4) == CUDA_SUCCESS)
        printf("gathered %08x\n", word);
}

/* The harness has the primary context of the first device. */
static void print_late_of(CUresult result, const CUcontext *created)
{
    CUcontext primary;
    seen("created", result);
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    print_gathered_late(*created, primary);
}

static void context_created(void)
{
    CUcontext context;
    print_late_of(TESTED(cuCtxCreate_v2)(&context, 0, 0), &context);
}

static void context_created_v3(void)
{
    CUcontext context;
    print_late_of(TESTED(cuCtxCreate_v3)(&context, NULL, 0, 0, 0), &context);
}

static void context_created_v4(void)
{
    CUcontext context;
    print_late_of(TESTED(cuCtxCreate_v4)(&context, NULL, 0, 0), &context);
}

static void primary_retained(void)
{
    CUcontext context, own;
    SEEN(TESTED(cuDevicePrimaryCtxRetain)(&context, 1));
    MUST(cuCtxCreate_v2(&own, 0, 1));
    print_gathered_late(context, own);
}

const struct scenario device_scenarios[] = {
    {"cuCtxCreate", context_created, NULL},
    {"cuCtxCreate_v2", context_created, NULL},
    {"cuGLCtxCreate", context_created, NULL},
    {"cuGLCtxCreate_v2", context_created, NULL},
    {"cuVDPAUCtxCreate", context_created, NULL}, /* the simulated driver reads no more arguments */
    {"cuVDPAUCtxCreate_v2", context_created, NULL},
    {"cuCtxCreate_v3", context_created_v3, NULL},
    {"cuCtxCreate_v4", context_created_v4, NULL},
    {"cuDevicePrimaryCtxRetain", primary_retained, NULL},
    {"cuCtxDestroy", destroyed, NULL},
    {"cuCtxDestroy_v2", destroyed, NULL},
    {"cuCtxDetach", detached, NULL},
    {"cuDevicePrimaryCtxRelease", primary_released, NULL},
    {"cuDevicePrimaryCtxRelease_v2", primary_released, NULL},
    {"cuDevicePrimaryCtxReset", primary_reset, NULL},
    {"cuDevicePrimaryCtxReset_v2", primary_reset, NULL},
    {"cuCtxFromGreenCtx", green, NULL},
    {"cuCtxEnablePeerAccess", peers_enabled, NULL},
    {"cuCtxDisablePeerAccess", peers_disabled, NULL},
    {"cuLaunchKernel:threads", threads, NULL},
    {"cuLaunchKernel:streams", streams, NULL},
    {NULL, NULL, NULL},
};
