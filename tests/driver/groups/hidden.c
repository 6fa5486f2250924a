/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that no launch shows: in tables that were copied, set, or written by the host. */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/driver/groups/groups.h"
#include "tools/simcuda/driver/gl.h"

enum { COUNT = 4 };

static void fill_table(CUdeviceptr *table)
{
    const CUdeviceptr first = make_block(1);
    const CUdeviceptr second = make_block(2);
    table[0] = first + 4;
    table[1] = second + 3 * MIB;
    table[2] = first + BLOCK_BYTES - 4;
    table[3] = second;
}

static CUdeviceptr device_table(void)
{
    CUdeviceptr table;
    MUST(cuMemAlloc_v2(&table, COUNT * sizeof(table)));
    return table;
}

/* The table is in memory of the host first, and the call brings it to the device. */
#define BROUGHT(name, call)                       \
    static void name(void)                        \
    {                                             \
        CUdeviceptr host[COUNT];                  \
        const CUdeviceptr table = device_table(); \
        fill_table(host);                         \
        SEEN(call);                               \
        print_gathered(table, COUNT);             \
    }
BROUGHT(copied, TESTED(cuMemcpyHtoD_v2)(table, host, sizeof(host)))
BROUGHT(copied_async, TESTED(cuMemcpyHtoDAsync_v2)(table, host, sizeof(host), NULL))
BROUGHT(copied_anyhow, TESTED(cuMemcpy)(table, (CUdeviceptr)(uintptr_t)host, sizeof(host)))
BROUGHT(copied_anyhow_async,
        TESTED(cuMemcpyAsync)(table, (CUdeviceptr)(uintptr_t)host, sizeof(host), NULL))

/* A copy between devices whose source is pinned memory. */
static void copied_from_pinned(void)
{
    CUdeviceptr *pinned;
    const CUdeviceptr table = device_table();
    MUST(cuMemAllocHost_v2((void **)&pinned, COUNT * sizeof(table)));
    fill_table(pinned);
    SEEN(TESTED(cuMemcpyDtoD_v2)(table, (CUdeviceptr)(uintptr_t)pinned, COUNT * sizeof(table)));
    print_gathered(table, COUNT);
}

static const CUDA_MEMCPY2D *rows(CUdeviceptr table, const CUdeviceptr *host)
{
    static CUDA_MEMCPY2D copy;
    copy = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = host,
                           .srcPitch = sizeof(host[0]),
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = table,
                           .dstPitch = sizeof(host[0]),
                           .WidthInBytes = sizeof(host[0]),
                           .Height = COUNT};
    return &copy;
}
BROUGHT(copied_in_rows, TESTED(cuMemcpy2D_v2)(rows(table, host)))

static const CUDA_MEMCPY3D *box(CUdeviceptr table, const CUdeviceptr *host)
{
    static CUDA_MEMCPY3D copy;
    copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = host,
                           .srcPitch = sizeof(host[0]),
                           .srcHeight = 2,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = table,
                           .dstPitch = sizeof(host[0]),
                           .dstHeight = 2,
                           .WidthInBytes = sizeof(host[0]),
                           .Height = 2,
                           .Depth = 2};
    return &copy;
}
BROUGHT(copied_in_a_box, TESTED(cuMemcpy3D_v2)(box(table, host)))

/* Two halves make an address. */
static void set_in_halves(void)
{
    CUdeviceptr host[COUNT];
    const CUdeviceptr table = device_table();
    fill_table(host);
    for (int i = 0; i < COUNT; i++) {
        MUST(TESTED(cuMemsetD32_v2)(table + 8 * (unsigned)i, (unsigned)host[i], 1));
        MUST(TESTED(cuMemsetD32_v2)(table + 8 * (unsigned)i + 4, (unsigned)(host[i] >> 32), 1));
    }
    print_gathered(table, COUNT);
}

/* Into an array, and from there to the device. */
#define THROUGH_ARRAY(name, call)                                                       \
    static void name(void)                                                              \
    {                                                                                   \
        CUarray array;                                                                  \
        CUdeviceptr host[COUNT];                                                        \
        const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = sizeof(host),                \
                                                  .Format = CU_AD_FORMAT_UNSIGNED_INT8, \
                                                  .NumChannels = 1};                    \
        const CUdeviceptr table = device_table();                                       \
        MUST(cuArrayCreate_v2(&array, &descriptor));                                    \
        fill_table(host);                                                               \
        SEEN(call);                                                                     \
        MUST(cuCtxSynchronize());                                                       \
        MUST(cuMemcpyAtoD_v2(table, array, 0, sizeof(host)));                           \
        print_gathered(table, COUNT);                                                   \
    }
THROUGH_ARRAY(through_an_array, TESTED(cuMemcpyHtoA_v2)(array, 0, host, sizeof(host)))
THROUGH_ARRAY(through_an_array_async,
              TESTED(cuMemcpyHtoAAsync_v2)(array, 0, host, sizeof(host), NULL))

/* Memory that the kernel reads and the host writes. */
#define IN_PINNED(name, call)                                  \
    static void name(void)                                     \
    {                                                          \
        CUdeviceptr *pinned;                                   \
        SEEN(call);                                            \
        fill_table(pinned);                                    \
        print_gathered((CUdeviceptr)(uintptr_t)pinned, COUNT); \
    }
IN_PINNED(in_pinned, TESTED(cuMemAllocHost_v2)((void **)&pinned, 4096))
IN_PINNED(in_pinned_as_before, TESTED(cuMemAllocHost)((void **)&pinned, 4096))
IN_PINNED(in_mapped, TESTED(cuMemHostAlloc)((void **)&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP))

static void in_registered(void)
{
    CUdeviceptr *host = aligned_alloc(4096, 4096);
    SEEN(TESTED(cuMemHostRegister_v2)(host, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    fill_table(host);
    print_gathered((CUdeviceptr)(uintptr_t)host, COUNT);
}

static void in_managed(void)
{
    CUdeviceptr managed;
    SEEN(TESTED(cuMemAllocManaged)(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    fill_table((CUdeviceptr *)(uintptr_t)managed);
    print_gathered(managed, COUNT);
}

/* Write-combined memory has another address for kernels. */
static void at_another_address(void)
{
    CUdeviceptr *host;
    CUdeviceptr alias;
    SEEN(TESTED(cuMemHostAlloc)((void **)&host, 4096, CU_MEMHOSTALLOC_WRITECOMBINED));
    MUST(cuMemHostGetDevicePointer_v2(&alias, host, 0));
    printf("another address: %d\n", alias != (CUdeviceptr)(uintptr_t)host);
    fill_table(host);
    print_gathered(alias, COUNT);
}

/* Pools whose memory the host writes too. */
static CUmemoryPool make_pool(CUmemAllocationType type, CUmemLocationType place)
{
    CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = type, .location = {.type = place}};
    MUST(cuMemPoolCreate(&pool, &props));
    return pool;
}

static void in_pool(CUmemAllocationType type, CUmemLocationType place)
{
    CUdeviceptr table;
    const CUmemoryPool pool = make_pool(type, place);
    SEEN(TESTED(cuMemAllocFromPoolAsync)(&table, 4096, pool, NULL));
    MUST(cuCtxSynchronize());
    fill_table((CUdeviceptr *)(uintptr_t)table);
    print_gathered(table, COUNT);
}

static void in_host_pool(void)
{
    in_pool(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST);
}

static void in_managed_pool(void)
{
    in_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_HOST);
}

static void in_pool_of_the_device(void)
{
    CUdeviceptr table;
    MUST(cuDeviceSetMemPool(0, make_pool(CU_MEM_ALLOCATION_TYPE_MANAGED,
                                         CU_MEM_LOCATION_TYPE_DEVICE)));
    SEEN(TESTED(cuMemAllocAsync)(&table, 4096, NULL));
    MUST(cuCtxSynchronize());
    fill_table((CUdeviceptr *)(uintptr_t)table);
    print_gathered(table, COUNT);
}

/* A descriptor holds the address in a form of its own. */
static void print_described(const char *kernel, void *descriptor)
{
    CUdeviceptr out;
    uint32_t word = 0;
    MUST(cuMemAlloc_v2(&out, sizeof(word)));
    void *params[] = {&out, descriptor};
    MUST(cuLaunchKernel(find_kernel(kernel), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    seen("synchronised", cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&word, out, sizeof(word)));
    printf("described %08x\n", word);
}

static CUresult encode_map(__typeof__(&cuTensorMapEncodeTiled) encode, CUtensorMap *map,
                           CUdeviceptr address)
{
    static const cuuint64_t dim = 1024;
    static const cuuint32_t box = 64, step = 1;
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 1, (void *)(uintptr_t)address, &dim, NULL,
                  &box, &step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void in_tensor_map(void)
{
    CUtensorMap map;
    seen("encoded", encode_map(TESTED(cuTensorMapEncodeTiled), &map, make_block(1) + 3 * MIB));
    print_described("read_map32", &map);
}

/* Images of 4 pixels, in rows and with gaps between. */
static const cuuint64_t dims[] = {32, 2, 2};
static const cuuint64_t strides[] = {128, 512};
static const cuuint32_t steps[] = {1, 1, 1};

static void in_image_map(void)
{
    CUtensorMap map;
    const int corners[] = {0};
    SEEN(TESTED(cuTensorMapEncodeIm2col)(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3,
                                         (void *)(uintptr_t)(make_block(1) + 3 * MIB), dims,
                                         strides, corners, corners, 32, 2, steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                         CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    print_described("sum_map32", &map);
}

static void in_wide_image_map(void)
{
    CUtensorMap map;
    SEEN(TESTED(cuTensorMapEncodeIm2colWide)(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, (void *)(uintptr_t)(make_block(1) + 3 * MIB), dims,
        strides, 0, 0, 32, 2, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    print_described("sum_map32", &map);
}

static void in_tensor_map_replaced(void)
{
    CUtensorMap map;
    MUST(encode_map(cuTensorMapEncodeTiled, &map, device_table()));
    SEEN(TESTED(cuTensorMapReplaceAddress)(&map, (void *)(uintptr_t)(make_block(1) + 3 * MIB)));
    print_described("read_map32", &map);
}

static void in_texture(void)
{
    CUtexObject texture;
    const CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};
    const CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_LINEAR,
                                     .res.linear = {.devPtr = make_block(1) + 3 * MIB,
                                                    .format = CU_AD_FORMAT_UNSIGNED_INT32,
                                                    .numChannels = 1,
                                                    .sizeInBytes = MIB}};
    SEEN(TESTED(cuTexObjectCreate)(&texture, &what, &how, NULL));
    print_described("read_texture32", &texture);
}

/* A managed variable, which a kernel reaches without a parameter. */
static void print_managed(CUdeviceptr table, CUfunction kernel)
{
    CUdeviceptr out;
    uint32_t words[COUNT] = {0};
    uint64_t count = COUNT;
    MUST(cuMemAlloc_v2(&out, sizeof(words)));
    fill_table((CUdeviceptr *)(uintptr_t)table);
    void *params[] = {&out, &count};
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    seen("synchronised", cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(words, out, sizeof(words)));
    print_host("gathered", words, sizeof(words));
}

static void in_variable(void)
{
    CUdeviceptr table;
    size_t bytes;
    SEEN(TESTED(cuModuleGetGlobal_v2)(&table, &bytes, get_module(), "managed_table"));
    print_managed(table, find_kernel("gather_managed32"));
}

static CUfunction find_in_library(CUlibrary *library_out)
{
    CUmodule module;
    CUfunction kernel;
    MUST(
        cuLibraryLoadFromFile(library_out, getenv("GROUPS_KERNELS"), NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetModule(&module, *library_out));
    MUST(cuModuleGetFunction(&kernel, module, "gather_managed32"));
    return kernel;
}

static void in_variable_of_library(void)
{
    CUdeviceptr table;
    size_t bytes;
    CUlibrary library;
    const CUfunction kernel = find_in_library(&library);
    SEEN(TESTED(cuLibraryGetGlobal)(&table, &bytes, library, "managed_table"));
    print_managed(table, kernel);
}

static void in_managed_of_library(void)
{
    CUdeviceptr table;
    size_t bytes;
    CUlibrary library;
    const CUfunction kernel = find_in_library(&library);
    SEEN(TESTED(cuLibraryGetManaged)(&table, &bytes, library, "managed_table"));
    print_managed(table, kernel);
}

static const CUmemAccessDesc of_both[] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                          {.location = {.type = CU_MEM_LOCATION_TYPE_HOST},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};

/* Two handles in a row. */
static CUdeviceptr map_two(void)
{
    CUdeviceptr place;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    MUST(cuMemAddressReserve(&place, 4 * MIB, 0, 0, 0));
    for (CUdeviceptr at = place; at < place + 4 * MIB; at += 2 * MIB) {
        CUmemGenericAllocationHandle handle;
        MUST(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        MUST(cuMemMap(at, 2 * MIB, 0, handle, 0));
    }
    return place;
}

/* Mapped memory that the host may write; of what was opened at once a part goes. */
static void in_mapping(void)
{
    const CUdeviceptr place = map_two();
    SEEN(TESTED(cuMemSetAccess)(place, 4 * MIB, of_both, 2));
    MUST(cuMemUnmap(place, 2 * MIB));
    fill_table((CUdeviceptr *)(uintptr_t)(place + 2 * MIB));
    print_gathered(place + 2 * MIB, COUNT);
}

/* Memory of another API, which this program itself plays. */
static CUdeviceptr *map_external(CUexternalMemory *external_out, CUdeviceptr *address_out,
                                 __typeof__(&cuExternalMemoryGetMappedBuffer) map)
{
    const int file = memfd_create("external", 0);
    if (file < 0 || ftruncate(file, 4096) != 0)
        exit(2);
    CUdeviceptr *host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC import = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = file, .size = 4096};
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = 4096};
    MUST(cuImportExternalMemory(external_out, &import));
    MUST(map(address_out, *external_out, &buffer));
    return host;
}

static void in_external(void)
{
    CUexternalMemory external;
    CUdeviceptr table;
    fill_table(map_external(&external, &table, TESTED(cuExternalMemoryGetMappedBuffer)));
    print_gathered(table, COUNT);
    SEEN(cuMemFree_v2(table));
    SEEN(cuDestroyExternalMemory(external));
}

static void copied_from_external(void)
{
    CUexternalMemory external;
    CUdeviceptr there;
    const CUdeviceptr table = device_table();
    fill_table(map_external(&external, &there, cuExternalMemoryGetMappedBuffer));
    SEEN(TESTED(cuMemcpyDtoD_v2)(table, there, COUNT * sizeof(table)));
    print_gathered(table, COUNT);
}

/* Host memory that is gone: its address is a number again. groups.py looks at the device's
 * memory. */
static void pass_number(CUdeviceptr number)
{
    CUdeviceptr block, small;
    uint64_t count = 0;
    MUST(cuMemAlloc_v2(&block, 64 * MIB));
    MUST(cuMemsetD8_v2(block, 1, 64 * MIB));
    MUST(cuMemAlloc_v2(&small, 4096));
    void *params[] = {&small, &number, &count};
    MUST(cuLaunchKernel(find_kernel("copy32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    MUST(cuCtxSynchronize());
}

static void freed_pinned(void)
{
    void *pinned;
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    SEEN(TESTED(cuMemFreeHost)(pinned));
    pass_number((CUdeviceptr)(uintptr_t)pinned);
}

static void freed_pooled(void)
{
    CUdeviceptr pooled;
    MUST(cuMemAllocFromPoolAsync(
        &pooled, 4096, make_pool(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST), NULL));
    SEEN(TESTED(cuMemFreeAsync)(pooled, NULL));
    MUST(cuCtxSynchronize());
    pass_number(pooled);
}

static void unmapped(void)
{
    const CUdeviceptr place = map_two();
    MUST(cuMemSetAccess(place, 4 * MIB, of_both, 2));
    SEEN(TESTED(cuMemUnmap)(place, 2 * MIB));
    pass_number(place + MIB);
}

static void unregistered(void)
{
    void *host = aligned_alloc(4096, 4096);
    MUST(cuMemHostRegister_v2(host, 4096, 0));
    SEEN(TESTED(cuMemHostUnregister)(host));
    pass_number((CUdeviceptr)(uintptr_t)host);
}

/* A launch that is only recorded must not lose its code. */
static CUdeviceptr record_uniform(CUfunction kernel)
{
    CUdeviceptr block;
    uint64_t count = 2 * MIB, seed = 1, offset = 2;
    MUST(cuMemAlloc_v2(&block, BLOCK_BYTES));
    void *params[] = {&block, &count, &seed, &offset};
    MUST(cuLaunchKernel(kernel, 8, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    return block;
}

static void unloaded(void)
{
    CUmodule module;
    CUfunction kernel;
    MUST(cuModuleLoad(&module, getenv("GROUPS_KERNELS")));
    MUST(cuModuleGetFunction(&kernel, module, "uniform32"));
    const CUdeviceptr block = record_uniform(kernel);
    SEEN(TESTED(cuModuleUnload)(module));
    print_device("block", block, BLOCK_BYTES);
}

static void library_unloaded(void)
{
    CUlibrary library;
    CUkernel kernel;
    MUST(cuLibraryLoadFromFile(&library, getenv("GROUPS_KERNELS"), NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "uniform32"));
    const CUdeviceptr block = record_uniform((CUfunction)kernel);
    SEEN(TESTED(cuLibraryUnload)(library));
    print_device("block", block, BLOCK_BYTES);
}

/* Drawn by a graphics API, which gives no word of it. */
static void in_graphics(void)
{
    CUdeviceptr there;
    size_t bytes;
    CUgraphicsResource resource;
    const unsigned buffer = simcuda_gl_create(4096);
    MUST(cuGraphicsGLRegisterBuffer(&resource, buffer, 0));
    fill_table((CUdeviceptr *)simcuda_gl_bytes(buffer));
    MUST(cuGraphicsMapResources(1, &resource, NULL));
    SEEN(TESTED(cuGraphicsResourceGetMappedPointer_v2)(&there, &bytes, resource));
    print_gathered(there, COUNT);
}

static unsigned register_object(void)
{
    const unsigned buffer = simcuda_gl_create(4096);
    MUST(cuGLRegisterBufferObject(buffer));
    fill_table((CUdeviceptr *)simcuda_gl_bytes(buffer));
    return buffer;
}

static void in_buffer_object(void)
{
    CUdeviceptr there;
    size_t bytes;
    SEEN(TESTED(cuGLMapBufferObject_v2)(&there, &bytes, register_object()));
    print_gathered(there, COUNT);
}

static void in_buffer_object_async(void)
{
    CUdeviceptr there;
    size_t bytes;
    SEEN(TESTED(cuGLMapBufferObjectAsync_v2)(&there, &bytes, register_object(), NULL));
    print_gathered(there, COUNT);
}

static void in_frame(void)
{
    struct simcuda_egl_frame frame;
    CUgraphicsResource resource;
    const unsigned buffer = simcuda_gl_create(4096);
    MUST(cuGraphicsGLRegisterBuffer(&resource, buffer, 0));
    fill_table((CUdeviceptr *)simcuda_gl_bytes(buffer));
    MUST(cuGraphicsMapResources(1, &resource, NULL));
    SEEN(TESTED(cuGraphicsResourceGetMappedEglFrame)(&frame, resource, 0, 0));
    print_gathered((CUdeviceptr)frame.planes[0], COUNT);
}

const struct scenario hidden_scenarios[] = {
    {"cuMemAllocHost", in_pinned_as_before, NULL},
    {"cuMemAllocHost_v2", in_pinned, NULL},
    {"cuMemHostAlloc", in_mapped, NULL},
    {"cuMemHostRegister", in_registered, NULL},
    {"cuMemHostRegister_v2", in_registered, NULL},
    {"cuMemAllocManaged", in_managed, NULL},
    {"cuExternalMemoryGetMappedBuffer", in_external, NULL},
    {"cuGraphicsResourceGetMappedPointer_v2", in_graphics, NULL},
    {"cuGraphicsResourceGetMappedEglFrame", in_frame, NULL},
    TWINS_PTDS("cuGLMapBufferObject_v2", "", in_buffer_object),
    TWINS_PTSZ("cuGLMapBufferObjectAsync_v2", "", in_buffer_object_async),
    {"cuMemFreeHost", freed_pinned, NULL},
    {"cuMemHostUnregister", unregistered, NULL},
    {"cuModuleUnload", unloaded, NULL},
    {"cuLibraryUnload", library_unloaded, NULL},
    TWINS_PTDS("cuMemcpyHtoA_v2", "", through_an_array),
    TWINS_PTSZ("cuMemcpyHtoAAsync_v2", "", through_an_array_async),
    /* A second scenario of an entry has a name behind a colon. */
    TWINS_PTDS("cuMemcpyHtoD_v2", ":table", copied),
    TWINS_PTSZ("cuMemcpyHtoDAsync_v2", ":table", copied_async),
    TWINS_PTDS("cuMemcpy", ":table", copied_anyhow),
    TWINS_PTSZ("cuMemcpyAsync", ":table", copied_anyhow_async),
    {"cuMemcpyDtoD_v2:table", copied_from_pinned, NULL},
    {"cuMemcpyDtoD_v2:external", copied_from_external, NULL},
    {"cuMemcpy2D_v2:table", copied_in_rows, NULL},
    {"cuMemcpy2DUnaligned_v2:table", copied_in_rows, NULL},
    {"cuMemcpy3D_v2:table", copied_in_a_box, NULL},
    {"cuMemsetD32_v2:table", set_in_halves, NULL},
    {"cuModuleGetGlobal_v2", in_variable, NULL},
    {"cuLibraryGetGlobal", in_variable_of_library, NULL},
    {"cuLibraryGetManaged", in_managed_of_library, NULL},
    {"cuTensorMapEncodeIm2col", in_image_map, NULL},
    {"cuTensorMapEncodeIm2colWide", in_wide_image_map, NULL},
    {"cuTensorMapEncodeTiled", in_tensor_map, NULL},
    {"cuTensorMapReplaceAddress", in_tensor_map_replaced, NULL},
    {"cuTexObjectCreate", in_texture, NULL},
    {"cuMemSetAccess:host", in_mapping, NULL},
    {"cuMemUnmap:host", unmapped, NULL},
    {"cuMemHostAlloc:alias", at_another_address, NULL},
    TWINS_PTSZ("cuMemAllocFromPoolAsync", ":host", in_host_pool),
    {"cuMemAllocFromPoolAsync:managed", in_managed_pool, NULL},
    TWINS_PTSZ("cuMemAllocAsync", ":managed", in_pool_of_the_device),
    TWINS_PTSZ("cuMemFreeAsync", ":host", freed_pooled),
    {NULL, NULL, NULL},
};
