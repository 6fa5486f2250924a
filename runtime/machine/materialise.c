/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/materialise.h"

#include "runtime/base/log.h"
#include "runtime/diag/counters.h"
#include "runtime/machine/play.h"
#include "runtime/machine/step.h"

/* Plays what is not present of [begin, end), piece by piece. */
static CUresult play_missing(const struct ms_block *block, size_t begin, size_t end,
                             CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t at = begin; at < end && result == CUDA_SUCCESS;) {
        const struct ms_extent extent = ms_lineage_at(&block->lineage, at);
        const size_t stop = extent.end < end ? extent.end : end;
        if (!ms_content_is_present(&extent.content) && extent.content.kind != MS_UNDEFINED)
            result = ms_play_anything(&extent.content, at, block->address + at, stop - at, stream);
        at = stop;
    }
    return result;
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

static CUresult play_pieces(struct ms_block *block, size_t begin, size_t end)
{
    CUresult result = cover(block, begin, end);
    if (result != CUDA_SUCCESS || block->lineage.deferred_bytes == 0)
        return result;
    CUstream stream;
    result = ms_fill_stream(block->context, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    result = play_missing(block, begin, end, stream);
    /* Also after a failure: queued pieces must not outlive this call. */
    const CUresult waited = ms_driver.stream_synchronize(stream);
    return result != CUDA_SUCCESS ? result : waited;
}

/* Launches run over the block's own addresses: [begin, end) in memory, the rest on the sink. */
static CUresult play_launches(struct ms_block *block, size_t begin, size_t end)
{
    CUstream stream;
    CUresult result = cover(block, begin, end);
    if (result == CUDA_SUCCESS)
        result = ms_fill_stream(block->context, &stream);
    if (result == CUDA_SUCCESS)
        result = ms_backing_sink(&block->backing);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_play_in_place(&block->lineage, block->id, block->address, begin, end, stream);
    const CUresult waited = ms_driver.stream_synchronize(stream);
    ms_backing_unsink(&block->backing);
    return result != CUDA_SUCCESS ? result : waited;
}

/* Whether something in [begin, end) was launched on this very block. */
static bool has_launches(const struct ms_block *block, size_t begin, size_t end)
{
    for (size_t at = begin; at < end;) {
        const struct ms_extent extent = ms_lineage_at(&block->lineage, at);
        if (extent.content.kind == MS_LAUNCHED && extent.content.step->block_id == block->id &&
            extent.content.source_offset == at)
            return true;
        at = extent.end;
    }
    return false;
}

/*
 * In place is right only while nothing of the block is present: a launch writes whole granules. Then the
 * range grows to whole granules, all of which are played.
 */
static bool may_play_in_place(const struct ms_block *block, size_t *begin, size_t *end)
{
    if (!ms_lineage_is_absent(&block->lineage, 0, block->bytes) ||
        !has_launches(block, *begin, *end))
        return false;
    const size_t granule = block->backing.granule;
    *begin = *begin / granule * granule;
    *end = (*end + granule - 1) / granule * granule;
    if (*end > block->bytes)
        *end = block->bytes;
    return true;
}

static CUresult set_resident(struct ms_block *block, size_t begin, size_t end)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    if (!ms_lineage_set(&block->lineage, begin, end, &resident))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

/* Files, fills and launches can be played again. A snapshot costs host memory, which is given back. */
static bool can_be_cached(const struct ms_content *content)
{
    return content->kind == MS_FILL || content->kind == MS_LAUNCHED ||
           (content->kind == MS_SOURCE && ms_source_is_file(content->source));
}

/* All of [begin, end) is in memory now. */
static CUresult set_present(struct ms_block *block, size_t begin, size_t end)
{
    size_t count;
    struct ms_extent *extents = ms_lineage_copy(&block->lineage, begin, end, &count);
    if (extents == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct ms_content content = extents[i].content;
        if (ms_content_is_present(&content))
            continue;
        ms_count(MS_COUNT_MATERIALISED_BYTES, extents[i].end - extents[i].begin);
        if (!can_be_cached(&content))
            content = (struct ms_content){.kind = MS_RESIDENT};
        else
            content.cached = true;
        if (!ms_lineage_set(&block->lineage, extents[i].begin, extents[i].end, &content))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    ms_extents_free(extents, count);
    return result;
}

static CUresult play(struct ms_block *block, size_t begin, size_t end)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(block->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    if (may_play_in_place(block, &begin, &end))
        result = play_launches(block, begin, end);
    else
        result = play_pieces(block, begin, end);
    ms_driver_leave(&scope);
    return result == CUDA_SUCCESS ? set_present(block, begin, end) : result;
}

CUresult ms_materialise(struct ms_block *block, size_t begin, size_t end, enum ms_access access)
{
    CUresult result = CUDA_SUCCESS;
    if (access == MS_READ)
        block->reads++;
    if (!ms_lineage_is_present(&block->lineage, begin, end))
        result = play(block, begin, end);
    if (result == CUDA_SUCCESS && access == MS_WRITE &&
        !ms_lineage_is_resident(&block->lineage, begin, end))
        result = set_resident(block, begin, end);
    return result;
}

CUresult ms_materialise_launched(struct ms_block *block)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t at = 0; at < block->bytes && result == CUDA_SUCCESS;) {
        const struct ms_extent extent = ms_lineage_at(&block->lineage, at);
        if (extent.content.kind == MS_LAUNCHED)
            result = ms_materialise(block, at, extent.end, MS_WRITE);
        at = extent.end;
    }
    return result;
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
    if (result != CUDA_SUCCESS)
        return result;
    ms_count(MS_COUNT_MATERIALISED_BYTES, end - begin);
    return set_resident(block, begin, end);
}
