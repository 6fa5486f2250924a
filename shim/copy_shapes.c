/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets of more than one dimension, between devices and with arrays: what they can touch
 * is materialised, then they run as they are. */
#include "runtime/hot.h"
#include "runtime/machine/machine.h"
#include "shim/entries.h"

/* A side of a pitched copy. */
struct side {
    CUmemorytype type;
    CUdeviceptr device; /* also for CU_MEMORYTYPE_UNIFIED */
    size_t x_bytes, y, z, pitch, height;
};

/* From the first byte that the side touches to the last, gaps between rows included. */
static CUresult prepare_side(const struct side *side, size_t width, size_t height, size_t depth)
{
    if (side->type != CU_MEMORYTYPE_DEVICE && side->type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_SUCCESS;
    if (width == 0 || height == 0 || depth == 0)
        return CUDA_SUCCESS;
    const size_t pitch = side->pitch != 0 ? side->pitch : side->x_bytes + width;
    const size_t slice = pitch * (side->height != 0 ? side->height : height);
    const CUdeviceptr begin = side->device + side->z * slice + side->y * pitch + side->x_bytes;
    return ms_prepare_touch(begin, (depth - 1) * slice + (height - 1) * pitch + width);
}

static CUresult prepare_3d(const CUDA_MEMCPY3D *copy)
{
    if (!ms_defers_any() || copy == NULL)
        return CUDA_SUCCESS;
    const struct side source = {.type = copy->srcMemoryType,
                                .device = copy->srcDevice,
                                .x_bytes = copy->srcXInBytes,
                                .y = copy->srcY,
                                .z = copy->srcZ,
                                .pitch = copy->srcPitch,
                                .height = copy->srcHeight};
    const struct side destination = {.type = copy->dstMemoryType,
                                     .device = copy->dstDevice,
                                     .x_bytes = copy->dstXInBytes,
                                     .y = copy->dstY,
                                     .z = copy->dstZ,
                                     .pitch = copy->dstPitch,
                                     .height = copy->dstHeight};
    const CUresult result = prepare_side(&source, copy->WidthInBytes, copy->Height, copy->Depth);
    if (result != CUDA_SUCCESS)
        return result;
    return prepare_side(&destination, copy->WidthInBytes, copy->Height, copy->Depth);
}

/* A plane is a box of depth one. */
static CUresult prepare_2d(const CUDA_MEMCPY2D *copy)
{
    if (copy == NULL)
        return CUDA_SUCCESS;
    const CUDA_MEMCPY3D box = {.srcMemoryType = copy->srcMemoryType,
                               .srcDevice = copy->srcDevice,
                               .srcXInBytes = copy->srcXInBytes,
                               .srcY = copy->srcY,
                               .srcPitch = copy->srcPitch,
                               .dstMemoryType = copy->dstMemoryType,
                               .dstDevice = copy->dstDevice,
                               .dstXInBytes = copy->dstXInBytes,
                               .dstY = copy->dstY,
                               .dstPitch = copy->dstPitch,
                               .WidthInBytes = copy->WidthInBytes,
                               .Height = copy->Height,
                               .Depth = 1};
    return prepare_3d(&box);
}

#define SHAPED(symbol, prepare, type)                                    \
    CUresult symbol(const type *pCopy)                                   \
    {                                                                    \
        const CUresult result = prepare(pCopy);                          \
        ms_note_gate(); /* it may write host memory */                   \
        return result != CUDA_SUCCESS ? result : MS_REAL(symbol)(pCopy); \
    }
SHAPED(cuMemcpy2D_v2, prepare_2d, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2D_v2_ptds, prepare_2d, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2DUnaligned_v2, prepare_2d, CUDA_MEMCPY2D)
SHAPED(cuMemcpy2DUnaligned_v2_ptds, prepare_2d, CUDA_MEMCPY2D)
SHAPED(cuMemcpy3D_v2, prepare_3d, CUDA_MEMCPY3D)
SHAPED(cuMemcpy3D_v2_ptds, prepare_3d, CUDA_MEMCPY3D)

#define SHAPED_ASYNC(symbol, prepare, type)                                       \
    CUresult symbol(const type *pCopy, CUstream hStream)                          \
    {                                                                             \
        const CUresult result = prepare(pCopy);                                   \
        ms_note_gate(); /* it may write host memory */                            \
        return result != CUDA_SUCCESS ? result : MS_REAL(symbol)(pCopy, hStream); \
    }
SHAPED_ASYNC(cuMemcpy2DAsync_v2, prepare_2d, CUDA_MEMCPY2D)
SHAPED_ASYNC(cuMemcpy2DAsync_v2_ptsz, prepare_2d, CUDA_MEMCPY2D)
SHAPED_ASYNC(cuMemcpy3DAsync_v2, prepare_3d, CUDA_MEMCPY3D)
SHAPED_ASYNC(cuMemcpy3DAsync_v2_ptsz, prepare_3d, CUDA_MEMCPY3D)

/* Two linear ranges. */
static CUresult prepare_both(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    if (!ms_defers_any() || bytes == 0)
        return CUDA_SUCCESS;
    const CUresult result = ms_prepare_touch(source, bytes);
    return result != CUDA_SUCCESS ? result : ms_prepare_touch(destination, bytes);
}

#define PEER(symbol)                                                                           \
    CUresult symbol(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,        \
                    CUcontext srcContext, size_t ByteCount)                                    \
    {                                                                                          \
        const CUresult result = prepare_both(dstDevice, srcDevice, ByteCount);                 \
        return result != CUDA_SUCCESS                                                          \
                   ? result                                                                    \
                   : MS_REAL(symbol)(dstDevice, dstContext, srcDevice, srcContext, ByteCount); \
    }
PEER(cuMemcpyPeer)
PEER(cuMemcpyPeer_ptds)

#define PEER_ASYNC(symbol)                                                                \
    CUresult symbol(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,   \
                    CUcontext srcContext, size_t ByteCount, CUstream hStream)             \
    {                                                                                     \
        const CUresult result = prepare_both(dstDevice, srcDevice, ByteCount);            \
        return result != CUDA_SUCCESS ? result                                            \
                                      : MS_REAL(symbol)(dstDevice, dstContext, srcDevice, \
                                                        srcContext, ByteCount, hStream);  \
    }
PEER_ASYNC(cuMemcpyPeerAsync)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz)

#define TO_ARRAY(symbol)                                                                         \
    CUresult symbol(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) \
    {                                                                                            \
        const CUresult result = prepare_both(srcDevice, srcDevice, ByteCount);                   \
        return result != CUDA_SUCCESS                                                            \
                   ? result                                                                      \
                   : MS_REAL(symbol)(dstArray, dstOffset, srcDevice, ByteCount);                 \
    }
TO_ARRAY(cuMemcpyDtoA_v2)
TO_ARRAY(cuMemcpyDtoA_v2_ptds)

#define FROM_ARRAY(symbol)                                                                       \
    CUresult symbol(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) \
    {                                                                                            \
        const CUresult result = prepare_both(dstDevice, dstDevice, ByteCount);                   \
        return result != CUDA_SUCCESS                                                            \
                   ? result                                                                      \
                   : MS_REAL(symbol)(dstDevice, srcArray, srcOffset, ByteCount);                 \
    }
FROM_ARRAY(cuMemcpyAtoD_v2)
FROM_ARRAY(cuMemcpyAtoD_v2_ptds)

/* A pitched memset of `height` rows. */
static CUresult prepare_rows(CUdeviceptr address, size_t pitch, size_t width_bytes, size_t height)
{
    if (!ms_defers_any() || width_bytes == 0 || height == 0)
        return CUDA_SUCCESS;
    return ms_prepare_touch(address, (height - 1) * pitch + width_bytes);
}

#define SET_ROWS(symbol, type)                                                                   \
    CUresult symbol(CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width,            \
                    size_t Height)                                                               \
    {                                                                                            \
        const CUresult result = prepare_rows(dstDevice, dstPitch, Width * sizeof(type), Height); \
        return result != CUDA_SUCCESS                                                            \
                   ? result                                                                      \
                   : MS_REAL(symbol)(dstDevice, dstPitch, value, Width, Height);                 \
    }
SET_ROWS(cuMemsetD2D8_v2, unsigned char)
SET_ROWS(cuMemsetD2D8_v2_ptds, unsigned char)
SET_ROWS(cuMemsetD2D16_v2, unsigned short)
SET_ROWS(cuMemsetD2D16_v2_ptds, unsigned short)
SET_ROWS(cuMemsetD2D32_v2, unsigned int)
SET_ROWS(cuMemsetD2D32_v2_ptds, unsigned int)

#define SET_ROWS_ASYNC(symbol, type)                                                             \
    CUresult symbol(CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width,            \
                    size_t Height, CUstream hStream)                                             \
    {                                                                                            \
        const CUresult result = prepare_rows(dstDevice, dstPitch, Width * sizeof(type), Height); \
        return result != CUDA_SUCCESS                                                            \
                   ? result                                                                      \
                   : MS_REAL(symbol)(dstDevice, dstPitch, value, Width, Height, hStream);        \
    }
SET_ROWS_ASYNC(cuMemsetD2D8Async, unsigned char)
SET_ROWS_ASYNC(cuMemsetD2D8Async_ptsz, unsigned char)
SET_ROWS_ASYNC(cuMemsetD2D16Async, unsigned short)
SET_ROWS_ASYNC(cuMemsetD2D16Async_ptsz, unsigned short)
SET_ROWS_ASYNC(cuMemsetD2D32Async, unsigned int)
SET_ROWS_ASYNC(cuMemsetD2D32Async_ptsz, unsigned int)
