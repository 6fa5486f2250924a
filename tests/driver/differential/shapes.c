/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets of other shapes, several devices and contexts, exports and captures. Runs with
 * the shim and without it.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/preload.h"
#include "tests/simcuda/harness/device.h"

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

MS_TEST(a_pitched_set_keeps_what_is_between_the_rows)
{
    start();
    const CUdeviceptr address = allocate_ramp();
    CHECK_EQ(cuMemsetD2D8(address + 1024, 4096, 0xaa, 100, 50), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD2D32(address + 2 * MIB, 8192, 0xbbbbbbbb, 10, 20), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD2D16Async(address + 3 * MIB, 512, 0xcccc, 7, 9, NULL), CUDA_SUCCESS);
    read_all(address);
    for (size_t i = 0; i < sizeof(seen); i++) {
        unsigned char wanted = (unsigned char)i;
        if (i >= 1024 && (i - 1024) % 4096 < 100 && (i - 1024) / 4096 < 50)
            wanted = 0xaa;
        if (i >= 2 * MIB && (i - 2 * MIB) % 8192 < 40 && (i - 2 * MIB) / 8192 < 20)
            wanted = 0xbb;
        if (i >= 3 * MIB && (i - 3 * MIB) % 512 < 14 && (i - 3 * MIB) / 512 < 9)
            wanted = 0xcc;
        CHECK_EQ(seen[i], wanted);
    }
}

MS_TEST(a_box_is_copied_out_of_and_into_deferred_memory)
{
    start();
    const CUdeviceptr from = allocate_ramp(), to = allocate_ramp();
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcXInBytes = 5,
                                .srcY = 2,
                                .srcZ = 1,
                                .srcPitch = 1000,
                                .srcHeight = 30,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = 1024,
                                .dstHeight = 32,
                                .WidthInBytes = 200,
                                .Height = 20,
                                .Depth = 3};
    CHECK_EQ(cuMemcpy3D(&copy), CUDA_SUCCESS);
    read_all(to);
    for (size_t z = 0; z < 3; z++) {
        for (size_t y = 0; y < 20; y++) {
            const size_t source = ((z + 1) * 30 + y + 2) * 1000 + 5;
            const size_t target = (z * 32 + y) * 1024;
            for (size_t x = 0; x < 200; x++)
                CHECK_EQ(seen[target + x], (unsigned char)(source + x));
            CHECK_EQ(seen[target + 200], (unsigned char)(target + 200));
        }
    }
}

MS_TEST(a_pattern_moved_to_another_alignment)
{
    start();
    const CUdeviceptr from = allocate_ramp(), to = allocate_ramp();
    CHECK_EQ(cuMemsetD32(from, 0x44332211, MIB), CUDA_SUCCESS);
    for (size_t shift = 0; shift < 8; shift++)
        CHECK_EQ(cuMemcpyDtoD(to + shift * 1001, from + 4 * shift + 3, 1000), CUDA_SUCCESS);
    read_all(to);
    for (size_t shift = 0; shift < 8; shift++) {
        for (size_t i = 0; i < 1000; i++)
            CHECK_EQ(seen[shift * 1001 + i], 0x11 * (1 + (3 + i) % 4));
    }
}

MS_TEST(a_copy_between_two_devices)
{
    setenv("SIMCUDA_DEVICES", "2", 1);
    start();
    CUcontext second;
    CUdeviceptr there;
    const CUdeviceptr here = allocate_ramp();
    CHECK_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&there, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemsetD8(there, 1, 4 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyPeer(there + MIB, second, here + 7, context, MIB), CUDA_SUCCESS);
    read_all(there);
    CHECK_EQ(seen[MIB - 1], 1);
    for (size_t i = 0; i < MIB; i++)
        CHECK_EQ(seen[MIB + i], (unsigned char)(i + 7));
    CHECK_EQ(seen[2 * MIB], 1);
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

MS_TEST(allocating_during_a_capture_is_refused_as_ever)
{
    start();
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr address = 0;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc(&address, 8 * MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(cuMemAlloc(&address, 8 * MIB), CUDA_SUCCESS);
}

MS_TEST(freeing_during_a_capture_is_refused_as_ever)
{
    start();
    CUstream stream;
    CUgraph graph = NULL;
    const CUdeviceptr address = allocate_ramp();
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
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
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    const CUdeviceptr from = allocate_ramp(), to = allocate_ramp();
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
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

MS_TEST(an_allocation_cannot_be_shared_by_a_handle_of_another_process)
{
    start();
    if (!device_has_shim())
        ms_test_skip("memory of cuMemAlloc is shared by cuIpcGetMemHandle");
    CUipcMemHandle legacy;
    unsigned capable = 7;
    const CUdeviceptr address = allocate_ramp();
    CHECK_EQ(cuIpcGetMemHandle(&legacy, address), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                   address),
             CUDA_SUCCESS);
    CHECK_EQ(capable, 0);
    read_all(address);
    for (size_t i = 0; i < sizeof(seen); i++)
        CHECK_EQ(seen[i], (unsigned char)i);
}

static unsigned long long attribute(CUpointer_attribute which, CUdeviceptr address)
{
    unsigned long long value = 0;
    CHECK_EQ(cuPointerGetAttribute(&value, which, address), CUDA_SUCCESS);
    return value;
}

/* Of a deferred allocation as of one of the driver's. */
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
