/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File mappings of this process, from /proc/self/maps and /proc/self/pagemap (proc(5)), which stay
 * open. Every call looks again, because a program may map and unmap at any time. Linux 6.11 and
 * newer answers a query for one mapping; on older kernels the whole list is read, about a
 * microsecond for each mapping (finding/find.c then remembers places). Only for the file thread
 * (file_thread.h), which owns the descriptors.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "runtime/config/config.h"

struct ms_mapping {
    uintptr_t begin, end; /* of the mapping */
    uint64_t file_offset; /* of the queried address */
    dev_t device;
    ino_t inode;
    bool shared;
    size_t lines_read;        /* of the list, to find it; 0: the kernel answers queries */
    char path[MS_PATH_BYTES]; /* from the kernel; may end in " (deleted)" */
    bool is_read; /* not a mapping, but a place where the file was read (finding/reads.h) */
};

/*
 * Finds the file mapping that has all of [address, address + bytes), if its bytes are the file's
 * own. Returns false for memory without a file, for ranges over several mappings, and for private
 * pages that were written or swapped.
 */
bool ms_mapping_find(const void *address, size_t bytes, struct ms_mapping *mapping_out);

/* Finds the file mapping that has the address, whatever its pages are. */
bool ms_mapping_find_at(uintptr_t address, struct ms_mapping *mapping_out);

/* True if at least `count` pages of the range are there, or this is unknown. A page of a file is
 * there if it was touched, or if it had been read before and a page near it was touched. */
bool ms_mapping_has_pages(uintptr_t begin, uintptr_t end, size_t count);

/* True if all pages of the range are there. */
bool ms_mapping_is_present(const void *address, size_t bytes);

/* Calls visit for every mapping of a file's start. Returns false if the list cannot be read. */
typedef void ms_mapping_visitor(void *context, const struct ms_mapping *mapping);
bool ms_mapping_visit(ms_mapping_visitor *visit, void *context);

/*
 * True if a store through a mapping of this process may change the file, or this is unknown. The
 * mapping is shared, and writable, or can become so (mprotect), because its descriptor was open for
 * writing. Looks at all mappings. If false, *lasts_out is true if only a new mapping can change
 * that. It is false if mprotect can, too, because the kernel does not tell how a file was opened.
 */
bool ms_mapping_is_stored_to(dev_t device, ino_t inode, bool *lasts_out);

/* Reads bytes of this process. Returns false, without a signal, where a load would get one (the
 * file was truncated, the memory may not be read). Does not read memory of devices. */
bool ms_mapping_peek(const void *address, void *buffer, size_t bytes);

/*
 * Counts the mappings of the range, if nobody can make a file behind them shorter: they have no
 * file, or the file without a name that the kernel makes for shared anonymous memory, as drivers
 * pin. 0: some have another file, or the kernel does not answer queries.
 */
size_t ms_mapping_count_anonymous(const void *address, size_t bytes);

/*
 * True if loads from the range by this thread get no signal, unless the program changes the
 * mapping, or somebody the file. Brings pages in, as loads would. False: some bytes may not be
 * loaded, or the kernel is older than Linux 5.14 (EINVAL). is_one: the range is anonymous memory of
 * one mapping, which has the same rights everywhere: less to check. For any thread.
 */
bool ms_mapping_may_load(const void *address, size_t bytes, bool is_one);

/* Where the program has mapped files from their start on, since the last look. */
enum { MS_MAPPING_NEW = 64, MS_MAPPING_NO_CHECKPOINT = 1 };
extern struct ms_mapping_new {
    _Atomic uintptr_t places[MS_MAPPING_NEW]; /* 0: none */
    _Atomic uint32_t count;
} ms_mapping_new;

/* `address` NULL: the file is certainly no checkpoint, or nothing was mapped. For any thread, also
 * in a handler. */
static inline void ms_mapping_note_new(const void *address)
{
    const uint32_t at = atomic_fetch_add(&ms_mapping_new.count, 1) % MS_MAPPING_NEW;
    atomic_store(&ms_mapping_new.places[at],
                 address != NULL ? (uintptr_t)address : MS_MAPPING_NO_CHECKPOINT);
}

/* Takes the addresses that were noted since the last call, without NULL. Returns how many notes
 * there were, with NULL: fewer than calls of ms_mapping_note_new, if there were too many. */
static inline size_t ms_mapping_take_new(uintptr_t places_out[MS_MAPPING_NEW], size_t *count_out)
{
    size_t taken = 0;
    *count_out = 0;
    for (size_t i = 0; i < MS_MAPPING_NEW; i++) {
        const uintptr_t place = atomic_exchange(&ms_mapping_new.places[i], 0);
        taken += place != 0;
        if (place > MS_MAPPING_NO_CHECKPOINT)
            places_out[(*count_out)++] = place;
    }
    return taken;
}

/* Returns a read-only descriptor of the mapped file, verified by device and inode, or -1. For a
 * file that was read, then sets the device and inode that a mapping of it has: on some file systems
 * they differ from stat(2)'s. */
int ms_mapping_open(struct ms_mapping *mapping);

/* Opens a file again by its path. Returns -1 if that fails, or if the path is of another file by
 * now: then *stat_out is of the other file, and errno is 0. */
int ms_mapping_open_again(const char *path, const struct stat *wanted, struct stat *stat_out);

/*
 * The program is about to take a write lease of this file, or has one. From now on the shim does
 * not open the file: that would break the lease, and the kernel's signal for that ends the program.
 * For any thread, also in a handler of a signal.
 */
void ms_mapping_note_lease(dev_t device, ino_t inode);

/* Closes a descriptor of a file. In the program's table (file_thread.h) it stays open if it is not
 * ours any more, or if a lock would end with it. */
void ms_mapping_close(int descriptor);
