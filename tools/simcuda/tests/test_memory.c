/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc and relatives, pools, page-locked host memory, contexts as owners of memory. */
#include "tools/simcuda/tests/program.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

MS_TEST(nothing_works_before_init)
{
    CUdeviceptr address;
    int count;
    int version;
    OK(cuDriverGetVersion(&version));
    CHECK_EQ(version, 13000);
    FAILS(cuMemAlloc(&address, 1), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    FAILS(cuMemAlloc(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
}

MS_TEST(large_allocations_take_whole_granules)
{
    start();
    CUdeviceptr address;
    const size_t before = free_bytes();
    OK(cuMemAlloc(&address, 3 * MIB));
    CHECK_EQ(address % (2 * MIB), 0);
    CHECK_EQ(before - free_bytes(), 4 * MIB);
    OK(cuMemFree(address));
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(small_allocations_share_granules)
{
    start();
    CUdeviceptr addresses[100];
    const size_t before = free_bytes();
    for (int i = 0; i < 100; i++) {
        OK(cuMemAlloc(&addresses[i], 1000));
        CHECK_EQ(addresses[i] % 512, 0);
        OK(cuMemsetD8(addresses[i], (unsigned char)i, 1000));
    }
    CHECK_EQ(before - free_bytes(), 2 * MIB);
    for (int i = 0; i < 100; i++) {
        unsigned char seen[1000];
        unsigned char wanted[1000];
        memset(wanted, i, sizeof(wanted));
        OK(cuMemcpyDtoH(seen, addresses[i], sizeof(seen)));
        CHECK_BYTES(seen, wanted, sizeof(seen));
    }
    for (int i = 0; i < 100; i++)
        OK(cuMemFree(addresses[i]));
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(wrong_allocations_and_frees)
{
    start();
    CUdeviceptr address;
    int on_stack;
    FAILS(cuMemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAlloc(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAlloc(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree(0));
    FAILS(cuMemFree((CUdeviceptr)&on_stack), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&address, 4 * MIB));
    FAILS(cuMemFree(address + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(address));
    FAILS(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(addresses_are_used_again)
{
    start();
    CUdeviceptr first;
    CUdeviceptr second;
    OK(cuMemAlloc(&first, 8 * MIB));
    OK(cuMemFree(first));
    OK(cuMemAlloc(&second, 8 * MIB));
    CHECK_EQ(second, first);
}

MS_TEST(memory_is_limited)
{
    setenv("SIMCUDA_MEMORY_MIB", "16", 1);
    start();
    size_t total;
    CUdeviceptr addresses[2];
    OK(cuMemGetInfo(NULL, &total));
    OK(cuMemGetInfo(NULL, NULL));
    CHECK_EQ(total, 16 * MIB);
    OK(cuMemAlloc(&addresses[0], 10 * MIB));
    FAILS(cuMemAlloc(&addresses[1], 8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&addresses[1], 6 * MIB));
    CHECK_EQ(free_bytes(), 0);
    FAILS(cuMemAlloc(&addresses[1], 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree(addresses[0]));
    OK(cuMemAlloc(&addresses[0], 10 * MIB));
}

MS_TEST(pitch)
{
    start();
    CUdeviceptr address;
    size_t pitch;
    size_t bytes;
    OK(cuMemAllocPitch(&address, &pitch, 1000, 7, 4));
    CHECK_EQ(pitch % 512, 0);
    CHECK(pitch >= 1000);
    OK(cuMemGetAddressRange(NULL, &bytes, address));
    CHECK_EQ(bytes, pitch * 7);
    FAILS(cuMemAllocPitch(&address, &pitch, 1000, 7, 3), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAllocPitch(&address, &pitch, 0, 7, 4), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(fresh_memory_is_poisoned_on_request)
{
    setenv("SIMCUDA_POISON", "1", 1);
    start();
    unsigned char seen[3000];
    unsigned char wanted[3000];
    CUdeviceptr address;
    memset(wanted, 0xCB, sizeof(wanted));
    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc(&address, sizeof(seen)));
        OK(cuMemcpyDtoH(seen, address, sizeof(seen)));
        CHECK_BYTES(seen, wanted, sizeof(seen));
        OK(cuMemsetD8(address, 1, sizeof(seen)));
        OK(cuMemFree(address));
    }
    address = reserve(4 * MIB);
    back(address, 4 * MIB);
    OK(cuMemcpyDtoH(seen, address + 3 * MIB, sizeof(seen)));
    CHECK_BYTES(seen, wanted, sizeof(seen));
}

MS_TEST(free_waits_for_the_device)
{
    start();
    CUdeviceptr address;
    CUstream stream;
    int value = 0;
    void *pinned;
    OK(cuMemAllocHost(&pinned, 4 * MIB));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&address, 4 * MIB));
    for (int i = 0; i < 20; i++)
        OK(cuMemsetD32Async(address, (unsigned)i, MIB, stream));
    OK(cuMemcpyDtoHAsync(pinned, address, 4 * MIB, stream));
    OK(cuMemFree(address));
    memcpy(&value, pinned, sizeof(value));
    CHECK_EQ(value, 19);
}

MS_TEST(a_destroyed_context_frees_its_memory)
{
    start();
    CUcontext context;
    CUcontext current;
    CUdeviceptr address;
    CUstream stream;
    OK(cuCtxCreate(&context, NULL, 0, 0));
    const size_t before = free_bytes();
    OK(cuMemAlloc(&address, 10 * MIB));
    OK(cuMemAlloc(&address, 10));
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemsetD8Async(address, 1, 10, stream));
    OK(cuCtxDestroy(context));
    OK(cuCtxGetCurrent(&current));
    CHECK(current != context);
    CHECK(free_bytes() >= before); /* a context may take memory itself */
}

MS_TEST(contexts_that_are_none_are_refused)
{
    start();
    CUcontext context;
    CUstream stream;
    int something;
    OK(cuCtxCreate(&context, NULL, 0, 0));
    OK(cuStreamCreate(&stream, 0));
    OK(cuCtxDestroy(context));
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuCtxDestroy(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    FAILS(cuCtxPushCurrent(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    FAILS(cuCtxSetCurrent((CUcontext)&something), CUDA_ERROR_INVALID_CONTEXT);
}

MS_TEST(context_stack)
{
    const CUcontext primary = start();
    CUcontext context;
    CUcontext seen;
    CUdevice device;
    OK(cuCtxCreate(&context, NULL, 0, 0));
    OK(cuCtxPopCurrent(&seen));
    CHECK(seen == context);
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == primary);
    OK(cuCtxGetDevice(&device));
    CHECK_EQ(device, 0);
    OK(cuCtxPushCurrent(context));
    OK(cuCtxSetCurrent(primary));
    OK(cuCtxPopCurrent(NULL));
    OK(cuCtxSetCurrent(NULL));
    FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuCtxDestroy(primary), CUDA_ERROR_INVALID_CONTEXT);
}

MS_TEST(primary_context_counts_its_users)
{
    CUcontext first;
    CUcontext second;
    unsigned flags;
    int active;
    CUdeviceptr address;
    OK(cuInit(0));
    FAILS(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    CHECK(first == second);
    OK(cuCtxSetCurrent(first));
    const size_t before = free_bytes();
    OK(cuMemAlloc(&address, 10 * MIB));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK_EQ(active, 1);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK_EQ(active, 0);
    FAILS(cuMemAlloc(&address, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    start();
    CHECK(free_bytes() + 10 * MIB > before);
}

MS_TEST(host_memory)
{
    start();
    void *pointer;
    CUdeviceptr address;
    unsigned flags;
    static char own[8192];
    OK(cuMemHostAlloc(&pointer, 5000, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostGetDevicePointer(&address, pointer, 0));
    CHECK_EQ(address, (CUdeviceptr)pointer);
    OK(cuMemHostGetFlags(&flags, pointer));
    CHECK_EQ(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    FAILS(cuMemFreeHost((char *)pointer + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(pointer));
    FAILS(cuMemFreeHost(pointer), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostRegister(own, 4096, 0));
    FAILS(cuMemHostRegister(own + 100, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostGetDevicePointer(&address, own, 0));
    FAILS(cuMemHostUnregister(own + 100), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(own));
    FAILS(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    FAILS(cuMemHostGetDevicePointer(&address, own, 0), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(managed_memory)
{
    start();
    CUdeviceptr address;
    unsigned char seen[100];
    OK(cuMemAllocManaged(&address, 100, CU_MEM_ATTACH_GLOBAL));
    memset((void *)address, 7, 100);
    OK(cuMemcpyDtoH(seen, address, sizeof(seen)));
    CHECK_EQ(seen[99], 7);
    OK(cuMemFree(address));
    FAILS(cuMemAllocManaged(&address, 100, 0), CUDA_ERROR_INVALID_VALUE);
}

static void *take_part(void *argument)
{
    (void)argument;
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (int i = 1; i <= 50; i++) {
        CUdeviceptr address;
        unsigned char seen[64];
        const size_t bytes = (size_t)i * 50000;
        OK(cuMemAlloc(&address, bytes));
        OK(cuMemsetD8(address, (unsigned char)i, bytes));
        OK(cuMemcpyDtoH(seen, address + bytes - 64, 64));
        CHECK_EQ(seen[0], i);
        CHECK_EQ(seen[63], i);
        OK(cuMemFree(address));
    }
    return NULL;
}

MS_TEST(many_threads)
{
    start();
    pthread_t threads[4];
    const size_t before = free_bytes();
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, take_part, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(ipc_between_processes)
{
    int from_child[2];
    int to_child[2];
    CHECK_EQ(pipe(from_child), 0);
    CHECK_EQ(pipe(to_child), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    CUipcMemHandle handle;
    if (child == 0) {
        start();
        CUdeviceptr address[2];
        unsigned value = 0;
        OK(cuMemAlloc(&address[0], 1000));
        OK(cuMemAlloc(&address[1], 1000));
        OK(cuMemsetD32(address[1], 0x12345678, 250));
        OK(cuCtxSynchronize());
        OK(cuIpcGetMemHandle(&handle, address[1]));
        CUdeviceptr own;
        FAILS(cuIpcOpenMemHandle(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_CONTEXT);
        CHECK_EQ(write(from_child[1], &handle, sizeof(handle)), sizeof(handle));
        CHECK_EQ(read(to_child[0], &value, 1), 1);
        OK(cuMemcpyDtoH(&value, address[1] + 996, sizeof(value)));
        CHECK_EQ(value, 99);
        exit(0);
    }
    start();
    CUdeviceptr address;
    CUdeviceptr again;
    unsigned value;
    int legacy = 1;
    int status;
    CHECK_EQ(read(from_child[0], &handle, sizeof(handle)), sizeof(handle));
    OK(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK_EQ(again, address);
    OK(cuMemcpyDtoH(&value, address + 996, sizeof(value)));
    CHECK_EQ(value, 0x12345678);
    OK(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    CHECK_EQ(legacy, 0);
    OK(cuMemsetD32(address + 996, 99, 1));
    OK(cuCtxSynchronize());
    FAILS(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcCloseMemHandle(address));
    OK(cuIpcCloseMemHandle(address));
    FAILS(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(write(to_child[1], "x", 1), 1);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

MS_TEST(ipc_refuses_mapped_memory)
{
    start();
    CUipcMemHandle handle;
    const CUdeviceptr address = reserve(2 * MIB);
    back(address, 2 * MIB);
    FAILS(cuIpcGetMemHandle(&handle, address), CUDA_ERROR_INVALID_VALUE);
}
