/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS: handles and products. Vectors are matrices of one row. */
#include "tools/simcuda/cublas/product.h"

#include <stdlib.h>

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t pointer_mode;
    cublasMath_t math_mode;
    CUdeviceptr workspace;
};

/* --- handles */

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* As documented, the workspace is the default one again. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                     __attribute__((unused)) size_t bytes)
{
    handle->workspace = (CUdeviceptr)(uintptr_t)workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode)
{
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    *mode = handle->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    handle->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetSmCountTarget(__attribute__((unused)) cublasHandle_t handle,
                                      __attribute__((unused)) int count)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* --- products */

static struct simcublas_matrix matrix(const void *address, cudaDataType_t type,
                                      cublasOperation_t operation, int64_t column, int64_t batch)
{
    return (struct simcublas_matrix){.address = (CUdeviceptr)(uintptr_t)address,
                                     .column = column,
                                     .batch = batch,
                                     .type = (int32_t)type,
                                     .is_transposed = operation != CUBLAS_OP_N};
}

/* c is d as well. */
static cublasStatus_t multiply(cublasHandle_t handle, struct simcublas_product *product,
                               cudaDataType_t scale_type, const void *alpha, const void *beta)
{
    product->c = product->d;
    product->scale_type = (int32_t)scale_type;
    product->workspace = handle->workspace;
    if (handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE) {
        product->alpha_at = (CUdeviceptr)(uintptr_t)alpha;
        product->beta_at = (CUdeviceptr)(uintptr_t)beta;
    } else {
        product->alpha = simcublas_scale(alpha, scale_type);
        product->beta = simcublas_scale(beta, scale_type);
    }
    return simcublas_enqueue(product, handle->stream);
}

static cudaDataType_t scale_type_of(cublasComputeType_t type)
{
    switch (type) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
        return CUDA_R_64F;
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
        return CUDA_R_16F;
    default:
        return CUDA_R_32F;
    }
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_operation,
                                          cublasOperation_t b_operation, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int a_column, long long int a_batch, const void *b,
                                          cudaDataType b_type, int b_column, long long int b_batch,
                                          const void *beta, void *c, cudaDataType c_type,
                                          int c_column, long long int c_batch, int batches,
                                          cublasComputeType_t compute_type,
                                          __attribute__((unused)) cublasGemmAlgo_t algorithm)
{
    struct simcublas_product product = {.a = matrix(a, a_type, a_operation, a_column, a_batch),
                                        .b = matrix(b, b_type, b_operation, b_column, b_batch),
                                        .d = matrix(c, c_type, CUBLAS_OP_N, c_column, c_batch),
                                        .m = m,
                                        .n = n,
                                        .k = k,
                                        .batches = batches};
    return multiply(handle, &product, scale_type_of(compute_type), alpha, beta);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_operation,
                            cublasOperation_t b_operation, int m, int n, int k, const void *alpha,
                            const void *a, cudaDataType a_type, int a_column, const void *b,
                            cudaDataType b_type, int b_column, const void *beta, void *c,
                            cudaDataType c_type, int c_column, cublasComputeType_t compute_type,
                            cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx(handle, a_operation, b_operation, m, n, k, alpha, a, a_type,
                                      a_column, 0, b, b_type, b_column, 0, beta, c, c_type,
                                      c_column, 0, 1, compute_type, algorithm);
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t a_operation,
                             cublasOperation_t b_operation, int m, int n, int k, const float *alpha,
                             const void *a, cudaDataType a_type, int a_column, const void *b,
                             cudaDataType b_type, int b_column, const float *beta, void *c,
                             cudaDataType c_type, int c_column)
{
    return cublasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, a_type, a_column, b,
                        b_type, b_column, beta, c, c_type, c_column, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT);
}

#define GEMM(letter, number, type, compute)                                                      \
    cublasStatus_t cublas##letter##gemm_v2(cublasHandle_t handle, cublasOperation_t a_operation, \
                                           cublasOperation_t b_operation, int m, int n, int k,   \
                                           const number *alpha, const number *a, int a_column,   \
                                           const number *b, int b_column, const number *beta,    \
                                           number *c, int c_column)                              \
    {                                                                                            \
        return cublasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, type, a_column, \
                            b, type, b_column, beta, c, type, c_column, compute,                 \
                            CUBLAS_GEMM_DEFAULT);                                                \
    }                                                                                            \
                                                                                                 \
    cublasStatus_t cublas##letter##gemmStridedBatched(                                           \
        cublasHandle_t handle, cublasOperation_t a_operation, cublasOperation_t b_operation,     \
        int m, int n, int k, const number *alpha, const number *a, int a_column,                 \
        long long int a_batch, const number *b, int b_column, long long int b_batch,             \
        const number *beta, number *c, int c_column, long long int c_batch, int batches)         \
    {                                                                                            \
        return cublasGemmStridedBatchedEx(handle, a_operation, b_operation, m, n, k, alpha, a,   \
                                          type, a_column, a_batch, b, type, b_column, b_batch,   \
                                          beta, c, type, c_column, c_batch, batches, compute,    \
                                          CUBLAS_GEMM_DEFAULT);                                  \
    }

GEMM(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
GEMM(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)

/* y, a row, is x, a row, times a transposed. */
static cublasStatus_t multiply_vector(cublasHandle_t handle, cudaDataType_t type,
                                      cublasOperation_t operation, int m, int n, const void *alpha,
                                      const void *a, int a_column, const void *x, int x_step,
                                      const void *beta, void *y, int y_step)
{
    const bool is_plain = operation == CUBLAS_OP_N;
    struct simcublas_product product = {.a = matrix(x, type, CUBLAS_OP_N, x_step, 0),
                                        .b = matrix(a, type, is_plain ? CUBLAS_OP_T : CUBLAS_OP_N,
                                                    a_column, 0),
                                        .d = matrix(y, type, CUBLAS_OP_N, y_step, 0),
                                        .m = 1,
                                        .n = is_plain ? m : n,
                                        .k = is_plain ? n : m,
                                        .batches = 1};
    return multiply(handle, &product, type, alpha, beta);
}

cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t operation, int m, int n,
                              const float *alpha, const float *a, int a_column, const float *x,
                              int x_step, const float *beta, float *y, int y_step)
{
    return multiply_vector(handle, CUDA_R_32F, operation, m, n, alpha, a, a_column, x, x_step, beta,
                           y, y_step);
}

cublasStatus_t cublasDgemv_v2(cublasHandle_t handle, cublasOperation_t operation, int m, int n,
                              const double *alpha, const double *a, int a_column, const double *x,
                              int x_step, const double *beta, double *y, int y_step)
{
    return multiply_vector(handle, CUDA_R_64F, operation, m, n, alpha, a, a_column, x, x_step, beta,
                           y, y_step);
}

/* A row times a column; the result stays on the device. */
cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void *x, cudaDataType x_type,
                           int x_step, const void *y, cudaDataType y_type, int y_step, void *result,
                           cudaDataType result_type, cudaDataType execution_type)
{
    if (handle->pointer_mode != CUBLAS_POINTER_MODE_DEVICE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct simcublas_product product = {.a = matrix(x, x_type, CUBLAS_OP_N, x_step, 0),
                                        .b = matrix(y, y_type, CUBLAS_OP_T, y_step, 0),
                                        .c = matrix(result, result_type, CUBLAS_OP_N, 1, 0),
                                        .d = matrix(result, result_type, CUBLAS_OP_N, 1, 0),
                                        .workspace = handle->workspace,
                                        .alpha = 1,
                                        .m = 1,
                                        .n = 1,
                                        .k = n,
                                        .batches = 1,
                                        .scale_type = (int32_t)execution_type};
    return simcublas_enqueue(&product, handle->stream);
}

cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, const float *x, int x_step,
                             const float *y, int y_step, float *result)
{
    return cublasDotEx(handle, n, x, CUDA_R_32F, x_step, y, CUDA_R_32F, y_step, result, CUDA_R_32F,
                       CUDA_R_32F);
}

cublasStatus_t cublasDdot_v2(cublasHandle_t handle, int n, const double *x, int x_step,
                             const double *y, int y_step, double *result)
{
    return cublasDotEx(handle, n, x, CUDA_R_64F, x_step, y, CUDA_R_64F, y_step, result, CUDA_R_64F,
                       CUDA_R_64F);
}
