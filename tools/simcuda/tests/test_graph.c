/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the simulated driver. */
#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/harness/test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

enum { WORDS = 256 };

struct bench {
    CUmodule module;
    CUstream stream;
    CUgraph graph;
    CUdeviceptr a, b;
};

static struct bench start(void)
{
    struct bench bench;
    CUcontext context;
    const char *path = getenv("SIM_KERNELS");
    CHECK(path != NULL);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&bench.module, path));
    OK(cuStreamCreate(&bench.stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&bench.graph, 0));
    OK(cuMemAlloc(&bench.a, WORDS * 4));
    OK(cuMemAlloc(&bench.b, WORDS * 4));
    OK(cuMemsetD32(bench.a, 0, WORDS));
    OK(cuMemsetD32(bench.b, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuCtxSynchronize());
    return bench;
}

static uint32_t first_word(CUdeviceptr address)
{
    uint32_t words[WORDS];
    OK(cuMemcpyDtoH(words, address, sizeof words));
    for (int i = 1; i < WORDS; i++)
        CHECK_EQ(words[i], words[0]);
    return words[0];
}

struct add_args {
    CUdeviceptr address;
    uint64_t count;
    uint32_t value;
};

static CUDA_KERNEL_NODE_PARAMS add_params(const struct bench *bench, void **params)
{
    CUfunction add;
    OK(cuModuleGetFunction(&add, bench->module, "add_in_place32"));
    return (CUDA_KERNEL_NODE_PARAMS){.func = add,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params};
}

static CUgraphNode add_kernel(const struct bench *bench, CUgraphNode after, uint32_t value)
{
    struct add_args args = {bench->a, WORDS, value};
    void *params[] = {&args};
    const CUDA_KERNEL_NODE_PARAMS node = add_params(bench, params);
    CUgraphNode made;
    OK(cuGraphAddKernelNode(&made, bench->graph, &after, after != NULL, &node));
    return made;
}

static CUgraphNode add_copy(const struct bench *bench, CUgraphNode after)
{
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = bench->a,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = bench->b,
                                .WidthInBytes = WORDS * 4,
                                .Height = 1,
                                .Depth = 1};
    CUcontext context;
    CUgraphNode made;
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphAddMemcpyNode(&made, bench->graph, &after, after != NULL, &copy, context));
    return made;
}

static CUgraphNode add_fill(const struct bench *bench, CUgraphNode after, unsigned value)
{
    const CUDA_MEMSET_NODE_PARAMS fill = {
        .dst = bench->a, .value = value, .elementSize = 4, .width = WORDS, .height = 1};
    CUcontext context;
    CUgraphNode made;
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphAddMemsetNode(&made, bench->graph, &after, after != NULL, &fill, context));
    return made;
}

static void run(const struct bench *bench, CUgraphExec exec)
{
    OK(cuGraphLaunch(exec, bench->stream));
    OK(cuStreamSynchronize(bench->stream));
}

MS_TEST(nodes_run_in_order_of_dependencies_at_every_launch)
{
    const struct bench bench = start();
    CUgraphExec exec;
    /* Added in the wrong order on purpose; the edges put it right. */
    CUgraphNode copy = add_copy(&bench, NULL);
    CUgraphNode fill = add_fill(&bench, NULL, 5);
    CUgraphNode add = add_kernel(&bench, fill, 2);
    OK(cuGraphAddDependencies(bench.graph, &add, &copy, NULL, 1));
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    CHECK_EQ(first_word(bench.a), 0);
    run(&bench, exec);
    CHECK_EQ(first_word(bench.b), 7);
    OK(cuMemsetD32(bench.b, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuGraphDestroy(bench.graph));
    run(&bench, exec);
    CHECK_EQ(first_word(bench.b), 7);
    OK(cuGraphExecDestroy(exec));
    CHECK_EQ(cuGraphLaunch(exec, bench.stream), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(structure_can_be_asked_for)
{
    const struct bench bench = start();
    CUgraphNode fill = add_fill(&bench, NULL, 5);
    CUgraphNode add = add_kernel(&bench, fill, 2);
    CUgraphNode copy = add_copy(&bench, add);
    CUgraphNode nodes[4];
    CUgraphNode to[4];
    size_t count = 0;
    OK(cuGraphGetNodes(bench.graph, NULL, &count));
    CHECK_EQ(count, 3);
    count = 4;
    OK(cuGraphGetNodes(bench.graph, nodes, &count));
    CHECK_EQ(count, 3);
    CHECK(nodes[0] == fill && nodes[1] == add && nodes[2] == copy && nodes[3] == NULL);
    count = 4;
    OK(cuGraphGetRootNodes(bench.graph, nodes, &count));
    CHECK(count == 1 && nodes[0] == fill);
    count = 4;
    OK(cuGraphGetEdges(bench.graph, nodes, to, NULL, &count));
    CHECK(count == 2 && nodes[0] == fill && to[0] == add && nodes[1] == add && to[1] == copy);
    count = 4;
    OK(cuGraphNodeGetDependentNodes(add, nodes, NULL, &count));
    CHECK(count == 1 && nodes[0] == copy);
    CUgraphNodeType type;
    OK(cuGraphNodeGetType(add, &type));
    CHECK_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
    OK(cuGraphDestroyNode(add));
    OK(cuGraphGetNodes(bench.graph, NULL, &count));
    CHECK_EQ(count, 2);
    const CUgraphNode gone = add;
    CHECK_EQ(cuGraphNodeGetType(gone, &type), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(cycles_and_foreign_nodes_are_refused)
{
    const struct bench bench = start();
    CUgraphNode fill = add_fill(&bench, NULL, 5);
    CUgraphNode add = add_kernel(&bench, fill, 2);
    CUgraphExec exec;
    CUgraph other;
    CUgraphNode made;
    OK(cuGraphCreate(&other, 0));
    CHECK_EQ(cuGraphAddEmptyNode(&made, other, &fill, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuGraphAddDependencies(bench.graph, &fill, &add, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphAddDependencies(bench.graph, &add, &fill, NULL, 1));
    CHECK_EQ(cuGraphInstantiate(&exec, bench.graph, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRemoveDependencies(bench.graph, &add, &fill, NULL, 1));
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
}

MS_TEST(parameters_can_be_changed)
{
    const struct bench bench = start();
    CUgraphExec exec;
    CUgraphNode add = add_kernel(&bench, NULL, 2);
    OK(cuGraphInstantiate(&exec, bench.graph, 0));

    struct add_args args = {bench.a, WORDS, 100};
    void *params[] = {&args};
    const CUDA_KERNEL_NODE_PARAMS node = add_params(&bench, params);
    OK(cuGraphExecKernelNodeSetParams(exec, add, &node));
    run(&bench, exec);
    CHECK_EQ(first_word(bench.a), 100);

    CUDA_KERNEL_NODE_PARAMS seen;
    OK(cuGraphKernelNodeGetParams(add, &seen));
    CHECK(seen.func == node.func);
    CHECK_EQ(((const struct add_args *)seen.kernelParams[0])->value, 2);
    OK(cuGraphKernelNodeSetParams(add, &node));
    OK(cuGraphKernelNodeGetParams(add, &seen));
    CHECK_EQ(((const struct add_args *)seen.kernelParams[0])->value, 100);

    OK(cuGraphNodeSetEnabled(exec, add, 0));
    run(&bench, exec);
    CHECK_EQ(first_word(bench.a), 100);
}

MS_TEST(an_executable_graph_takes_another_graph)
{
    struct bench bench = start();
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;
    add_fill(&bench, NULL, 1);
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    OK(cuGraphCreate(&bench.graph, 0));
    CUgraphNode fill = add_fill(&bench, NULL, 77);
    OK(cuGraphExecUpdate(exec, bench.graph, &info));
    CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
    run(&bench, exec);
    CHECK_EQ(first_word(bench.a), 77);
    add_copy(&bench, fill);
    CHECK_EQ(cuGraphExecUpdate(exec, bench.graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

static void count_call(void *argument)
{
    ++*(int *)argument;
}

MS_TEST(child_graphs_and_host_functions)
{
    const struct bench bench = start();
    CUgraph parent;
    CUgraph clone;
    CUgraphNode made;
    CUgraphExec exec;
    int calls = 0;
    const CUDA_HOST_NODE_PARAMS host = {count_call, &calls};
    CUgraphNode add = add_kernel(&bench, NULL, 3);
    OK(cuGraphAddHostNode(&made, bench.graph, &add, 1, &host));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddChildGraphNode(&made, parent, NULL, 0, bench.graph));
    OK(cuGraphAddChildGraphNode(&made, parent, &made, 1, bench.graph));
    OK(cuGraphDestroy(bench.graph));
    OK(cuGraphClone(&clone, parent));
    OK(cuGraphDestroy(parent));
    OK(cuGraphInstantiate(&exec, clone, 0));
    OK(cuGraphDestroy(clone));
    run(&bench, exec);
    CHECK_EQ(first_word(bench.a), 6);
    CHECK_EQ(calls, 2);
}

MS_TEST(nodes_of_any_type)
{
    const struct bench bench = start();
    CUgraphNode fill;
    CUgraphNode copy;
    CUgraphExec exec;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){
        .dst = bench.a, .value = 9, .elementSize = 4, .width = WORDS, .height = 1};
    OK(cuGraphAddNode(&fill, bench.graph, NULL, NULL, 0, &params));
    params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    params.memcpy.copyParams = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                               .srcDevice = bench.a,
                                               .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                               .dstDevice = bench.b,
                                               .WidthInBytes = WORDS * 4,
                                               .Height = 1,
                                               .Depth = 1};
    OK(cuGraphAddNode(&copy, bench.graph, &fill, NULL, 1, &params));
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    run(&bench, exec);
    CHECK_EQ(first_word(bench.b), 9);
    CUgraphNode signal;
    params.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL;
    CHECK_EQ(cuGraphAddNode(&signal, bench.graph, NULL, NULL, 0, &params),
             CUDA_ERROR_NOT_SUPPORTED);
}

/* A node of memory operations runs them; what reaches beyond its memory is refused where it is
 * named. */
MS_TEST(nodes_that_reach_beyond)
{
    const struct bench bench = start();
    CUgraphNode node;
    CUgraphExec exec;
    CUstreamBatchMemOpParams operation = {
        .writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = bench.b}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS values = {.count = 1, .paramArray = &operation};
    OK(cuCtxGetCurrent(&values.ctx));
    CUDA_MEMSET_NODE_PARAMS fill = {
        .dst = bench.a + 4, .value = 7, .elementSize = 4, .width = WORDS, .height = 1};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = bench.a,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = bench.b,
                          .WidthInBytes = WORDS * 4 + 1,
                          .Height = 1,
                          .Depth = 1};
    CHECK_EQ(cuGraphAddMemsetNode(&node, bench.graph, NULL, 0, &fill, NULL),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuGraphAddMemcpyNode(&node, bench.graph, NULL, 0, &copy, NULL),
             CUDA_ERROR_INVALID_VALUE);
    fill.dst = bench.a;
    OK(cuGraphAddMemsetNode(&node, bench.graph, NULL, 0, &fill, NULL));
    operation.writeValue.value = 3;
    OK(cuGraphAddBatchMemOpNode(&node, bench.graph, NULL, 0, &values));
    values.ctx = NULL; /* of nodes of memory operations the program has to name the context */
    CHECK_EQ(cuGraphAddBatchMemOpNode(&node, bench.graph, NULL, 0, &values),
             CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    run(&bench, exec);
    uint32_t word = 0;
    OK(cuMemcpyDtoH(&word, bench.b, sizeof(word)));
    CHECK_EQ(word, 3);
    CHECK_EQ(first_word(bench.a), 7);
}

MS_TEST(values_that_reach_beyond)
{
    const struct bench bench = start();
    CUgraphNode node;
    CUdeviceptr odd;
    OK(cuMemAlloc(&odd, WORDS * 4 + 2));
    CUstreamBatchMemOpParams operation = {
        .writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = odd + WORDS * 4}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS values = {.count = 1, .paramArray = &operation};
    OK(cuCtxGetCurrent(&values.ctx));
    CHECK_EQ(cuGraphAddBatchMemOpNode(&node, bench.graph, NULL, 0, &values),
             CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(capture_makes_a_graph)
{
    const struct bench bench = start();
    CUgraph graph;
    CUgraphExec exec;
    CUfunction add;
    struct add_args args = {bench.a, WORDS, 4};
    void *params[] = {&args};
    OK(cuModuleGetFunction(&add, bench.module, "add_in_place32"));
    OK(cuStreamBeginCapture(bench.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemsetD32Async(bench.a, 10, WORDS, bench.stream));
    OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, bench.stream, params, NULL));
    OK(cuMemcpyDtoDAsync(bench.b, bench.a, WORDS * 4, bench.stream));
    OK(cuStreamEndCapture(bench.stream, &graph));
    CHECK_EQ(first_word(bench.b), 0);

    CUgraphNode nodes[3];
    size_t count = 3;
    OK(cuGraphGetNodes(graph, nodes, &count));
    CHECK_EQ(count, 3);
    const CUgraphNodeType types[] = {CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_KERNEL,
                                     CU_GRAPH_NODE_TYPE_MEMCPY};
    for (int i = 0; i < 3; i++) {
        CUgraphNodeType type;
        OK(cuGraphNodeGetType(nodes[i], &type));
        CHECK_EQ(type, types[i]);
    }
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 2; i++) {
        OK(cuMemsetD32(bench.b, 0, WORDS));
        OK(cuCtxSynchronize());
        OK(cuCtxSynchronize());
        run(&bench, exec);
        CHECK_EQ(first_word(bench.b), 14);
    }
    OK(cuGraphExecDestroy(exec));
}

/* --- user objects */

static atomic_int destroyed;
static CUresult call_in_destructor;

static void destroy_object(void *data)
{
    int count;
    call_in_destructor = cuDeviceGetCount(&count);
    atomic_fetch_add(&destroyed, *(int *)data);
}

static void wait_for_destroyed(int wanted)
{
    for (int ms = 0; ms < 10000 && atomic_load(&destroyed) != wanted; ms++)
        usleep(1000);
    CHECK_EQ(atomic_load(&destroyed), wanted);
}

static void block_until_set(void *data)
{
    while (!atomic_load((atomic_bool *)data))
        usleep(1000);
}

MS_TEST(user_objects_live_as_long_as_someone_holds_them)
{
    const struct bench bench = start();
    CUuserObject object;
    CUgraph clone;
    CUgraphExec exec;
    CUgraphNode node;
    int one = 1;
    atomic_bool is_set = false;
    const CUDA_HOST_NODE_PARAMS host = {.fn = block_until_set, .userData = &is_set};
    OK(cuGraphAddHostNode(&node, bench.graph, NULL, 0, &host));
    OK(cuUserObjectCreate(&object, &one, destroy_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuUserObjectRetain(object, 2));
    OK(cuGraphRetainUserObject(bench.graph, object, 1, 0));
    OK(cuGraphRetainUserObject(bench.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuUserObjectRelease(object, 2));
    OK(cuGraphReleaseUserObject(bench.graph, object, 1));
    OK(cuGraphClone(&clone, bench.graph));
    OK(cuGraphDestroy(bench.graph));
    OK(cuGraphInstantiate(&exec, clone, 0));
    OK(cuGraphDestroy(clone));
    OK(cuGraphLaunch(exec, bench.stream));
    OK(cuGraphExecDestroy(exec));
    usleep(20000);
    CHECK_EQ(atomic_load(&destroyed), 0); /* the launch has it */
    atomic_store(&is_set, true);
    OK(cuStreamSynchronize(bench.stream));
    wait_for_destroyed(1);
    CHECK_EQ(call_in_destructor, CUDA_ERROR_NOT_PERMITTED);
}

MS_TEST(user_objects_are_not_released_too_often)
{
    const struct bench bench = start();
    CUuserObject object;
    int one = 1;
    OK(cuUserObjectCreate(&object, &one, destroy_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK_EQ(cuUserObjectRelease(object, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuGraphReleaseUserObject(bench.graph, object, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuGraphRetainUserObject(bench.graph, object, 2, CU_GRAPH_USER_OBJECT_MOVE),
             CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRetainUserObject(bench.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CHECK_EQ(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE); /* the graph has it */
    OK(cuGraphDestroy(bench.graph));
    wait_for_destroyed(1);
    CHECK_EQ(cuUserObjectRetain(object, 1), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(wrong_use_of_user_objects)
{
    const struct bench bench = start();
    CUuserObject object;
    int one = 1;
    const unsigned flags = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
    CHECK_EQ(cuUserObjectCreate(&object, &one, destroy_object, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuUserObjectCreate(&object, &one, destroy_object, 0, flags), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuUserObjectCreate(&object, &one, NULL, 1, flags), CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectCreate(&object, &one, destroy_object, 1, flags));
    CHECK_EQ(cuUserObjectRetain(object, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuGraphRetainUserObject(bench.graph, object, 1, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectRelease(object, 1));
    wait_for_destroyed(1);
}

MS_TEST(an_update_takes_the_user_objects_of_the_graph)
{
    const struct bench bench = start();
    CUgraph other;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;
    CUuserObject first, second;
    int one = 1, ten = 10;
    const unsigned flags = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
    OK(cuGraphCreate(&other, 0));
    OK(cuUserObjectCreate(&first, &one, destroy_object, 1, flags));
    OK(cuUserObjectCreate(&second, &ten, destroy_object, 1, flags));
    OK(cuGraphRetainUserObject(bench.graph, first, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuGraphRetainUserObject(other, second, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuGraphInstantiate(&exec, bench.graph, 0));
    OK(cuGraphDestroy(bench.graph));
    OK(cuGraphExecUpdate(exec, other, &info));
    wait_for_destroyed(1);
    OK(cuGraphDestroy(other));
    OK(cuGraphExecDestroy(exec));
    wait_for_destroyed(11);
}
