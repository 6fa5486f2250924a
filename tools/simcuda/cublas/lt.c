/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt: descriptors, and the one algorithm that there is. */
#include "tools/simcuda/cublas/product.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Contents of the opaque structures. */
struct layout {
    uint64_t rows, columns;
    int64_t column, batch;
    int32_t type, order, batches;
};

struct operation {
    int32_t compute_type, scale_type, pointer_mode, is_a_transposed, is_b_transposed, epilogue;
    uint64_t bias;
    uint8_t is_scaled;
};

_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "layout");
_Static_assert(sizeof(struct operation) <= sizeof(cublasLtMatmulDescOpaque_t), "operation");

static cublasStatus_t make(void **out, size_t bytes)
{
    *out = calloc(1, bytes);
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

/* --- layouts of matrices */

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t column)
{
    const cublasStatus_t status = make((void **)out, sizeof(**out));
    if (status == CUBLAS_STATUS_SUCCESS)
        *(struct layout *)*out = (struct layout){.rows = rows,
                                                 .columns = columns,
                                                 .column = column,
                                                 .type = (int32_t)type,
                                                 .batches = 1};
    return status;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute that is not known here is not ignored. */
static cublasStatus_t set(void *field, size_t field_bytes, const void *value, size_t bytes,
                          const char *what, int attribute)
{
    if (field == NULL) {
        fprintf(stderr, "cuBLAS stand-in: no attribute %d of %s\n", attribute, what);
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (bytes < field_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, field_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    struct layout *layout = (struct layout *)opaque;
    static const char what[] = "a matrix";
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return set(&layout->type, sizeof(layout->type), value, bytes, what, attribute);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return set(&layout->order, sizeof(layout->order), value, bytes, what, attribute);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set(&layout->rows, sizeof(layout->rows), value, bytes, what, attribute);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(&layout->columns, sizeof(layout->columns), value, bytes, what, attribute);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(&layout->column, sizeof(layout->column), value, bytes, what, attribute);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(&layout->batches, sizeof(layout->batches), value, bytes, what, attribute);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(&layout->batch, sizeof(layout->batch), value, bytes, what, attribute);
    default:
        return set(NULL, 0, value, bytes, what, (int)attribute);
    }
}

/* --- operations */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type)
{
    const cublasStatus_t status = make((void **)out, sizeof(**out));
    if (status == CUBLAS_STATUS_SUCCESS)
        *(struct operation *)*out = (struct operation){.compute_type = (int32_t)compute_type,
                                                       .scale_type = (int32_t)scale_type,
                                                       .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    return status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation)
{
    free(operation);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    struct operation *operation = (struct operation *)opaque;
    int32_t *number = NULL;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        number = &operation->compute_type;
        break;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        number = &operation->scale_type;
        break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        number = &operation->pointer_mode;
        break;
    case CUBLASLT_MATMUL_DESC_TRANSA:
        number = &operation->is_a_transposed;
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        number = &operation->is_b_transposed;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        number = &operation->epilogue;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&operation->bias, sizeof(operation->bias), value, bytes, "", 0);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        operation->is_scaled = 1;
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return CUBLAS_STATUS_SUCCESS;
    default:
        break;
    }
    return set(number, sizeof(*number), value, bytes, "a product", (int)attribute);
}

/* --- preferences, which change nothing here */

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return make((void **)out, sizeof(**out));
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(__attribute__((unused))
                                                    cublasLtMatmulPreference_t preference,
                                                    __attribute__((unused))
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    __attribute__((unused)) const void *value,
                                                    __attribute__((unused)) size_t bytes)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* --- algorithms */

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(__attribute__((unused)) cublasLtHandle_t handle,
                               __attribute__((unused)) cublasLtMatmulDesc_t operation,
                               __attribute__((unused)) cublasLtMatrixLayout_t a,
                               __attribute__((unused)) cublasLtMatrixLayout_t b,
                               __attribute__((unused)) cublasLtMatrixLayout_t c,
                               __attribute__((unused)) cublasLtMatrixLayout_t d,
                               __attribute__((unused)) cublasLtMatmulPreference_t preference,
                               int wanted, cublasLtMatmulHeuristicResult_t *results, int *count)
{
    if (wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(&results[0], 0, sizeof(results[0]));
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(__attribute__((unused)) cublasLtHandle_t handle,
                                      __attribute__((unused)) cublasComputeType_t compute_type,
                                      __attribute__((unused)) cudaDataType_t scale_type,
                                      __attribute__((unused)) cudaDataType_t a,
                                      __attribute__((unused)) cudaDataType_t b,
                                      __attribute__((unused)) cudaDataType_t c,
                                      __attribute__((unused)) cudaDataType_t d,
                                      __attribute__((unused)) int number, cublasLtMatmulAlgo_t *out)
{
    memset(out, 0, sizeof(*out));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       __attribute__((unused))
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    int count;
    return cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, d, NULL, 1, result, &count);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(__attribute__((unused))
                                                    cublasLtMatmulAlgo_t *algorithm,
                                                    __attribute__((unused))
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    __attribute__((unused)) const void *value,
                                                    __attribute__((unused)) size_t bytes)
{
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(__attribute__((unused))
                                                    const cublasLtMatmulAlgo_t *algorithm,
                                                    __attribute__((unused))
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    __attribute__((unused)) void *value,
                                                    __attribute__((unused)) size_t bytes,
                                                    __attribute__((unused)) size_t *written)
{
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* --- the product */

static struct simcublas_matrix matrix_of(const void *address, const struct layout *layout,
                                         bool is_transposed)
{
    return (struct simcublas_matrix){.address = (CUdeviceptr)(uintptr_t)address,
                                     .column = layout->column,
                                     .batch = layout->batches > 1 ? layout->batch : 0,
                                     .type = layout->type,
                                     .is_transposed = is_transposed};
}

static bool set_epilogue(struct simcublas_product *product, const struct operation *operation)
{
    const int32_t plain = operation->epilogue & ~CUBLASLT_EPILOGUE_BIAS;
    if ((operation->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0)
        product->bias = operation->bias;
    product->epilogue = plain == CUBLASLT_EPILOGUE_RELU   ? SIMCUBLAS_RELU
                        : plain == CUBLASLT_EPILOGUE_GELU ? SIMCUBLAS_GELU
                                                          : SIMCUBLAS_PLAIN;
    return product->epilogue != SIMCUBLAS_PLAIN || plain == 0 || plain == CUBLASLT_EPILOGUE_DEFAULT;
}

/* Products of eight-bit numbers have scales, and no host version: where nothing is computed. */
static bool can_be_left(const struct operation *operation)
{
    const char *dry = getenv("SIMCUDA_DRY");
    return !operation->is_scaled || (dry != NULL && strcmp(dry, "1") == 0);
}

cublasStatus_t
cublasLtMatmul(__attribute__((unused)) cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque,
               const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
               cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
               cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
               __attribute__((unused)) const cublasLtMatmulAlgo_t *algorithm, void *workspace,
               __attribute__((unused)) size_t workspace_bytes, cudaStream_t stream)
{
    const struct operation *operation = (const struct operation *)opaque;
    const struct layout *left = (const struct layout *)a_layout;
    const struct layout *out = (const struct layout *)d_layout;
    struct simcublas_product product = {
        .a = matrix_of(a, left, operation->is_a_transposed != CUBLAS_OP_N),
        .b = matrix_of(b, (const struct layout *)b_layout,
                       operation->is_b_transposed != CUBLAS_OP_N),
        .c = matrix_of(c, (const struct layout *)c_layout, false),
        .d = matrix_of(d, out, false),
        .workspace = (CUdeviceptr)(uintptr_t)workspace,
        .m = (int64_t)out->rows,
        .n = (int64_t)out->columns,
        .k = (int64_t)(operation->is_a_transposed != CUBLAS_OP_N ? left->rows : left->columns),
        .batches = out->batches,
        .scale_type = operation->scale_type};
    if (!set_epilogue(&product, operation) || out->order != CUBLASLT_ORDER_COL ||
        !can_be_left(operation))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (operation->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        product.alpha_at = (CUdeviceptr)(uintptr_t)alpha;
        product.beta_at = (CUdeviceptr)(uintptr_t)beta;
    } else {
        product.alpha = simcublas_scale(alpha, (cudaDataType_t)operation->scale_type);
        product.beta = simcublas_scale(beta, (cudaDataType_t)operation->scale_type);
    }
    return simcublas_enqueue(&product, stream);
}
