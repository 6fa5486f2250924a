/* SPDX-License-Identifier: Apache-2.0 */
/* Memory nodes, conditional nodes, and the graph of a capture that goes on. */
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/harness/test.h"

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)
#define FAILS(call, error) CHECK_EQ(call, error)

enum { WORDS = 256 };

struct bench {
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUdeviceptr words;
};

static struct bench start(void)
{
    struct bench bench;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&bench.context, 0));
    OK(cuCtxSetCurrent(bench.context));
    OK(cuStreamCreate(&bench.stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&bench.graph, 0));
    OK(cuMemAlloc(&bench.words, WORDS * 4));
    OK(cuMemsetD32(bench.words, 0, WORDS));
    OK(cuCtxSynchronize());
    return bench;
}

static uint32_t word_at(CUdeviceptr address)
{
    uint32_t word;
    OK(cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

static CUgraphNode add_fill(CUgraph graph, CUgraphNode after, CUdeviceptr address, unsigned value,
                            size_t words)
{
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){
        .dst = address, .value = value, .elementSize = 4, .width = words, .height = 1};
    OK(cuGraphAddNode(&node, graph, &after, NULL, after != NULL, &params));
    return node;
}

static CUDA_MEM_ALLOC_NODE_PARAMS of_device_0(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
}

static uint64_t figure(CUgraphMem_attribute attribute)
{
    uint64_t value;
    OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

MS_TEST(memory_that_the_graph_frees)
{
    const struct bench bench = start();
    CUDA_MEM_ALLOC_NODE_PARAMS params = of_device_0(WORDS * 4);
    CUgraphNode alloc;
    CUgraphNode free_node;
    CUgraphNode copy;
    CUgraphExec exec;
    CUgraphExec other;
    CUgraph clone;
    CUdeviceptr address;
    OK(cuGraphAddMemAllocNode(&alloc, bench.graph, NULL, 0, &params));
    CUgraphNode fill = add_fill(bench.graph, alloc, params.dptr, 7, WORDS);
    const CUDA_MEMCPY3D move = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = params.dptr,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = bench.words,
                                .WidthInBytes = WORDS * 4,
                                .Height = 1,
                                .Depth = 1};
    OK(cuGraphAddMemcpyNode(&copy, bench.graph, &fill, 1, &move, bench.context));
    OK(cuGraphAddMemFreeNode(&free_node, bench.graph, &copy, 1, params.dptr));
    FAILS(cuGraphAddMemFreeNode(&free_node, bench.graph, &copy, 1, params.dptr),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphMemFreeNodeGetParams(free_node, &address));
    CHECK_EQ(address, params.dptr);
    CHECK_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    FAILS(cuGraphInstantiate(&other, bench.graph, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGraphClone(&clone, bench.graph), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuGraphDestroyNode(fill), CUDA_ERROR_NOT_SUPPORTED);
    for (int i = 0; i < 2; i++)
        OK(cuGraphLaunch(exec, bench.stream));
    OK(cuStreamSynchronize(bench.stream));
    CHECK_EQ(word_at(bench.words), 7);
    const uint64_t used = figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    CHECK(used >= WORDS * 4);
    CHECK_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), used);
    CHECK_EQ(figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), used);
    FAILS(cuMemFree(params.dptr), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(bench.graph));
    CHECK_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    uint64_t zero = 0;
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    CHECK_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0);
}

MS_TEST(memory_that_the_program_frees)
{
    const struct bench bench = start();
    CUDA_MEM_ALLOC_NODE_PARAMS params = of_device_0(WORDS * 4);
    CUgraphNode alloc;
    CUgraphExec exec;
    OK(cuGraphAddMemAllocNode(&alloc, bench.graph, NULL, 0, &params));
    add_fill(bench.graph, alloc, params.dptr, 3, WORDS);
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    OK(cuGraphLaunch(exec, bench.stream));
    FAILS(cuGraphLaunch(exec, bench.stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(params.dptr, bench.stream));
    OK(cuGraphLaunch(exec, bench.stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(bench.graph));
    OK(cuStreamSynchronize(bench.stream));
    CHECK_EQ(word_at(params.dptr), 3);
    OK(cuMemFree(params.dptr));
    CHECK_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
}

static CUgraph *add_condition(const struct bench *bench, CUgraphConditionalNodeType type,
                              unsigned size, unsigned value, CUgraphConditionalHandle *handle_out)
{
    CUgraphNode node;
    OK(cuGraphConditionalHandleCreate(handle_out, bench->graph, bench->context, value,
                                      CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.handle = *handle_out;
    params.conditional.type = type;
    params.conditional.size = size;
    params.conditional.ctx = bench->context;
    OK(cuGraphAddNode(&node, bench->graph, NULL, NULL, 0, &params));
    return params.conditional.phGraph_out;
}

static void run(const struct bench *bench)
{
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, bench->graph, 0));
    OK(cuGraphLaunch(exec, bench->stream));
    OK(cuStreamSynchronize(bench->stream));
    OK(cuGraphExecDestroy(exec));
}

MS_TEST(a_switch_runs_one_of_its_graphs)
{
    const struct bench bench = start();
    CUgraphConditionalHandle handle;
    CUgraph *bodies = add_condition(&bench, CU_GRAPH_COND_TYPE_SWITCH, 3, 1, &handle);
    for (unsigned i = 0; i < 3; i++)
        add_fill(bodies[i], NULL, bench.words + i * 4, 5, 1);
    bodies = add_condition(&bench, CU_GRAPH_COND_TYPE_IF, 2, 0, &handle);
    add_fill(bodies[0], NULL, bench.words + 12, 6, 1);
    add_fill(bodies[1], NULL, bench.words + 16, 6, 1);
    add_condition(&bench, CU_GRAPH_COND_TYPE_WHILE, 1, 0, &handle);
    run(&bench);
    const uint32_t wanted[] = {0, 5, 0, 0, 6};
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(word_at(bench.words + i * 4), wanted[i]);
    CUgraph clone;
    FAILS(cuGraphClone(&clone, bench.graph), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuGraphDestroy(bench.graph));
}

MS_TEST(conditions_refuse_parameters_that_are_wrong)
{
    const struct bench bench = start();
    CUgraphConditionalHandle handle;
    CUgraphNode node;
    CUgraphExec exec;
    OK(cuGraphConditionalHandleCreate(&handle, bench.graph, bench.context, 0, 0));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    params.conditional.size = 2;
    FAILS(cuGraphAddNode(&node, bench.graph, NULL, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
    params.conditional.size = 1;
    OK(cuGraphAddNode(&node, bench.graph, NULL, NULL, 0, &params));
    CUDA_MEM_ALLOC_NODE_PARAMS memory = of_device_0(4);
    OK(cuGraphAddMemAllocNode(&node, params.conditional.phGraph_out[0], NULL, 0, &memory));
    FAILS(cuGraphInstantiate(&exec, bench.graph, 0), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(graph_of_a_capture_that_goes_on)
{
    const struct bench bench = start();
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph = NULL;
    CUgraph ended;
    CUgraphExec exec;
    const CUgraphNode *after;
    size_t count;
    OK(cuStreamBeginCapture(bench.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemsetD32Async(bench.words, 1, WORDS, bench.stream));
    OK(cuStreamGetCaptureInfo(bench.stream, &status, &id, &graph, &after, NULL, &count));
    CHECK_EQ(count, 1);
    FAILS(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode own = add_fill(graph, after[0], bench.words, 2, 1);
    OK(cuStreamUpdateCaptureDependencies(bench.stream, &own, NULL, 1,
                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(cuMemsetD32Async(bench.words + 4, 3, 1, bench.stream));
    OK(cuStreamEndCapture(bench.stream, &ended));
    CHECK(ended == graph);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, bench.stream));
    OK(cuStreamSynchronize(bench.stream));
    CHECK_EQ(word_at(bench.words), 2);
    CHECK_EQ(word_at(bench.words + 4), 3);
    CHECK_EQ(word_at(bench.words + 8), 1);
    OK(cuGraphDestroy(graph));
}
