/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and memsets: bytes, ranges, and what the host waits for. */
#include "tools/simcuda/tests/program.h"

#include <stdlib.h>

enum { BYTES = 1 << 20 };

static unsigned char source[BYTES];
static unsigned char seen[BYTES];

static void fill_source(void)
{
    for (int i = 0; i < BYTES; i++)
        source[i] = (unsigned char)(i * 7 + i / 251);
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

MS_TEST(bytes_go_round)
{
    start();
    fill_source();
    const CUdeviceptr first = allocate(BYTES);
    const CUdeviceptr second = allocate(4 * MIB);
    OK(cuMemcpyHtoD(first, source, BYTES));
    OK(cuMemcpyDtoD(second + 1000, first, BYTES));
    OK(cuMemcpy(first, second + 1000, BYTES));
    OK(cuMemcpy((CUdeviceptr)seen, first, BYTES));
    CHECK_BYTES(seen, source, BYTES);
    memset(seen, 0, BYTES);
    OK(cuMemcpyAsync(second, (CUdeviceptr)source, BYTES, NULL));
    OK(cuMemcpyDtoHAsync(seen, second, BYTES, NULL));
    CHECK_BYTES(seen, source, BYTES);
}

MS_TEST(ranges_are_checked_at_the_call)
{
    start();
    const CUdeviceptr address = allocate(4 * MIB);
    const CUdeviceptr other = allocate(BYTES);
    OK(cuMemcpyHtoD(address + 3 * MIB, source, MIB));
    FAILS(cuMemcpyHtoD(address + 3 * MIB + 1, source, MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD((CUdeviceptr)seen, source, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(address, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(0, source, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoDAsync(address, other + 1, BYTES, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoD(address, other, SIZE_MAX), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8(address, 1, 4 * MIB + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(other));
    FAILS(cuMemsetD8(other, 1, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
}

/* The H200 that was measured takes each of these calls; behind a copy and a set of these kinds the
 * device had faulted. */
MS_TEST(copies_that_the_documentation_forbids_are_refused)
{
    start();
    const CUdeviceptr address = allocate(4 * MIB);
    const CUDA_MEMCPY3D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = source,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = address,
        .dstLOD = 1,
        .WidthInBytes = 1,
        .Height = 1,
        .Depth = 1,
    };
    FAILS(cuMemcpyDtoH((void *)address, address, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpy3D(&copy), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD32(address, 1, SIZE_MAX / 2), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(nothing_is_a_fine_amount)
{
    start();
    const CUdeviceptr address = allocate(100);
    OK(cuMemcpyHtoD(address, source, 0));
    OK(cuMemcpyDtoDAsync(address, address, 0, NULL));
    OK(cuMemsetD8(address, 0, 0));
    OK(cuMemsetD2D8(address, 100, 0, 0, 0));
    const CUDA_MEMCPY2D rectangle = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .dstMemoryType = CU_MEMORYTYPE_DEVICE};
    OK(cuMemcpy2D(&rectangle));
}

MS_TEST(pageable_sources_are_read_before_the_call_returns)
{
    start();
    CUstream stream;
    struct gate gate;
    const CUdeviceptr address = allocate(100);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    close_gate(&gate, stream);
    memset(source, 1, 100);
    OK(cuMemcpyHtoDAsync(address, source, 100, stream));
    memset(source, 2, 100);
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(seen, address, 100));
    CHECK_EQ(seen[50], 1);
}

MS_TEST(pinned_sources_are_read_when_the_stream_gets_there)
{
    start();
    CUstream stream;
    struct gate gate;
    unsigned char *pinned;
    const CUdeviceptr address = allocate(100);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocHost((void **)&pinned, 100));
    OK(cuMemHostRegister(source, 4096, 0));
    for (int i = 0; i < 2; i++) {
        unsigned char *memory = i == 0 ? pinned : source;
        close_gate(&gate, stream);
        memset(memory, 1, 100);
        OK(cuMemcpyHtoDAsync(address, memory, 100, stream));
        memset(memory, 2, 100);
        open_gate(&gate);
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH(seen, address, 100));
        CHECK_EQ(seen[50], 2);
    }
}

MS_TEST(copies_to_pinned_memory_are_asynchronous)
{
    start();
    CUstream stream;
    struct gate gate;
    unsigned char *pinned;
    const CUdeviceptr address = allocate(100);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocHost((void **)&pinned, 100));
    OK(cuMemsetD8(address, 9, 100));
    OK(cuCtxSynchronize());
    close_gate(&gate, stream);
    OK(cuMemcpyDtoHAsync(pinned, address, 100, stream));
    CHECK_EQ(pinned[0], 0);
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(pinned[99], 9);
}

MS_TEST(memset_and_device_copies_do_not_make_the_host_wait)
{
    start();
    CUstream blocking;
    struct gate gate;
    const CUdeviceptr address = allocate(2000);
    OK(cuStreamCreate(&blocking, 0));
    close_gate(&gate, blocking);
    OK(cuMemsetD8(address, 1, 1000));
    OK(cuMemcpyDtoD(address + 1000, address, 1000));
    FAILS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuMemcpyDtoH(seen, address + 1000, 1000));
    CHECK_EQ(seen[999], 1);
}

MS_TEST(memset_units)
{
    start();
    const CUdeviceptr address = allocate(1000);
    uint16_t halves[10];
    uint32_t words[10];
    OK(cuMemsetD16(address, 0x1234, 10));
    OK(cuMemcpyDtoH(halves, address, sizeof(halves)));
    CHECK_EQ(halves[9], 0x1234);
    OK(cuMemsetD32Async(address, 0x12345678, 10, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuMemcpyDtoH(words, address, sizeof(words)));
    CHECK_EQ(words[9], 0x12345678);
    FAILS(cuMemsetD16(address + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD32(address + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD2D32(address, 42, 0, 10, 2), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD2D32(address, 36, 0, 10, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD8(address, 0, 1000));
    OK(cuMemsetD2D16(address + 2, 100, 0xBEEF, 3, 10));
    OK(cuMemcpyDtoH(seen, address, 1000));
    CHECK_EQ(seen[1], 0);
    CHECK_EQ(seen[902], 0xEF);
    CHECK_EQ(seen[907], 0xBE);
    CHECK_EQ(seen[908], 0);
}

MS_TEST(rectangles)
{
    start();
    fill_source();
    CUdeviceptr address;
    size_t pitch;
    OK(cuMemAllocPitch(&address, &pitch, 100, 50, 4));
    const CUDA_MEMCPY2D in = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = source,
        .srcPitch = 120,
        .srcXInBytes = 10,
        .srcY = 3,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = address,
        .dstPitch = pitch,
        .WidthInBytes = 100,
        .Height = 50,
    };
    CUDA_MEMCPY2D out = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = address,
        .srcPitch = pitch,
        .srcXInBytes = 1,
        .srcY = 1,
        .dstMemoryType = CU_MEMORYTYPE_HOST,
        .dstHost = seen,
        .dstPitch = 99,
        .WidthInBytes = 99,
        .Height = 49,
    };
    OK(cuMemcpy2D(&in));
    OK(cuMemcpy2DAsync(&out, NULL));
    for (size_t y = 0; y < 49; y++)
        CHECK_BYTES(seen + y * 99, source + (y + 4) * 120 + 11, 99);
    out.Height = 50;
    FAILS(cuMemcpy2D(&out), CUDA_ERROR_INVALID_VALUE);
    out.Height = 49;
    out.dstPitch = 98;
    FAILS(cuMemcpy2DUnaligned(&out), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpy2D(NULL), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(boxes)
{
    start();
    fill_source();
    const CUdeviceptr address = allocate(BYTES);
    CUDA_MEMCPY3D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = source,
        .srcPitch = 64,
        .srcHeight = 20,
        .srcXInBytes = 3,
        .srcY = 2,
        .srcZ = 1,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = address,
        .dstPitch = 32,
        .dstHeight = 10,
        .WidthInBytes = 30,
        .Height = 9,
        .Depth = 5,
    };
    OK(cuMemsetD8(address, 0, BYTES));
    OK(cuMemcpy3D(&copy));
    OK(cuMemcpyDtoH(seen, address, 5 * 320));
    for (size_t z = 0; z < 5; z++) {
        for (size_t y = 0; y < 9; y++)
            CHECK_BYTES(seen + z * 320 + y * 32, source + (z + 1) * 1280 + (y + 2) * 64 + 3, 30);
        CHECK_EQ(seen[z * 320 + 31], 0);
    }
    copy.dstHeight = 8;
    FAILS(cuMemcpy3DAsync(&copy, NULL), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(arrays)
{
    start();
    fill_source();
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR wanted = {40, 10, CU_AD_FORMAT_FLOAT, 2};
    CUDA_ARRAY_DESCRIPTOR found;
    const size_t before = free_bytes();
    OK(cuArrayCreate(&array, &wanted));
    OK(cuArrayGetDescriptor(&found, array));
    CHECK_EQ(found.Width, 40);
    CHECK_EQ(found.NumChannels, 2);
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = source,
        .srcPitch = 320,
        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
        .dstArray = array,
        .WidthInBytes = 320,
        .Height = 10,
    };
    OK(cuMemcpy2D(&copy));
    OK(cuMemcpyAtoH(seen, array, 20, 300));
    CHECK_BYTES(seen, source + 20, 300);
    copy.dstY = 1;
    FAILS(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyAtoH(seen, array, 20, 301), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(array));
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(arrays_that_are_destroyed_are_refused)
{
    start();
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR wanted = {40, 10, CU_AD_FORMAT_FLOAT, 2};
    OK(cuArrayCreate(&array, &wanted));
    OK(cuArrayDestroy(array));
    FAILS(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(copies_between_devices)
{
    setenv("SIMCUDA_DEVICES", "2", 1);
    const CUcontext first = start();
    CUcontext second;
    fill_source();
    const CUdeviceptr from = allocate(BYTES);
    OK(cuMemcpyHtoD(from, source, BYTES));
    OK(cuCtxCreate(&second, NULL, 0, 1));
    const CUdeviceptr to = allocate(BYTES);
    OK(cuMemcpyPeer(to, second, from, first, BYTES));
    OK(cuMemcpyDtoH(seen, to, BYTES));
    CHECK_BYTES(seen, source, BYTES);
    OK(cuMemcpyPeerAsync(from, first, to, second, BYTES, NULL));
    FAILS(cuMemcpyPeer(to, (CUcontext)source, from, first, BYTES), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSynchronize());
}

MS_TEST(batches)
{
    start();
    fill_source();
    CUstream stream;
    const CUdeviceptr address = allocate(BYTES);
    CUdeviceptr to[] = {address, address + 1000, (CUdeviceptr)seen};
    CUdeviceptr from[] = {(CUdeviceptr)source, (CUdeviceptr)source + 500, address + 1000};
    size_t sizes[] = {100, 200, 200};
    size_t starts[] = {0, 2};
    CUmemcpyAttributes attributes[] = {
        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL},
        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
    };
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 2, stream));
    OK(cuStreamSynchronize(stream));
    CHECK_BYTES(seen, source + 500, 200);
    FAILS(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 2, NULL),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 0, stream),
          CUDA_ERROR_INVALID_VALUE);
    starts[1] = 3;
    FAILS(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 2, stream),
          CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(a_copy_across_chunks_and_into_a_hole)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    back(address, 2 * MIB);
    back(address + 2 * MIB, 2 * MIB);
    OK(cuMemsetD8(address, 4, 4 * MIB));
    OK(cuMemcpyDtoH(seen, address + 2 * MIB - 100, 200));
    CHECK_EQ(seen[150], 4);
    CHECK_EQ(seen[199], 4);
    FAILS(cuMemcpyDtoH(seen, address + 4 * MIB - 100, 200), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(a_rectangle_may_not_step_over_a_hole)
{
    start();
    const CUdeviceptr address = reserve(8 * MIB);
    back(address, 2 * MIB);
    back(address + 4 * MIB, 2 * MIB);
    OK(cuMemsetD8(address + 4 * MIB, 5, 2 * MIB));
    FAILS(cuMemsetD2D8(address, 4 * MIB, 6, 2 * MIB, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD2D8(address, 4 * MIB, 6, 2 * MIB, 1));
    OK(cuMemcpyDtoH(seen, address + 5 * MIB, 10));
    CHECK_EQ(seen[9], 5);
    back(address + 2 * MIB, 2 * MIB);
    OK(cuMemsetD2D8(address, 4 * MIB, 7, 2 * MIB, 2));
    OK(cuMemcpyDtoH(seen, address + 5 * MIB, 10));
    CHECK_EQ(seen[9], 7);
}
