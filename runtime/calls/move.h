/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets. An entry point fills a struct ms_movement and does what the verdict says:
 *
 *     MS_ANSWERED   the call is done, or refused: the program gets *result_out
 *     MS_STRAYS     the driver is called with the null address for what strays (ms_pointer_strays): it
 *                   checks its other arguments first, and then refuses the call
 *     MS_FORWARD    the driver is called
 *
 * Whatever is forwarded sets the gate (order.h): any of these calls may write host memory, from
 * which a later one reads, because an address of either side may be one of pinned memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/strided_copy.h"
#include "runtime/calls/movement.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/order.h"

enum ms_verdict { MS_ANSWERED, MS_STRAYS, MS_FORWARD };

/* *held_out: what it reads is held; ms_evict_let_go (evict.h) must follow the driver's call. */
enum ms_verdict ms_move_begin(const struct ms_movement *movement, bool *held_out,
                              CUresult *result_out);

/* True if a side of it strays. */
bool ms_move_strays(const struct ms_movement *movement);

/* The same as ms_move_begin while nothing is deferred. */
static inline enum ms_verdict ms_move_pass(const struct ms_movement *movement)
{
    const struct ms_side to = movement->to, from = movement->from;
    const bool strays =
        movement->height == 1 && movement->depth == 1
            ? (ms_side_is_device(to) && ms_pointer_strays(to.begin, movement->width)) ||
                  (ms_side_is_device(from) && ms_pointer_strays(from.begin, movement->width))
            : ms_move_strays(movement);
    if (strays)
        return MS_STRAYS;
    ms_order_add_gate();
    return MS_FORWARD;
}

/* A call that is not modelled: everything deferred is materialised. It may block its stream, or
 * write memory that a copy reads. */
CUresult ms_move_seal(void);

/* --- copies on the device that are a part of a call. The driver does what is not recorded. */

/* One row. */
CUresult ms_move_run(const struct ms_movement *movement);

/*
 * Many rows, as of a slice of a tensor by columns. Each is a copy by itself, so the slice's content
 * is known without memory for the tensor. A kernel, or a copy by the driver, would need all of the
 * tensor in memory. A row is a piece of its block, of which ms_write_bound allows 131,072.
 */
enum { MS_MAX_ROWS = 8000 };

/* The number of rows; counting stops above MS_MAX_ROWS. */
size_t ms_move_count_rows(const struct ms_strided_copy *rows);

/* True if copying row by row is worth it: false if rows are too many or too short, or if one side
 * has no lineage that would be kept. */
bool ms_move_may_run_rows(const struct ms_strided_copy *rows);

/* Copies the rows, in the order of stream, on which writes may be recorded now (order.h). */
CUresult ms_move_run_rows(const struct ms_strided_copy *rows, CUstream stream);

/* The same if it may be done and is worth it: true if the rows are copied, or that has failed. */
bool ms_move_try_rows(const struct ms_strided_copy *rows, CUstream stream, CUresult *result_out);
