/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that the shim does not model: kernels that read and write deferred memory, by argument, in
 * structs, through tables in device memory; graphs; stream memory operations. Runs with the shim
 * and without it.
 */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/device.h"

enum { COUNT = 1 << 20 };

static CUmodule module;
static uint32_t seen[COUNT];

static void start(void)
{
    device_start();
    CHECK(getenv("SIM_KERNELS") != NULL);
    CHECK_EQ(cuModuleLoad(&module, getenv("SIM_KERNELS")), CUDA_SUCCESS);
}

static CUfunction find(const char *name)
{
    CUfunction function;
    CHECK_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    return function;
}

static CUdeviceptr allocate_filled(uint32_t value)
{
    const CUdeviceptr address = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD32(address, value, COUNT), CUDA_SUCCESS);
    return address;
}

static void check_filled(CUdeviceptr address, uint32_t value)
{
    CHECK_EQ(cuMemcpyDtoH(seen, address, 4 * MIB), CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        CHECK_EQ(seen[i], value);
}

MS_TEST(a_kernel_reads_and_writes_deferred_memory)
{
    start();
    CUdeviceptr from = allocate_filled(41), to = device_allocate(4 * MIB);
    uint64_t count = COUNT;
    void *arguments[] = {&to, &from, &count};
    CHECK_EQ(cuLaunchKernel(find("copy32"), 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL),
             CUDA_SUCCESS);
    check_filled(to, 41);
}

MS_TEST(an_address_in_a_struct_passed_by_value)
{
    start();
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {.address = allocate_filled(5), .count = COUNT, .value = 3};
    void *arguments[] = {&add};
    CHECK_EQ(cuLaunchKernel(find("add_in_place32"), 3, 2, 1, 4, 5, 6, 0, NULL, arguments, NULL),
             CUDA_SUCCESS);
    check_filled(add.address, 8);
}

MS_TEST(addresses_in_a_table_on_the_device)
{
    start();
    CUdeviceptr first = allocate_filled(1), to = device_allocate(4 * MIB),
                table = device_allocate(4096);
    CUdeviceptr addresses[8];
    for (int i = 0; i < 8; i++)
        addresses[i] = first + (size_t)i * 4;
    CHECK_EQ(cuMemcpyHtoD(table, addresses, sizeof(addresses)), CUDA_SUCCESS);
    uint64_t count = 8;
    void *arguments[] = {&to, &table, &count};
    CHECK_EQ(cuLaunchKernel(find("gather32"), 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL),
             CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(seen, to, 32), CUDA_SUCCESS);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(seen[i], 1);
}

MS_TEST(a_packed_argument_buffer_and_a_launch_configuration)
{
    start();
    struct {
        CUdeviceptr address;
        uint32_t value;
        uint64_t count;
    } packed = {.address = device_allocate(4 * MIB), .value = 77, .count = COUNT};
    size_t bytes = sizeof(packed);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    const CUlaunchConfig config = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1};
    CHECK_EQ(cuLaunchKernelEx(&config, find("fill32"), NULL, extra), CUDA_SUCCESS);
    check_filled(packed.address, 77);
}

MS_TEST(memory_deferred_after_a_launch_is_there_for_the_next)
{
    start();
    uint64_t count = COUNT;
    for (uint32_t round = 1; round < 5; round++) {
        CUdeviceptr from = allocate_filled(round), to = device_allocate(4 * MIB);
        void *arguments[] = {&to, &from, &count};
        CHECK_EQ(cuLaunchKernel(find("copy32"), 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD,
                                arguments, NULL),
                 CUDA_SUCCESS);
        CHECK_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
        check_filled(to, round);
    }
}

MS_TEST(a_graph_node_on_deferred_memory)
{
    start();
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode node;
    CUdeviceptr address = allocate_filled(9);
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {.address = address, .count = COUNT, .value = 1};
    void *arguments[] = {&add};
    const CUDA_KERNEL_NODE_PARAMS params = {.func = find("add_in_place32"),
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 1,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = arguments};
    CHECK_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphAddKernelNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
    CHECK_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch(executable, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch(executable, NULL), CUDA_SUCCESS);
    check_filled(address, 11);
}

MS_TEST(a_stream_memory_operation_on_deferred_memory)
{
    start();
    const CUdeviceptr address = allocate_filled(2);
    CHECK_EQ(cuStreamWriteValue32(NULL, address + 8, 6, 0), CUDA_SUCCESS);
    CHECK_EQ(cuStreamWaitValue32(NULL, address + 8, 6, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(seen, address, 16), CUDA_SUCCESS);
    CHECK_EQ(seen[1], 2);
    CHECK_EQ(seen[2], 6);
    CHECK_EQ(seen[3], 2);
}

MS_TEST(a_kernel_on_another_stream_while_a_write_is_recorded)
{
    /* The kernel is slow to start; a write that comes later in its stream must stay behind it. */
    start();
    CUstream stream;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUdeviceptr source = allocate_filled(3), copy = device_allocate(4 * MIB);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS); /* the memset was on another stream */
    uint64_t count = COUNT;
    void *arguments[] = {&copy, &source, &count};
    CHECK_EQ(cuLaunchKernel(find("copy32"), 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL),
             CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD32Async(source, 4, COUNT, stream), CUDA_SUCCESS);
    const CUdeviceptr later = device_allocate(4 * MIB);
    CHECK_EQ(cuMemsetD32Async(later, 5, COUNT, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    check_filled(copy, 3);
    check_filled(source, 4);
    check_filled(later, 5);
}
