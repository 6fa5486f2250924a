/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of copies. A batch that is refused as a whole copies nothing. */
#include "tools/simcuda/driver/newer.h"
#include "tools/simcuda/driver/shape.h"
#include "tools/simcuda/driver/state.h"

/* A batch goes to a stream that the program made, or to its per-thread one. */
static CUresult check_stream(CUstream stream, bool per_thread)
{
    const bool is_legacy = stream == CU_STREAM_LEGACY || (stream == NULL && !per_thread);
    return is_legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static bool is_order(CUmemcpySrcAccessOrder order)
{
    return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
           order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
           order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

static CUresult check_attributes(const CUmemcpyAttributes *attributes, const size_t *starts,
                                 size_t attributes_count, size_t count)
{
    if (attributes == NULL || starts == NULL || attributes_count == 0 || attributes_count > count ||
        starts[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < attributes_count; i++) {
        if (!is_order(attributes[i].srcAccessOrder) || starts[i] >= count ||
            (i > 0 && starts[i] <= starts[i - 1]))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                           CUmemcpyAttributes *attributes, size_t *starts, size_t attributes_count,
                           size_t *failed_out, CUstream stream, bool per_thread)
{
    size_t kind = 0;
    if (failed_out != NULL)
        *failed_out = SIZE_MAX;
    if (to == NULL || from == NULL || sizes == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_stream(stream, per_thread);
    if (result == CUDA_SUCCESS)
        result = check_attributes(attributes, starts, attributes_count, count);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (kind + 1 < attributes_count && starts[kind + 1] == i)
            kind++;
        const struct sim_copy copy = {
            .name = "cuMemcpyBatchAsync",
            .to = {.type = CU_MEMORYTYPE_UNIFIED, .address = to[i]},
            .from = {.type = CU_MEMORYTYPE_UNIFIED, .address = from[i]},
            .width = sizes[i],
            .height = 1,
            .depth = 1,
            .is_async = true,
            .reads_in_order =
                attributes[kind].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL,
        };
        result =
            sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE : sim_copy_submit(&copy, stream, per_thread);
        if (result != CUDA_SUCCESS && failed_out != NULL)
            *failed_out = i;
    }
    return result;
}

SIM_TWINS(cuMemcpyBatchAsync, _ptsz,
          (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
           CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
           CUstream hStream),
          copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream,
                     per_thread))

SIM_TWINS(cuMemcpyBatchAsync_v2, _ptsz,
          (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
           CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream),
          copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream,
                     per_thread))

static CUresult copy_one(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                         CUmemcpyAttributes *attributes, CUstream stream, bool per_thread)
{
    size_t start = 0;
    return copy_batch(&to, &from, &bytes, 1, attributes, &start, 1, NULL, stream, per_thread);
}

SIM_TWINS(cuMemcpyWithAttributesAsync, _ptsz,
          (CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr,
           CUstream hStream),
          copy_one(dst, src, size, attr, hStream, per_thread))

/* --- boxes: extents count elements, which are bytes where no array says otherwise */

static size_t element_bytes(const CUDA_MEMCPY3D_BATCH_OP *op)
{
    struct sim_array_layout layout;
    const CUmemcpy3DOperand *operands[] = {&op->src, &op->dst};
    for (int i = 0; i < 2; i++) {
        if (operands[i]->type == CU_MEMCPY_OPERAND_TYPE_ARRAY &&
            sim_array_get(operands[i]->op.array.array, &layout) == CUDA_SUCCESS)
            return layout.element_bytes;
    }
    return 1;
}

static struct sim_side side_of(const CUmemcpy3DOperand *operand, size_t element,
                               const CUextent3D *extent)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
        return (struct sim_side){
            .type = CU_MEMORYTYPE_ARRAY,
            .array = operand->op.array.array,
            .x_bytes = operand->op.array.offset.x * element,
            .y = operand->op.array.offset.y,
            .z = operand->op.array.offset.z,
        };
    const size_t row = operand->op.ptr.rowLength != 0 ? operand->op.ptr.rowLength : extent->width;
    const size_t rows =
        operand->op.ptr.layerHeight != 0 ? operand->op.ptr.layerHeight : extent->height;
    return (struct sim_side){
        .type = CU_MEMORYTYPE_UNIFIED,
        .device = operand->op.ptr.ptr,
        .pitch = row * element,
        .height = rows,
    };
}

static CUresult copy_op(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream, bool per_thread)
{
    const size_t element = element_bytes(op);
    const struct sim_side to = side_of(&op->dst, element, &op->extent);
    const struct sim_side from = side_of(&op->src, element, &op->extent);
    struct sim_copy copy = {
        .name = "cuMemcpy3DBatchAsync",
        .width = op->extent.width * element,
        .height = op->extent.height,
        .depth = op->extent.depth,
        .is_async = true,
        .reads_in_order = op->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL,
    };
    if (copy.width == 0 || copy.height == 0 || copy.depth == 0 || !is_order(op->srcAccessOrder))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_side_box(&to, copy.width, copy.height, copy.depth, &copy.to);
    if (result == CUDA_SUCCESS)
        result = sim_side_box(&from, copy.width, copy.height, copy.depth, &copy.from);
    return result != CUDA_SUCCESS ? result : sim_copy_submit(&copy, stream, per_thread);
}

static CUresult copy_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed_out,
                           unsigned long long flags, CUstream stream, bool per_thread)
{
    if (failed_out != NULL)
        *failed_out = SIZE_MAX;
    if (count == 0 || ops == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_stream(stream, per_thread);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        result = copy_op(&ops[i], stream, per_thread);
        if (result != CUDA_SUCCESS && failed_out != NULL)
            *failed_out = i;
    }
    return result;
}

SIM_TWINS(cuMemcpy3DBatchAsync, _ptsz,
          (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx, unsigned long long flags,
           CUstream hStream),
          copy_boxes(numOps, opList, failIdx, flags, hStream, per_thread))

SIM_TWINS(cuMemcpy3DBatchAsync_v2, _ptsz,
          (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
           CUstream hStream),
          copy_boxes(numOps, opList, NULL, flags, hStream, per_thread))

SIM_TWINS(cuMemcpy3DWithAttributesAsync, _ptsz,
          (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream hStream),
          copy_boxes(1, op, NULL, flags, hStream, per_thread))
