/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to read for a transfer, and where it goes. Requests that overlap or nearly touch in their
 * file become one range to read. Ranges fill batches, one slot each. Copies go from there:
 *
 *     requests   | A            |     | C     |            of one file
 *                 | B    |
 *     ranges     | 1            :  gap :   || 2   |        cut where a slot is full
 *     copies     A, B of range 1 ...
 *
 * Each wanted byte is in exactly one range, and in one copy for each request that wants it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/source/reader.h"
#include "runtime/source/transfer.h"

/* Bytes of a slot, and their destination. */
struct ms_slot_copy {
    size_t place, bytes;
    CUdeviceptr address;
};

/* Constant after ms_schedule_init. */
struct ms_schedule {
    struct ms_file_range *ranges;
    struct ms_read_batch *batches;
    struct ms_slot_copy *copies;
    size_t *first_copy; /* of each batch, and the end of the last batch's */
    size_t range_count, batch_count, copy_count;
    size_t wanted_bytes; /* of all copies */
};

/* Sorts the requests; none is empty. If out of memory, returns false and needs no cleanup. */
bool ms_schedule_init(struct ms_schedule *schedule, struct ms_read_request *requests, size_t count,
                      size_t slot_bytes);
void ms_schedule_cleanup(struct ms_schedule *schedule);

/*
 * Returns how many of `count` copies of one batch, from copies[0], lie at equal distances on both
 * sides, so that they are one copy of rows: at least 1.
 */
size_t ms_schedule_rows(const struct ms_slot_copy *copies, size_t count);
