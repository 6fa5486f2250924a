/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to read for a transfer, and what goes where from there. Requests that overlap or nearly touch in
 * their file become one part to read; parts fill batches, a slot each; and what a request wants of a batch is a
 * copy:
 *
 *     requests   | A            |     | C     |            of one file
 *                 | B    |
 *     parts  | 1            :  gap :       || 2   |     cut where a slot is full
 *     copies   A, B of part 1 ...
 *
 * Each wanted byte is in exactly one part, and in one copy for each request that wants it.
 */
#ifndef METASHARD_RUNTIME_SOURCE_SCHEDULE_H
#define METASHARD_RUNTIME_SOURCE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/source/reader.h"
#include "runtime/source/transfer.h"

/* Bytes of a slot, and where they go. */
struct ms_slot_copy {
    size_t place, bytes;
    CUdeviceptr address;
};

/* Constant once it is made. */
struct ms_schedule {
    struct ms_file_range *ranges;
    struct ms_read_batch *batches;
    struct ms_slot_copy *copies;
    size_t *first_copy; /* of each batch, and where the last one's end */
    size_t range_count, batch_count, copy_count;
    size_t wanted_bytes; /* of all copies */
};

/* Sorts requests; none is empty. False when memory is out: nothing is to be cleaned up then. */
bool ms_schedule_init(struct ms_schedule *schedule, struct ms_read_request *requests, size_t count,
                      size_t slot_bytes);
void ms_schedule_cleanup(struct ms_schedule *schedule);

/*
 * How many copies, from copies[0] on, lie at equal distances on both sides, so that one copy of rows
 * takes them: at least 1. Of `count`, all of one batch.
 */
size_t ms_schedule_rows(const struct ms_slot_copy *copies, size_t count);

#endif
