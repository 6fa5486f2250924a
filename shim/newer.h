/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the entry table has and an older cuda.h does not; 12.4 is the oldest that will do. All of these are sealed: their
 * thunks (trampoline_*.S) hand on any parameters, so the name is enough. Functions with a body need their prototype, and
 * are in every cuda.h from 12.4 on.
 */
#ifndef METASHARD_SHIM_NEWER_H
#define METASHARD_SHIM_NEWER_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define MS_NEWER(symbol) CUresult symbol(void)

#if CUDA_VERSION < 12080
MS_NEWER(cuCheckpointProcessCheckpoint);
MS_NEWER(cuCheckpointProcessLock);
MS_NEWER(cuCheckpointProcessRestore);
MS_NEWER(cuMemBatchDecompressAsync);
MS_NEWER(cuMemBatchDecompressAsync_ptsz);
MS_NEWER(cuMemcpy3DBatchAsync);
MS_NEWER(cuMemcpy3DBatchAsync_ptsz);
MS_NEWER(cuMemcpyBatchAsync);
MS_NEWER(cuMemcpyBatchAsync_ptsz);
MS_NEWER(cuTensorMapEncodeIm2colWide);
#endif

#if CUDA_VERSION < 13000
MS_NEWER(cuMemcpy3DBatchAsync_v2);
MS_NEWER(cuMemcpy3DBatchAsync_v2_ptsz);
MS_NEWER(cuMemcpyBatchAsync_v2);
MS_NEWER(cuMemcpyBatchAsync_v2_ptsz);
#endif

#undef MS_NEWER

#endif
