/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets. An entry point fills a struct ms_movement and does what the verdict says:
 *
 *     MS_ANSWERED   the call is done, or refused: the program gets *result_out
 *     MS_STRAYS     the driver is called with the null address for a side that strays
 *                   (ms_pointer_strays): it checks its other arguments first, then refuses the call
 *     MS_FORWARD    the driver is called
 *
 * A forwarded call sets the gate (order.h): an address of either side may be one of pinned memory,
 * so the call may write host memory that a later call reads.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/strided_copy.h"
#include "runtime/calls/movement.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/order/order.h"

enum ms_verdict { MS_ANSWERED, MS_STRAYS, MS_FORWARD };

/* Answers the call, or prepares it for the driver. *held_out: the bytes that the call reads are not
 * evicted until ms_move_end, which must follow the driver's call. */
enum ms_verdict ms_move_begin(const struct ms_movement *movement, bool *held_out,
                              CUresult *result_out);
static inline void ms_move_end(bool is_held)
{
    if (is_held)
        ms_evict_let_go();
}

/* True if a side of the movement strays. */
bool ms_move_strays(const struct ms_movement *movement);

/* Like ms_move_begin while nothing is deferred. */
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

/* For a call that is not modelled: materialises everything deferred, and sets the gate, because the
 * call may block its stream, or write memory that a copy reads. */
CUresult ms_move_seal(void);

/* --- copies on the device that are a part of a call. The driver makes what is not recorded. */

/* Copies one row. */
CUresult ms_move_run(const struct ms_movement *movement);

/* Copies that together are one call, such as the inputs of torch.cat. */
enum { MS_MAX_PARTS = 256 };
struct ms_parts {
    size_t count; /* at most MS_MAX_PARTS */
    void (*find)(const void *of, size_t part, struct ms_strided_copy *rows_out);
    const void *of;
};

/*
 * Copies all parts. True if they are copied, or a copy has failed. A part of one piece can always
 * be copied. A part of many rows, such as a slice of a tensor by columns, is copied row by row, so
 * that the slice's content is known without memory for the tensor: a kernel, or a copy by the
 * driver, would need all of the tensor in memory. False if the rows are too many or too short, if
 * one side has no lineage to keep, or if nothing may be recorded on the stream (order.h).
 */
bool ms_move_try_parts(const struct ms_parts *parts, CUstream stream, CUresult *result_out);

/* Copies rows, or one piece (dims is 0), as lineage, like ms_move_try_parts; but a piece only if it
 * is deferred and nothing at its destination is in memory. `except`: states that no byte of the
 * source may have, or 0. */
bool ms_move_try(const struct ms_strided_copy *rows, unsigned except, CUstream stream,
                 CUresult *result_out);
