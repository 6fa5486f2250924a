/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-ins for cuBLAS and cuBLASLt: products against sums that are made here. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

#define OK(call) CHECK_EQ(call, cudaSuccess)
#define DONE(call) CHECK_EQ(call, CUBLAS_STATUS_SUCCESS)

enum { M = 5, N = 6, K = 7, BATCHES = 3, LEAD = 9 }; /* LEAD: from one column to the next */

static cublasHandle_t handle;

/* Small whole numbers: every order of adding gives the same. */
static float number(size_t i)
{
    return (float)(int)(i * 7 % 11) - 5;
}

static float *device_numbers(size_t count)
{
    float *host = malloc(count * sizeof(*host));
    float *device;
    for (size_t i = 0; i < count; i++)
        host[i] = number(i);
    OK(cudaMalloc((void **)&device, count * sizeof(*host)));
    OK(cudaMemcpy(device, host, count * sizeof(*host), cudaMemcpyHostToDevice));
    free(host);
    return device;
}

/* An element of a matrix of device_numbers, transposed or not. */
static float at(size_t batch, size_t row, size_t column, bool is_transposed)
{
    return number(batch * LEAD * LEAD +
                  (is_transposed ? row * LEAD + column : column * LEAD + row));
}

static float product(size_t batch, size_t row, size_t column, bool a_is, bool b_is)
{
    float sum = 0;
    for (size_t i = 0; i < K; i++)
        sum += at(batch, row, i, a_is) * at(batch, i, column, b_is);
    return sum;
}

static void start(void)
{
    OK(cudaFree(NULL));
    DONE(cublasCreate(&handle));
}

enum way { OF_ANY_TYPE, OF_FLOATS, ONE_BY_ONE, WAYS };

/* c = 2 a b + 3 c */
static void multiply(bool a_is, bool b_is, enum way way)
{
    const cublasOperation_t a_operation = a_is ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b_operation = b_is ? CUBLAS_OP_T : CUBLAS_OP_N;
    const size_t batch_floats = LEAD * LEAD;
    const float alpha = 2, beta = 3;
    static float found[BATCHES * LEAD * LEAD];
    float *a = device_numbers(BATCHES * LEAD * LEAD);
    float *b = device_numbers(BATCHES * LEAD * LEAD);
    float *c = device_numbers(BATCHES * LEAD * LEAD);
    if (way == OF_ANY_TYPE)
        DONE(cublasGemmStridedBatchedEx(handle, a_operation, b_operation, M, N, K, &alpha, a,
                                        CUDA_R_32F, LEAD, LEAD * LEAD, b, CUDA_R_32F, LEAD,
                                        LEAD * LEAD, &beta, c, CUDA_R_32F, LEAD, LEAD * LEAD,
                                        BATCHES, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    if (way == OF_FLOATS)
        DONE(cublasSgemmStridedBatched(handle, a_operation, b_operation, M, N, K, &alpha, a, LEAD,
                                       LEAD * LEAD, b, LEAD, LEAD * LEAD, &beta, c, LEAD,
                                       LEAD * LEAD, BATCHES));
    for (size_t i = 0; way == ONE_BY_ONE && i < BATCHES; i++)
        DONE(cublasSgemm(handle, a_operation, b_operation, M, N, K, &alpha, a + i * batch_floats,
                         LEAD, b + i * batch_floats, LEAD, &beta, c + i * batch_floats, LEAD));
    OK(cudaMemcpy(found, c, sizeof(found), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        const size_t batch = i / (LEAD * LEAD), column = i / LEAD % LEAD, row = i % LEAD;
        const bool is_written = row < M && column < N;
        CHECK_EQ(found[i], is_written ? 2 * product(batch, row, column, a_is, b_is) + 3 * number(i)
                                      : number(i));
    }
}

MS_TEST(batches_of_products)
{
    start();
    for (int i = 0; i < 4 * WAYS; i++)
        multiply((i & 1) != 0, (i & 2) != 0, (enum way)(i / 4));
}

MS_TEST(vectors)
{
    const float alpha = 1, beta = 0;
    float found[2 * LEAD];
    start();
    float *a = device_numbers(LEAD * LEAD);
    float *x = device_numbers(LEAD * 3);
    float *y = device_numbers(2 * LEAD);
    DONE(cublasSgemv(handle, CUBLAS_OP_N, M, K, &alpha, a, LEAD, x, 3, &beta, y, 2));
    OK(cudaMemcpy(found, y, sizeof(found), cudaMemcpyDeviceToHost));
    for (size_t row = 0; row < M; row++) {
        float sum = 0;
        for (size_t i = 0; i < K; i++)
            sum += at(0, row, i, false) * number(3 * i);
        CHECK_EQ(found[2 * row], sum);
        CHECK_EQ(found[2 * row + 1], number(2 * row + 1));
    }
    DONE(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
    DONE(cublasSdot(handle, K, x, 3, a, 1, y));
    OK(cudaMemcpy(found, y, sizeof(float), cudaMemcpyDeviceToHost));
    float sum = 0;
    for (size_t i = 0; i < K; i++)
        sum += number(3 * i) * number(i);
    CHECK_EQ(found[0], sum);
}

/* cublasLtMatmul of a transposed, with a bias for each row and nothing below zero. */
MS_TEST(descriptors)
{
    const float alpha = 1, beta = 0;
    const int32_t transposed = CUBLAS_OP_T, epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, out;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t algorithm;
    int count;
    float found[M * N];
    start();
    float *a = device_numbers(LEAD * LEAD), *b = device_numbers(LEAD * LEAD);
    float *bias = device_numbers(M), *d = device_numbers(M * N);
    DONE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    DONE(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4));
    DONE(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4));
    DONE(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, 8));
    DONE(cublasLtMatrixLayoutCreate(&left, CUDA_R_32F, K, M, LEAD));
    DONE(cublasLtMatrixLayoutCreate(&right, CUDA_R_32F, K, N, LEAD));
    DONE(cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, M, N, M));
    DONE(cublasLtMatmulPreferenceCreate(&preference));
    DONE(cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)handle, operation, left, right, out, out,
                                        preference, 1, &algorithm, &count));
    CHECK_EQ(count, 1);
    DONE(cublasLtMatmul((cublasLtHandle_t)handle, operation, &alpha, a, left, b, right, &beta, d,
                        out, d, out, &algorithm.algo, NULL, 0, NULL));
    OK(cudaMemcpy(found, d, sizeof(found), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < M * N; i++) {
        const float sum = product(0, i % M, i / M, true, false) + number(i % M);
        CHECK_EQ(found[i], sum > 0 ? sum : 0);
    }
    /* Products with scales have no host version. */
    DONE(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a, 8));
    CHECK_EQ(cublasLtMatmul((cublasLtHandle_t)handle, operation, &alpha, a, left, b, right, &beta,
                            d, out, d, out, &algorithm.algo, NULL, 0, NULL),
             CUBLAS_STATUS_NOT_SUPPORTED);
    DONE(cublasLtMatmulPreferenceDestroy(preference));
    DONE(cublasLtMatrixLayoutDestroy(out));
    DONE(cublasLtMatrixLayoutDestroy(right));
    DONE(cublasLtMatrixLayoutDestroy(left));
    DONE(cublasLtMatmulDescDestroy(operation));
    DONE(cublasDestroy(handle));
}

/* As any kernel: what may not be touched is an illegal access. */
MS_TEST(outside_of_memory)
{
    const float one = 1;
    start();
    float *a = device_numbers(LEAD * LEAD);
    DONE(cublasSgemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a, CUDA_R_32F, LEAD, a,
                       CUDA_R_32F, 1 << 22, &one, a, CUDA_R_32F, LEAD));
    CHECK_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}
