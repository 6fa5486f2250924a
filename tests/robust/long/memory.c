/* SPDX-License-Identifier: Apache-2.0 */
/* Other ways to get memory, graphs, modules, threads and plans. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/metashard.h"
#include "tests/driver/differential/c10.h"
#include "tests/robust/long/training.h"

enum { BLOCK = 192 << 10, ARENA = 1 << 20 };

static void check_set(struct worker *worker, const char *what, CUdeviceptr at, size_t bytes)
{
    const unsigned char value = (unsigned char)draw(worker);
    unsigned char *wanted = malloc(bytes);
    memset(wanted, value, bytes);
    OK(cuMemsetD8(at, value, bytes));
    read_back(worker, what, at, wanted, bytes, worker->streams[0]);
    free(wanted);
}

void memory_small(struct worker *worker)
{
    const CUdeviceptr at = allocate(1000);
    check_set(worker, "a small allocation", at, 1000);
    OK(cuMemFree(at));
}

/* Two handles in a row, as expandable segments have them. */
void memory_mapped(struct worker *worker)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr at;
    size_t granule;
    OK(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemAddressReserve(&at, 2 * granule, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        OK(cuMemCreate(&handles[i], granule, &prop, 0));
        OK(cuMemMap(at + i * granule, granule, 0, handles[i], 0));
    }
    OK(cuMemSetAccess(at, 2 * granule, &access, 1));
    check_set(worker, "mapped memory", at, 2 * granule);
    OK(cuMemUnmap(at, 2 * granule));
    for (size_t i = 0; i < 2; i++)
        OK(cuMemRelease(handles[i]));
    OK(cuMemAddressFree(at, 2 * granule));
}

static void report(CUdeviceptr at, int64_t bytes)
{
    REPORT((void *)(uintptr_t)at, bytes, 0, 0, (struct c10_device){1, 0});
}

/* A block of an arena that is never freed, as a caching allocator hands it out. */
void memory_reported(struct worker *worker)
{
    if (worker->arena == 0)
        worker->arena = allocate(ARENA);
    const CUdeviceptr at = worker->arena + draw(worker) % 4 * (ARENA / 4);
    const struct mapped file = checkpoint_map(worker->path);
    report(at, BLOCK);
    OK(cuMemcpyHtoD(at, file.at + file.data, BLOCK));
    checkpoint_unmap(file);
    read_back(worker, "a reported block", at, worker->truth, BLOCK, worker->streams[0]);
    report(at, -BLOCK);
}

/* A step that is captured. */
void memory_graph(struct worker *worker, int tensor, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    const size_t words = words_of(tensor) / 2;
    const uint32_t value = draw(worker);
    if (stream == worker->streams[0])
        stream = worker->streams[2]; /* one that the other worker's default stream leaves alone */
    OK(cuStreamWaitEvent(stream, worker->event, 0));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    add(worker->shards[tensor], worker->expected[tensor], words, value, stream);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    for (size_t i = 0; i < words; i++)
        worker->expected[tensor][i] += value;
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

void memory_module(struct worker *worker)
{
    CUmodule module;
    CUstream stream;
    CUevent event;
    const CUdeviceptr at = allocate(BLOCK);
    uint32_t value = draw(worker), *wanted = malloc(BLOCK);
    uint64_t count = BLOCK / 4;
    for (size_t i = 0; i < count; i++)
        wanted[i] = value;
    OK(cuModuleLoad(&module, kernels_path));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    launch(module, "fill32", (void *[]){(void *)&at, &value, &count}, stream);
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    read_back(worker, "what a module of its own wrote", at, wanted, BLOCK, stream);
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
    OK(cuModuleUnload(module));
    OK(cuMemFree(at));
    free(wanted);
}

static void *run_thread(void *argument)
{
    struct worker *worker = argument;
    OK(cuCtxSetCurrent(context));
    const CUdeviceptr at = allocate(BLOCK);
    check_set(worker, "what a thread that ends wrote", at, BLOCK);
    OK(cuMemFree(at));
    return NULL;
}

void memory_thread(struct worker *worker)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_thread, worker) != 0)
        fail("no thread can be made");
    pthread_join(thread, NULL);
}

/* One that keeps everything here. */
void memory_plan(struct worker *worker)
{
    static const char plan[] = "{\"format\":\"metashard-plan/1\",\"mesh\":{\"r\":1},\"rank\":0,"
                               "\"tensors\":[{\"name\":\"*\",\"placements\":[\"replicate\"]}]}";
    (void)worker;
    if (metashard_plan_text != NULL && metashard_plan_text(plan, sizeof(plan) - 1) != 0)
        fail("metashard_plan_text: %s", metashard_error());
}
