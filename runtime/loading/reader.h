/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads many ranges of files at once, into slots of a staging area that the caller owns. A batch
 * fills one slot: one large range, or many small ones.
 *
 *     slot  |  head | range                 | tail |  small | small | small |     unused     |
 *                   ^ place
 *
 * A range in the page cache is read from there. A large range that is not is read past the page
 * cache straight into the slot (O_DIRECT), in whole blocks of the file: ms_reader_place leaves room
 * for head and tail, which are not used. If the file system refuses O_DIRECT, the page cache is
 * used.
 *
 * After every read the file is compared with its record, as in files/file.h. The reader delivers
 * a batch only if its files were found unchanged, and the last batch only if no file was stored to
 * unseen (ms_trust_check_mappings).
 *
 * Calls no CUDA function. One thread uses a reader. The reader's threads share the file thread's
 * table (files/file_thread.h) and block all signals; ms_reader_destroy waits for them.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/files/direct.h"
#include "runtime/files/file.h"

/* Slots begin and end at multiples of this; ranges are best cut there. */
enum { MS_READER_BLOCK = MS_DIRECT_BLOCK };

struct ms_file_range {
    const struct ms_file *file; /* the caller holds a reference */
    uint64_t offset;
    size_t bytes;
    size_t place; /* in its slot, from ms_reader_place */
};

/* ranges[first] to ranges[first + count - 1] fill one slot. */
struct ms_read_batch {
    size_t first, count;
};

/*
 * Places [offset, offset + bytes) of a file in a slot of slot_bytes, of which *used are taken, and
 * moves *used behind it. Returns how many bytes fit: all, or so many that the cut is at a block of
 * the file. Returns 0 if the bytes should go to a fresh slot, but never for a fresh slot.
 */
size_t ms_reader_place(uint64_t offset, size_t bytes, size_t slot_bytes, size_t *used,
                       size_t *place_out);

/* The caller owns all of this, and keeps it unchanged until ms_reader_destroy. */
struct ms_reading {
    const struct ms_file_range *ranges;
    const struct ms_read_batch *batches;
    size_t batch_count;
    unsigned char *slots; /* slot_count times slot_bytes */
    size_t slot_bytes;
    size_t slot_count;
    unsigned threads;              /* to start; 0: the file thread reads */
    unsigned busy_threads;         /* cores for reading from the page cache; at least 1 */
    const _Atomic bool *cancelled; /* true: no read begins any more */
};

struct ms_reader;

/* Starts to read. If no thread can be started, ms_reader_next reads. NULL if out of memory. */
struct ms_reader *ms_reader_create(const struct ms_reading *reading);

/* A batch that was read. The caller owns the slot until it gives it back. */
struct ms_read_done {
    size_t batch;
    size_t slot;
};

/*
 * Returns the next batch that is ready, in any order. Fails with CUDA_ERROR_NOT_READY if none is
 * ready within wait_ns, or none can be, because the caller has every slot; with
 * CUDA_ERROR_OPERATING_SYSTEM, from then on, if a file has changed or cannot be read (one line in
 * the log says why); with CUDA_ERROR_DEINITIALIZED if cancelled. Must not be called after all
 * batches were delivered.
 */
CUresult ms_reader_next(struct ms_reader *reader, uint64_t wait_ns, struct ms_read_done *done_out);

/* Lets the slot be filled again. The slot given back last is in the caches, and is filled first. */
void ms_reader_give_back(struct ms_reader *reader, size_t slot);

/* Stops reading, waits for the threads, and frees the reader. */
void ms_reader_destroy(struct ms_reader *reader);
