/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NCCL's interface that the shim hooks: types and prototypes of nccl.h (NCCL 2.18 to
 * 2.32), so that building needs no NCCL. A test compares them with the real nccl.h if one is
 * installed. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL /* as in entries.h */
#include <cuda.h>
#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct ncclSimInfo_v22200 ncclSimInfo_t;       /* never read */
typedef struct ncclCollConfig_v23200 ncclCollConfig_t; /* never read */
typedef CUstream cudaStream_t;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

/* Enumerations that are only passed on are plain integers here. */
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef int ncclScalarResidence_t;
enum { NCCL_SCALAR_DEVICE = 0 };

/* The struct grows with NCCL. The shim reads only these members, and only if `size` covers them. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
} ncclConfig_t;

/* ncclInt8 to ncclFloat8e5m2, in the order of ncclDataType_t. */
#define MS_NCCL_TYPE_BYTES                 \
    {                                      \
        1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 \
    }
