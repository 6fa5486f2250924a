/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stand-ins for cuBLAS and cuBLASLt, libcublas.so.13 and libcublasLt.so.13: the part of their
 * public interfaces that PyTorch imports, for tests on the simulated driver, where no kernel of
 * theirs runs. Preloaded, their sonames take the place of the real ones.
 *
 * Every product is one launch of one kernel (product.c), whose only parameter is the structure
 * below: so whoever looks at launches finds the addresses within a structure, as in the real
 * libraries. The driver is reached as they reach it: through cuGetProcAddress (driver.c).
 *
 * Sums are made in the order of the elements, in float, or in double for doubles: the same numbers
 * each time, and on every machine with the same arithmetic.
 */
#pragma once

#include <cublas_v2.h>
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum simcublas_epilogue { SIMCUBLAS_PLAIN, SIMCUBLAS_RELU, SIMCUBLAS_GELU };

/* Matrices by columns. If a or b is transposed, memory holds its transpose. */
struct simcublas_matrix {
    CUdeviceptr address;
    int64_t column; /* elements from one to the next */
    int64_t batch;  /* the same of matrices of a batch */
    int32_t type;   /* cudaDataType_t */
    int32_t is_transposed;
};

/* d = epilogue(alpha a b + beta c + bias): a has m rows, b has n columns, k is between. */
struct simcublas_product {
    struct simcublas_matrix a, b, c, d;
    CUdeviceptr bias; /* of the rows of d, of its type; 0: none */
    CUdeviceptr workspace;
    CUdeviceptr alpha_at, beta_at; /* in device memory, of scale_type; 0: what follows */
    double alpha, beta;
    int64_t m, n, k;
    int32_t batches;
    int32_t scale_type; /* cudaDataType_t; that of doubles is in which doubles are added */
    int32_t epilogue;
};

/* Exported by libcublasLt for libcublas. Queues the product. */
cublasStatus_t simcublas_enqueue(const struct simcublas_product *product, cudaStream_t stream);

/* Reads a number at `host`, of a type of scale_type. */
double simcublas_scale(const void *host, cudaDataType_t type);
