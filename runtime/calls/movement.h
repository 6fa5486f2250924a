/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets as data: what one call writes and what it reads. An entry point fills a struct
 * ms_movement and does what the verdict says:
 *
 *     MS_ANSWERED   the call is done, or refused: the program gets *result_out
 *     MS_STRAYS     the driver is called with the null address for what strays (ms_strays): it
 *                   checks its other arguments first, and then refuses the call
 *     MS_FORWARD    the driver is called
 *
 * Whatever is forwarded sets the gate (order.h): any of these calls may write host memory, from
 * which a later one reads, because an address of either side may be one of pinned memory.
 */
#pragma once

#include <stdint.h>

#include "runtime/base/strided_copy.h"
#include "runtime/calls/calls.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"

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
            ? (ms_side_is_device(to) && ms_strays(to.begin, movement->width)) ||
                  (ms_side_is_device(from) && ms_strays(from.begin, movement->width))
            : ms_movement_strays(movement);
    if (strays)
        return MS_STRAYS;
    ms_order_add_gate();
    return MS_FORWARD;
}

/* A call that is not modelled: everything deferred is materialised. It may block its stream, or
 * write memory that a copy reads. */
CUresult ms_movement_seal(void);

/* --- what the sides of calls are */

static inline struct ms_side ms_side_of_device(CUdeviceptr begin)
{
    return (struct ms_side){.type = CU_MEMORYTYPE_DEVICE, .begin = begin};
}

static inline struct ms_side ms_side_of_host(const void *begin)
{
    return (struct ms_side){.type = CU_MEMORYTYPE_HOST, .begin = (uintptr_t)begin};
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
