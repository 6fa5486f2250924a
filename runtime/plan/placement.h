/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that one rank keeps of each tensor of a layout. Ranges are made one at a time, since a
 * tensor may have as many as rows; their sum in bytes is known beforehand.
 *
 *     struct ms_cursor cursor;
 *     struct ms_range range;
 *     ms_placement_begin(&cursor, placement, tensor);
 *     while (ms_placement_next(&cursor, &range))
 *         ...
 */
#pragma once

#include "runtime/base/range.h"
#include "runtime/plan/plan.h"

enum { MS_PARTS_MAX = 64 };

/* The indices of one dimension that a rank has: `spans` are ascending and do not touch. */
struct ms_axis {
    uint64_t extent; /* of the tensor */
    uint64_t length; /* sum of the spans */
    unsigned count;
    struct ms_range spans[MS_PARTS_MAX];
};

/* The elements that sharding leaves to a rank: all combinations of the axes' indices, row-major. */
struct ms_index_box {
    unsigned dims;
    uint64_t elements;
    struct ms_axis axis[MS_TENSOR_DIMS_MAX];
};

struct ms_placement;

/* rank is below the world size. NULL if out of memory. The layout must outlive the placement. */
struct ms_placement *ms_placement_create(const struct ms_layout *layout, uint32_t rank);
void ms_placement_destroy(struct ms_placement *placement); /* may be NULL */

/* The bytes of one tensor that the rank keeps. */
uint64_t ms_placement_bytes(const struct ms_placement *placement, size_t tensor);
uint64_t ms_placement_total(const struct ms_placement *placement);
uint64_t ms_placement_padding(const struct ms_placement *placement); /* added by flat shards */

/* The caller owns the cursor, which needs no cleanup. It takes about 8 KiB, because of the box. */
struct ms_cursor {
    const struct ms_range *listed; /* explicit ranges, or NULL: the box */
    size_t listed_left;
    uint64_t at, end;       /* elements of the box */
    uint64_t begin, length; /* the latest run, in elements of the tensor */
    uint64_t repeats;       /* runs to follow, each a stride of dimension inner - 1 further */
    uint64_t element_bytes;
    unsigned inner;                      /* the dimensions behind this one are whole */
    uint64_t stride[MS_TENSOR_DIMS_MAX]; /* in elements of the tensor */
    struct ms_range next;                /* begin == end: none */
    struct ms_index_box box;
};

void ms_placement_begin(struct ms_cursor *cursor, const struct ms_placement *placement,
                        size_t tensor);

/* Gets the next range. Ranges ascend, are not empty, and do not touch. False: no more ranges. */
bool ms_placement_next(struct ms_cursor *cursor, struct ms_range *range_out);

/* The bytes that each rank keeps. Tensors of one form and cut are calculated once for each rank,
 * because models repeat their layers. */
struct ms_census {
    uint32_t world;
    uint64_t *bytes;   /* by rank */
    uint64_t *padding; /* by rank: bytes that flat shards add */
};

/* Returns false if out of memory. */
bool ms_census_init(struct ms_census *census, const struct ms_layout *layout);
void ms_census_cleanup(struct ms_census *census);
