/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait for a value in memory, or write one. */
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/calls/move.h"
#include "runtime/calls/pointer.h"
#include "shim/memory_values.h"
#include "shim/quick.h"

/* Above the driver's limit for one call. */
enum { MOST = 256 };

/* Bytes that an operation waits for or writes; 0: another kind. Both have the address in one
 * place. */
static size_t operation_bytes(const CUstreamBatchMemOpParams *operation)
{
    switch ((int)operation->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return sizeof(cuuint32_t);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return sizeof(cuuint64_t);
    default:
        return 0;
    }
}

static bool operation_strays(const CUstreamBatchMemOpParams *operation)
{
    const size_t bytes = operation_bytes(operation);
    return bytes > 0 && ms_pointer_strays(operation->writeValue.address, bytes);
}

CUresult ms_memory_values_bound(const CUstreamBatchMemOpParams *operations, unsigned count,
                                CUstreamBatchMemOpParams **bounded_out)
{
    *bounded_out = NULL;
    for (unsigned i = 0; operations != NULL && count <= MOST && i < count; i++) {
        if (!operation_strays(&operations[i]))
            continue;
        if (*bounded_out == NULL) {
            *bounded_out = ms_heap_alloc(count * sizeof(*operations));
            if (*bounded_out == NULL)
                return CUDA_ERROR_OUT_OF_MEMORY;
            memcpy(*bounded_out, operations, count * sizeof(*operations));
        }
        (*bounded_out)[i].writeValue.address = MS_NOWHERE;
    }
    return CUDA_SUCCESS;
}

#define BATCH(symbol)                                                                          \
    MS_QUICK_COPY(symbol,                                                                      \
                  (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,  \
                   unsigned int flags),                                                        \
                  (stream, count, paramArray, flags))                                          \
    {                                                                                          \
        CUstreamBatchMemOpParams *bounded;                                                     \
        CUresult result = ms_memory_values_bound(paramArray, count, &bounded);                 \
        if (result == CUDA_SUCCESS)                                                            \
            result = ms_move_seal();                                                           \
        if (result == CUDA_SUCCESS)                                                            \
            result =                                                                           \
                MS_REAL(symbol)(stream, count, bounded != NULL ? bounded : paramArray, flags); \
        ms_heap_free(bounded);                                                                 \
        return result;                                                                         \
    }
#define VALUE(symbol, type)                                                                      \
    MS_QUICK_COPY(symbol, (CUstream stream, CUdeviceptr addr, type value, unsigned int flags),   \
                  (stream, addr, value, flags))                                                  \
    {                                                                                            \
        const CUdeviceptr bounded = ms_bounded(addr, sizeof(value));                             \
        const CUresult result = ms_move_seal();                                                  \
        return result != CUDA_SUCCESS ? result : MS_REAL(symbol)(stream, bounded, value, flags); \
    }
#define CALLS(suffix)                               \
    BATCH(cuStreamBatchMemOp##suffix)               \
    VALUE(cuStreamWaitValue32##suffix, cuuint32_t)  \
    VALUE(cuStreamWaitValue64##suffix, cuuint64_t)  \
    VALUE(cuStreamWriteValue32##suffix, cuuint32_t) \
    VALUE(cuStreamWriteValue64##suffix, cuuint64_t)
CALLS()
CALLS(_ptsz)
CALLS(_v2)
CALLS(_v2_ptsz)
