/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the program has read of files, and where to. A loader that reads, instead of mapping, hides
 * where its bytes come from; notes of its large reads tell:
 *
 *     file      |  header  |  tensor  |  tensor  |
 *                               |          `------------.
 *     memory         ..... [ tensor ] .......... [ part | part ] ...
 *
 * A note is a guess. The memory may have been changed since, or be another's by now: who follows a
 * note compares all bytes with the file's. Of what was read past the page cache, in a file that is
 * held (held_files.h), notes have checksums: who follows one computes them again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/source/mapping.h"

/* Smaller reads are not noted. And of so many files is known that they were read or opened. */
enum { MS_READS_LEAST = 64 << 10, MS_READS_FILES = 1024 };

/*
 * The program has read so many bytes to the address, from `offset` of the descriptor's file on; -1:
 * up to where the descriptor stands now. `held`: by which number the file was held before that, or
 * 0. For any thread, also in a handler of a signal or a forked child: nothing is allocated, and if
 * others are busy with notes for long, this one is left out. So it is before the shim has started,
 * if the file could be no checkpoint, and in a child of a process in which the shim has started.
 */
void ms_reads_note(int descriptor, const void *address, size_t bytes, int64_t offset,
                   uint32_t held);

/*
 * What was read past the page cache has a checksum for each 64 KiB of a read: of the bytes that
 * were read to [begin, begin + bytes), from file_offset of the file that was held by that number.
 */
struct ms_reads_part {
    uintptr_t begin;
    size_t bytes;
    uint64_t file_offset, checksum;
    uint32_t held;
};

/* Finds the part that was read to the address. False if there is none, or its checksum is
 * forgotten: those of the last 64 GiB are kept. */
bool ms_reads_find_part(const void *address, struct ms_reads_part *part_out);

/*
 * The program has opened a file for reading, or mapped it. For any thread, as ms_reads_note. A file
 * that was opened is *unseen* while no mapping of it was noted, and of its bytes no more reads than
 * a header takes: then nobody knows how the program reads the rest (source_opened.h).
 */
void ms_reads_note_open(int descriptor);
void ms_reads_note_map(int descriptor);

/* Changes when a file becomes unseen, or is it no more. */
extern _Atomic uint32_t ms_reads_unseen;

/* The unseen files, one after the other, what was opened last first; *at is 0 before the first. In
 * *place_out as ms_reads_next. False behind the last. */
bool ms_reads_next_unseen(size_t *at, struct ms_mapping *place_out);

/* The path of the file of a descriptor of the program. False if it is too long, or none. */
bool ms_reads_path(int descriptor, char path_out[MS_PATH_BYTES]);

/*
 * The places in files where the bytes of [address, address + bytes) may be, one after the other;
 * *at is 0 before the first. First where they would be if all was read as its middle was: a loader
 * may read in parts, and the ends through a buffer. Then where so many bytes were read, or almost,
 * up to their end, the last read first: the loader may have copied them to this memory. In
 * *place_out: device and inode by stat(2), the path, and file_offset. False behind the last.
 */
bool ms_reads_next(const void *address, size_t bytes, size_t *at, struct ms_mapping *place_out);
