/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of files, for a lineage that is kept and not played: a name has no descriptor and no lease,
 * and cannot be read. It finds the file again after the file's source is gone (ms_find_again).
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "runtime/files/file.h"

struct ms_file_name;

static inline struct ms_source *ms_file_name_source(struct ms_file_name *name)
{
    return (struct ms_source *)name;
}

static inline void ms_file_name_drop(struct ms_file_name *name)
{
    ms_source_drop(ms_file_name_source(name));
}

/* Returns a reference to the file's name, of which each file has one. NULL if out of memory. */
struct ms_file_name *ms_file_name_take(struct ms_file *file);

/* Names are equal if all members are. The path belongs to the name, and has less than
 * MS_PATH_BYTES. */
struct ms_named_file {
    dev_t device; /* as the kernel lists its mappings */
    ino_t inode;
    const char *path;
};
struct ms_named_file ms_file_name_get(const struct ms_file_name *name);

/* True if the file still has the size and modification time of when it got that name. */
bool ms_file_name_fits(const struct ms_file_name *name, const struct ms_file *file);
