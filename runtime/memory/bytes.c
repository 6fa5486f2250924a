/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/bytes.h"

#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"

static CUresult result_of(bool is_good)
{
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult ms_bytes_set(struct ms_allocation *allocation, size_t begin, size_t end,
                      const struct ms_content *content)
{
    if (content->kind == MS_LAUNCHED)
        ms_carve_note(allocation, begin, end, content->recorded);
    return result_of(ms_lineage_set(&MS_OWN(allocation)->lineage, begin, end, content));
}

CUresult ms_bytes_change(struct ms_allocation *allocation, const struct ms_range *ranges,
                         size_t count, ms_content_change *change)
{
    return result_of(ms_lineage_change(&MS_OWN(allocation)->lineage, ranges, count, change));
}

CUresult ms_bytes_set_present(struct ms_allocation *allocation, const struct ms_range *ranges,
                              size_t count)
{
    return result_of(ms_lineage_set_present(&MS_OWN(allocation)->lineage, ranges, count));
}
