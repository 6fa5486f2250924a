/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rows of equal length at equal distances, in up to MS_ROW_DIMS dimensions. */
#ifndef METASHARD_RUNTIME_BASE_STRIDED_COPY_H
#define METASHARD_RUNTIME_BASE_STRIDED_COPY_H

#include <stddef.h>
#include <stdint.h>

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

#endif
