/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/bytes.h"

#include "runtime/memory/memory_internal.h"

static CUresult result_of(bool is_good)
{
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Some 50 bytes each. In a large block more is allowed: one that is copied row by row has a piece
 * for each row. What is left to other ranks stays in pieces, so the next look is at twice as many.
 */
bool ms_bytes_are_scattered(const struct ms_allocation *allocation, size_t offset,
                            struct ms_range *block_out)
{
    enum { LEAST_PIECES = 1 << 17, BYTES_FOR_ONE = 512 << 10 };
    if (allocation->lineage.extents.count <= LEAST_PIECES)
        return false;
    const struct ms_range block = *block_out = ms_space_block_at(allocation, offset);
    const size_t pieces = ms_lineage_pieces(&allocation->lineage, block.begin, block.end);
    return pieces > LEAST_PIECES && pieces > MS_OWN(allocation)->least_pieces &&
           pieces > (block.end - block.begin) / BYTES_FOR_ONE;
}

void ms_bytes_gathered(struct ms_allocation *allocation, struct ms_range block)
{
    MS_OWN(allocation)->least_pieces =
        2 * ms_lineage_pieces(&allocation->lineage, block.begin, block.end);
}

CUresult ms_bytes_set(struct ms_allocation *allocation, size_t begin, size_t end,
                      const struct ms_content *content)
{
    return result_of(ms_lineage_set(&allocation->lineage, begin, end, content));
}

CUresult ms_bytes_change(struct ms_allocation *allocation, const struct ms_range *ranges,
                         size_t count, ms_content_change *change)
{
    return result_of(ms_lineage_change(&allocation->lineage, ranges, count, change));
}

static bool can_be_cached(const struct ms_content *content)
{
    return content->kind == MS_FILL || content->kind == MS_LAUNCHED ||
           (content->kind == MS_SOURCE && ms_source_is_file(content->source));
}

static void make_present(struct ms_content *content)
{
    if (ms_content_is_present(content))
        return;
    if (can_be_cached(content))
        content->cached = true;
    else
        *content = (struct ms_content){.kind = MS_RESIDENT};
    if (content->locality != MS_LOCAL)
        content->locality = MS_UNKNOWN; /* read all the same */
    content->is_remote_copy = false;
}

CUresult ms_bytes_set_present(struct ms_allocation *allocation, const struct ms_range *ranges,
                              size_t count)
{
    return ms_bytes_change(allocation, ranges, count, make_present);
}
