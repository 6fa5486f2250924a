/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes a loop of PyTorch loads from its second operand, and on which of them a part of its
 * output depends. All loops load rows and store rows: row i of the output depends on row i of the
 * input alone. A row of a dense loop is an element:
 *
 *     input     | row 0   |     | row 1   |     | row 2   |
 *               |<- in_row ->|                               in_step from row to row
 *     output    | row 0 | row 1 | row 2 |                    out_step from row to row
 */
#pragma once

#include <stddef.h>

#include "runtime/kernel/call.h"

struct ms_loads {
    size_t bytes;  /* at most so many are loaded, from the input's pointer on; 0: unknown */
    size_t in_row; /* 0: any byte of the output may depend on all loaded bytes */
    size_t in_step, out_step;
};

/* `pointers` is where the parameters have {out, in}. */
void ms_loads_find(const struct ms_param_layout *layout, const struct ms_packed *packed,
                   size_t pointers, struct ms_loads *loads_out);
