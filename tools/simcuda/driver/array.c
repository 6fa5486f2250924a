/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA arrays: plain rows in device memory, enough to copy to and from them. */
#include "tools/simcuda/driver/shape.h"
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>

struct CUarray_st {
    struct sim_region region; /* begin: the handle */
    struct sim_array_layout layout;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
};
static struct sim_table arrays;

static size_t format_bytes(CUarray_format format)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

CUresult sim_array_get(CUarray array, struct sim_array_layout *layout_out)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_region *row = sim_table_find(&arrays, (uint64_t)array);
    const bool is_ours = row != NULL && row == &array->region;
    if (is_ours)
        *layout_out = array->layout;
    pthread_mutex_unlock(&sim_lock);
    return is_ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult create(CUarray *array_out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    if (array_out == NULL || descriptor == NULL || descriptor->Width == 0 ||
        (descriptor->NumChannels != 1 && descriptor->NumChannels != 2 &&
         descriptor->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (format_bytes(descriptor->Format) == 0 ||
        (descriptor->Flags & ~(unsigned)(CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_LAYERED)) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sim_array_layout layout = {
        .element_bytes = format_bytes(descriptor->Format) * descriptor->NumChannels,
        .height = descriptor->Height == 0 ? 1 : descriptor->Height,
        .depth = descriptor->Depth == 0 ? 1 : descriptor->Depth,
    };
    size_t bytes;
    if (__builtin_mul_overflow(descriptor->Width, layout.element_bytes, &layout.row_bytes) ||
        __builtin_mul_overflow(layout.row_bytes, layout.height, &bytes) ||
        __builtin_mul_overflow(bytes, layout.depth, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_capture_refuse_unsafe();
    if (result == CUDA_SUCCESS)
        result = sim_memory_create(bytes, &layout.address);
    if (result != CUDA_SUCCESS)
        return result;
    CUarray array = sim_zalloc(sizeof(*array));
    array->region = (struct sim_region){(uint64_t)array, 1};
    array->layout = layout;
    array->descriptor = *descriptor;
    pthread_mutex_lock(&sim_lock);
    sim_table_add(&arrays, &array->region);
    pthread_mutex_unlock(&sim_lock);
    *array_out = array;
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    SIM_ENTER(cuArrayCreate_v2);
    if (pAllocateArray == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .Width = pAllocateArray->Width,
        .Height = pAllocateArray->Height,
        .Format = pAllocateArray->Format,
        .NumChannels = pAllocateArray->NumChannels,
    };
    return create(pHandle, &descriptor);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    SIM_ENTER(cuArray3DCreate_v2);
    return create(pHandle, pAllocateArray);
}

CUresult cuArrayDestroy(CUarray hArray)
{
    SIM_ENTER(cuArrayDestroy);
    struct CUctx_st *context;
    struct sim_array_layout layout;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_array_get(hArray, &layout);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    sim_context_drain(context);
    pthread_mutex_lock(&sim_lock);
    sim_table_remove(&arrays, &hArray->region);
    pthread_mutex_unlock(&sim_lock);
    sim_memory_release(layout.address);
    free(hArray);
    return CUDA_SUCCESS;
}

static CUresult describe(CUDA_ARRAY3D_DESCRIPTOR *descriptor_out, CUarray array)
{
    struct sim_array_layout layout;
    const CUresult result = sim_array_get(array, &layout);
    if (result == CUDA_SUCCESS)
        *descriptor_out = array->descriptor;
    return result;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    SIM_ENTER(cuArrayGetDescriptor_v2);
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (pArrayDescriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = describe(&descriptor, hArray);
    if (result == CUDA_SUCCESS)
        *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){descriptor.Width, descriptor.Height,
                                                    descriptor.Format, descriptor.NumChannels};
    return result;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    SIM_ENTER(cuArray3DGetDescriptor_v2);
    return pArrayDescriptor == NULL ? CUDA_ERROR_INVALID_VALUE : describe(pArrayDescriptor, hArray);
}

/* --- copies between an array and flat memory, by offset */

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE

/* Where the bytes of the array are that such a copy means: they lie in its first row. */
static CUresult place(CUarray array, size_t offset, size_t bytes, uint64_t *address_out)
{
    struct sim_array_layout layout;
    const CUresult result = sim_array_get(array, &layout);
    if (result != CUDA_SUCCESS)
        return result;
    if (offset > layout.row_bytes || bytes > layout.row_bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    *address_out = layout.address + offset;
    return CUDA_SUCCESS;
}

static CUresult to_array(CUarray array, size_t offset, CUmemorytype type, uint64_t from,
                         size_t bytes, bool is_async, CUstream stream, bool per_thread)
{
    uint64_t to;
    const CUresult result = place(array, offset, bytes, &to);
    return result != CUDA_SUCCESS ? result
                                  : sim_copy_flat("copy to an array", DEVICE, to, type, from, bytes,
                                                  is_async, stream, per_thread);
}

static CUresult from_array(CUmemorytype type, uint64_t to, CUarray array, size_t offset,
                           size_t bytes, bool is_async, CUstream stream, bool per_thread)
{
    uint64_t from;
    const CUresult result = place(array, offset, bytes, &from);
    return result != CUDA_SUCCESS ? result
                                  : sim_copy_flat("copy from an array", type, to, DEVICE, from,
                                                  bytes, is_async, stream, per_thread);
}

/* The plain function and its per-thread twin. */
#define TO_ARRAY(symbol, source_type, type)                                           \
    CUresult symbol(CUarray to, size_t offset, source_type from, size_t bytes)        \
    {                                                                                 \
        SIM_ENTER(symbol);                                                            \
        return to_array(to, offset, type, (uint64_t)from, bytes, false, NULL, false); \
    }                                                                                 \
    CUresult symbol##_ptds(CUarray to, size_t offset, source_type from, size_t bytes) \
    {                                                                                 \
        SIM_ENTER(symbol##_ptds);                                                     \
        return to_array(to, offset, type, (uint64_t)from, bytes, false, NULL, true);  \
    }
#define FROM_ARRAY(symbol, target_type, type)                                           \
    CUresult symbol(target_type to, CUarray from, size_t offset, size_t bytes)          \
    {                                                                                   \
        SIM_ENTER(symbol);                                                              \
        return from_array(type, (uint64_t)to, from, offset, bytes, false, NULL, false); \
    }                                                                                   \
    CUresult symbol##_ptds(target_type to, CUarray from, size_t offset, size_t bytes)   \
    {                                                                                   \
        SIM_ENTER(symbol##_ptds);                                                       \
        return from_array(type, (uint64_t)to, from, offset, bytes, false, NULL, true);  \
    }

TO_ARRAY(cuMemcpyDtoA_v2, CUdeviceptr, DEVICE)
TO_ARRAY(cuMemcpyHtoA_v2, const void *, HOST)
FROM_ARRAY(cuMemcpyAtoD_v2, CUdeviceptr, DEVICE)
FROM_ARRAY(cuMemcpyAtoH_v2, void *, HOST)

SIM_TWINS(cuMemcpyHtoAAsync_v2, _ptsz,
          (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
           CUstream hStream),
          to_array(dstArray, dstOffset, HOST, (uint64_t)srcHost, ByteCount, true, hStream,
                   per_thread))

SIM_TWINS(cuMemcpyAtoHAsync_v2, _ptsz,
          (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
          from_array(HOST, (uint64_t)dstHost, srcArray, srcOffset, ByteCount, true, hStream,
                     per_thread))

static CUresult between(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                        size_t bytes, bool per_thread)
{
    uint64_t source;
    const CUresult result = place(from, from_offset, bytes, &source);
    return result != CUDA_SUCCESS
               ? result
               : to_array(to, to_offset, DEVICE, source, bytes, false, NULL, per_thread);
}

SIM_TWINS(cuMemcpyAtoA_v2, _ptds,
          (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
           size_t ByteCount),
          between(dstArray, dstOffset, srcArray, srcOffset, ByteCount, per_thread))
