/* SPDX-License-Identifier: Apache-2.0 */
/* The file that the same process wrote in the first run: which bytes of each block its hashes leave
 * out. A missing file, mark or block leaves out nothing; the comparison then says what is
 * missing. */
#pragma once

#include <stddef.h>

#include "runtime/base/range_list.h"
#include "runtime/hashes/live_blocks.h"

/* Opens the file of that name in METASHARD_HASHES_LIKE, if that is set. */
void ms_reference_open(const char *name);

/* A place in a mark of the file: the blocks are asked for in the order of ms_live_copy. */
struct ms_reference {
    const char *at;
};

/* The next mark of that name. Marks are asked for in the order of the process. */
void ms_reference_begin(struct ms_reference *reference, const char *mark);

/* Adds the ranges of a block. */
void ms_reference_find(struct ms_reference *reference, const struct ms_live_block *block,
                       struct ms_ranges *ranges_out);
