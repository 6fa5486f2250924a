/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that no launch shows: in tables that were copied, set, or written by the host. */
#include "tests/driver/differential/fuzz.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/driver/gl.h"

enum { COUNT = 4, TABLE_BYTES = COUNT * 8, PAGE = 4096, GRANULE = 64 << 10 };

/* Addresses of words, of which the first is in a block that was just recorded. */
static void fill_table(CUdeviceptr *table)
{
    const struct fuzz_block *fresh = fuzz_new_block(FUZZ_BLOCK_LEAST);
    table[0] = fresh->at + fuzz_below(fresh->bytes / 4) * 4;
    for (int i = 1; i < COUNT; i++)
        table[i] = fuzz_range(4, 4).at;
}

/* A table in a block of its own: as deferred as any. */
static CUdeviceptr make_table(void)
{
    CUdeviceptr table = 0;
    fuzz_wait();
    SEE(CALL(cuMemAlloc_v2)(&table, TABLE_BYTES));
    return table;
}

static void free_table(CUdeviceptr table)
{
    fuzz_wait();
    SEE(CALL(cuMemFree_v2)(table));
}

static void copied(void)
{
    CUdeviceptr host[COUNT];
    const CUdeviceptr table = make_table();
    const bool twin = fuzz_one_in(2);
    fill_table(host);
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)host;
    const size_t way = fuzz_below(4);
    CUstream stream = NULL;
    if (way < 2)
        fuzz_default_stream(twin);
    else
        stream = fuzz_stream(twin);
    if (way == 0)
        SEE(TWIN(twin, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds)(table, host, TABLE_BYTES));
    else if (way == 1)
        SEE(TWIN(twin, cuMemcpy, cuMemcpy_ptds)(table, from, TABLE_BYTES));
    else if (way == 2)
        SEE(TWIN(twin, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz)(table, host, TABLE_BYTES,
                                                                        stream));
    else
        SEE(TWIN(twin, cuMemcpyAsync, cuMemcpyAsync_ptsz)(table, from, TABLE_BYTES, stream));
    fuzz_gather(table, COUNT);
    free_table(table);
}

/* A copy within the device whose source is pinned memory. */
static void copied_from_pinned(void)
{
    CUdeviceptr *pinned = (CUdeviceptr *)(void *)fuzz_landing;
    const CUdeviceptr table = make_table();
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)pinned;
    const bool twin = fuzz_one_in(2);
    fuzz_wait();
    fill_table(pinned);
    fuzz_default_stream(twin);
    if (fuzz_one_in(2))
        SEE(TWIN(twin, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds)(table, from, TABLE_BYTES));
    else
        SEE(TWIN(twin, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz)(table, from, TABLE_BYTES,
                                                                        NULL));
    fuzz_gather(table, COUNT);
    free_table(table);
}

static void copied_in_rows(void)
{
    CUdeviceptr host[COUNT];
    const CUdeviceptr table = make_table();
    const bool twin = fuzz_one_in(2);
    fill_table(host);
    const CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                 .srcHost = host,
                                 .srcPitch = sizeof(host[0]),
                                 .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .dstDevice = table,
                                 .dstPitch = sizeof(host[0]),
                                 .WidthInBytes = sizeof(host[0]),
                                 .Height = COUNT};
    const CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                               .srcHost = host,
                               .srcPitch = sizeof(host[0]),
                               .srcHeight = 2,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = table,
                               .dstPitch = sizeof(host[0]),
                               .dstHeight = 2,
                               .WidthInBytes = sizeof(host[0]),
                               .Height = 2,
                               .Depth = COUNT / 2};
    fuzz_default_stream(twin);
    const size_t way = fuzz_below(3);
    if (way == 0)
        SEE(TWIN(twin, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds)(&plane));
    else if (way == 1)
        SEE(TWIN(twin, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds)(&plane));
    else
        SEE(TWIN(twin, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds)(&box));
    fuzz_gather(table, COUNT);
    free_table(table);
}

static CUdeviceptr late_addresses[COUNT];

static void CUDA_CB write_late(void *pinned)
{
    usleep(200);
    memcpy(pinned, late_addresses, TABLE_BYTES);
}

/* Work before the copy writes the addresses, and the kernel behind it is in the same stream. */
static void written_late(void)
{
    static void *pinned;
    const CUdeviceptr table = make_table();
    if (pinned == NULL)
        SEE(CALL(cuMemHostAlloc)(&pinned, TABLE_BYTES, 0));
    memset(pinned, 0, TABLE_BYTES);
    fill_table(late_addresses);
    const CUstream stream = fuzz_stream(false);
    SEE(CALL(cuLaunchHostFunc)(stream, write_late, pinned));
    SEE(CALL(cuMemcpyHtoDAsync_v2)(table, pinned, TABLE_BYTES, stream));
    fuzz_gather(table, COUNT);
    free_table(table);
}

/* If the device has threads, queued work waits for what the program does meanwhile. */
static atomic_bool may_go;

static void CUDA_CB wait_for_program(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50000 && !atomic_load(&may_go); i++)
        usleep(100);
}

/* A copy of pinned memory and a kernel, which are observed as one. */
static CUresult queue_gather(CUdeviceptr *table, const CUdeviceptr *pinned, CUdeviceptr *out)
{
    static CUstream stream;
    uint64_t count = COUNT;
    void *params[] = {out, table, &count};
    if (stream == NULL)
        CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    const CUfunction kernel = fuzz_kernel("gather32");
    CUresult result = CALL(cuLaunchHostFunc)(stream, wait_for_program, NULL);
    if (result == CUDA_SUCCESS)
        result = CALL(cuMemcpyHtoDAsync_v2)(*table, pinned, TABLE_BYTES, stream);
    if (result == CUDA_SUCCESS)
        result = CALL(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    if (result == CUDA_SUCCESS && !fuzz_device_has_threads())
        result = CALL(cuStreamSynchronize)(stream);
    return result;
}

/*
 * While nothing is deferred, work is queued that reads addresses from pinned memory when its turn
 * comes; the memory that they are of is allocated in the meantime. Where the device has no threads,
 * the work comes last.
 */
static void queued_before(void)
{
    static CUdeviceptr *pinned;
    CUdeviceptr out = make_table(), table = make_table(), host[COUNT];
    const bool is_part = fuzz_one_in(2);
    CUresult queued = CUDA_SUCCESS;
    if (pinned == NULL)
        CALL(cuMemHostAlloc)((void **)&pinned, TABLE_BYTES, 0);
    fuzz_free_all();
    SEE(CALL(cuMemsetD8_v2)(out, 0, TABLE_BYTES));
    SEE(CALL(cuMemsetD8_v2)(table, 0, TABLE_BYTES));
    fuzz_read(out, TABLE_BYTES);
    fuzz_read(table, TABLE_BYTES);
    memset(pinned, 0, TABLE_BYTES);
    atomic_store(&may_go, !fuzz_device_has_threads());
    if (fuzz_device_has_threads())
        queued = queue_gather(&table, pinned, &out);
    const struct fuzz_block *block = fuzz_new_block(64 << 10);
    for (int i = 0; i < COUNT; i++)
        host[i] = block->at + fuzz_below(block->bytes / 4) * 4;
    if (is_part)
        fuzz_read(block->at, 64);
    /* The kernel's stream waits for no other: what the block was set to must be there. */
    SEE(CALL(cuStreamSynchronize)(CU_STREAM_LEGACY));
    SEE(CALL(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
    memcpy(pinned, host, TABLE_BYTES);
    atomic_store(&may_go, true);
    if (!fuzz_device_has_threads())
        queued = queue_gather(&table, pinned, &out);
    fuzz_see((uint64_t)queued);
    SEE(CALL(cuCtxSynchronize)());
    fuzz_read(out, COUNT * 4);
    free_table(table);
    free_table(out);
}

/* Two halves make an address. */
static void set_in_halves(void)
{
    CUdeviceptr host[COUNT];
    const CUdeviceptr table = make_table();
    const bool twin = fuzz_one_in(2);
    fill_table(host);
    fuzz_default_stream(twin);
    for (unsigned i = 0; i < COUNT; i++) {
        const CUdeviceptr at = table + 8 * i;
        SEE(TWIN(twin, cuMemsetD32_v2, cuMemsetD32_v2_ptds)(at, (unsigned)host[i], 1));
        SEE(TWIN(twin, cuMemsetD32_v2, cuMemsetD32_v2_ptds)(at + 4, (unsigned)(host[i] >> 32), 1));
    }
    fuzz_gather(table, COUNT);
    free_table(table);
}

static void through_array(void)
{
    static CUarray array;
    CUdeviceptr host[COUNT];
    const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = TABLE_BYTES,
                                              .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                              .NumChannels = 1};
    const CUdeviceptr table = make_table();
    const bool twin = fuzz_one_in(2);
    if (array == NULL)
        SEE(CALL(cuArrayCreate_v2)(&array, &descriptor));
    fill_table(host);
    if (fuzz_one_in(2))
        SEE_NOW(twin, cuMemcpyHtoA_v2, array, 0, host, TABLE_BYTES);
    else
        SEE_QUEUED(twin, cuMemcpyHtoAAsync_v2, array, 0, host, TABLE_BYTES);
    fuzz_wait();
    fuzz_default_stream(false);
    SEE(CALL(cuMemcpyAtoD_v2)(table, array, 0, TABLE_BYTES));
    fuzz_gather(table, COUNT);
    free_table(table);
}

/* --- memory that the kernel reads and the host writes */

static void gather_at(void *host, CUdeviceptr at)
{
    if (host == NULL || at == 0)
        return;
    fill_table(host);
    fuzz_gather(at, COUNT);
    fuzz_wait();
}

static void gather_host(void *host)
{
    gather_at(host, (CUdeviceptr)(uintptr_t)host);
}

/* The address of memory that is gone is a number again, which no launch looks behind; unless the
 * device can read it as any other memory of the process. */
static void pass_number(CUdeviceptr number)
{
    static CUdeviceptr small;
    uint64_t count = 0;
    int is_readable = 0;
    CALL(cuDeviceGetAttribute)(&is_readable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0);
    if (is_readable)
        return;
    if (small == 0)
        CALL(cuMemAlloc_v2)(&small, PAGE);
    const struct fuzz_witness witness = fuzz_witness_begin();
    void *params[] = {&small, &number, &count};
    fuzz_launch(fuzz_kernel("copy32"), params);
    fuzz_wait();
    fuzz_witness_end_launch(witness);
}

static void in_pinned(void)
{
    void *host = NULL;
    CUdeviceptr alias = 0;
    fuzz_wait();
    switch (fuzz_below(4)) {
    case 0:
        SEE(CALL(cuMemAllocHost)(&host, PAGE));
        gather_host(host);
        break;
    case 1:
        SEE(CALL(cuMemAllocHost_v2)(&host, PAGE));
        gather_host(host);
        break;
    case 2:
        SEE(CALL(cuMemHostAlloc)(&host, PAGE, CU_MEMHOSTALLOC_DEVICEMAP));
        gather_host(host);
        break;
    default: /* write-combined memory has another address for kernels */
        SEE(CALL(cuMemHostAlloc)(&host, PAGE, CU_MEMHOSTALLOC_WRITECOMBINED));
        SEE(CALL(cuMemHostGetDevicePointer_v2)(&alias, host, 0));
        gather_at(host, alias);
    }
    SEE(CALL(cuMemFreeHost)(host));
    pass_number((CUdeviceptr)(uintptr_t)host);
}

static void in_registered(void)
{
    void *host = aligned_alloc(PAGE, PAGE);
    fuzz_wait();
    SEE(TWIN(fuzz_one_in(2), cuMemHostRegister_v2,
             cuMemHostRegister)(host, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
    gather_host(host);
    SEE(CALL(cuMemHostUnregister)(host));
    pass_number((CUdeviceptr)(uintptr_t)host);
    free(host);
}

static void in_managed(void)
{
    CUdeviceptr managed = 0;
    fuzz_wait();
    SEE(CALL(cuMemAllocManaged)(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
    gather_host((void *)(uintptr_t)managed);
    SEE(CALL(cuMemFree_v2)(managed));
}

/* --- pools */

static CUmemoryPool make_pool(CUmemAllocationType type, CUmemLocationType place)
{
    CUmemoryPool pool = NULL;
    const CUmemPoolProps props = {.allocType = type, .location = {.type = place}};
    SEE(CALL(cuMemPoolCreate)(&pool, &props));
    return pool;
}

static void in_pool(void)
{
    CUdeviceptr table = 0;
    const bool twin = fuzz_one_in(2), other = fuzz_one_in(2);
    fuzz_wait();
    const CUmemoryPool pool =
        make_pool(fuzz_one_in(2) ? CU_MEM_ALLOCATION_TYPE_PINNED : CU_MEM_ALLOCATION_TYPE_MANAGED,
                  CU_MEM_LOCATION_TYPE_HOST);
    SEE(TWIN(twin, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz)(&table, PAGE, pool,
                                                                          fuzz_stream(twin)));
    fuzz_wait();
    gather_host((void *)(uintptr_t)table);
    SEE(TWIN(other, cuMemFreeAsync, cuMemFreeAsync_ptsz)(table, fuzz_stream(other)));
    fuzz_wait();
    pass_number(table);
    SEE(CALL(cuMemPoolDestroy)(pool));
}

static void in_pool_of_device(void)
{
    CUdeviceptr table = 0;
    CUmemoryPool before = NULL;
    const bool twin = fuzz_one_in(2);
    fuzz_wait();
    const CUmemoryPool pool =
        make_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE);
    SEE(CALL(cuDeviceGetMemPool)(&before, 0));
    SEE(CALL(cuDeviceSetMemPool)(0, pool));
    SEE(TWIN(twin, cuMemAllocAsync, cuMemAllocAsync_ptsz)(&table, PAGE, fuzz_stream(twin)));
    SEE(CALL(cuDeviceSetMemPool)(0, before)); /* blocks come from there */
    fuzz_wait();
    gather_host((void *)(uintptr_t)table);
    SEE(CALL(cuMemFreeAsync)(table, fuzz_stream(false)));
    fuzz_wait();
    SEE(CALL(cuMemPoolDestroy)(pool));
}

/* --- memory of another API, which this program itself plays */

static void in_external(void)
{
    CUexternalMemory external = NULL;
    CUdeviceptr there = 0;
    const int file = memfd_create("external", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, PAGE) != 0)
        exit(2);
    void *host = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC import = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = file, .size = PAGE};
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = PAGE};
    fuzz_wait();
    SEE(CALL(cuImportExternalMemory)(&external, &import)); /* takes the descriptor */
    SEE(CALL(cuExternalMemoryGetMappedBuffer)(&there, external, &buffer));
    if (fuzz_one_in(2)) {
        gather_at(host, there);
    } else {
        const CUdeviceptr table = make_table();
        fill_table(host);
        fuzz_default_stream(false);
        SEE(CALL(cuMemcpyDtoD_v2)(table, there, TABLE_BYTES));
        fuzz_gather(table, COUNT);
        free_table(table);
    }
    SEE(CALL(cuMemFree_v2)(there));
    SEE(CALL(cuDestroyExternalMemory)(external));
    munmap(host, PAGE);
}

/* The resource of a graphics API, whose buffer is CUDA's and its own by turns. */
static void in_graphics(void)
{
    static CUgraphicsResource resource;
    static unsigned buffer;
    CUdeviceptr there = 0;
    size_t bytes = 0;
    const bool twin = fuzz_one_in(2), other = fuzz_one_in(2);
    simcuda_gl_bytes_function *find_bytes = FUZZ_STAND_IN(simcuda_gl_bytes);
    fuzz_wait();
    if (buffer == 0) {
        buffer = FUZZ_STAND_IN(simcuda_gl_create)(PAGE);
        SEE(FUZZ_STAND_IN(cuGraphicsGLRegisterBuffer)(&resource, buffer, 0));
    }
    SEE(TWIN(twin, cuGraphicsMapResources, cuGraphicsMapResources_ptsz)(1, &resource, NULL));
    SEE(CALL(cuGraphicsResourceGetMappedPointer_v2)(&there, &bytes, resource));
    fuzz_see(bytes);
    fuzz_wait();
    SEE(TWIN(other, cuGraphicsUnmapResources, cuGraphicsUnmapResources_ptsz)(1, &resource, NULL));
    fill_table(find_bytes(buffer));
    SEE(CALL(cuGraphicsMapResources)(1, &resource, NULL));
    fuzz_gather(there, COUNT);
    fuzz_wait();
    SEE(CALL(cuGraphicsUnmapResources)(1, &resource, NULL));
}

/* --- mapped memory that the host may write; of what was opened at once a part goes */

static const CUmemAccessDesc of_both[] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                          {.location = {.type = CU_MEM_LOCATION_TYPE_HOST},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};

static void in_mapping(void)
{
    CUdeviceptr place = 0;
    CUmemGenericAllocationHandle handles[2] = {0};
    size_t granule = 0;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    fuzz_wait();
    CALL(cuMemGetAllocationGranularity)(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    SEE(CALL(cuMemAddressReserve)(&place, 2 * granule, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        SEE(CALL(cuMemCreate)(&handles[i], granule, &prop, 0));
        SEE(CALL(cuMemMap)(place + (size_t)i * granule, granule, 0, handles[i], 0));
    }
    SEE(CALL(cuMemSetAccess)(place, 2 * granule, of_both, 2));
    SEE(CALL(cuMemUnmap)(place, granule));
    gather_host((void *)(uintptr_t)(place + granule));
    pass_number(place + granule / 2);
    SEE(CALL(cuMemUnmap)(place + granule, granule));
    for (int i = 0; i < 2; i++)
        SEE(CALL(cuMemRelease)(handles[i]));
    SEE(CALL(cuMemAddressFree)(place, 2 * granule));
}

/* --- descriptors, which hold an address in a form of their own */

static void print_described(const char *kernel, void *descriptor)
{
    CUdeviceptr out = make_table();
    uint32_t word = 0;
    void *params[] = {&out, descriptor};
    fuzz_launch(fuzz_kernel(kernel), params);
    fuzz_wait();
    SEE(CALL(cuMemcpyDtoH_v2)(&word, out, sizeof(word)));
    fuzz_see(word);
    free_table(out);
}

static void in_tensor_map(void)
{
    CUtensorMap map;
    CUresult made;
    static const cuuint64_t dims[] = {8, 3, 2}, strides[] = {64, 256};
    static const cuuint32_t box[] = {8, 1, 1}, steps[] = {1, 1, 1};
    static const int corners[] = {0};
    const struct fuzz_block *block = fuzz_new_block(4096);
    void *at = (void *)(uintptr_t)((block->at + 15) / 16 * 16);
    switch (fuzz_below(3)) {
    case 0:
        made = SEE(CALL(cuTensorMapEncodeTiled)(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, at, dims,
                                                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                CU_TENSOR_MAP_SWIZZLE_NONE,
                                                CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
        break;
    case 1:
        made = SEE(CALL(cuTensorMapEncodeIm2col)(
            &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, at, dims, strides, corners, corners, 8, 3,
            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
        break;
    default:
        made = SEE(CALL(cuTensorMapEncodeIm2colWide)(
            &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, at, dims, strides, 0, 0, 8, 3, steps,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
            CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    }
    if (made != CUDA_SUCCESS) /* an older driver lacks it */
        return;
    print_described("sum_map32", &map);
    if (fuzz_one_in(2)) {
        const struct fuzz_block *other = fuzz_new_block(4096);
        SEE(CALL(cuTensorMapReplaceAddress)(&map, (void *)(uintptr_t)((other->at + 15) / 16 * 16)));
        print_described("sum_map32", &map);
    }
}

static void in_texture(void)
{
    CUtexObject texture = 0;
    const struct fuzz_block *block = fuzz_new_block(4096);
    const CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};
    const CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_LINEAR,
                                     .res.linear = {.devPtr = block->at,
                                                    .format = CU_AD_FORMAT_UNSIGNED_INT32,
                                                    .numChannels = 1,
                                                    .sizeInBytes = 1024}};
    SEE(CALL(cuTexObjectCreate)(&texture, &what, &how, NULL));
    print_described("read_texture32", &texture);
    SEE(CALL(cuTexObjectDestroy)(texture));
}

const struct fuzz_operation fuzz_hidden[] = {
    {"a table that is copied", copied, 8},
    {"a table copied from pinned memory", copied_from_pinned, 3},
    {"a table copied in rows", copied_in_rows, 3},
    {"a table written late", written_late, 3},
    {"a table set in halves", set_in_halves, 2},
    {"queued before the allocation", queued_before, 3},
    {"a table through an array", through_array, 6},
    {"a table in pinned memory", in_pinned, 5},
    {"a table in registered memory", in_registered, 4},
    {"a table in managed memory", in_managed, 2},
    {"a table in a pool", in_pool, 4},
    {"a table in the device's pool", in_pool_of_device, 3},
    {"a table in external memory", in_external, 2},
    {"a table in a graphics buffer", in_graphics, 2},
    {"a table in a mapping", in_mapping, 3},
    {"a tensor map", in_tensor_map, 3},
    {"a texture", in_texture, 1},
    {NULL, NULL, 0},
};
