/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets as data: what one call writes and what it reads. move.h carries them out. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/strided_copy.h"
#include "runtime/driver/driver.h"
#include "runtime/shard/placement_query.h"

/* One side: rows of memory of that type. Type 0: an array, a value, or nothing. */
struct ms_side {
    CUmemorytype type;
    bool is_refused;     /* the driver refuses this pitch */
    CUdeviceptr begin;   /* address of the first row; also in host memory */
    size_t pitch, slice; /* bytes from row to row, and from plane to plane; 0 for one row */
};

static inline bool ms_side_is_device(struct ms_side side)
{
    return side.type == CU_MEMORYTYPE_DEVICE || side.type == CU_MEMORYTYPE_UNIFIED;
}

/* Between which kinds of memory a call copies, and whether it may be recorded. */
enum ms_movement_kind {
    MS_COPY_FROM_HOST, /* one row, as the next two; may be recorded */
    MS_COPY_ON_DEVICE,
    MS_COPY_TO_HOST,
    MS_COPY_ANY,     /* the driver derives the kind from the addresses */
    MS_COPY_PLANE,   /* rows; may be recorded */
    MS_COPY_BOX,     /* planes of rows, or a side that only the driver knows: made real */
    MS_COPY_UNKNOWN, /* not modelled: everything is made real */
    MS_SET,          /* one row; may be recorded */
    MS_SET_ROWS
};

struct ms_movement {
    enum ms_movement_kind kind;
    uint32_t value;              /* of a set */
    unsigned element;            /* bytes of an element of a set; 0: a copy */
    bool waits;                  /* the source may be used again when the call returns */
    CUstream stream;             /* never 0: CU_STREAM_LEGACY or CU_STREAM_PER_THREAD instead */
    size_t width, height, depth; /* bytes of a row, rows of a plane, planes */
    struct ms_side to, from;
    /* For MS_COPY_ON_DEVICE, if it is a part of a call: */
    const struct ms_sequence *sequence; /* to which the tensor belongs, or NULL */
    bool is_row;                        /* one of many rows: no tensor by itself, and no event */
};

/* --- sides and their sizes */

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

/* The bytes of so many elements; SIZE_MAX if they overflow. */
static inline size_t ms_side_bytes(size_t count, unsigned element)
{
    size_t bytes;
    return __builtin_mul_overflow(count, element, &bytes) ? SIZE_MAX : bytes;
}

/* A copy in three dimensions, in two, and between contexts; for NULL, an empty copy. */
struct ms_movement ms_movement_of_box(const CUDA_MEMCPY3D *copy, CUstream stream);
struct ms_movement ms_movement_of_plane(const CUDA_MEMCPY2D *copy, CUstream stream);
struct ms_movement ms_movement_of_peers(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
