/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that make the simulated driver what drivers may be: each of them acts. */
#include "tools/simcuda/tests/program.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* A kernel reads a word through an address that it has from memory. */
static CUresult read_by_kernel(const uint32_t *word)
{
    CUmodule module;
    CUfunction gather;
    CUdeviceptr out, table;
    const uint64_t count = 1;
    start();
    OK(cuModuleLoad(&module, getenv("SIM_KERNELS")));
    OK(cuModuleGetFunction(&gather, module, "gather32"));
    OK(cuMemAlloc(&out, 4));
    OK(cuMemAlloc(&table, 8));
    OK(cuMemcpyHtoD(table, &word, 8));
    void *params[] = {&out, &table, (void *)&count};
    OK(cuLaunchKernel(gather, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    const CUresult result = cuCtxSynchronize();
    uint32_t seen = 0;
    if (result == CUDA_SUCCESS)
        OK(cuMemcpyDtoH(&seen, out, 4));
    CHECK_EQ(seen, result == CUDA_SUCCESS ? *word : 0);
    return result;
}

MS_TEST(pageable_memory_is_the_hosts_alone)
{
    static const uint32_t word = 0x1234;
    FAILS(read_by_kernel(&word), CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(pageable_memory_may_be_read_by_kernels)
{
    static const uint32_t word = 0x1234;
    setenv("SIMCUDA_PAGEABLE", "1", 1);
    OK(read_by_kernel(&word));
}

/* The first byte of what a copy has taken, whose source was written anew behind it. */
static unsigned char copy_and_overwrite(void)
{
    static unsigned char source[4096];
    CUdeviceptr block;
    CUstream stream;
    struct gate gate;
    unsigned char seen = 0;
    start();
    OK(cuMemAlloc(&block, sizeof(source)));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    memset(source, 1, sizeof(source));
    close_gate(&gate, stream);
    OK(cuMemcpyHtoDAsync(block, source, sizeof(source), stream));
    memset(source, 2, sizeof(source));
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&seen, block, 1));
    return seen;
}

MS_TEST(pageable_sources_are_read_at_once)
{
    CHECK_EQ(copy_and_overwrite(), 1);
}

MS_TEST(pageable_sources_may_be_read_late)
{
    setenv("SIMCUDA_LATE", "1", 1);
    CHECK_EQ(copy_and_overwrite(), 2);
}

MS_TEST(others_take_memory_and_give_it_back)
{
    enum { ROUNDS = 100, LEAST_MIB = 64 };
    int refused = 0, scarce = 0;
    setenv("SIMCUDA_MEMORY_MIB", "1024", 1);
    setenv("SIMCUDA_OTHERS", "64", 1);
    start();
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr small, large;
        const CUresult result = cuMemAlloc(&large, 512 * MIB);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        if (result == CUDA_SUCCESS)
            OK(cuMemFree(large));
        refused += result != CUDA_SUCCESS;
        scarce += free_bytes() == LEAST_MIB * MIB;
        OK(cuMemAlloc(&small, LEAST_MIB * MIB)); /* so much is always there */
        OK(cuMemFree(small));
    }
    CHECK(refused > ROUNDS / 4 && refused < ROUNDS);
    CHECK(scarce > ROUNDS / 4 && scarce < ROUNDS);
}

/* Others never take the program's own memory. */
MS_TEST(others_leave_what_the_program_has)
{
    CUdeviceptr large = 0;
    setenv("SIMCUDA_MEMORY_MIB", "1024", 1);
    setenv("SIMCUDA_OTHERS", "64", 1);
    start();
    while (cuMemAlloc(&large, 512 * MIB) != CUDA_SUCCESS)
        ;
    for (int i = 0; i < 20; i++)
        CHECK(free_bytes() <= 512 * MIB);
    OK(cuMemsetD8(large, 1, 512 * MIB));
    OK(cuCtxSynchronize()); /* as it ends, the simulated driver waits for a few seconds only */
}

/* How often the event that was recorded last was complete first, in so many rounds. */
static int overtaken(int rounds)
{
    CUstream streams[2];
    CUevent events[2];
    CUdeviceptr block;
    int count = 0;
    start();
    OK(cuMemAlloc(&block, 2));
    for (int i = 0; i < 2; i++) {
        OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 2; i++) {
            OK(cuMemsetD8Async(block + (unsigned)i, 1, 1, streams[i]));
            OK(cuEventRecord(events[i], streams[i]));
        }
        OK(cuEventSynchronize(events[1]));
        usleep(2000); /* the other stream's thread may only just not have run */
        count += cuEventQuery(events[0]) == CUDA_ERROR_NOT_READY;
        OK(cuCtxSynchronize());
    }
    return count;
}

MS_TEST(streams_overtake_each_other)
{
    setenv("SIMCUDA_JITTER_US", "20000", 1);
    const int count = overtaken(40);
    CHECK(count > 4 && count < 36);
}

/* Within a stream, and where an event says so, order is order. */
MS_TEST(late_events_come_after_their_work)
{
    CUstream first, second;
    CUevent event;
    CUdeviceptr block;
    setenv("SIMCUDA_JITTER_US", "3000", 1);
    start();
    OK(cuMemAlloc(&block, 1));
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 40; i++) {
        unsigned char seen = 0;
        OK(cuMemsetD8Async(block, (unsigned char)i, 1, first));
        OK(cuEventRecord(event, first));
        OK(cuStreamWaitEvent(second, event, 0));
        OK(cuMemcpyDtoHAsync(&seen, block, 1, second));
        OK(cuStreamSynchronize(second));
        CHECK_EQ(seen, i);
    }
}

static CUresult free_without_context(void)
{
    CUdeviceptr block;
    start();
    OK(cuMemAlloc(&block, 4 * MIB));
    OK(cuMemsetD8Async(block, 1, 4 * MIB, NULL));
    const size_t before = free_bytes();
    OK(cuCtxSetCurrent(NULL));
    const CUresult result = cuMemFree(block);
    FAILS(cuMemFree(0), result);
    start();
    CHECK_EQ(free_bytes(), before + (result == CUDA_SUCCESS ? 4 * MIB : 0));
    return result;
}

static CUresult free_host_without_context(void)
{
    void *memory;
    start();
    OK(cuMemAllocHost(&memory, 4096));
    OK(cuCtxSetCurrent(NULL));
    const CUresult result = cuMemFreeHost(memory);
    start();
    FAILS(cuMemFreeHost(memory), result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    return result;
}

MS_TEST(memory_is_freed_in_a_context)
{
    FAILS(free_without_context(), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(free_host_without_context(), CUDA_ERROR_INVALID_CONTEXT);
}

MS_TEST(memory_may_be_freed_without_a_context)
{
    setenv("SIMCUDA_FREE_ANYWHERE", "1", 1);
    OK(free_without_context());
    OK(free_host_without_context());
}

MS_TEST(the_granule_can_be_larger)
{
    size_t granule = 0;
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp prop = device_prop(0);
    setenv("SIMCUDA_GRANULE_KIB", "8192", 1);
    start();
    OK(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_EQ(granule, 8 * MIB);
    FAILS(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    back(reserve(8 * MIB), 8 * MIB);
}
