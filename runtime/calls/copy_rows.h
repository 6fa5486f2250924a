/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rows on the device: slices of a tensor by columns. Each row is a copy by itself, so the
 * slice's content is known without memory for the tensor. A kernel, or a copy by the driver, would
 * need all of the tensor in memory.
 */
#pragma once

#include <stdbool.h>

#include "runtime/base/strided_copy.h"
#include "runtime/driver/driver.h"

/* Each row is a piece of its block, of which ms_bound_lineage allows 131,072. */
enum { MS_MAX_ROWS = 8000 };

/* The number of rows; counting stops above MS_MAX_ROWS. */
size_t ms_row_count(const struct ms_strided_copy *rows);

/* True if copying row by row is worth it: false if rows are too many or too short, or if one side
 * has no lineage that would be kept. */
bool ms_may_copy_rows(const struct ms_strided_copy *rows);

/* Copies the rows, in the order of stream, on which writes may be recorded now (memory/order.h).
 * The driver copies what has changed since ms_may_copy_rows. */
CUresult ms_copy_each_row(const struct ms_strided_copy *rows, CUstream stream);

/*
 * Returns true if the rows are copied, in the order of stream; *result_out is what the call
 * returns. Returns false if nothing was done: the rows may not be copied so, or nothing may be
 * recorded on the stream.
 */
bool ms_copy_rows(const struct ms_strided_copy *rows, CUstream stream, CUresult *result_out);
