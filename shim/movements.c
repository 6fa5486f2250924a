/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets. Each row of a macro is an entry point: the macro says what its call writes and
 * reads (movement.h), MOVEMENT does the rest. SYNC_TWINS and ASYNC_TWINS make the rows.
 */
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/calls/move.h"
#include "shim/newer.h"
#include "shim/quick.h"
#include "shim/stream.h"

/* `entry_kind` is SYNC or ASYNC (stream.h). `nowhere` are the arguments of a call that strays,
 * `said` is the call's struct ms_movement. Each branch has its own, so that the struct stays in
 * registers while nothing is deferred. */
#define MOVEMENT(symbol, entry_kind, parameters, arguments, nowhere, said)                      \
    MS_QUICK_COPY(symbol, entry_kind##_PARAMETERS parameters, entry_kind##_ARGUMENTS arguments) \
    {                                                                                           \
        bool is_held = false;                                                                   \
        CUresult result;                                                                        \
        enum ms_verdict verdict;                                                                \
        if (ms_defers_any()) {                                                                  \
            const struct ms_movement movement = said;                                           \
            verdict = ms_move_begin(&movement, &is_held, &result);                              \
        } else {                                                                                \
            const struct ms_movement movement = said;                                           \
            verdict = ms_move_pass(&movement);                                                  \
        }                                                                                       \
        if (verdict == MS_ANSWERED)                                                             \
            return result;                                                                      \
        if (verdict == MS_STRAYS)                                                               \
            return MS_REAL(symbol) entry_kind##_ARGUMENTS nowhere;                              \
        result = MS_REAL(symbol) entry_kind##_ARGUMENTS arguments;                              \
        ms_move_end(is_held);                                                                   \
        return result;                                                                          \
    }

/* A struct ms_movement with the call's stream. */
#define SAID(entry_kind, default_stream, ...) \
    ((struct ms_movement){                    \
        .stream = entry_kind##_STREAM(default_stream), .waits = entry_kind##_WAITS, __VA_ARGS__})

/* --- one row each */

#define FROM_HOST(symbol, default_stream, entry_kind)                                            \
    MOVEMENT(symbol, entry_kind, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), \
             (dstDevice, srcHost, ByteCount), (MS_NOWHERE, srcHost, ByteCount),                  \
             SAID(entry_kind, default_stream, .kind = MS_COPY_FROM_HOST, .width = ByteCount,     \
                  .height = 1, .depth = 1, .to = ms_side_of_device(dstDevice),                   \
                  .from = ms_side_of_host(srcHost)))
SYNC_TWINS(FROM_HOST, cuMemcpyHtoD_v2)
ASYNC_TWINS(FROM_HOST, cuMemcpyHtoDAsync_v2)

#define ON_DEVICE(symbol, default_stream, entry_kind)                                              \
    MOVEMENT(symbol, entry_kind, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount), \
             (dstDevice, srcDevice, ByteCount), (MS_NOWHERE, srcDevice, ByteCount),                \
             SAID(entry_kind, default_stream, .kind = MS_COPY_ON_DEVICE, .width = ByteCount,       \
                  .height = 1, .depth = 1, .to = ms_side_of_device(dstDevice),                     \
                  .from = ms_side_of_device(srcDevice)))
SYNC_TWINS(ON_DEVICE, cuMemcpyDtoD_v2)
ASYNC_TWINS(ON_DEVICE, cuMemcpyDtoDAsync_v2)

#define TO_HOST(symbol, default_stream, entry_kind)                                        \
    MOVEMENT(symbol, entry_kind, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount), \
             (dstHost, srcDevice, ByteCount), (dstHost, MS_NOWHERE, ByteCount),            \
             SAID(entry_kind, default_stream, .kind = MS_COPY_TO_HOST, .width = ByteCount, \
                  .height = 1, .depth = 1, .to = ms_side_of_host(dstHost),                 \
                  .from = ms_side_of_device(srcDevice)))
SYNC_TWINS(TO_HOST, cuMemcpyDtoH_v2)
ASYNC_TWINS(TO_HOST, cuMemcpyDtoHAsync_v2)

#define ANY(symbol, default_stream, entry_kind)                                        \
    MOVEMENT(symbol, entry_kind, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), \
             (dst, src, ByteCount), (MS_NOWHERE, src, ByteCount),                      \
             SAID(entry_kind, default_stream, .kind = MS_COPY_ANY, .width = ByteCount, \
                  .height = 1, .depth = 1, .to = ms_side_of_device(dst),               \
                  .from = ms_side_of_device(src)))
SYNC_TWINS(ANY, cuMemcpy)
ASYNC_TWINS(ANY, cuMemcpyAsync)

/* True if the driver would accept the attributes, and they ask only for an order of reading the
 * source: reading it now, on a stream that does not wait, satisfies all three. */
static bool is_plain(const CUmemcpyAttributes *attributes, CUstream stream)
{
    return attributes != NULL && stream != CU_STREAM_LEGACY && attributes->flags == 0 &&
           attributes->srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
           attributes->srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
           attributes->srcLocHint.type == CU_MEM_LOCATION_TYPE_INVALID &&
           attributes->dstLocHint.type == CU_MEM_LOCATION_TYPE_INVALID;
}

/* Like cuMemcpyAsync, but not modelled with attributes that are not plain. */
#define WITH_ATTRIBUTES(symbol, default_stream, entry_kind)                               \
    MOVEMENT(symbol, entry_kind,                                                          \
             (CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes * attr),  \
             (dst, src, size, attr), (MS_NOWHERE, src, size, attr),                       \
             SAID(entry_kind, default_stream,                                             \
                  .kind = is_plain(attr, ASYNC_STREAM(default_stream)) ? MS_COPY_ANY      \
                                                                       : MS_COPY_UNKNOWN, \
                  .width = size, .height = 1, .depth = 1, .to = ms_side_of_device(dst),   \
                  .from = ms_side_of_device(src)))
ASYNC_TWINS(WITH_ATTRIBUTES, cuMemcpyWithAttributesAsync)

#define PEER(symbol, default_stream, entry_kind)                                       \
    MOVEMENT(symbol, entry_kind,                                                       \
             (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,      \
              CUcontext srcContext, size_t ByteCount),                                 \
             (dstDevice, dstContext, srcDevice, srcContext, ByteCount),                \
             (MS_NOWHERE, dstContext, srcDevice, srcContext, ByteCount),               \
             SAID(entry_kind, default_stream, .kind = MS_COPY_BOX, .width = ByteCount, \
                  .height = 1, .depth = 1, .to = ms_side_of_device(dstDevice),         \
                  .from = ms_side_of_device(srcDevice)))
SYNC_TWINS(PEER, cuMemcpyPeer)
ASYNC_TWINS(PEER, cuMemcpyPeerAsync)

/* --- rows in planes. A copy that strays gets MS_NOWHERE as its destination. */

#define NOWHERE(type)                              \
    static type nowhere_##type(type copy)          \
    {                                              \
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE; \
        copy.dstDevice = MS_NOWHERE;               \
        copy.dstXInBytes = copy.dstY = 0;          \
        return copy;                               \
    }
NOWHERE(CUDA_MEMCPY2D)
NOWHERE(CUDA_MEMCPY3D)
NOWHERE(CUDA_MEMCPY3D_PEER)

#define SHAPED(symbol, default_stream, entry_kind, type, movement_of)                              \
    MOVEMENT(symbol, entry_kind, (const type *pCopy), (pCopy), ((type[]){nowhere_##type(*pCopy)}), \
             movement_of(pCopy, entry_kind##_STREAM(default_stream)))
SYNC_TWINS(SHAPED, cuMemcpy2D_v2, CUDA_MEMCPY2D, ms_movement_of_plane)
SYNC_TWINS(SHAPED, cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, ms_movement_of_plane)
ASYNC_TWINS(SHAPED, cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, ms_movement_of_plane)
SYNC_TWINS(SHAPED, cuMemcpy3D_v2, CUDA_MEMCPY3D, ms_movement_of_box)
ASYNC_TWINS(SHAPED, cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, ms_movement_of_box)
SYNC_TWINS(SHAPED, cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, ms_movement_of_peers)
ASYNC_TWINS(SHAPED, cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, ms_movement_of_peers)

/* --- from and to arrays, which are never deferred */

#define TO_ARRAY(symbol, default_stream, entry_kind)                                        \
    MOVEMENT(symbol, entry_kind,                                                            \
             (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount), \
             (dstArray, dstOffset, srcDevice, ByteCount),                                   \
             (dstArray, dstOffset, MS_NOWHERE, ByteCount),                                  \
             SAID(entry_kind, default_stream, .kind = MS_COPY_BOX, .width = ByteCount,      \
                  .height = 1, .depth = 1, .from = ms_side_of_device(srcDevice)))
SYNC_TWINS(TO_ARRAY, cuMemcpyDtoA_v2)

#define FROM_ARRAY(symbol, default_stream, entry_kind)                                      \
    MOVEMENT(symbol, entry_kind,                                                            \
             (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount), \
             (dstDevice, srcArray, srcOffset, ByteCount),                                   \
             (MS_NOWHERE, srcArray, srcOffset, ByteCount),                                  \
             SAID(entry_kind, default_stream, .kind = MS_COPY_BOX, .width = ByteCount,      \
                  .height = 1, .depth = 1, .to = ms_side_of_device(dstDevice)))
SYNC_TWINS(FROM_ARRAY, cuMemcpyAtoD_v2)

#define HOST_TO_ARRAY(symbol, default_stream, entry_kind)                                          \
    MOVEMENT(symbol, entry_kind,                                                                   \
             (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),          \
             (dstArray, dstOffset, srcHost, ByteCount), (dstArray, dstOffset, srcHost, ByteCount), \
             SAID(entry_kind, default_stream, .kind = MS_COPY_BOX, .width = ByteCount,             \
                  .height = 1, .depth = 1, .from = ms_side_of_host(srcHost)))
SYNC_TWINS(HOST_TO_ARRAY, cuMemcpyHtoA_v2)
ASYNC_TWINS(HOST_TO_ARRAY, cuMemcpyHtoAAsync_v2)

/* --- sets */

#define SET(symbol, default_stream, entry_kind, integer)                                  \
    MOVEMENT(symbol, entry_kind, (CUdeviceptr dstDevice, integer element, size_t N),      \
             (dstDevice, element, N), (MS_NOWHERE, element, N),                           \
             SAID(entry_kind, default_stream, .kind = MS_SET, .value = element,           \
                  .element = sizeof(integer), .width = ms_side_bytes(N, sizeof(integer)), \
                  .height = 1, .depth = 1, .to = ms_side_of_device(dstDevice)))
SYNC_TWINS(SET, cuMemsetD8_v2, unsigned char)
ASYNC_TWINS(SET, cuMemsetD8Async, unsigned char)
SYNC_TWINS(SET, cuMemsetD16_v2, unsigned short)
ASYNC_TWINS(SET, cuMemsetD16Async, unsigned short)
SYNC_TWINS(SET, cuMemsetD32_v2, unsigned int)
ASYNC_TWINS(SET, cuMemsetD32Async, unsigned int)

#define SET_ROWS(symbol, default_stream, entry_kind, integer)                                 \
    MOVEMENT(symbol, entry_kind,                                                              \
             (CUdeviceptr dstDevice, size_t dstPitch, integer element, size_t Width,          \
              size_t Height),                                                                 \
             (dstDevice, dstPitch, element, Width, Height),                                   \
             (MS_NOWHERE, dstPitch, element, Width, Height),                                  \
             SAID(entry_kind, default_stream, .kind = MS_SET_ROWS, .value = element,          \
                  .element = sizeof(integer), .width = ms_side_bytes(Width, sizeof(integer)), \
                  .height = Height, .depth = 1,                                               \
                  .to = {.type = CU_MEMORYTYPE_DEVICE, .begin = dstDevice, .pitch = dstPitch}))
SYNC_TWINS(SET_ROWS, cuMemsetD2D8_v2, unsigned char)
ASYNC_TWINS(SET_ROWS, cuMemsetD2D8Async, unsigned char)
SYNC_TWINS(SET_ROWS, cuMemsetD2D16_v2, unsigned short)
ASYNC_TWINS(SET_ROWS, cuMemsetD2D16Async, unsigned short)
SYNC_TWINS(SET_ROWS, cuMemsetD2D32_v2, unsigned int)
ASYNC_TWINS(SET_ROWS, cuMemsetD2D32Async, unsigned int)

/* --- batches. The operands of each copy are materialised; a copy that strays gets MS_NOWHERE as
 * its destination, and the driver reports its index. */

struct batch {
    CUdeviceptr *to, *from;
    size_t *sizes, count;
    CUmemcpyAttributes *attributes;
    size_t *indices, attribute_count; /* the first copy of each attribute */
};

/* A copy is modelled only if it has attributes, and these are plain. */
static enum ms_movement_kind kind_in(const struct batch *batch, size_t i, CUstream stream)
{
    size_t count = 0;
    while (batch->attributes != NULL && batch->indices != NULL && count < batch->attribute_count &&
           batch->indices[count] <= i)
        count++;
    return count > 0 && is_plain(&batch->attributes[count - 1], stream) ? MS_COPY_BOX
                                                                        : MS_COPY_UNKNOWN;
}

/* Sets *copy_out to a copy of the program's array, unless it is set. False: out of memory. */
static bool copy_array(const void *array, size_t count, size_t element_bytes, void **copy_out)
{
    if (*copy_out != NULL)
        return true;
    *copy_out = ms_heap_alloc(count * element_bytes);
    if (*copy_out != NULL)
        memcpy(*copy_out, array, count * element_bytes);
    return *copy_out != NULL;
}

/* *bounded_out: a copy, for ms_heap_free, of the destinations if one strays; else NULL. */
static CUresult begin_batch(const struct batch *batch, CUstream stream, void **bounded_out)
{
    bool is_held; /* never true: all operands are materialised */
    CUresult result = CUDA_SUCCESS;
    *bounded_out = NULL;
    if (batch->to == NULL || batch->from == NULL || batch->sizes == NULL)
        return ms_move_seal();
    for (size_t i = 0; i < batch->count; i++) {
        const struct ms_movement movement = {
            .kind = kind_in(batch, i, stream),
            .width = batch->sizes[i],
            .height = 1,
            .depth = 1,
            .to = {.type = CU_MEMORYTYPE_UNIFIED, .begin = batch->to[i]},
            .from = {.type = CU_MEMORYTYPE_UNIFIED, .begin = batch->from[i]},
            .stream = stream};
        const enum ms_verdict verdict = ms_move_begin(&movement, &is_held, &result);
        if (verdict == MS_ANSWERED)
            return result;
        if (verdict == MS_FORWARD)
            continue;
        if (!copy_array(batch->to, batch->count, sizeof(*batch->to), bounded_out))
            return CUDA_ERROR_OUT_OF_MEMORY;
        ((CUdeviceptr *)*bounded_out)[i] = MS_NOWHERE;
    }
    return CUDA_SUCCESS;
}

/* For entries with and without failIdx. */
#define BATCH(symbol, default_stream, more_parameters, more)                                      \
    MS_QUICK_COPY(symbol,                                                                         \
                  (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t * sizes, size_t count,          \
                   CUmemcpyAttributes * attrs, size_t * attrsIdxs, size_t numAttrs,               \
                   MS_UNPACK more_parameters),                                                    \
                  (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, MS_UNPACK more))         \
    {                                                                                             \
        void *bounded;                                                                            \
        const struct batch batch = {dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs};        \
        CUresult result = begin_batch(&batch, ms_stream(hStream, default_stream), &bounded);      \
        if (result == CUDA_SUCCESS)                                                               \
            result = MS_REAL(symbol)(bounded != NULL ? bounded : dsts, srcs, sizes, count, attrs, \
                                     attrsIdxs, numAttrs, MS_UNPACK more);                        \
        ms_heap_free(bounded);                                                                    \
        return result;                                                                            \
    }
MS_TWINS(_ptsz, BATCH, cuMemcpyBatchAsync, (size_t * failIdx, CUstream hStream), (failIdx, hStream))
MS_TWINS(_ptsz, BATCH, cuMemcpyBatchAsync_v2, (CUstream hStream), (hStream))

/* --- boxes of a batch: lengths count elements if a side is an array, otherwise bytes */

/* 1 for compressed and planar formats, of which nothing is known. */
static size_t channel_bytes(CUarray_format format)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 1;
    }
}

static bool is_known(CUarray_format format)
{
    return format <= CU_AD_FORMAT_FLOAT ||
           (format >= CU_AD_FORMAT_UNORM_INT8X1 && format <= CU_AD_FORMAT_SNORM_INT16X4);
}

/* 0: this side is not an array. */
static size_t element_of(const CUmemcpy3DOperand *operand)
{
    CUDA_ARRAY3D_DESCRIPTOR array;
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY ||
        MS_REAL(cuArray3DGetDescriptor_v2)(&array, operand->op.array.array) != CUDA_SUCCESS)
        return 0;
    return is_known(array.Format) ? channel_bytes(array.Format) * array.NumChannels : 1;
}

static size_t element_bytes(const CUDA_MEMCPY3D_BATCH_OP *copy)
{
    const size_t element = element_of(&copy->src);
    return element != 0 ? element : element_of(&copy->dst);
}

/* Lengths of legal copies do not overflow. */
static size_t in_bytes(size_t elements, size_t element)
{
    size_t bytes;
    return __builtin_mul_overflow(elements, element != 0 ? element : 1, &bytes) ? SIZE_MAX : bytes;
}

static struct ms_side side_of_operand(const CUmemcpy3DOperand *operand,
                                      const CUDA_MEMCPY3D_BATCH_OP *copy, size_t element)
{
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return (struct ms_side){.type = CU_MEMORYTYPE_ARRAY};
    const size_t length =
        operand->op.ptr.rowLength != 0 ? operand->op.ptr.rowLength : copy->extent.width;
    const size_t lines =
        operand->op.ptr.layerHeight != 0 ? operand->op.ptr.layerHeight : copy->extent.height;
    const size_t pitch = in_bytes(length, element);
    return (struct ms_side){.type = CU_MEMORYTYPE_UNIFIED,
                            .begin = operand->op.ptr.ptr,
                            .pitch = pitch,
                            .slice = pitch * lines};
}

/* A copy from or to an array is not modelled. */
static struct ms_movement movement_of_op(const CUDA_MEMCPY3D_BATCH_OP *copy, CUstream stream)
{
    const size_t element = element_bytes(copy);
    struct ms_movement movement = {.kind = MS_COPY_UNKNOWN,
                                   .width = in_bytes(copy->extent.width, element),
                                   .height = copy->extent.height,
                                   .depth = copy->extent.depth,
                                   .to = side_of_operand(&copy->dst, copy, element),
                                   .from = side_of_operand(&copy->src, copy, element),
                                   .stream = stream};
    if (movement.to.type == CU_MEMORYTYPE_UNIFIED && movement.from.type == CU_MEMORYTYPE_UNIFIED)
        movement.kind = MS_COPY_BOX;
    return movement;
}

/* Like begin_batch; *bounded_out is a copy of the operations. */
static CUresult begin_boxes(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count, CUstream stream,
                            void **bounded_out)
{
    bool is_held;
    CUresult result = CUDA_SUCCESS;
    *bounded_out = NULL;
    for (size_t i = 0; copies != NULL && i < count; i++) {
        const struct ms_movement movement = movement_of_op(&copies[i], stream);
        const enum ms_verdict verdict = ms_move_begin(&movement, &is_held, &result);
        if (verdict == MS_ANSWERED)
            return result;
        if (verdict == MS_FORWARD)
            continue;
        if (!copy_array(copies, count, sizeof(*copies), bounded_out))
            return CUDA_ERROR_OUT_OF_MEMORY;
        CUDA_MEMCPY3D_BATCH_OP *bounded = *bounded_out;
        bounded[i].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        bounded[i].dst.op.ptr.ptr = MS_NOWHERE;
    }
    return CUDA_SUCCESS;
}

#define BOXES(symbol, default_stream, parameters, arguments, copies, count)           \
    MS_QUICK_COPY(symbol, parameters, arguments)                                      \
    {                                                                                 \
        void *bounded;                                                                \
        CUresult result =                                                             \
            begin_boxes(copies, count, ms_stream(hStream, default_stream), &bounded); \
        if (bounded != NULL)                                                          \
            copies = bounded;                                                         \
        if (result == CUDA_SUCCESS)                                                   \
            result = MS_REAL(symbol) arguments;                                       \
        ms_heap_free(bounded);                                                        \
        return result;                                                                \
    }
MS_TWINS(_ptsz, BOXES, cuMemcpy3DBatchAsync,
         (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx, unsigned long long flags,
          CUstream hStream),
         (numOps, opList, failIdx, flags, hStream), opList, numOps)
MS_TWINS(_ptsz, BOXES, cuMemcpy3DBatchAsync_v2,
         (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
          CUstream hStream),
         (numOps, opList, flags, hStream), opList, numOps)
MS_TWINS(_ptsz, BOXES, cuMemcpy3DWithAttributesAsync,
         (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream hStream),
         (op, flags, hStream), op, 1)
