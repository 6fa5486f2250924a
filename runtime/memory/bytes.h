/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing the content of a claimed allocation: the functions of lineage.h, with a CUresult.
 * CUDA_ERROR_OUT_OF_MEMORY means that there is no host memory for the record.
 */
#pragma once

#include <string.h>

#include "runtime/memory/space.h"

/* True if all bytes are zero; count is at least 1. Fast: other memory mostly differs in its first
 * word. */
static inline bool ms_bytes_are_zero(const unsigned char *bytes, size_t count)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

CUresult ms_bytes_set(struct ms_allocation *allocation, size_t begin, size_t end,
                      const struct ms_content *content);
CUresult ms_bytes_change(struct ms_allocation *allocation, const struct ms_range *ranges,
                         size_t count, ms_content_change *change);
CUresult ms_bytes_set_present(struct ms_allocation *allocation, const struct ms_range *ranges,
                              size_t count);

static inline CUresult ms_bytes_set_kind(struct ms_allocation *allocation, size_t begin, size_t end,
                                         enum ms_kind kind)
{
    const struct ms_content content = {.kind = kind,
                                       .locality = kind == MS_ABSENT ? MS_REMOTE : MS_UNKNOWN};
    return ms_bytes_set(allocation, begin, end, &content);
}

static inline CUresult ms_bytes_change_range(struct ms_allocation *allocation, size_t begin,
                                             size_t end, ms_content_change *change)
{
    const struct ms_range range = {begin, end};
    return ms_bytes_change(allocation, &range, 1, change);
}
