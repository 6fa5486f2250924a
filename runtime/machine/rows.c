/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/rows.h"

#include "runtime/machine/machine.h"
#include "runtime/machine/record.h"
#include "runtime/machine/space.h"
#include "runtime/state/state.h"

/* Lineage must cost less than the bytes: an allocation has 16,384 extents at most (record.h). */
enum { MAX_ROWS = 8000, MIN_WIDTH = 64 };

/* All that lies between the first byte and the last. */
struct extent {
    CUdeviceptr begin;
    size_t bytes;
    uint64_t allocation_id;
};

static size_t count_rows(const struct ms_row_copy *rows)
{
    size_t count = 1;
    for (unsigned i = 0; i < rows->dims && count <= MAX_ROWS; i++)
        count *= rows->dim[i].count;
    return count;
}

static void measure(const struct ms_row_copy *rows, struct extent *to, struct extent *from)
{
    *to = (struct extent){.begin = rows->to, .bytes = rows->width};
    *from = (struct extent){.begin = rows->from, .bytes = rows->width};
    for (unsigned i = 0; i < rows->dims; i++) {
        to->bytes += (rows->dim[i].count - 1) * rows->dim[i].to_stride;
        from->bytes += (rows->dim[i].count - 1) * rows->dim[i].from_stride;
    }
}

/* The source is all lineage, and none of it a launch, which would be run for each row. */
static bool is_worth_it(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    for (size_t i = ms_lineage_index(lineage, begin);
         i < lineage->count && lineage->extents[i].begin < end; i++) {
        const struct ms_content *content = &lineage->extents[i].content;
        if (ms_content_is_present(content) || content->kind == MS_LAUNCHED)
            return false;
    }
    return true;
}

static bool is_missing(const struct ms_allocation *allocation, const struct extent *range)
{
    const size_t begin = ms_offset(allocation, range->begin);
    return ms_lineage_is_missing(&allocation->lineage, begin, begin + range->bytes);
}

/* Where some of the source is absent, nothing else can leave that out, whatever the destination. */
static bool can_copy_claimed(const struct ms_allocation *source,
                             const struct ms_allocation *destination, const struct extent *from,
                             const struct extent *to, size_t width)
{
    if (source == NULL || !ms_fits(source, from->begin, from->bytes) ||
        (destination != NULL && !ms_fits(destination, to->begin, to->bytes)) ||
        (from->begin < to->begin + to->bytes && to->begin < from->begin + from->bytes))
        return false;
    const size_t begin = ms_offset(source, from->begin), end = begin + from->bytes;
    if (ms_lineage_has_absent(&source->lineage, begin, end))
        return true;
    return width >= MIN_WIDTH && destination != NULL && is_missing(destination, to) &&
           is_worth_it(&source->lineage, begin, end);
}

static bool can_copy(const struct extent *to, struct extent *from, size_t width)
{
    struct ms_allocation *source, *destination;
    ms_space_claim_two(from->begin, to->begin, &source, &destination);
    const bool can = can_copy_claimed(source, destination, from, to, width);
    from->allocation_id = source != NULL ? source->id : 0;
    ms_space_release(source);
    if (destination != source)
        ms_space_release(destination);
    return can;
}

/* The first dimension counts fastest, as rows lie in memory. What has changed meanwhile is for the driver. */
static CUresult copy_all(const struct ms_row_copy *rows, CUstream stream)
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

bool ms_copy_rows(const struct ms_row_copy *rows, CUstream stream, CUresult *result_out)
{
    struct extent to, from;
    if (rows->width == 0 || count_rows(rows) > MAX_ROWS)
        return false;
    measure(rows, &to, &from);
    if (!can_copy(&to, &from, rows->width) || !ms_may_record(stream))
        return false;
    *result_out = copy_all(rows, stream);
    ms_state_event(MS_EVENT_RECORD, from.allocation_id, from.begin, from.bytes, 0,
                   "a copy of rows on the device");
    return true;
}
