/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets as data: what one call writes and what it reads. move.h carries them out. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/strided_copy.h"
#include "runtime/driver/driver.h"
#include "runtime/shard/placement_query.h"

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

static inline bool ms_movement_is_empty(const struct ms_movement *movement)
{
    return movement->width == 0 || movement->height == 0 || movement->depth == 0;
}

static inline struct ms_rows ms_movement_rows(const struct ms_movement *movement,
                                              const struct ms_side *side)
{
    return (struct ms_rows){.begin = side->begin,
                            .width = movement->width,
                            .height = movement->height,
                            .depth = movement->depth,
                            .pitch = side->pitch,
                            .slice = side->slice};
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
