/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File mappings of this process, from /proc/self/maps and /proc/self/pagemap (proc(5)). Keeps no
 * state: every call looks again, because a program may map and unmap at any time. Linux 6.11 and
 * newer is queried for one mapping; on older kernels the whole list is read, about a microsecond
 * for each mapping. Only for the file thread (file_thread.h), which owns the descriptors.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "runtime/config/config.h"

struct ms_mapping {
    uintptr_t begin, end; /* of the mapping */
    uint64_t file_offset; /* of the queried address */
    dev_t device;
    ino_t inode;
    bool shared;
    char path[MS_PATH_BYTES]; /* from the kernel; may end in " (deleted)" */
};

/*
 * Finds the file mapping that has all of [address, address + bytes), if its bytes are the file's
 * own. Returns false for memory without a file, for ranges over several mappings, for private pages
 * that were written or swapped, and for files that are mapped shared and writable anywhere in this
 * process (a store would change the file without a trace).
 */
bool ms_mapping_find(const void *address, size_t bytes, struct ms_mapping *mapping_out);

/* Calls visit for every mapping of a file's start. Returns false if the list cannot be read. */
typedef void ms_mapping_visitor(void *context, const struct ms_mapping *mapping);
bool ms_mapping_visit(ms_mapping_visitor *visit, void *context);

/* True if that file is mapped shared and writable anywhere in this process, or this is unknown. */
bool ms_mapping_is_stored_to(dev_t device, ino_t inode);

/* Reads bytes of this process. If a mapping has lost its pages (its file was truncated), returns
 * false without a signal. Does not read memory of devices. */
bool ms_mapping_peek(const void *address, void *buffer, size_t bytes);

/* Returns a read-only descriptor of the mapped file, verified by device and inode, or -1. */
int ms_mapping_open(const struct ms_mapping *mapping);
