/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets as data: what one call writes and what it reads. An entry point fills a struct
 * ms_movement and does what the verdict says:
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

#include <stdint.h>

#include "runtime/base/strided_copy.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/order.h"
#include "runtime/plan/layout_sizes.h"

/* One side: rows of memory of that type. Type 0: it is an array, a value, or nothing. */
struct ms_side {
    CUmemorytype type;
    bool is_refused;     /* the driver refuses such lines */
    CUdeviceptr begin;   /* of the first row; also of host memory */
    size_t pitch, slice; /* bytes from row to row, and from plane to plane; 0 for one row */
};

static inline bool ms_side_is_device(struct ms_side side)
{
    return side.type == CU_MEMORYTYPE_DEVICE || side.type == CU_MEMORYTYPE_UNIFIED;
}

/* Which of its sides a call copies, and what of that is recorded. */
enum ms_movement_kind {
    MS_COPY_FROM_HOST, /* one row each; may be recorded */
    MS_COPY_ON_DEVICE,
    MS_COPY_TO_HOST,
    MS_COPY_ANY,     /* the driver derives from the addresses which of these it is */
    MS_COPY_PLANE,   /* rows; may be recorded */
    MS_COPY_BOX,     /* planes of rows, or of which the driver knows a side: is made real */
    MS_COPY_UNKNOWN, /* not modelled: everything is made real */
    MS_SET,          /* one row; may be recorded */
    MS_SET_ROWS
};

struct ms_movement {
    enum ms_movement_kind kind;
    uint32_t value;              /* of a set, whose elements have so many bytes: */
    unsigned element;            /* 0: a copy */
    bool waits;                  /* the source may be used again when the call returns */
    CUstream stream;             /* never 0: CU_STREAM_LEGACY or CU_STREAM_PER_THREAD instead */
    size_t width, height, depth; /* bytes of a row, rows of a plane, planes */
    struct ms_side to, from;
    /* Of MS_COPY_ON_DEVICE, where it is a part of a call: */
    const struct ms_sequence *sequence; /* that the tensor is in, or NULL */
    bool is_row;                        /* one of many: no tensor by itself, and no event */
};

enum ms_verdict { MS_ANSWERED, MS_STRAYS, MS_FORWARD };

/* *held_out: what it reads is held; ms_read_end (evict.h) must follow the driver's call. */
enum ms_verdict ms_movement_begin(const struct ms_movement *movement, bool *held_out,
                                  CUresult *result_out);

/* True if a side of it strays. */
bool ms_movement_strays(const struct ms_movement *movement);

/* The same as ms_movement_begin while nothing is deferred. */
static inline enum ms_verdict ms_movement_pass(const struct ms_movement *movement)
{
    const struct ms_side to = movement->to, from = movement->from;
    const bool strays =
        movement->height == 1 && movement->depth == 1
            ? (ms_side_is_device(to) && ms_pointer_strays(to.begin, movement->width)) ||
                  (ms_side_is_device(from) && ms_pointer_strays(from.begin, movement->width))
            : ms_movement_strays(movement);
    if (strays)
        return MS_STRAYS;
    ms_order_add_gate();
    return MS_FORWARD;
}

/* A call that is not modelled: everything deferred is materialised. It may block its stream, or
 * write memory that a copy reads. */
CUresult ms_movement_seal(void);

/* --- copies on the device that are a part of a call. The driver does what is not recorded. */

/* One row. */
CUresult ms_movement_run(const struct ms_movement *movement);

/*
 * Many rows, as of a slice of a tensor by columns. Each is a copy by itself, so the slice's content
 * is known without memory for the tensor. A kernel, or a copy by the driver, would need all of the
 * tensor in memory. A row is a piece of its block, of which ms_write_bound allows 131,072.
 */
enum { MS_MAX_ROWS = 8000 };

/* The number of rows; counting stops above MS_MAX_ROWS. */
size_t ms_movement_count_rows(const struct ms_strided_copy *rows);

/* True if copying row by row is worth it: false if rows are too many or too short, or if one side
 * has no lineage that would be kept. */
bool ms_movement_may_run_rows(const struct ms_strided_copy *rows);

/* Copies the rows, in the order of stream, on which writes may be recorded now (order.h). */
CUresult ms_movement_run_rows(const struct ms_strided_copy *rows, CUstream stream);

/* The same if it may be done and is worth it: true if the rows are copied, or that has failed. */
bool ms_movement_try_rows(const struct ms_strided_copy *rows, CUstream stream,
                          CUresult *result_out);

/* --- what the sides of calls are */

static inline struct ms_side ms_side_of_device(CUdeviceptr begin)
{
    return (struct ms_side){.type = CU_MEMORYTYPE_DEVICE, .begin = begin};
}

static inline struct ms_side ms_side_of_host(const void *begin)
{
    return (struct ms_side){.type = CU_MEMORYTYPE_HOST, .begin = (uintptr_t)begin};
}

/* The bytes of a set, repeated to four. */
static inline uint32_t ms_movement_pattern(const struct ms_movement *movement)
{
    if (movement->element == 1)
        return (movement->value & 0xff) * UINT32_C(0x01010101);
    if (movement->element == 2)
        return (movement->value & 0xffff) * UINT32_C(0x00010001);
    return movement->value;
}

/* Bytes of elements; SIZE_MAX if there are not so many. */
static inline size_t ms_side_bytes(size_t count, unsigned element)
{
    size_t bytes;
    return __builtin_mul_overflow(count, element, &bytes) ? SIZE_MAX : bytes;
}

/* A copy in three dimensions, in two, and between contexts. Of NULL: nothing. */
struct ms_movement ms_movement_of_box(const CUDA_MEMCPY3D *copy, CUstream stream);
struct ms_movement ms_movement_of_plane(const CUDA_MEMCPY2D *copy, CUstream stream);
struct ms_movement ms_movement_of_peers(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
