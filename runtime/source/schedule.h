/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to read for a transfer, and what goes where from there. Runs that overlap or nearly touch in
 * their file become one part to read; parts fill batches, a slot each; and what a run wants of a batch is a
 * piece:
 *
 *     runs   | A            |     | C     |            of one file
 *                 | B    |
 *     parts  | 1            :  gap :       || 2   |     cut where a slot is full
 *     pieces   A, B of part 1 ...
 *
 * Each wanted byte is in exactly one part, and in one piece for each run that wants it.
 */
#ifndef METASHARD_RUNTIME_SOURCE_SCHEDULE_H
#define METASHARD_RUNTIME_SOURCE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/source/reader.h"
#include "runtime/source/transfer.h"

/* Bytes of a slot, and where they go. */
struct ms_piece {
    size_t place, bytes;
    CUdeviceptr address;
};

/* Constant once it is made. */
struct ms_gather {
    struct ms_read_part *parts;
    struct ms_read_batch *batches;
    struct ms_piece *pieces;
    size_t *first_piece; /* of each batch, and where the last one's end */
    size_t part_count, batch_count, piece_count;
    size_t wanted_bytes; /* of all pieces */
};

/* Sorts runs; none is empty. False when memory is out: nothing is to be cleaned up then. */
bool ms_gather_init(struct ms_gather *gather, struct ms_run *runs, size_t count, size_t slot_bytes);
void ms_gather_cleanup(struct ms_gather *gather);

/*
 * How many pieces, from pieces[0] on, lie at equal distances on both sides, so that one copy of rows
 * takes them: at least 1. Of `count`, all of one batch.
 */
size_t ms_gather_rows(const struct ms_piece *pieces, size_t count);

#endif
