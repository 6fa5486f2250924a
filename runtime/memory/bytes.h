/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a claimed allocation: what is known of their content, and orders that change that.
 * Offsets are in the allocation. lineage.h says what each function does; here CUDA_SUCCESS means
 * done, and CUDA_ERROR_OUT_OF_MEMORY means that there is no memory for the record.
 */
#pragma once

#include "runtime/memory/space.h"

/* True if the block at an offset is in so many pieces that their record costs more than they are
 * worth: then gather it, and tell when that is done. */
bool ms_bytes_are_scattered(const struct ms_allocation *allocation, size_t offset,
                            struct ms_range *block_out);
void ms_bytes_gathered(struct ms_allocation *allocation, struct ms_range block);

/* Sets the content of [begin, end), to which it belongs as a whole. */
CUresult ms_bytes_set(struct ms_allocation *allocation, size_t begin, size_t end,
                      const struct ms_content *content);

static inline CUresult ms_bytes_set_kind(struct ms_allocation *allocation, size_t begin, size_t end,
                                         enum ms_kind kind)
{
    const struct ms_content content = {.kind = kind,
                                       .locality = kind == MS_ABSENT ? MS_REMOTE : MS_UNKNOWN};
    return ms_bytes_set(allocation, begin, end, &content);
}

CUresult ms_bytes_change(struct ms_allocation *allocation, const struct ms_range *ranges,
                         size_t count, ms_content_change *change);

static inline CUresult ms_bytes_change_range(struct ms_allocation *allocation, size_t begin,
                                             size_t end, ms_content_change *change)
{
    const struct ms_range range = {begin, end};
    return ms_bytes_change(allocation, &range, 1, change);
}

/* They came into memory. What can be replayed is cached then, and the rest resident. A snapshot
 * becomes resident, which frees host memory. */
CUresult ms_bytes_set_present(struct ms_allocation *allocation, const struct ms_range *ranges,
                              size_t count);
