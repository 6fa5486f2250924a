/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rows on the device: slices of a tensor by columns. Each row is a copy by itself, so what the slice holds is
 * known without the tensor getting memory; a kernel or a copy by the driver would need all of it.
 */
#ifndef METASHARD_RUNTIME_MACHINE_ROWS_H
#define METASHARD_RUNTIME_MACHINE_ROWS_H

#include <stdbool.h>

#include "runtime/base/rows.h"
#include "runtime/driver.h"

/*
 * True when the rows are copied, in the order of stream, and *result_out is what the call returns. False: nothing was
 * done; one side has no lineage that is worth it, or there are too many rows, or too short ones.
 */
bool ms_copy_rows(const struct ms_row_copy *rows, CUstream stream, CUresult *result_out);

#endif
