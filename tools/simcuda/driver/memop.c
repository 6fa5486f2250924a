/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait for a value in memory, or write one. */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT_MAX = 256, WAIT_KIND = 3 };

struct memop_work {
    struct sim_work work;
    unsigned count;
    CUstreamBatchMemOpParams ops[];
};

/* Reads under the lock, so that the memory cannot go meanwhile. */
static bool read_value(CUdeviceptr address, size_t bytes, uint64_t *value_out)
{
    pthread_mutex_lock(&sim_lock);
    const bool can = sim_can_touch_locked(-1, address, bytes, false);
    if (!can)
        sim_fault_locked(address, bytes, "cuStreamWaitValue");
    else if (bytes == sizeof(uint32_t))
        *value_out = __atomic_load_n((const uint32_t *)address, __ATOMIC_ACQUIRE);
    else
        *value_out = __atomic_load_n((const uint64_t *)address, __ATOMIC_ACQUIRE);
    pthread_mutex_unlock(&sim_lock);
    return can;
}

static bool is_satisfied(uint64_t seen, uint64_t wanted, unsigned kind, size_t bytes)
{
    const uint64_t mask = bytes == sizeof(uint32_t) ? UINT32_MAX : UINT64_MAX;
    const uint64_t sign = (mask >> 1) + 1;
    switch (kind) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return ((seen - wanted) & sign) == 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return ((seen ^ wanted) & mask) == 0;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & wanted & mask) != 0;
    default:
        return (~(seen | wanted) & mask) != 0;
    }
}

static void wait_for_value(const CUstreamBatchMemOpParams *op, size_t bytes)
{
    const struct timespec pause = {0, 20000};
    uint64_t seen = 0;
    while (read_value(op->waitValue.address, bytes, &seen) &&
           !is_satisfied(seen, op->waitValue.value64, op->waitValue.flags & WAIT_KIND, bytes) &&
           sim_sticky_error() == CUDA_SUCCESS && !sim_streams_are_stopping())
        nanosleep(&pause, NULL);
}

static void write_value(const CUstreamBatchMemOpParams *op, size_t bytes)
{
    const CUdeviceptr address = op->writeValue.address;
    pthread_mutex_lock(&sim_lock);
    if (!sim_can_touch_locked(-1, address, bytes, true))
        sim_fault_locked(address, bytes, "cuStreamWriteValue");
    else if (bytes == sizeof(uint32_t))
        __atomic_store_n((uint32_t *)address, op->writeValue.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)address, op->writeValue.value64, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&sim_lock);
}

static void run(struct sim_work *work)
{
    const struct memop_work *job = (struct memop_work *)work;
    for (unsigned i = 0; i < job->count && sim_sticky_error() == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *op = &job->ops[i];
        if (op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32)
            wait_for_value(op, sizeof(uint32_t));
        else if (op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            wait_for_value(op, sizeof(uint64_t));
        else if (op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
            write_value(op, sizeof(uint32_t));
        else if (op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            write_value(op, sizeof(uint64_t));
    }
}

static CUresult check_address(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(address);
    const bool is_inside = memory != NULL && !memory->freeing &&
                           bytes <= memory->region.bytes - (address - memory->region.begin);
    pthread_mutex_unlock(&sim_lock);
    return is_inside && address % bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check(const CUstreamBatchMemOpParams *op)
{
    const unsigned wait_flags = op->waitValue.flags & ~(unsigned)WAIT_KIND;
    switch ((int)op->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        /* CU_STREAM_WAIT_VALUE_FLUSH is for devices that can flush remote writes; ours cannot. */
        if (wait_flags != 0)
            return wait_flags == CU_STREAM_WAIT_VALUE_FLUSH ? CUDA_ERROR_NOT_SUPPORTED
                                                            : CUDA_ERROR_INVALID_VALUE;
        return check_address(op->waitValue.address,
                             op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if ((op->writeValue.flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        return check_address(op->writeValue.address,
                             op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8);
    case CU_STREAM_MEM_OP_BARRIER:
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_memop_make(const CUstreamBatchMemOpParams *ops, unsigned count, unsigned flags,
                        struct sim_work **work_out)
{
    if (count == 0 || count > COUNT_MAX || ops == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        const CUresult result = check(&ops[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    struct memop_work *job = sim_zalloc(sizeof(*job) + count * sizeof(ops[0]));
    job->work.run = run;
    job->work.name = "cuStreamBatchMemOp";
    job->work.may_wait = true;
    job->count = count;
    memcpy(job->ops, ops, count * sizeof(ops[0]));
    *work_out = &job->work;
    return CUDA_SUCCESS;
}

static CUresult batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *ops,
                      unsigned flags, bool per_thread)
{
    struct sim_work *work;
    const CUresult result = sim_memop_make(ops, count, flags, &work);
    return result == CUDA_SUCCESS ? sim_stream_submit(stream, per_thread, work) : result;
}

static CUresult wait_one(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags,
                         CUstreamBatchMemOpType operation, bool per_thread)
{
    CUstreamBatchMemOpParams op = {
        .waitValue = {.operation = operation, .address = address, .flags = flags}};
    op.waitValue.value64 = value;
    return batch(stream, 1, &op, 0, per_thread);
}

static CUresult write_one(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags,
                          CUstreamBatchMemOpType operation, bool per_thread)
{
    CUstreamBatchMemOpParams op = {
        .writeValue = {.operation = operation, .address = address, .flags = flags}};
    op.writeValue.value64 = value;
    return batch(stream, 1, &op, 0, per_thread);
}

/* The five calls of one ABI; the first one (CUDA 8) and the second differ in name only here. */
#define CALLS(suffix, is_per_thread)                                                              \
    CUresult cuStreamWaitValue32##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value,     \
                                         unsigned int flags)                                      \
    {                                                                                             \
        SIM_ENTER(cuStreamWaitValue32##suffix);                                                   \
        return wait_one(stream, addr, value, flags, CU_STREAM_MEM_OP_WAIT_VALUE_32,               \
                        is_per_thread);                                                           \
    }                                                                                             \
    CUresult cuStreamWaitValue64##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value,     \
                                         unsigned int flags)                                      \
    {                                                                                             \
        SIM_ENTER(cuStreamWaitValue64##suffix);                                                   \
        return wait_one(stream, addr, value, flags, CU_STREAM_MEM_OP_WAIT_VALUE_64,               \
                        is_per_thread);                                                           \
    }                                                                                             \
    CUresult cuStreamWriteValue32##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value,    \
                                          unsigned int flags)                                     \
    {                                                                                             \
        SIM_ENTER(cuStreamWriteValue32##suffix);                                                  \
        return write_one(stream, addr, value, flags, CU_STREAM_MEM_OP_WRITE_VALUE_32,             \
                         is_per_thread);                                                          \
    }                                                                                             \
    CUresult cuStreamWriteValue64##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value,    \
                                          unsigned int flags)                                     \
    {                                                                                             \
        SIM_ENTER(cuStreamWriteValue64##suffix);                                                  \
        return write_one(stream, addr, value, flags, CU_STREAM_MEM_OP_WRITE_VALUE_64,             \
                         is_per_thread);                                                          \
    }                                                                                             \
    CUresult cuStreamBatchMemOp##suffix(CUstream stream, unsigned int count,                      \
                                        CUstreamBatchMemOpParams *paramArray, unsigned int flags) \
    {                                                                                             \
        SIM_ENTER(cuStreamBatchMemOp##suffix);                                                    \
        return batch(stream, count, paramArray, flags, is_per_thread);                            \
    }

CALLS(, false)
CALLS(_ptsz, true)
CALLS(_v2, false)
CALLS(_v2_ptsz, true)
