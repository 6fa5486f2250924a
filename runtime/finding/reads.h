/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of the program's reads of files, with the memory that they filled. A loader that reads,
 * instead of mapping, hides where its bytes come from; notes of its large reads tell:
 *
 *     file      |  header  |  tensor  |  tensor  |
 *                               |          `------------.
 *     memory         ..... [ tensor ] .......... [ part | part ] ...
 *
 * A note is a guess: the memory may have been changed since, or have another owner by now. So bytes
 * that a note leads to are compared with the file's. Notes of reads past the page cache, from a
 * file that is held (held_files.h), have checksums, which are computed again instead.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/files/mapping.h"

/* Reads of less than MS_READS_LEAST are not noted. The last MS_READS_FILES files are known. */
enum { MS_READS_LEAST = 64 << 10, MS_READS_FILES = 1024 };

/*
 * The program has read `bytes` bytes to the address, from `offset` of the descriptor's file on; -1:
 * up to where the descriptor stands now. `held`: the number by which the file was held before the
 * read, or 0. For any thread, also in a handler of a signal or a forked child: allocates nothing,
 * and leaves the note out if others are busy with notes for long. Also leaves out, before the shim
 * has started, files that could be no checkpoint, and all files in a child of a process in which
 * the shim has started.
 */
void ms_reads_note(int descriptor, const void *address, size_t bytes, int64_t offset,
                   uint32_t held);

/*
 * A part of a read past the page cache, of at most 64 KiB, with the checksum of its bytes. They
 * were read to [begin, begin + bytes), from file_offset of the file that was held by that number.
 */
struct ms_reads_part {
    uintptr_t begin;
    size_t bytes;
    uint64_t file_offset, checksum;
    uint32_t held;
};

/* Finds the part that was read to the address. False if there is none, or its checksum is
 * forgotten: the checksums of the last 64 GiB are kept. */
bool ms_reads_find_part(const void *address, struct ms_reads_part *part_out);

/*
 * The program has opened a file for reading, or mapped it. For any thread, as ms_reads_note. An
 * opened file is *unseen* while no mapping of it was noted, and no more reads than a header takes:
 * then nobody knows how the program reads the rest (uring.h).
 */
void ms_reads_note_open(int descriptor);
void ms_reads_note_map(int descriptor);

/* Changes when a file becomes unseen, or is so no more. */
extern _Atomic uint32_t ms_reads_unseen;

/* Gives the unseen files, one after the other, the file opened last first; *at is 0 before the
 * first. Sets *place_out as ms_reads_next does. False behind the last. */
bool ms_reads_next_unseen(size_t *at, struct ms_mapping *place_out);

/* Gives the path of the file of a descriptor of the program. False if it is too long, or there is
 * none. */
bool ms_reads_path(int descriptor, char path_out[MS_PATH_BYTES]);

/*
 * Gives the places in files where the bytes of [address, address + bytes) may be, one after the
 * other; *at is 0 before the first. The first place assumes that all was read as the middle was: a
 * loader may read in parts, and the ends through a buffer. Then come the last reads, if they were
 * of as many bytes or slightly fewer: the loader may have copied their bytes to this memory. Sets
 * device and inode (by stat(2)), path and file_offset of *place_out. False behind the last.
 */
bool ms_reads_next(const void *address, size_t bytes, size_t *at, struct ms_mapping *place_out);
