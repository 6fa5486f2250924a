/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/copy_rows.h"

#include "runtime/calls/calls.h"
#include "runtime/fill/access.h"
#include "runtime/memory/space.h"
#include "runtime/memory/order.h"
#include "runtime/state/state.h"

/* Lineage must cost less than the bytes. */
enum { MIN_WIDTH = 64 };

/* All bytes between the first and the last. */
struct extent {
    CUdeviceptr begin;
    size_t bytes;
};

size_t ms_row_count(const struct ms_strided_copy *rows)
{
    size_t count = 1;
    for (unsigned i = 0; i < rows->dims && count <= MS_MAX_ROWS; i++)
        count *= rows->dim[i].count;
    return count;
}

static void measure(const struct ms_strided_copy *rows, struct extent *to, struct extent *from)
{
    *to = (struct extent){.begin = rows->to, .bytes = rows->width};
    *from = (struct extent){.begin = rows->from, .bytes = rows->width};
    for (unsigned i = 0; i < rows->dims; i++) {
        to->bytes += (rows->dim[i].count - 1) * rows->dim[i].to_stride;
        from->bytes += (rows->dim[i].count - 1) * rows->dim[i].from_stride;
    }
}

/* True if the source is all lineage, and copying runs no launch more often. A launch in the source
 * runs once for each row that has some of it; so either none, or at least one launch per row. */
static bool is_worth_it(const struct ms_lineage *lineage, size_t begin, size_t end, size_t rows)
{
    size_t launches = 0;
    struct ms_walk walk = ms_walk_begin(lineage, begin, end);
    for (const struct ms_extent *extent; (extent = ms_walk_next(&walk)) != NULL;) {
        const struct ms_content *content = &extent->content;
        if (ms_content_is_present(content))
            return false;
        launches += content->kind == MS_LAUNCHED;
    }
    return launches == 0 || launches >= rows;
}

static bool is_missing(const struct ms_allocation *allocation, const struct extent *range)
{
    const size_t begin = ms_offset(allocation, range->begin);
    return ms_lineage_is_missing(&allocation->lineage, begin, begin + range->bytes);
}

/* If some of the source is absent, only a copy by rows can leave that out. */
static bool can_copy_claimed(const struct ms_allocation *source,
                             const struct ms_allocation *destination, const struct extent *from,
                             const struct extent *to, const struct ms_strided_copy *rows)
{
    if (source == NULL || !ms_fits(source, from->begin, from->bytes) ||
        (destination != NULL && !ms_fits(destination, to->begin, to->bytes)) ||
        (from->begin < to->begin + to->bytes && to->begin < from->begin + from->bytes))
        return false;
    const size_t begin = ms_offset(source, from->begin), end = begin + from->bytes;
    if (ms_lineage_has_absent(&source->lineage, begin, end))
        return true;
    return rows->width >= MIN_WIDTH && destination != NULL && is_missing(destination, to) &&
           is_worth_it(&source->lineage, begin, end, ms_row_count(rows));
}

bool ms_may_copy_rows(const struct ms_strided_copy *rows)
{
    struct ms_allocation *source, *destination;
    struct extent to, from;
    if (rows->width == 0 || ms_row_count(rows) > MS_MAX_ROWS)
        return false;
    measure(rows, &to, &from);
    ms_space_claim_two(from.begin, to.begin, &source, &destination);
    const bool can = can_copy_claimed(source, destination, &from, &to, rows);
    ms_space_release(source);
    if (destination != source)
        ms_space_release(destination);
    return can;
}

/* The first dimension varies fastest, as in memory. The driver copies what changed meanwhile. */
static CUresult copy_all(const struct ms_strided_copy *rows, CUstream stream)
{
    size_t at[MS_ROW_DIMS] = {0};
    CUdeviceptr to = rows->to, from = rows->from;
    for (;;) {
        const CUresult result = ms_copy_row(to, from, rows->width, stream);
        unsigned dim = 0;
        if (result != CUDA_SUCCESS)
            return result;
        for (; dim < rows->dims && ++at[dim] == rows->dim[dim].count; dim++) {
            at[dim] = 0;
            to -= (rows->dim[dim].count - 1) * rows->dim[dim].to_stride;
            from -= (rows->dim[dim].count - 1) * rows->dim[dim].from_stride;
        }
        if (dim == rows->dims)
            return CUDA_SUCCESS;
        to += rows->dim[dim].to_stride;
        from += rows->dim[dim].from_stride;
    }
}

CUresult ms_copy_each_row(const struct ms_strided_copy *rows, CUstream stream)
{
    struct ms_allocation_facts source = {0};
    struct extent to, from;
    measure(rows, &to, &from);
    const CUresult result = copy_all(rows, stream);
    ms_access_granules_later(to.begin, to.bytes);
    ms_space_look_up(from.begin, &source);
    ms_state_event(MS_EVENT_RECORD, source.id, from.begin, from.bytes, 0,
                   "a copy of rows on the device");
    return result;
}

bool ms_copy_rows(const struct ms_strided_copy *rows, CUstream stream, CUresult *result_out)
{
    if (!ms_may_copy_rows(rows) || !ms_may_record(stream))
        return false;
    *result_out = ms_copy_each_row(rows, stream);
    return true;
}
