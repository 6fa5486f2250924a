/* SPDX-License-Identifier: Apache-2.0 */
/* Several devices and contexts, exports, captures and attributes. Runs with the shim and without
 * it; ../groups/moves.def has the copies and sets. */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/preload.h"
#include "tools/simcuda/harness/device.h"

static CUcontext context;
static unsigned char seen[4 << 20];

static void start(void)
{
    context = device_start();
}

/* 4 MiB in which byte i of every 256 is i. */
static CUdeviceptr allocate_ramp(void)
{
    static unsigned char ramp[4 << 20];
    CUdeviceptr address;
    for (size_t i = 0; i < sizeof(ramp); i++)
        ramp[i] = (unsigned char)i;
    CHECK_EQ(cuMemAlloc(&address, sizeof(ramp)), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyHtoD(address, ramp, sizeof(ramp)), CUDA_SUCCESS);
    return address;
}

static void read_all(CUdeviceptr address)
{
    CHECK_EQ(cuMemcpyDtoH(seen, address, sizeof(seen)), CUDA_SUCCESS);
}

MS_TEST(peer_access_reaches_memory_allocated_before_and_after)
{
    setenv("SIMCUDA_DEVICES", "2", 1);
    start();
    CUcontext second;
    CUmodule module;
    CUfunction copy;
    CUdeviceptr target;
    uint64_t count = 1000;
    const CUdeviceptr before = allocate_ramp();
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    read_all(before); /* its memory exists when the access is granted */
    CHECK_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    CHECK_EQ(cuCtxEnablePeerAccess(context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    const CUdeviceptr after = allocate_ramp();
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);

    CHECK_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    CHECK_EQ(cuModuleLoad(&module, getenv("SIM_KERNELS")), CUDA_SUCCESS);
    CHECK_EQ(cuModuleGetFunction(&copy, module, "copy32"), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&target, 4 * MIB), CUDA_SUCCESS);
    const CUdeviceptr sources[] = {before, after};
    for (int i = 0; i < 2; i++) {
        CUdeviceptr source = sources[i];
        void *arguments[] = {&target, &source, &count};
        CHECK_EQ(cuLaunchKernel(copy, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        CHECK_EQ(cuMemcpyDtoH(seen, target, 4000), CUDA_SUCCESS);
        CHECK_EQ(seen[999], (unsigned char)999);
    }
}

static CUstream begin_capture(CUstreamCaptureMode mode)
{
    CUstream stream;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
    return stream;
}

MS_TEST(allocating_during_a_capture_is_refused_as_ever)
{
    start();
    CUgraph graph = NULL;
    CUdeviceptr address = 0;
    const CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(cuMemAlloc(&address, 8 * MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(cuMemAlloc(&address, 8 * MIB), CUDA_SUCCESS);
}

MS_TEST(freeing_during_a_capture_is_refused_as_ever)
{
    start();
    CUgraph graph = NULL;
    const CUdeviceptr address = allocate_ramp();
    const CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(cuMemFree(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    read_all(address);
    CHECK_EQ(seen[77], 77);
    CHECK_EQ(cuMemFree(address), CUDA_SUCCESS);
}

static void take_time(void *unused)
{
    (void)unused;
    usleep(50000);
}

/* Work that is queued for it may still run. */
static void *free_busy(void *argument)
{
    const CUdeviceptr address = *(const CUdeviceptr *)argument;
    CUstream stream;
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchHostFunc(stream, take_time, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8Async(address, 1, 4 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(address), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    return NULL;
}

static _Atomic bool is_allocated;

static void wait_for_allocation(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_allocated))
        usleep(1000);
}

/* cuMemAlloc waits for nothing; cuMemFree for the device. */
static CUdeviceptr allocate_while_busy(CUstream stream)
{
    CUdeviceptr address;
    CHECK_EQ(cuLaunchHostFunc(stream, wait_for_allocation, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&address, 4 * MIB), CUDA_SUCCESS);
    atomic_store(&is_allocated, true);
    return address;
}

MS_TEST(another_thread_frees_while_a_stream_is_captured)
{
    start();
    CUstream stream;
    CUgraph graph;
    pthread_t thread;
    size_t before, after, total;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo(&before, &total), CUDA_SUCCESS);
    const CUdeviceptr address = allocate_ramp();
    read_all(address);
    CHECK_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    CHECK_EQ(pthread_create(&thread, NULL, free_busy, (void *)&address), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree(allocate_while_busy(stream)), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo(&after, &total), CUDA_SUCCESS);
    CHECK_EQ(after, before);
}

MS_TEST(own_driver_calls_do_not_end_a_capture)
{
    start();
    CUgraph graph;
    CUgraphExec executable;
    const CUdeviceptr from = allocate_ramp(), to = allocate_ramp();
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    const CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(cuMemcpyDtoDAsync(to, from + 9, MIB, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_EQ(cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch(executable, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    read_all(to);
    CHECK_EQ(seen[0], 9);
    CHECK_EQ(seen[MIB - 1], (unsigned char)(MIB + 8));
    CHECK_EQ(seen[MIB], 0);
}

static unsigned long long attribute(CUpointer_attribute which, CUdeviceptr address)
{
    unsigned long long value = 0;
    CHECK_EQ(cuPointerGetAttribute(&value, which, address), CUDA_SUCCESS);
    return value;
}

/* A deferred allocation has the attributes of one of the driver's. */
MS_TEST(an_allocation_has_the_attributes_of_one)
{
    start();
    CUcontext current;
    CUdeviceptr first, second;
    unsigned long long value = 0;
    CHECK_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&first, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&second, 4 * MIB), CUDA_SUCCESS);
    const CUdeviceptr inside = first + 3 * MIB + 5;
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, inside), (uintptr_t)current);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
    CHECK_EQ(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, inside),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside), 0);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside),
             attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, first));
    CHECK(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside) !=
          attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, second));
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), 0);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 0);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), first);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), 4 * MIB);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside),
             CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), 0);
    /* Mapped memory has a handle; the program has none. */
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside), 0);
    CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, inside), 1);
    CHECK_EQ(cuMemFree(first), CUDA_SUCCESS);
    CHECK_EQ(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_CONTEXT, inside),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemFree(second), CUDA_SUCCESS);
}

MS_TEST(a_blocking_copy_waits_for_the_work_before_it)
{
    setenv("SIMCUDA_DELAY_US", "30000", 1);
    start();
    CUdeviceptr small, large;
    CUevent event;
    CHECK_EQ(cuMemAlloc(&small, 4096), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&large, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoD(small, small + 2048, 2048), CUDA_SUCCESS);
    CHECK_EQ(cuEventRecord(event, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyHtoD(large, seen, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuEventQuery(event), CUDA_SUCCESS);
}

/* Whether this kernel (or emulator of one) wipes pages at a fork, which Linux does since 4.14. */
static bool wipes_on_fork(void)
{
    unsigned char *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    *page = 1;
    if (madvise(page, 4096, MADV_WIPEONFORK) != 0)
        return false;
    const pid_t child = _Fork();
    if (child == 0)
        _exit(*page);
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return status == 0;
}

MS_TEST(a_child_that_forgot_everything)
{
    /* clone() without fork's handlers, as sandboxes and runtimes of other languages do it. */
    start();
    if (!device_has_shim())
        ms_test_skip("the shim's own state is looked at");
    if (!wipes_on_fork())
        ms_test_skip("pages cannot be wiped at a fork here");
    const CUdeviceptr address = allocate_ramp();
    CUdeviceptr base;
    size_t size;
    CHECK_EQ(cuMemGetAddressRange(&base, &size, address), CUDA_SUCCESS);
    const pid_t child = _Fork();
    if (child == 0)
        _exit(cuMemGetAddressRange(&base, &size, address) == CUDA_SUCCESS);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}
