/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets of more than one dimension, between devices, and with arrays: what they can touch
 * is materialised, then they are forwarded. */
#include "runtime/calls/calls.h"
#include "runtime/calls/copy_rows.h"
#include "runtime/calls/query.h"
#include "runtime/driver/flags.h"
#include "shim/quick.h"
#include "shim/stream.h"

/* One side of a pitched copy. */
struct side {
    CUmemorytype type;
    CUdeviceptr device; /* also for CU_MEMORYTYPE_UNIFIED */
    const void *host;
    size_t x_bytes, y, z, pitch, height;
};

static size_t row_pitch(const struct side *side, size_t width)
{
    return side->pitch != 0 ? side->pitch : side->x_bytes + width;
}

/* The rows of a side whose memory begins at base. */
static struct ms_rows rows_from(const struct side *side, uint64_t base, size_t width, size_t height,
                                size_t depth)
{
    const size_t pitch = row_pitch(side, width);
    const size_t slice = pitch * (side->height != 0 ? side->height : height);
    return (struct ms_rows){.begin = base + side->z * slice + side->y * pitch + side->x_bytes,
                            .width = width,
                            .height = height,
                            .depth = depth,
                            .pitch = pitch,
                            .slice = slice};
}

/* The rows of a side in device memory. Returns false if it is elsewhere or has no bytes. */
static bool find_rows(const struct side *side, size_t width, size_t height, size_t depth,
                      struct ms_rows *rows_out)
{
    if (side->type != CU_MEMORYTYPE_DEVICE && side->type != CU_MEMORYTYPE_UNIFIED)
        return false;
    *rows_out = rows_from(side, side->device, width, height, depth);
    return width != 0 && height != 0 && depth != 0;
}

static CUresult prepare_side(const struct side *side, size_t width, size_t height, size_t depth)
{
    struct ms_rows rows;
    return find_rows(side, width, height, depth, &rows) ? ms_access_rows(&rows) : CUDA_SUCCESS;
}

/* Materialises what the bytes of a host side point to. */
static CUresult prepare_payload(const struct side *side, size_t width, size_t height, size_t depth,
                                CUstream stream)
{
    uint64_t host = (uintptr_t)side->host;
    if (side->type == CU_MEMORYTYPE_DEVICE || side->type == CU_MEMORYTYPE_UNIFIED) {
        if (ms_is_owned(side->device))
            return CUDA_SUCCESS;
        if (!ms_is_host_memory(side->device))
            return ms_access_unowned(side->device);
        if (side->type == CU_MEMORYTYPE_DEVICE && !ms_is_pinned_memory(side->device))
            return ms_access_unowned(side->device);
        host = side->device;
    } else if (side->type != CU_MEMORYTYPE_HOST) {
        return CUDA_SUCCESS;
    }
    if (host == 0)
        return CUDA_SUCCESS;
    const struct ms_rows rows = rows_from(side, host, width, height, depth);
    return ms_access_payload(&rows, stream);
}

/* The address of a side's first row. Returns false if it is not in device memory, or is refused. */
static bool find_first_row(const struct side *side, size_t width, uint64_t *first_out)
{
    *first_out = side->device + side->y * row_pitch(side, width) + side->x_bytes;
    return (side->type == CU_MEMORYTYPE_DEVICE || side->type == CU_MEMORYTYPE_UNIFIED) &&
           row_pitch(side, width) >= side->x_bytes + width && row_pitch(side, width) <= INT32_MAX;
}

/* Copies one plane of rows out of an allocation, if the runtime does it itself. */
static bool copy_rows(const struct side *source, const struct side *destination, size_t width,
                      size_t height, CUstream stream, CUresult *result_out)
{
    struct ms_strided_copy rows = {.width = width,
                                   .dims = 1,
                                   .dim = {{height, row_pitch(destination, width),
                                            row_pitch(source, width)}}};
    return width > 0 && height > 0 && find_first_row(source, width, &rows.from) &&
           ms_is_owned(rows.from) && find_first_row(destination, width, &rows.to) &&
           ms_copy_rows(&rows, stream, result_out);
}

static struct side source_of(const CUDA_MEMCPY3D *copy)
{
    return (struct side){.type = copy->srcMemoryType,
                         .device = copy->srcDevice,
                         .host = copy->srcHost,
                         .x_bytes = copy->srcXInBytes,
                         .y = copy->srcY,
                         .z = copy->srcZ,
                         .pitch = copy->srcPitch,
                         .height = copy->srcHeight};
}

static struct side destination_of(const CUDA_MEMCPY3D *copy)
{
    return (struct side){.type = copy->dstMemoryType,
                         .device = copy->dstDevice,
                         .x_bytes = copy->dstXInBytes,
                         .y = copy->dstY,
                         .z = copy->dstZ,
                         .pitch = copy->dstPitch,
                         .height = copy->dstHeight};
}

static CUresult prepare_box(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    const struct side source = source_of(copy), destination = destination_of(copy);
    CUresult result = prepare_side(&source, copy->WidthInBytes, copy->Height, copy->Depth);
    if (result == CUDA_SUCCESS)
        result = prepare_payload(&source, copy->WidthInBytes, copy->Height, copy->Depth, stream);
    if (result != CUDA_SUCCESS)
        return result;
    return prepare_side(&destination, copy->WidthInBytes, copy->Height, copy->Depth);
}

static bool side_strays(const struct side *side, const CUDA_MEMCPY3D *copy)
{
    struct ms_rows rows;
    return find_rows(side, copy->WidthInBytes, copy->Height, copy->Depth, &rows) &&
           ms_rows_stray(&rows);
}

static bool strays_3d(const CUDA_MEMCPY3D *copy)
{
    const struct side source = source_of(copy), destination = destination_of(copy);
    return side_strays(&source, copy) || side_strays(&destination, copy);
}

/* A plane is a box of depth one. */
static CUDA_MEMCPY3D box_of(const CUDA_MEMCPY2D *copy)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = copy->srcMemoryType,
                           .srcDevice = copy->srcDevice,
                           .srcHost = copy->srcHost,
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
}

static bool strays_2d(const CUDA_MEMCPY2D *copy)
{
    const CUDA_MEMCPY3D box = box_of(copy);
    return strays_3d(&box);
}

/* For copies between contexts; the result does not depend on these. */
static bool strays_peer(const CUDA_MEMCPY3D_PEER *copy)
{
    const CUDA_MEMCPY3D box = {.srcMemoryType = copy->srcMemoryType,
                               .srcDevice = copy->srcDevice,
                               .srcXInBytes = copy->srcXInBytes,
                               .srcY = copy->srcY,
                               .srcZ = copy->srcZ,
                               .srcPitch = copy->srcPitch,
                               .srcHeight = copy->srcHeight,
                               .dstMemoryType = copy->dstMemoryType,
                               .dstDevice = copy->dstDevice,
                               .dstXInBytes = copy->dstXInBytes,
                               .dstY = copy->dstY,
                               .dstZ = copy->dstZ,
                               .dstPitch = copy->dstPitch,
                               .dstHeight = copy->dstHeight,
                               .WidthInBytes = copy->WidthInBytes,
                               .Height = copy->Height,
                               .Depth = copy->Depth};
    return strays_3d(&box);
}

static CUresult prepare_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool *is_done_out)
{
    *is_done_out = false;
    return ms_defers_any() ? prepare_box(copy, stream) : CUDA_SUCCESS;
}

/* *is_done_out: the copy is done, and the driver is not called. */
static CUresult prepare_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool *is_done_out)
{
    CUresult result;
    *is_done_out = false;
    if (!ms_defers_any())
        return CUDA_SUCCESS;
    const CUDA_MEMCPY3D box = box_of(copy);
    const struct side source = source_of(&box), destination = destination_of(&box);
    *is_done_out =
        copy_rows(&source, &destination, copy->WidthInBytes, copy->Height, stream, &result);
    return *is_done_out ? result : prepare_box(&box, stream);
}

/* Not modelled. */
static CUresult prepare_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream, bool *is_done_out)
{
    (void)copy, (void)stream;
    *is_done_out = false;
    return ms_defers_any() ? ms_access_all() : CUDA_SUCCESS;
}

/* A copy that strays gets MS_NOWHERE as its destination. */
#define SHAPED(symbol, kind, shape, type, default_stream)                                        \
    MS_QUICK_COPY(symbol, kind##_PARAMETERS(const type *pCopy), kind##_ARGUMENTS(pCopy))         \
    {                                                                                            \
        bool is_done;                                                                            \
        if (pCopy == NULL)                                                                       \
            return MS_REAL(symbol) kind##_ARGUMENTS(pCopy);                                      \
        if (strays_##shape(pCopy)) {                                                             \
            type nowhere = *pCopy;                                                               \
            nowhere.dstMemoryType = CU_MEMORYTYPE_DEVICE;                                        \
            nowhere.dstDevice = MS_NOWHERE;                                                      \
            nowhere.dstXInBytes = nowhere.dstY = 0;                                              \
            return MS_REAL(symbol) kind##_ARGUMENTS(&nowhere);                                   \
        }                                                                                        \
        const CUresult result = prepare_##shape(pCopy, kind##_STREAM(default_stream), &is_done); \
        if (is_done || result != CUDA_SUCCESS)                                                   \
            return result;                                                                       \
        ms_order_add_gate();                                                                     \
        return MS_REAL(symbol) kind##_ARGUMENTS(pCopy);                                          \
    }
SHAPED(cuMemcpy2D_v2, SYNC, 2d, CUDA_MEMCPY2D, CU_STREAM_LEGACY)
SHAPED(cuMemcpy2D_v2_ptds, SYNC, 2d, CUDA_MEMCPY2D, CU_STREAM_PER_THREAD)
SHAPED(cuMemcpy2DUnaligned_v2, SYNC, 2d, CUDA_MEMCPY2D, CU_STREAM_LEGACY)
SHAPED(cuMemcpy2DUnaligned_v2_ptds, SYNC, 2d, CUDA_MEMCPY2D, CU_STREAM_PER_THREAD)
SHAPED(cuMemcpy3D_v2, SYNC, 3d, CUDA_MEMCPY3D, CU_STREAM_LEGACY)
SHAPED(cuMemcpy3D_v2_ptds, SYNC, 3d, CUDA_MEMCPY3D, CU_STREAM_PER_THREAD)
SHAPED(cuMemcpy3DPeer, SYNC, peer, CUDA_MEMCPY3D_PEER, CU_STREAM_LEGACY)
SHAPED(cuMemcpy3DPeer_ptds, SYNC, peer, CUDA_MEMCPY3D_PEER, CU_STREAM_PER_THREAD)
SHAPED(cuMemcpy2DAsync_v2, ASYNC, 2d, CUDA_MEMCPY2D, CU_STREAM_LEGACY)
SHAPED(cuMemcpy2DAsync_v2_ptsz, ASYNC, 2d, CUDA_MEMCPY2D, CU_STREAM_PER_THREAD)
SHAPED(cuMemcpy3DAsync_v2, ASYNC, 3d, CUDA_MEMCPY3D, CU_STREAM_LEGACY)
SHAPED(cuMemcpy3DAsync_v2_ptsz, ASYNC, 3d, CUDA_MEMCPY3D, CU_STREAM_PER_THREAD)
SHAPED(cuMemcpy3DPeerAsync, ASYNC, peer, CUDA_MEMCPY3D_PEER, CU_STREAM_LEGACY)
SHAPED(cuMemcpy3DPeerAsync_ptsz, ASYNC, peer, CUDA_MEMCPY3D_PEER, CU_STREAM_PER_THREAD)

/* Two linear ranges. */
static CUresult prepare_both(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    if (!ms_defers_any() || bytes == 0)
        return CUDA_SUCCESS;
    const CUresult result = ms_is_owned(source) ? ms_access(source, bytes, MS_NEED_READ_WRITE)
                                                : ms_access_unowned(source);
    return result != CUDA_SUCCESS ? result : ms_access(destination, bytes, MS_NEED_READ_WRITE);
}

#define PEER(symbol, kind)                                                                     \
    MS_QUICK_COPY(symbol,                                                                      \
                  kind##_PARAMETERS(CUdeviceptr dstDevice, CUcontext dstContext,               \
                                    CUdeviceptr srcDevice, CUcontext srcContext,               \
                                    size_t ByteCount),                                         \
                  kind##_ARGUMENTS(dstDevice, dstContext, srcDevice, srcContext, ByteCount))   \
    {                                                                                          \
        ms_order_add_gate();                                                                   \
        if (ms_strays(dstDevice, ByteCount) || ms_strays(srcDevice, ByteCount))                \
            return MS_REAL(symbol)                                                             \
                kind##_ARGUMENTS(MS_NOWHERE, dstContext, srcDevice, srcContext, ByteCount);    \
        const CUresult result = prepare_both(dstDevice, srcDevice, ByteCount);                 \
        return result != CUDA_SUCCESS ? result                                                 \
                                      : MS_REAL(symbol)                                        \
                                            kind##_ARGUMENTS(dstDevice, dstContext, srcDevice, \
                                                             srcContext, ByteCount);           \
    }
PEER(cuMemcpyPeer, SYNC)
PEER(cuMemcpyPeer_ptds, SYNC)
PEER(cuMemcpyPeerAsync, ASYNC)
PEER(cuMemcpyPeerAsync_ptsz, ASYNC)

#define TO_ARRAY(symbol)                                                                         \
    MS_QUICK_COPY(symbol,                                                                        \
                  (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount), \
                  (dstArray, dstOffset, srcDevice, ByteCount))                                   \
    {                                                                                            \
        ms_order_add_gate();                                                                     \
        if (ms_strays(srcDevice, ByteCount))                                                     \
            return MS_REAL(symbol)(dstArray, dstOffset, MS_NOWHERE, ByteCount);                  \
        const CUresult result = prepare_both(srcDevice, srcDevice, ByteCount);                   \
        return result != CUDA_SUCCESS                                                            \
                   ? result                                                                      \
                   : MS_REAL(symbol)(dstArray, dstOffset, srcDevice, ByteCount);                 \
    }
TO_ARRAY(cuMemcpyDtoA_v2)
TO_ARRAY(cuMemcpyDtoA_v2_ptds)

#define FROM_ARRAY(symbol)                                                                       \
    MS_QUICK_COPY(symbol,                                                                        \
                  (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount), \
                  (dstDevice, srcArray, srcOffset, ByteCount))                                   \
    {                                                                                            \
        ms_order_add_gate();                                                                     \
        if (ms_strays(dstDevice, ByteCount))                                                     \
            return MS_REAL(symbol)(MS_NOWHERE, srcArray, srcOffset, ByteCount);                  \
        const CUresult result = prepare_both(dstDevice, dstDevice, ByteCount);                   \
        return result != CUDA_SUCCESS                                                            \
                   ? result                                                                      \
                   : MS_REAL(symbol)(dstDevice, srcArray, srcOffset, ByteCount);                 \
    }
FROM_ARRAY(cuMemcpyAtoD_v2)
FROM_ARRAY(cuMemcpyAtoD_v2_ptds)

#define HOST_TO_ARRAY(symbol, kind, default_stream)                                             \
    MS_QUICK(symbol,                                                                            \
             kind##_PARAMETERS(CUarray dstArray, size_t dstOffset, const void *srcHost,         \
                               size_t ByteCount),                                               \
             kind##_ARGUMENTS(dstArray, dstOffset, srcHost, ByteCount))                         \
    {                                                                                           \
        ms_order_add_gate();                                                                    \
        const CUresult result =                                                                 \
            ms_defers_any()                                                                     \
                ? ms_access_payload_linear(srcHost, ByteCount, kind##_STREAM(default_stream))   \
                : CUDA_SUCCESS;                                                                 \
        return result != CUDA_SUCCESS                                                           \
                   ? result                                                                     \
                   : MS_REAL(symbol) kind##_ARGUMENTS(dstArray, dstOffset, srcHost, ByteCount); \
    }
HOST_TO_ARRAY(cuMemcpyHtoA_v2, SYNC, CU_STREAM_LEGACY)
HOST_TO_ARRAY(cuMemcpyHtoA_v2_ptds, SYNC, CU_STREAM_PER_THREAD)
HOST_TO_ARRAY(cuMemcpyHtoAAsync_v2, ASYNC, CU_STREAM_LEGACY)
HOST_TO_ARRAY(cuMemcpyHtoAAsync_v2_ptsz, ASYNC, CU_STREAM_PER_THREAD)

/* A pitched memset of `height` rows. */
static struct ms_rows rows_of(CUdeviceptr address, size_t pitch, unsigned width, size_t count,
                              size_t height)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, width, &bytes))
        bytes = SIZE_MAX;
    return (struct ms_rows){
        .begin = address, .width = bytes, .height = height, .depth = 1, .pitch = pitch};
}

static CUresult prepare_rows(const struct ms_rows *rows, uint32_t value, unsigned width)
{
    if (!ms_defers_any() || rows->width == 0 || rows->height == 0)
        return CUDA_SUCCESS;
    const CUresult result = ms_access_payload_value(value, width);
    return result != CUDA_SUCCESS ? result : ms_access_rows(rows);
}

#define SET_ROWS(symbol, kind, type)                                                              \
    MS_QUICK_COPY(symbol,                                                                         \
                  kind##_PARAMETERS(CUdeviceptr dstDevice, size_t dstPitch, type value,           \
                                    size_t Width, size_t Height),                                 \
                  kind##_ARGUMENTS(dstDevice, dstPitch, value, Width, Height))                    \
    {                                                                                             \
        const struct ms_rows rows = rows_of(dstDevice, dstPitch, sizeof(type), Width, Height);    \
        ms_order_add_gate();                                                                      \
        if (ms_rows_stray(&rows))                                                                 \
            return MS_REAL(symbol) kind##_ARGUMENTS(MS_NOWHERE, dstPitch, value, Width, Height);  \
        const CUresult result = prepare_rows(&rows, value, sizeof(type));                         \
        return result != CUDA_SUCCESS                                                             \
                   ? result                                                                       \
                   : MS_REAL(symbol) kind##_ARGUMENTS(dstDevice, dstPitch, value, Width, Height); \
    }
SET_ROWS(cuMemsetD2D8_v2, SYNC, unsigned char)
SET_ROWS(cuMemsetD2D8_v2_ptds, SYNC, unsigned char)
SET_ROWS(cuMemsetD2D16_v2, SYNC, unsigned short)
SET_ROWS(cuMemsetD2D16_v2_ptds, SYNC, unsigned short)
SET_ROWS(cuMemsetD2D32_v2, SYNC, unsigned int)
SET_ROWS(cuMemsetD2D32_v2_ptds, SYNC, unsigned int)
SET_ROWS(cuMemsetD2D8Async, ASYNC, unsigned char)
SET_ROWS(cuMemsetD2D8Async_ptsz, ASYNC, unsigned char)
SET_ROWS(cuMemsetD2D16Async, ASYNC, unsigned short)
SET_ROWS(cuMemsetD2D16Async_ptsz, ASYNC, unsigned short)
SET_ROWS(cuMemsetD2D32Async, ASYNC, unsigned int)
SET_ROWS(cuMemsetD2D32Async_ptsz, ASYNC, unsigned int)
