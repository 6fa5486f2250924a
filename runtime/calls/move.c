/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/move.h"

#include "runtime/calls/copy.h"
#include "runtime/calls/payload.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/pointer_scan.h"
#include "runtime/calls/write.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/order/order.h"
#include "runtime/state/state.h"
#include "runtime/state/window.h"

/* The number of bytes from the first to the last byte of a side. */
static size_t span(const struct ms_movement *movement, const struct ms_side *side)
{
    size_t planes, lines, bytes;
    if (ms_movement_is_empty(movement))
        return 0;
    if (__builtin_mul_overflow(movement->depth - 1, side->slice, &planes) ||
        __builtin_mul_overflow(movement->height - 1, side->pitch, &lines) ||
        __builtin_add_overflow(planes, lines, &bytes) ||
        __builtin_add_overflow(bytes, movement->width, &bytes))
        bytes = SIZE_MAX;
    return bytes;
}

/* Most movements are one row. */
static inline bool strays(const struct ms_movement *movement, const struct ms_side *side)
{
    const bool is_row = movement->height == 1 && movement->depth == 1;
    return ms_side_is_device(*side) &&
           ms_pointer_strays(side->begin, is_row ? movement->width : span(movement, side));
}

bool ms_move_strays(const struct ms_movement *movement)
{
    return strays(movement, &movement->to) || strays(movement, &movement->from);
}

/* --- one row each. The functions return true if the call is answered. */

/* Tries again after a shortage of memory, if some was freed. An answered call extends the window,
 * because the program loads, unless the call writes to a recurring allocation. */
static bool try_movement(bool (*try)(const struct ms_movement *movement, CUresult *result_out),
                         const struct ms_movement *movement, CUresult *result_out)
{
    struct ms_allocation_facts to;
    int attempts = 0;
    bool is_answered;
    do
        is_answered = try(movement, result_out);
    while (is_answered && ms_evict_try_bytes_again(*result_out, &attempts));
    if (is_answered && !(ms_space_look_up(movement->to.begin, &to) && to.is_recurring))
        ms_window_extend();
    return is_answered;
}

/* Brings the source into memory and keeps it there until ms_move_end. */
static bool read_to_host(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    const struct ms_use uses[] = {{MS_NEED_READ, movement->from.begin, movement->width,
                                   movement->stream},
                                  {MS_NEED_READ_WRITE, movement->to.begin, movement->width}};
    /* The driver decides whether the destination may be in an allocation. */
    *result_out = ms_access_uses(uses, ms_pointer_is_owned(movement->to.begin) ? 2 : 1);
    *held_out = *result_out == CUDA_SUCCESS;
    return !*held_out;
}

static bool try_on_device(const struct ms_movement *movement, CUresult *result_out)
{
    ms_evict_hold();
    const bool is_answered = ms_copy_on_device(movement, result_out);
    if (is_answered)
        ms_evict_let_go();
    return is_answered;
}

/* An unanswered copy keeps its source in memory until ms_move_end. */
static bool copy_on_device(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    const CUdeviceptr from = movement->from.begin;
    if (movement->width == 0)
        return false;
    const bool is_owned = ms_pointer_is_owned(from);
    if (!is_owned && ms_pointer_is(from, MS_PINNED)) {
        struct ms_movement as = *movement;
        as.waits = false;
        return try_movement(ms_write_from_host, &as, result_out);
    }
    *result_out = is_owned ? CUDA_SUCCESS : ms_payload_expose_unowned(from);
    if (*result_out != CUDA_SUCCESS)
        return true;
    *held_out = !try_movement(try_on_device, movement, result_out);
    return !*held_out;
}

static bool copy_any(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    const CUdeviceptr to = movement->to.begin, from = movement->from.begin;
    const bool to_block = ms_pointer_is_owned(to), from_block = ms_pointer_is_owned(from);
    if (from_block && !to_block && !ms_pointer_is_device(to))
        return read_to_host(movement, held_out, result_out);
    if (movement->width == 0)
        return false;
    if (from_block || (to_block && !ms_pointer_is_host(from)))
        return copy_on_device(movement, held_out, result_out);
    if (!to_block && !ms_pointer_is_device(to))
        return false;
    if (ms_pointer_is_host(from))
        return try_movement(ms_write_from_host, movement, result_out);
    *result_out = ms_payload_expose_unowned(from);
    return *result_out != CUDA_SUCCESS;
}

CUresult ms_move_run(const struct ms_movement *movement)
{
    CUresult result;
    bool is_held = false;
    if (copy_on_device(movement, &is_held, &result))
        return result;
    result = ms_driver.memcpy_dtod_async(movement->to.begin, movement->from.begin, movement->width,
                                         movement->stream);
    ms_move_end(is_held);
    return result;
}

/* --- rows on the device */

/* Lineage must cost less than the bytes, and each row is a piece of its block: ms_write_bound
 * gathers blocks of more than 131,072 pieces. */
enum { MIN_WIDTH = 64, MAX_ROWS = 8000 };

/* The bytes from the first row's first to the last row's last, gaps included. */
struct extent {
    CUdeviceptr begin;
    size_t bytes;
};

static size_t count_rows(const struct ms_strided_copy *rows)
{
    size_t count = 1;
    for (unsigned i = 0; i < rows->dims && count <= MAX_ROWS; i++)
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

/* True if nothing of the source is in memory, and a copy by rows repeats no launch. A launch in the
 * source runs once for each row that has some of its result, so there must be no launches, or at
 * least as many as rows. */
static bool is_worth_it(const struct ms_allocation *source, size_t begin, size_t end, size_t rows)
{
    size_t launches = 0;
    struct ms_walk walk = {ms_allocation_lineage(source), begin, end};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
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
    return !ms_lineage_any(ms_allocation_lineage(allocation), begin, begin + range->bytes,
                           MS_PRESENT);
}

/* True if the shim may copy the rows. If some of the source is absent, only a copy by rows can
 * leave those bytes out. */
static bool can_copy_claimed(const struct ms_allocation *source,
                             const struct ms_allocation *destination, const struct extent *from,
                             const struct extent *to, const struct ms_strided_copy *rows)
{
    if (source == NULL || !ms_fits(source, from->begin, from->bytes) ||
        (destination != NULL && !ms_fits(destination, to->begin, to->bytes)) ||
        (from->begin < to->begin + to->bytes && to->begin < from->begin + from->bytes))
        return false;
    const size_t begin = ms_offset(source, from->begin), end = begin + from->bytes;
    if (ms_lineage_any(ms_allocation_lineage(source), begin, end, MS_OF_KIND(MS_ABSENT)))
        return true;
    return rows->width >= MIN_WIDTH && destination != NULL && is_missing(destination, to) &&
           is_worth_it(source, begin, end, count_rows(rows));
}

static bool may_run(const struct ms_strided_copy *rows, unsigned except)
{
    struct extent to, from;
    if (rows->width == 0 || count_rows(rows) > MAX_ROWS)
        return false;
    measure(rows, &to, &from);
    MS_CLAIMED_BOTH const struct ms_claims claims = ms_claims_begin(from.begin, to.begin);
    const struct ms_allocation *source = claims.first;
    if (!can_copy_claimed(source, claims.second, &from, &to, rows))
        return false;
    const size_t begin = ms_offset(source, from.begin);
    return !ms_lineage_any(ms_allocation_lineage(source), begin, begin + from.bytes, except);
}

/* Copies row by row. The first dimension varies fastest, as in memory. The driver copies rows that
 * have changed meanwhile. */
static CUresult copy_all(const struct ms_strided_copy *rows, CUstream stream)
{
    size_t at[MS_ROW_DIMS] = {0};
    CUdeviceptr to = rows->to, from = rows->from;
    for (;;) {
        const struct ms_movement row = {.kind = MS_COPY_ON_DEVICE,
                                        .stream = stream,
                                        .width = rows->width,
                                        .height = 1,
                                        .depth = 1,
                                        .to = ms_side_of_device(to),
                                        .from = ms_side_of_device(from),
                                        .is_row = true};
        const CUresult result = ms_move_run(&row);
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

static CUresult run_rows(const struct ms_strided_copy *rows, CUstream stream)
{
    struct ms_allocation_facts source = {0};
    struct extent to, from;
    measure(rows, &to, &from);
    const CUresult result = copy_all(rows, stream);
    ms_access_granules_later(to.begin, to.bytes);
    ms_space_look_up(from.begin, &source);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD,
                                      .block = source.id,
                                      .address = from.begin,
                                      .bytes = from.bytes,
                                      .text = "a copy of rows on the device"});
    return result;
}

/* --- parts of one call */

/* Lists the parts' sizes if each part is one piece. Returns false if there are rows. */
static bool list_sizes(const struct ms_parts *parts, size_t *sizes, size_t *count_out)
{
    *count_out = 0;
    for (size_t i = 0; i < parts->count; i++) {
        struct ms_strided_copy rows;
        parts->find(parts->of, i, &rows);
        if (rows.dims > 0)
            return false;
        if (rows.width > 0)
            sizes[(*count_out)++] = rows.width;
    }
    return true;
}

/* True if all parts that are rows can be copied row by row. */
static bool may_run_parts(const struct ms_parts *parts, CUstream stream)
{
    size_t count = 0;
    for (size_t i = 0; i < parts->count; i++) {
        struct ms_strided_copy rows;
        parts->find(parts->of, i, &rows);
        if (rows.dims == 0)
            continue;
        count += count_rows(&rows);
        if (count > MAX_ROWS || !may_run(&rows, 0))
            return false;
    }
    return count == 0 || ms_order_may_record(stream);
}

static CUresult run_piece(const struct ms_strided_copy *piece, const struct ms_sequence *sequence,
                          CUstream stream)
{
    const struct ms_movement movement = {.kind = MS_COPY_ON_DEVICE,
                                         .stream = stream,
                                         .width = piece->width,
                                         .height = 1,
                                         .depth = 1,
                                         .to = ms_side_of_device(piece->to),
                                         .from = ms_side_of_device(piece->from),
                                         .sequence = sequence};
    return ms_move_run(&movement);
}

static CUresult run_parts(const struct ms_parts *parts, CUstream stream)
{
    size_t sizes[MS_MAX_PARTS];
    struct ms_sequence sequence = {.bytes = sizes};
    const bool is_sequence = list_sizes(parts, sizes, &sequence.count);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < parts->count && result == CUDA_SUCCESS; i++) {
        struct ms_strided_copy rows;
        parts->find(parts->of, i, &rows);
        if (rows.width == 0)
            continue;
        if (rows.dims > 0) {
            result = run_rows(&rows, stream);
            continue;
        }
        result = run_piece(&rows, is_sequence ? &sequence : NULL, stream);
        sequence.at++;
    }
    return result;
}

bool ms_move_try_parts(const struct ms_parts *parts, CUstream stream, CUresult *result_out)
{
    if (!may_run_parts(parts, stream))
        return false;
    *result_out = run_parts(parts, stream);
    return true;
}

bool ms_move_try(const struct ms_strided_copy *rows, unsigned except, CUstream stream,
                 CUresult *result_out)
{
    if (!may_run(rows, except) || !ms_order_may_record(stream))
        return false;
    *result_out = rows->dims > 0 ? run_rows(rows, stream) : run_piece(rows, NULL, stream);
    return true;
}

/* --- planes and boxes */

/* Copies one plane of rows out of an allocation, if the runtime can do it itself. */
static bool copy_plane(const struct ms_movement *movement, CUresult *result_out)
{
    const struct ms_side *to = &movement->to, *from = &movement->from;
    const struct ms_strided_copy rows = {.to = to->begin,
                                         .from = from->begin,
                                         .width = movement->width,
                                         .dims = 1,
                                         .dim = {{movement->height, to->pitch, from->pitch}}};
    return ms_side_is_device(*from) && ms_side_is_device(*to) && !from->is_refused &&
           !to->is_refused && !ms_movement_is_empty(movement) && ms_pointer_is_owned(from->begin) &&
           ms_move_try(&rows, 0, movement->stream, result_out);
}

/* Materialises a side. If the program calls an allocation host memory, the driver decides whether
 * that is allowed. */
static CUresult access_side(const struct ms_movement *movement, const struct ms_side *side)
{
    const struct ms_rows rows = ms_movement_rows(movement, side);
    const bool may_be_deferred = ms_side_is_device(*side) || (side->type == CU_MEMORYTYPE_HOST &&
                                                              ms_pointer_is_owned(side->begin));
    return may_be_deferred && !ms_movement_is_empty(movement) ? ms_access_rows(&rows)
                                                              : CUDA_SUCCESS;
}

static bool make_real(const struct ms_movement *movement, CUresult *result_out)
{
    *result_out = access_side(movement, &movement->from);
    if (*result_out == CUDA_SUCCESS)
        *result_out = ms_payload_expose(movement);
    if (*result_out == CUDA_SUCCESS)
        *result_out = access_side(movement, &movement->to);
    return *result_out != CUDA_SUCCESS;
}

static bool answer(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    switch (movement->kind) {
    case MS_COPY_FROM_HOST:
        return try_movement(ms_write_from_host, movement, result_out);
    case MS_COPY_ON_DEVICE:
        return copy_on_device(movement, held_out, result_out);
    case MS_COPY_TO_HOST:
        return read_to_host(movement, held_out, result_out);
    case MS_COPY_ANY:
        return copy_any(movement, held_out, result_out);
    case MS_COPY_PLANE:
        return copy_plane(movement, result_out) || make_real(movement, result_out);
    case MS_SET:
        return try_movement(ms_write_set, movement, result_out);
    case MS_COPY_UNKNOWN:
        *result_out = ms_access_all(MS_REASON_SEALED);
        return *result_out != CUDA_SUCCESS;
    case MS_COPY_BOX:
    case MS_SET_ROWS:
        break;
    }
    return make_real(movement, result_out);
}

enum ms_verdict ms_move_begin(const struct ms_movement *movement, bool *held_out,
                              CUresult *result_out)
{
    *held_out = false;
    if (ms_move_strays(movement))
        return MS_STRAYS;
    if (ms_defers_any() && answer(movement, held_out, result_out))
        return MS_ANSWERED;
    ms_order_add_gate();
    return MS_FORWARD;
}

CUresult ms_move_seal(void)
{
    ms_order_add_gate();
    return ms_defers_any() ? ms_access_all(MS_REASON_SEALED) : CUDA_SUCCESS;
}
