/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading many parts of files at once, into slots of a staging area that the caller owns. What fills
 * one slot is a batch: one large part, or many small ones.
 *
 *     slot  |  head | part                  | tail |  small | small | small |     unused     |
 *                   ^ place
 *
 * A part whose bytes are in the page cache is read from there. One that is not, and is large enough,
 * goes past the page cache straight into the slot (O_DIRECT), whole blocks of the file, of which the
 * head and the tail are nobody's: ms_reader_place leaves room for them. A file system that refuses
 * is read through the page cache.
 *
 * A file is compared with what was recorded after every read of it, as in source.h: the reader
 * delivers no byte of a batch before that was found unchanged.
 *
 * Knows nothing of CUDA's calls. One thread uses a reader; the threads that it starts share the file thread's
 * table (file_thread.h), call only the kernel, block all signals, and are joined before ms_reader_destroy returns.
 */
#ifndef METASHARD_RUNTIME_SOURCE_READER_H
#define METASHARD_RUNTIME_SOURCE_READER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/source/source.h"

/* Slots begin at, and are, multiples of this; parts are best cut there. */
enum { MS_READER_BLOCK = 4096 };

struct ms_file_range {
    const struct ms_source *source; /* a file; the caller holds a reference */
    uint64_t offset;
    size_t bytes;
    size_t place; /* in its slot, from ms_reader_place */
};

/* parts[first] to parts[first + count - 1] fill one slot. */
struct ms_read_batch {
    size_t first, count;
};

/*
 * As much of [offset, offset + bytes) of a file as finds room in a slot of slot_bytes, of which *used are
 * taken: says where it goes and moves *used behind it. 0 when it should go to a fresh slot. Never 0 for
 * a fresh one, and never less than all of it unless it ends at a block of the file.
 */
size_t ms_reader_place(uint64_t offset, size_t bytes, size_t slot_bytes, size_t *used,
                       size_t *place_out);

/* All of it is the caller's, and stays as it is until ms_reader_destroy. */
struct ms_reading {
    const struct ms_file_range *ranges;
    const struct ms_read_batch *batches;
    size_t batch_count;
    unsigned char *slots; /* slot_count times slot_bytes */
    size_t slot_bytes;
    size_t slot_count;
    unsigned threads;              /* to start; 0: the file thread reads */
    unsigned busy_threads;         /* of these read at a time what the page cache has: that takes a
                                      core, where the disk only takes patience; at least 1 */
    const _Atomic bool *cancelled; /* by someone: no read is begun any more */
};

struct ms_reader;

/* Starts to read. When no thread can be started, the file thread reads what ms_reader_next asks for. NULL when memory is out. */
struct ms_reader *ms_reader_create(const struct ms_reading *reading);

/* A batch that was read whole. The slot is the caller's until it is given back. */
struct ms_read_done {
    size_t batch;
    size_t slot;
};

/*
 * The next batch that is ready, in any order. CUDA_ERROR_NOT_READY when none is within wait_ns, or
 * when none can be, because every slot is the caller's. CUDA_ERROR_OPERATING_SYSTEM, for good, when a
 * file has changed or cannot be read (one line in the log says why); CUDA_ERROR_DEINITIALIZED when
 * cancelled. Not to be called when all batches were delivered.
 */
CUresult ms_reader_next(struct ms_reader *reader, uint64_t wait_ns, struct ms_read_done *done_out);

/* The slot may be filled again. The one that came back last is filled first: it is in the caches. */
void ms_reader_give_back(struct ms_reader *reader, size_t slot);

/* Ends what is being read, joins, frees. */
void ms_reader_destroy(struct ms_reader *reader);

#endif
