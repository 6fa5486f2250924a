/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rectangles and boxes. */
#include "tools/simcuda/driver/shape.h"
#include "tools/simcuda/driver/state.h"

enum { MAX_PITCH = 0x7FFFFFFF };

CUresult sim_side_box(const struct sim_side *side, size_t width, size_t height, size_t depth,
                      struct sim_box *box_out)
{
    struct sim_array_layout layout;
    size_t pitch = side->pitch;
    size_t rows = side->height;
    size_t row_bytes;
    uint64_t base = side->device;
    CUmemorytype type = side->type;
    if (side->lod != 0 || __builtin_add_overflow(side->x_bytes, width, &row_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)side->type) {
    case CU_MEMORYTYPE_HOST:
        base = (uint64_t)side->host;
        break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        break;
    case CU_MEMORYTYPE_ARRAY: {
        const CUresult result = sim_array_get(side->array, &layout);
        if (result != CUDA_SUCCESS)
            return result;
        if (row_bytes > layout.row_bytes || side->y + height > layout.height ||
            side->z + depth > layout.depth)
            return CUDA_ERROR_INVALID_VALUE;
        type = CU_MEMORYTYPE_DEVICE;
        base = layout.address;
        pitch = layout.row_bytes;
        rows = layout.height;
        break;
    }
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* One row needs no pitch, one slice no height. */
    if (pitch == 0 && height <= 1 && depth <= 1)
        pitch = row_bytes;
    if (rows == 0 && depth <= 1)
        rows = side->y + height;
    if (pitch < row_bytes || pitch > MAX_PITCH || rows < side->y + height)
        return CUDA_ERROR_INVALID_VALUE;
    *box_out = (struct sim_box){
        .type = type,
        .address = base + side->z * rows * pitch + side->y * pitch + side->x_bytes,
        .pitch = pitch,
        .slice = rows * pitch,
    };
    return CUDA_SUCCESS;
}

static CUresult copy(const char *name, const struct sim_side *to, const struct sim_side *from,
                     size_t width, size_t height, size_t depth, bool is_async, CUstream stream,
                     bool per_thread)
{
    struct sim_copy work = {name, {0}, {0}, width, height, depth, is_async, false};
    if (width == 0 || height == 0 || depth == 0) {
        CUdevice device;
        return sim_current_device(&device);
    }
    CUresult result = sim_side_box(to, width, height, depth, &work.to);
    if (result == CUDA_SUCCESS)
        result = sim_side_box(from, width, height, depth, &work.from);
    return result != CUDA_SUCCESS ? result : sim_copy_submit(&work, stream, per_thread);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, bool is_async, CUstream stream, bool per_thread)
{
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_side to = {
        p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, p->dstXInBytes, p->dstY, 0, 0,
        p->dstPitch,      0};
    const struct sim_side from = {
        p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, p->srcXInBytes, p->srcY, 0, 0,
        p->srcPitch,      0};
    return copy("cuMemcpy2D", &to, &from, p->WidthInBytes, p->Height, 1, is_async, stream,
                per_thread);
}

SIM_TWINS(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *pCopy),
          copy_2d(pCopy, false, NULL, per_thread))

SIM_TWINS(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *pCopy),
          copy_2d(pCopy, false, NULL, per_thread))

SIM_TWINS(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *pCopy, CUstream hStream),
          copy_2d(pCopy, true, hStream, per_thread))

/* The sides of CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER have the same members. */
#define SIDE_3D(p, end)                                                                   \
    {                                                                                     \
        (p)->end##MemoryType, (p)->end##Host, (p)->end##Device, (p)->end##Array,          \
            (p)->end##XInBytes, (p)->end##Y, (p)->end##Z, (p)->end##LOD, (p)->end##Pitch, \
            (p)->end##Height                                                              \
    }

static CUresult copy_3d(const CUDA_MEMCPY3D *p, bool is_async, CUstream stream, bool per_thread)
{
    if (p == NULL || p->reserved0 != NULL || p->reserved1 != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_side to = SIDE_3D(p, dst);
    const struct sim_side from = SIDE_3D(p, src);
    return copy("cuMemcpy3D", &to, &from, p->WidthInBytes, p->Height, p->Depth, is_async, stream,
                per_thread);
}

SIM_TWINS(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D *pCopy),
          copy_3d(pCopy, false, NULL, per_thread))

SIM_TWINS(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D *pCopy, CUstream hStream),
          copy_3d(pCopy, true, hStream, per_thread))

static CUresult copy_peer(const CUDA_MEMCPY3D_PEER *p, bool is_async, CUstream stream,
                          bool per_thread)
{
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_side to = SIDE_3D(p, dst);
    const struct sim_side from = SIDE_3D(p, src);
    CUresult result = CUDA_SUCCESS;
    if (p->dstMemoryType != CU_MEMORYTYPE_ARRAY)
        result = sim_contexts_check(p->dstContext, p->dstContext);
    if (result == CUDA_SUCCESS && p->srcMemoryType != CU_MEMORYTYPE_ARRAY)
        result = sim_contexts_check(p->srcContext, p->srcContext);
    return result != CUDA_SUCCESS ? result
                                  : copy("cuMemcpy3DPeer", &to, &from, p->WidthInBytes, p->Height,
                                         p->Depth, is_async, stream, per_thread);
}

SIM_TWINS(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER *pCopy),
          copy_peer(pCopy, false, NULL, per_thread))

SIM_TWINS(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream),
          copy_peer(pCopy, true, hStream, per_thread))
