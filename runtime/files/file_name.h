/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files, for lineage that is kept while its files may go. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "runtime/files/source.h"

/*
 * A name finds a file again after its source is gone (ms_find_again). Names are equal if all
 * members are. The path belongs to the source, and has less than MS_PATH_BYTES.
 */
struct ms_named_file {
    dev_t device; /* as the kernel lists its mappings */
    ino_t inode;
    const char *path;
};
struct ms_named_file ms_file_name_get(const struct ms_source *source);

/*
 * Returns a reference to a source that only names the file, for a lineage that is kept and not
 * played: it has no descriptor and no lease, and cannot be read. Each file has one such source.
 * NULL if out of memory.
 */
struct ms_source *ms_file_name_take(struct ms_source *file);

/* True if the file still has the size and modification time of when it got that name. */
bool ms_file_name_fits(const struct ms_source *file, const struct ms_source *name);
