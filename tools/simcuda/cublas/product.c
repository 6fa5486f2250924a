/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel: operands are brought into the order in which they are used, in the type in which they
 * are added, and four columns of the result are made at a time. */
#include "tools/simcuda/cublas/product.h"
#include "tools/simcuda/torch/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static enum host_type type_of(int32_t type)
{
    switch (type) {
    case CUDA_R_32F:
        return HOST_FLOAT;
    case CUDA_R_64F:
        return HOST_DOUBLE;
    case CUDA_R_16F:
        return HOST_HALF;
    case CUDA_R_16BF:
        return HOST_BFLOAT16;
    default:
        return HOST_NONE;
    }
}

double simcublas_scale(const void *host, cudaDataType_t type)
{
    return host == NULL ? 0 : host_load(host, type_of((int32_t)type));
}

/* out (m rows, n columns) is the product of a (m rows) and b (k rows); all by columns. */
#define DEFINE_MULTIPLY(type)                                                         \
    static void multiply_##type(size_t m, size_t n, size_t k, const type *restrict a, \
                                const type *restrict b, type *restrict out)           \
    {                                                                                 \
        memset(out, 0, m *n * sizeof(*out));                                          \
        for (size_t column = 0; column < n; column += 4) {                            \
            const size_t left = n - column < 4 ? n - column : 4;                      \
            type *restrict sums = out + column * m;                                   \
            for (size_t between = 0; between < k; between++) {                        \
                const type *restrict from = a + between * m;                          \
                type by[4] = {0};                                                     \
                for (size_t i = 0; i < left; i++)                                     \
                    by[i] = b[(column + i) * k + between];                            \
                for (size_t row = 0; left == 4 && row < m; row++) {                   \
                    sums[row] += from[row] * by[0];                                   \
                    sums[row + m] += from[row] * by[1];                               \
                    sums[row + 2 * m] += from[row] * by[2];                           \
                    sums[row + 3 * m] += from[row] * by[3];                           \
                }                                                                     \
                for (size_t i = 0; left < 4 && i < left; i++) {                       \
                    for (size_t row = 0; row < m; row++)                              \
                        sums[i * m + row] += from[row] * by[i];                       \
                }                                                                     \
            }                                                                         \
        }                                                                             \
    }
DEFINE_MULTIPLY(float)
DEFINE_MULTIPLY(double)

/* One operand while the kernel runs. */
struct operand {
    const struct simcublas_matrix *matrix;
    enum host_type type;
    size_t rows, columns; /* in memory */
    unsigned char *data;
};

static bool touch(const struct simcuda_launch *launch, struct operand *operand,
                  const struct simcublas_matrix *matrix, int64_t rows, int64_t columns,
                  int32_t batches)
{
    operand->matrix = matrix;
    operand->type = type_of(matrix->type);
    operand->rows = (size_t)(matrix->is_transposed ? columns : rows);
    operand->columns = (size_t)(matrix->is_transposed ? rows : columns);
    if (operand->rows == 0 || operand->columns == 0)
        return true;
    const size_t last =
        (size_t)((int64_t)(operand->columns - 1) * matrix->column + (batches - 1) * matrix->batch) +
        operand->rows;
    operand->data = launch->touch(launch, matrix->address, last * host_size(operand->type));
    return operand->data != NULL;
}

/* By columns, as it is used; in float or in double. */
static void *pack(const struct operand *operand, int32_t batch, bool is_double)
{
    const size_t size = host_size(operand->type);
    const size_t used_rows = operand->matrix->is_transposed ? operand->columns : operand->rows;
    void *packed = malloc(operand->rows * operand->columns * sizeof(double) + 1);
    if (packed == NULL)
        abort();
    for (size_t column = 0; column < operand->columns; column++) {
        const unsigned char *from =
            operand->data +
            (size_t)(batch * operand->matrix->batch + (int64_t)column * operand->matrix->column) *
                size;
        for (size_t row = 0; row < operand->rows; row++) {
            const size_t to = operand->matrix->is_transposed ? row * used_rows + column
                                                             : column * used_rows + row;
            const double value = host_load(from + row * size, operand->type);
            if (is_double)
                ((double *)packed)[to] = value;
            else
                ((float *)packed)[to] = (float)value;
        }
    }
    return packed;
}

static double finish(int32_t epilogue, double value)
{
    if (epilogue == SIMCUBLAS_RELU)
        return value > 0 ? value : 0;
    if (epilogue == SIMCUBLAS_GELU)
        return 0.5 * value *
               (1 + tanh(0.79788456080286536 * (value + 0.044715 * value * value * value)));
    return value;
}

/* Reads a scale that the program left in memory; address 0: the call gave the value. */
static bool read_scale(const struct simcuda_launch *launch, CUdeviceptr address, int32_t type,
                       double *scale)
{
    if (address == 0)
        return true;
    const void *place = launch->touch(launch, address, host_size(type_of(type)));
    if (place != NULL)
        *scale = host_load(place, type_of(type));
    return place != NULL;
}

struct result {
    struct operand c, d;
    const unsigned char *bias;
    double alpha, beta;
};

static void store(const struct simcublas_product *product, const struct result *result,
                  int32_t batch, const void *sums, bool is_double)
{
    const size_t m = (size_t)product->m;
    const size_t d_size = host_size(result->d.type);
    const size_t c_size = host_size(result->c.type);
    for (size_t i = 0; i < m * (size_t)product->n; i++) {
        const int64_t row = (int64_t)(i % m);
        const int64_t column = (int64_t)(i / m);
        double value = result->alpha *
                       (is_double ? ((const double *)sums)[i] : (double)((const float *)sums)[i]);
        if (result->beta != 0)
            value += result->beta *
                     host_load(result->c.data + (size_t)(batch * product->c.batch +
                                                         column * product->c.column + row) *
                                                    c_size,
                               result->c.type);
        if (result->bias != NULL)
            value += host_load(result->bias + (size_t)row * d_size, result->d.type);
        host_store(result->d.data +
                       (size_t)(batch * product->d.batch + column * product->d.column + row) *
                           d_size,
                   result->d.type, finish(product->epilogue, value));
    }
}

static bool prepare(const struct simcuda_launch *launch, const struct simcublas_product *product,
                    struct operand *a, struct operand *b, struct result *result)
{
    *result = (struct result){.alpha = product->alpha, .beta = product->beta};
    if (!read_scale(launch, product->alpha_at, product->scale_type, &result->alpha) ||
        !read_scale(launch, product->beta_at, product->scale_type, &result->beta) ||
        !touch(launch, a, &product->a, product->m, product->k, product->batches) ||
        !touch(launch, b, &product->b, product->k, product->n, product->batches) ||
        !touch(launch, &result->d, &product->d, product->m, product->n, product->batches) ||
        (result->beta != 0 &&
         !touch(launch, &result->c, &product->c, product->m, product->n, product->batches)))
        return false;
    if (product->bias != 0)
        result->bias =
            launch->touch(launch, product->bias, (size_t)product->m * host_size(result->d.type));
    return product->bias == 0 || result->bias != NULL;
}

SIMCUDA_KERNEL(simcublas_product)
{
    const struct simcublas_product *product = args[0];
    const bool is_double = product->scale_type == CUDA_R_64F;
    const size_t m = (size_t)product->m, n = (size_t)product->n, k = (size_t)product->k;
    struct operand a = {0}, b = {0};
    struct result result;
    if (!prepare(launch, product, &a, &b, &result))
        return;
    void *sums = malloc(m * n * sizeof(double));
    if (sums == NULL)
        abort();
    for (int32_t batch = 0; batch < product->batches; batch++) {
        void *left = pack(&a, batch, is_double);
        void *right = pack(&b, batch, is_double);
        if (is_double)
            multiply_double(m, n, k, left, right, sums);
        else
            multiply_float(m, n, k, left, right, sums);
        store(product, &result, batch, sums, is_double);
        free(left);
        free(right);
    }
    free(sums);
}
SIMCUDA_PARAMS(simcublas_product, {0, sizeof(struct simcublas_product)});
