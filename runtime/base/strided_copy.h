/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of equal length at equal distances, and copies of them in up to MS_ROW_DIMS dimensions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Rows in planes, of device or host memory. */
struct ms_rows {
    uint64_t begin; /* address of the first row */
    size_t width, height, depth;
    size_t pitch, slice; /* bytes from row to row, and from plane to plane */
};

enum { MS_ROW_DIMS = 6 };

struct ms_strided_copy {
    uint64_t to, from; /* addresses of the first row */
    size_t width;      /* bytes of a row */
    unsigned dims;     /* 0: one row */
    struct {
        size_t count;                  /* at least 1 */
        size_t to_stride, from_stride; /* bytes */
    } dim[MS_ROW_DIMS];
};
