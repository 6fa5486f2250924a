/* SPDX-License-Identifier: Apache-2.0 */
/* Linear memsets: a fill in the lineage. */
#include "runtime/calls/calls.h"
#include "runtime/driver/flags.h"
#include "shim/entries.h"
#include "shim/stream.h"

/* A memset that runs may write host memory, so it sets the gate. */
#define SET(symbol, type, default_stream)                                        \
    MS_SLOW(symbol, (CUdeviceptr dstDevice, type value, size_t N))               \
    {                                                                            \
        CUresult result;                                                         \
        if (ms_set_strays(dstDevice, N, sizeof(type)))                           \
            return MS_REAL(symbol)(MS_NOWHERE, value, N);                        \
        if (ms_defers_any() &&                                                   \
            ms_fill(dstDevice, value, sizeof(type), N, default_stream, &result)) \
            return result;                                                       \
        ms_order_add_gate();                                                     \
        return MS_REAL(symbol)(dstDevice, value, N);                             \
    }                                                                            \
    MS_QUICK_COPY(symbol, (CUdeviceptr dstDevice, type value, size_t N), (dstDevice, value, N))
SET(cuMemsetD8_v2, unsigned char, CU_STREAM_LEGACY)
SET(cuMemsetD8_v2_ptds, unsigned char, CU_STREAM_PER_THREAD)
SET(cuMemsetD16_v2, unsigned short, CU_STREAM_LEGACY)
SET(cuMemsetD16_v2_ptds, unsigned short, CU_STREAM_PER_THREAD)
SET(cuMemsetD32_v2, unsigned int, CU_STREAM_LEGACY)
SET(cuMemsetD32_v2_ptds, unsigned int, CU_STREAM_PER_THREAD)

#define SET_ASYNC(symbol, type, default_stream)                                            \
    MS_SLOW(symbol, (CUdeviceptr dstDevice, type value, size_t N, CUstream hStream))       \
    {                                                                                      \
        CUresult result;                                                                   \
        if (ms_set_strays(dstDevice, N, sizeof(type)))                                     \
            return MS_REAL(symbol)(MS_NOWHERE, value, N, hStream);                         \
        if (ms_defers_any() && ms_fill(dstDevice, value, sizeof(type), N,                  \
                                       ms_stream(hStream, default_stream), &result))       \
            return result;                                                                 \
        ms_order_add_gate();                                                               \
        return MS_REAL(symbol)(dstDevice, value, N, hStream);                              \
    }                                                                                      \
    MS_QUICK_COPY(symbol, (CUdeviceptr dstDevice, type value, size_t N, CUstream hStream), \
                  (dstDevice, value, N, hStream))
SET_ASYNC(cuMemsetD8Async, unsigned char, CU_STREAM_LEGACY)
SET_ASYNC(cuMemsetD8Async_ptsz, unsigned char, CU_STREAM_PER_THREAD)
SET_ASYNC(cuMemsetD16Async, unsigned short, CU_STREAM_LEGACY)
SET_ASYNC(cuMemsetD16Async_ptsz, unsigned short, CU_STREAM_PER_THREAD)
SET_ASYNC(cuMemsetD32Async, unsigned int, CU_STREAM_LEGACY)
SET_ASYNC(cuMemsetD32Async_ptsz, unsigned int, CU_STREAM_PER_THREAD)
