/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that PyTorch links with and no test needs: each says so, and fails. */
#include <stdio.h>

#define ABSENT(name)                                                      \
    int name(void);                                                       \
    int name(void)                                                        \
    {                                                                     \
        fputs("cuBLAS stand-in: " #name " is not implemented\n", stderr); \
        return 15; /* CUBLAS_STATUS_NOT_SUPPORTED */                      \
    }

ABSENT(cublasCdotc_v2)
ABSENT(cublasCdotu_v2)
ABSENT(cublasCgelsBatched)
ABSENT(cublasCgemmStridedBatched)
ABSENT(cublasCgemm_v2)
ABSENT(cublasCgemv_v2)
ABSENT(cublasCgeqrfBatched)
ABSENT(cublasCgetrfBatched)
ABSENT(cublasCgetrsBatched)
ABSENT(cublasCtrsmBatched)
ABSENT(cublasCtrsm_v2)
ABSENT(cublasDgelsBatched)
ABSENT(cublasDgeqrfBatched)
ABSENT(cublasDgetrfBatched)
ABSENT(cublasDgetrsBatched)
ABSENT(cublasDtrsmBatched)
ABSENT(cublasDtrsm_v2)
ABSENT(cublasSgelsBatched)
ABSENT(cublasSgeqrfBatched)
ABSENT(cublasSgetrfBatched)
ABSENT(cublasSgetrsBatched)
ABSENT(cublasStrsmBatched)
ABSENT(cublasStrsm_v2)
ABSENT(cublasZdotc_v2)
ABSENT(cublasZdotu_v2)
ABSENT(cublasZgelsBatched)
ABSENT(cublasZgemmStridedBatched)
ABSENT(cublasZgemm_v2)
ABSENT(cublasZgemv_v2)
ABSENT(cublasZgeqrfBatched)
ABSENT(cublasZgetrfBatched)
ABSENT(cublasZgetrsBatched)
ABSENT(cublasZtrsmBatched)
ABSENT(cublasZtrsm_v2)
