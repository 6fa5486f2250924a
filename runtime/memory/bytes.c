/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/bytes.h"

static CUresult result_of(bool is_good)
{
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool ms_bytes_any(const struct ms_allocation *allocation, size_t begin, size_t end, unsigned states)
{
    return ms_lineage_any(&allocation->lineage, begin, end, states);
}

struct ms_walk ms_bytes_walk(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_walk_begin(&allocation->lineage, begin, end);
}

bool ms_bytes_next(const struct ms_allocation *allocation, size_t *at, size_t end,
                   struct ms_extent *extent_out)
{
    return ms_lineage_next(&allocation->lineage, at, end, extent_out);
}

struct ms_extent *ms_bytes_copy(const struct ms_allocation *allocation, size_t begin, size_t end,
                                size_t *count_out)
{
    return ms_lineage_copy(&allocation->lineage, begin, end, count_out);
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
