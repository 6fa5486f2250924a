/* SPDX-License-Identifier: Apache-2.0 */
/* Linear memsets: a fill in the lineage. */
#include "runtime/calls/calls.h"
#include "runtime/driver/flags.h"
#include "shim/quick.h"
#include "shim/stream.h"

/* A memset that runs may write host memory, so it sets the gate. */
#define SET(symbol, kind, type, default_stream)                                                 \
    MS_QUICK_COPY(symbol, kind##_PARAMETERS(CUdeviceptr dstDevice, type value, size_t N),       \
                  kind##_ARGUMENTS(dstDevice, value, N))                                        \
    {                                                                                           \
        CUresult result;                                                                        \
        if (ms_set_strays(dstDevice, N, sizeof(type)))                                          \
            return MS_REAL(symbol) kind##_ARGUMENTS(MS_NOWHERE, value, N);                      \
        if (ms_defers_any() &&                                                                  \
            ms_fill(dstDevice, value, sizeof(type), N, kind##_STREAM(default_stream), &result)) \
            return result;                                                                      \
        ms_order_add_gate();                                                                    \
        return MS_REAL(symbol) kind##_ARGUMENTS(dstDevice, value, N);                           \
    }
SET(cuMemsetD8_v2, SYNC, unsigned char, CU_STREAM_LEGACY)
SET(cuMemsetD8_v2_ptds, SYNC, unsigned char, CU_STREAM_PER_THREAD)
SET(cuMemsetD16_v2, SYNC, unsigned short, CU_STREAM_LEGACY)
SET(cuMemsetD16_v2_ptds, SYNC, unsigned short, CU_STREAM_PER_THREAD)
SET(cuMemsetD32_v2, SYNC, unsigned int, CU_STREAM_LEGACY)
SET(cuMemsetD32_v2_ptds, SYNC, unsigned int, CU_STREAM_PER_THREAD)
SET(cuMemsetD8Async, ASYNC, unsigned char, CU_STREAM_LEGACY)
SET(cuMemsetD8Async_ptsz, ASYNC, unsigned char, CU_STREAM_PER_THREAD)
SET(cuMemsetD16Async, ASYNC, unsigned short, CU_STREAM_LEGACY)
SET(cuMemsetD16Async_ptsz, ASYNC, unsigned short, CU_STREAM_PER_THREAD)
SET(cuMemsetD32Async, ASYNC, unsigned int, CU_STREAM_LEGACY)
SET(cuMemsetD32Async_ptsz, ASYNC, unsigned int, CU_STREAM_PER_THREAD)
