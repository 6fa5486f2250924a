/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of copies. They are not modelled: everything deferred is materialised. A copy that strays
 * (ms_strays) is refused by the driver, which gets MS_NOWHERE as its destination and says which
 * copy it was.
 */
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/calls/calls.h"
#include "runtime/driver/flags.h"
#include "shim/quick.h"
#include "shim/newer.h"

static CUresult seal(void)
{
    ms_order_add_gate();
    return ms_defers_any() ? ms_access_all() : CUDA_SUCCESS;
}

struct batch {
    CUdeviceptr *to, *from;
    size_t *sizes;
    size_t count;
};

static bool copy_strays(const struct batch *batch, size_t i)
{
    return ms_strays(batch->to[i], batch->sizes[i]) || ms_strays(batch->from[i], batch->sizes[i]);
}

/* Copies the destinations, with MS_NOWHERE for those that stray; NULL if none does. */
static CUresult bound(const struct batch *batch, CUdeviceptr **bounded_out)
{
    *bounded_out = NULL;
    if (batch->to == NULL || batch->from == NULL || batch->sizes == NULL)
        return CUDA_SUCCESS;
    for (size_t i = 0; i < batch->count; i++) {
        if (!copy_strays(batch, i))
            continue;
        if (*bounded_out == NULL) {
            *bounded_out = ms_heap_alloc(batch->count * sizeof(*batch->to));
            if (*bounded_out == NULL)
                return CUDA_ERROR_OUT_OF_MEMORY;
            memcpy(*bounded_out, batch->to, batch->count * sizeof(*batch->to));
        }
        (*bounded_out)[i] = MS_NOWHERE;
    }
    return CUDA_SUCCESS;
}

/* For entries with and without failIdx. */
#define UNPACK(...) __VA_ARGS__
#define BATCH(symbol, more_parameters, more)                                                      \
    MS_QUICK_COPY(symbol,                                                                         \
                  (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t * sizes, size_t count,          \
                   CUmemcpyAttributes * attrs, size_t * attrsIdxs, size_t numAttrs,               \
                   UNPACK more_parameters),                                                       \
                  (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, UNPACK more))            \
    {                                                                                             \
        CUdeviceptr *bounded;                                                                     \
        const struct batch batch = {dsts, srcs, sizes, count};                                    \
        CUresult result = bound(&batch, &bounded);                                                \
        if (result == CUDA_SUCCESS)                                                               \
            result = seal();                                                                      \
        if (result == CUDA_SUCCESS)                                                               \
            result = MS_REAL(symbol)(bounded != NULL ? bounded : dsts, srcs, sizes, count, attrs, \
                                     attrsIdxs, numAttrs, UNPACK more);                           \
        ms_heap_free(bounded);                                                                    \
        return result;                                                                            \
    }
BATCH(cuMemcpyBatchAsync, (size_t * failIdx, CUstream hStream), (failIdx, hStream))
BATCH(cuMemcpyBatchAsync_ptsz, (size_t * failIdx, CUstream hStream), (failIdx, hStream))
BATCH(cuMemcpyBatchAsync_v2, (CUstream hStream), (hStream))
BATCH(cuMemcpyBatchAsync_v2_ptsz, (CUstream hStream), (hStream))

/* Counts an element of an array as one byte, because its real size is not looked up. */
static bool operand_strays(const CUmemcpy3DOperand *operand, const CUDA_MEMCPY3D_BATCH_OP *copy)
{
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return false;
    const size_t pitch =
        operand->op.ptr.rowLength != 0 ? operand->op.ptr.rowLength : copy->extent.width;
    const size_t height =
        operand->op.ptr.layerHeight != 0 ? operand->op.ptr.layerHeight : copy->extent.height;
    const struct ms_rows rows = {.begin = operand->op.ptr.ptr,
                                 .width = copy->extent.width,
                                 .height = copy->extent.height,
                                 .depth = copy->extent.depth,
                                 .pitch = pitch,
                                 .slice = pitch * height};
    return ms_rows_stray(&rows);
}

static CUresult bound_3d(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count,
                         CUDA_MEMCPY3D_BATCH_OP **bounded_out)
{
    *bounded_out = NULL;
    for (size_t i = 0; copies != NULL && i < count; i++) {
        if (!operand_strays(&copies[i].dst, &copies[i]) &&
            !operand_strays(&copies[i].src, &copies[i]))
            continue;
        if (*bounded_out == NULL) {
            *bounded_out = ms_heap_alloc(count * sizeof(*copies));
            if (*bounded_out == NULL)
                return CUDA_ERROR_OUT_OF_MEMORY;
            memcpy(*bounded_out, copies, count * sizeof(*copies));
        }
        (*bounded_out)[i].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        (*bounded_out)[i].dst.op.ptr.ptr = MS_NOWHERE;
    }
    return CUDA_SUCCESS;
}

#define BATCH_3D(symbol, more_parameters, more)                                                \
    MS_QUICK_COPY(symbol,                                                                      \
                  (size_t numOps, CUDA_MEMCPY3D_BATCH_OP * opList, UNPACK more_parameters),    \
                  (numOps, opList, UNPACK more))                                               \
    {                                                                                          \
        CUDA_MEMCPY3D_BATCH_OP *bounded;                                                       \
        CUresult result = bound_3d(opList, numOps, &bounded);                                  \
        if (result == CUDA_SUCCESS)                                                            \
            result = seal();                                                                   \
        if (result == CUDA_SUCCESS)                                                            \
            result = MS_REAL(symbol)(numOps, bounded != NULL ? bounded : opList, UNPACK more); \
        ms_heap_free(bounded);                                                                 \
        return result;                                                                         \
    }
BATCH_3D(cuMemcpy3DBatchAsync, (size_t * failIdx, unsigned long long flags, CUstream hStream),
         (failIdx, flags, hStream))
BATCH_3D(cuMemcpy3DBatchAsync_ptsz, (size_t * failIdx, unsigned long long flags, CUstream hStream),
         (failIdx, flags, hStream))
BATCH_3D(cuMemcpy3DBatchAsync_v2, (unsigned long long flags, CUstream hStream), (flags, hStream))
BATCH_3D(cuMemcpy3DBatchAsync_v2_ptsz, (unsigned long long flags, CUstream hStream),
         (flags, hStream))
