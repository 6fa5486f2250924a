/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/materialise.h"

#include "runtime/base/log.h"
#include "runtime/diag/counters.h"
#include "runtime/machine/play.h"

static CUresult play_range(struct ms_block *block, size_t begin, size_t end)
{
    if (block->lineage.deferred_bytes == 0)
        return CUDA_SUCCESS;
    CUstream stream;
    CUresult result = ms_fill_stream(block->context, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t at = begin; at < end;) {
        const struct ms_extent extent = ms_lineage_at(&block->lineage, at);
        const size_t stop = extent.end < end ? extent.end : end;
        if (extent.content.kind == MS_FILL || extent.content.kind == MS_SOURCE) {
            result = ms_play(&extent.content, at, block->address + at, stop - at, stream);
            if (result != CUDA_SUCCESS)
                break;
        }
        at = stop;
    }
    /* Also after a failure: queued pieces must not outlive this call. */
    const CUresult waited = ms_driver.stream_synchronize(stream);
    return result != CUDA_SUCCESS ? result : waited;
}

static CUresult cover(struct ms_block *block, size_t begin, size_t end)
{
    const CUresult result = ms_backing_cover(&block->backing, begin, end);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        ms_log(MS_INFO,
               "out of device memory while backing bytes %zu to %zu of the allocation of "
               "%zu bytes at 0x%llx",
               begin, end, block->bytes, block->address);
    return result;
}

static CUresult set_resident(struct ms_block *block, size_t begin, size_t end)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    if (!ms_lineage_set(&block->lineage, begin, end, &resident))
        return CUDA_ERROR_OUT_OF_MEMORY;
    ms_count(MS_COUNT_MATERIALISED_BYTES, end - begin);
    return CUDA_SUCCESS;
}

CUresult ms_materialise(struct ms_block *block, size_t begin, size_t end)
{
    if (ms_lineage_is_resident(&block->lineage, begin, end))
        return CUDA_SUCCESS;
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(block->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = cover(block, begin, end);
    if (result == CUDA_SUCCESS)
        result = play_range(block, begin, end);
    ms_driver_leave(&scope);
    return result == CUDA_SUCCESS ? set_resident(block, begin, end) : result;
}

CUresult ms_back_for_overwrite(struct ms_block *block, size_t begin, size_t end)
{
    if (ms_lineage_is_resident(&block->lineage, begin, end))
        return CUDA_SUCCESS;
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(block->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = cover(block, begin, end);
    ms_driver_leave(&scope);
    return result == CUDA_SUCCESS ? set_resident(block, begin, end) : result;
}
