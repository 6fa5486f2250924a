/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear copies. The runtime takes those to and within the device; those from the device
 * materialise what they read. Each macro is one entry point of either kind (stream.h); its
 * per-thread twin has the other default stream.
 *
 * A range that strays (ms_strays) is refused by the driver, which gets MS_NOWHERE for it; the other
 * address then does not matter.
 *
 * Whatever the driver queues sets the gate: any of these copies may write host memory, from which a
 * later copy reads, because an address of either side may be one of pinned memory.
 */
#include "runtime/calls/calls.h"
#include "runtime/calls/query.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "shim/quick.h"
#include "shim/stream.h"

#define FROM_HOST(symbol, kind, default_stream)                                                    \
    MS_QUICK_COPY(symbol,                                                                          \
                  kind##_PARAMETERS(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), \
                  kind##_ARGUMENTS(dstDevice, srcHost, ByteCount))                                 \
    {                                                                                              \
        CUresult result;                                                                           \
        if (ms_strays(dstDevice, ByteCount))                                                       \
            return MS_REAL(symbol) kind##_ARGUMENTS(MS_NOWHERE, srcHost, ByteCount);               \
        if (ms_defers_any() &&                                                                     \
            ms_copy_from_host(dstDevice, srcHost, ByteCount, kind##_STREAM(default_stream),        \
                              kind##_WAITS, &result))                                              \
            return result;                                                                         \
        ms_order_add_gate();                                                                       \
        return MS_REAL(symbol) kind##_ARGUMENTS(dstDevice, srcHost, ByteCount);                    \
    }
FROM_HOST(cuMemcpyHtoD_v2, SYNC, CU_STREAM_LEGACY)
FROM_HOST(cuMemcpyHtoD_v2_ptds, SYNC, CU_STREAM_PER_THREAD)
FROM_HOST(cuMemcpyHtoDAsync_v2, ASYNC, CU_STREAM_LEGACY)
FROM_HOST(cuMemcpyHtoDAsync_v2_ptsz, ASYNC, CU_STREAM_PER_THREAD)

/* What a copy within the device reads is held until the driver has the copy. */
#define ON_DEVICE(symbol, kind, default_stream)                                                    \
    MS_QUICK_COPY(                                                                                 \
        symbol, kind##_PARAMETERS(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount), \
        kind##_ARGUMENTS(dstDevice, srcDevice, ByteCount))                                         \
    {                                                                                              \
        CUresult result;                                                                           \
        if (ms_strays(dstDevice, ByteCount) || ms_strays(srcDevice, ByteCount))                    \
            return MS_REAL(symbol) kind##_ARGUMENTS(MS_NOWHERE, srcDevice, ByteCount);             \
        const bool is_looked_at = ms_defers_any();                                                 \
        if (is_looked_at && ms_copy_on_device(dstDevice, srcDevice, ByteCount,                     \
                                              kind##_STREAM(default_stream), &result))             \
            return result;                                                                         \
        ms_order_add_gate();                                                                       \
        result = MS_REAL(symbol) kind##_ARGUMENTS(dstDevice, srcDevice, ByteCount);                \
        if (is_looked_at)                                                                          \
            ms_read_end();                                                                         \
        return result;                                                                             \
    }
ON_DEVICE(cuMemcpyDtoD_v2, SYNC, CU_STREAM_LEGACY)
ON_DEVICE(cuMemcpyDtoD_v2_ptds, SYNC, CU_STREAM_PER_THREAD)
ON_DEVICE(cuMemcpyDtoDAsync_v2, ASYNC, CU_STREAM_LEGACY)
ON_DEVICE(cuMemcpyDtoDAsync_v2_ptsz, ASYNC, CU_STREAM_PER_THREAD)

/* Prepares a host destination that is in an allocation: the driver decides if that is allowed. */
static CUresult prepare_host(const void *destination, size_t bytes)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)destination;
    return ms_is_owned(address) ? ms_access(address, bytes, MS_NEED_READ_WRITE) : CUDA_SUCCESS;
}

#define TO_HOST(symbol, kind, default_stream)                                                \
    MS_QUICK_COPY(symbol,                                                                    \
                  kind##_PARAMETERS(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount), \
                  kind##_ARGUMENTS(dstHost, srcDevice, ByteCount))                           \
    {                                                                                        \
        ms_order_add_gate();                                                                 \
        if (ms_strays(srcDevice, ByteCount))                                                 \
            return MS_REAL(symbol) kind##_ARGUMENTS(dstHost, MS_NOWHERE, ByteCount);         \
        if (!ms_defers_any())                                                                \
            return MS_REAL(symbol) kind##_ARGUMENTS(dstHost, srcDevice, ByteCount);          \
        CUresult result = prepare_host(dstHost, ByteCount);                                  \
        if (result == CUDA_SUCCESS)                                                          \
            result = ms_access_read(srcDevice, ByteCount, kind##_STREAM(default_stream));    \
        if (result == CUDA_SUCCESS) {                                                        \
            result = MS_REAL(symbol) kind##_ARGUMENTS(dstHost, srcDevice, ByteCount);        \
            ms_read_end();                                                                   \
        }                                                                                    \
        return result;                                                                       \
    }
TO_HOST(cuMemcpyDtoH_v2, SYNC, CU_STREAM_LEGACY)
TO_HOST(cuMemcpyDtoH_v2_ptds, SYNC, CU_STREAM_PER_THREAD)
TO_HOST(cuMemcpyDtoHAsync_v2, ASYNC, CU_STREAM_LEGACY)
TO_HOST(cuMemcpyDtoHAsync_v2_ptsz, ASYNC, CU_STREAM_PER_THREAD)

/* cuMemcpy derives the kind of copy from the addresses; so must the shim. */
static bool reads_block(CUdeviceptr destination, CUdeviceptr source)
{
    return ms_defers_any() && ms_is_owned(source) && !ms_is_owned(destination) &&
           !ms_is_device_memory(destination);
}

/* Any copy but from an allocation to the host. *is_held_out: forward it, then call ms_read_end. */
static bool copy_any(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream,
                     bool blocking, bool *is_held_out, CUresult *result_out)
{
    *is_held_out = false;
    if (!ms_defers_any() || bytes == 0)
        return false;
    const bool to_block = ms_is_owned(destination);
    if (ms_is_owned(source) || (to_block && !ms_is_host_memory(source))) {
        *is_held_out = !ms_copy_on_device(destination, source, bytes, stream, result_out);
        return !*is_held_out;
    }
    if (!to_block && !ms_is_device_memory(destination))
        return false;
    if (!ms_is_host_memory(source)) {
        *result_out = ms_access_unowned(source);
        return *result_out != CUDA_SUCCESS;
    }
    return ms_copy_from_host(destination, (const void *)(uintptr_t)source, bytes, stream, blocking,
                             result_out);
}

/* Returns true if the call is answered. */
static bool prepare_any(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream,
                        bool blocking, bool *is_held_out, CUresult *result_out)
{
    if (!reads_block(destination, source))
        return copy_any(destination, source, bytes, stream, blocking, is_held_out, result_out);
    *result_out = ms_access_read(source, bytes, stream);
    *is_held_out = *result_out == CUDA_SUCCESS;
    return !*is_held_out;
}

#define ANY(symbol, kind, default_stream)                                                        \
    MS_QUICK_COPY(symbol, kind##_PARAMETERS(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), \
                  kind##_ARGUMENTS(dst, src, ByteCount))                                         \
    {                                                                                            \
        CUresult result;                                                                         \
        bool is_held;                                                                            \
        if (ms_strays(dst, ByteCount) || ms_strays(src, ByteCount))                              \
            return MS_REAL(symbol) kind##_ARGUMENTS(MS_NOWHERE, src, ByteCount);                 \
        if (prepare_any(dst, src, ByteCount, kind##_STREAM(default_stream), kind##_WAITS,        \
                        &is_held, &result))                                                      \
            return result;                                                                       \
        ms_order_add_gate();                                                                     \
        result = MS_REAL(symbol) kind##_ARGUMENTS(dst, src, ByteCount);                          \
        if (is_held)                                                                             \
            ms_read_end();                                                                       \
        return result;                                                                           \
    }
ANY(cuMemcpy, SYNC, CU_STREAM_LEGACY)
ANY(cuMemcpy_ptds, SYNC, CU_STREAM_PER_THREAD)
ANY(cuMemcpyAsync, ASYNC, CU_STREAM_LEGACY)
ANY(cuMemcpyAsync_ptsz, ASYNC, CU_STREAM_PER_THREAD)
