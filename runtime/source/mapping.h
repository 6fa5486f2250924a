/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File mappings of this process, as /proc/self/maps and /proc/self/pagemap tell (proc(5)). Holds no
 * state; every call looks again, because a program may map and unmap at any time. Linux 6.11 and newer is asked for
 * the mapping; of older ones the whole list is read, which costs about a microsecond for each mapping.
 * To be called in the file thread (file_thread.h), as descriptors are opened and closed.
 */
#ifndef METASHARD_RUNTIME_SOURCE_MAPPING_H
#define METASHARD_RUNTIME_SOURCE_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "runtime/config/config.h"

struct ms_mapping {
    uintptr_t begin, end; /* of the mapping */
    uint64_t file_offset; /* of the address asked for */
    dev_t device;
    ino_t inode;
    bool shared;
    char path[MS_PATH_BYTES]; /* as the kernel gives it; may end in " (deleted)" */
};

/*
 * The file mapping that holds all of [address, address + bytes), if its bytes are the file's own.
 * False for memory without a file, for ranges over several mappings, for private pages that were
 * written or swapped, and for files that are mapped shared and writable anywhere in this process
 * (a store would change the file without a trace).
 */
bool ms_mapping_find(const void *address, size_t bytes, struct ms_mapping *mapping_out);

/* Calls visit for every mapping of a file from its start. False when the list cannot be read. */
typedef void ms_mapping_visitor(void *context, const struct ms_mapping *mapping);
bool ms_mapping_visit(ms_mapping_visitor *visit, void *context);

/* True when that file is mapped shared and writable somewhere in this process, or nobody can tell. */
bool ms_mapping_is_stored_to(dev_t device, ino_t inode);

/* Bytes of this process, where a mapping may have lost its pages by now (a file that was truncated): then false, and no
 * signal. Memory of devices is not read. */
bool ms_mapping_peek(const void *address, void *buffer, size_t bytes);

/* A read-only descriptor of the mapped file, verified by device and inode; -1 when there is no way
 * to open it. */
int ms_mapping_open(const struct ms_mapping *mapping);

#endif
