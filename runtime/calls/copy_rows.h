/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rows on the device: slices of a tensor by columns. Each row is a copy by itself, so what the slice holds is
 * known without the tensor getting memory; a kernel or a copy by the driver would need all of it.
 */
#ifndef METASHARD_RUNTIME_CALLS_COPY_ROWS_H
#define METASHARD_RUNTIME_CALLS_COPY_ROWS_H

#include <stdbool.h>

#include "runtime/base/strided_copy.h"
#include "runtime/driver/driver.h"

/* An allocation has 16,384 extents at least before it is brought in whole (ms_bound_lineage). */
enum { MS_MAX_ROWS = 8000 };

/* How many rows; more than MS_MAX_ROWS are not counted to the end. */
size_t ms_row_count(const struct ms_strided_copy *rows);

/* True when copying them row by row is worth it: not when there are too many rows or too short ones, or when one side has no
 * lineage that would be kept. */
bool ms_may_copy_rows(const struct ms_strided_copy *rows);

/* Copies them, in the order of stream, on which writes may be recorded now (memory/order.h). What has changed since
 * ms_may_copy_rows is for the driver. */
CUresult ms_copy_each_row(const struct ms_strided_copy *rows, CUstream stream);

/*
 * True when the rows are copied, in the order of stream, and *result_out is what the call returns. False: nothing was
 * done; they may not, or nothing may be recorded on the stream.
 */
bool ms_copy_rows(const struct ms_strided_copy *rows, CUstream stream, CUresult *result_out);

#endif
