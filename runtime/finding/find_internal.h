/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a search, for find.c and the files that find.c asks one after the other. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/files/file.h"

/* A search in the file thread, and the source that it has found. */
struct ms_wanted_source {
    const void *address;
    size_t bytes;
    uint64_t offset;
    struct ms_file *found;
    bool is_absent; /* some pages are not in memory; only a read can tell what they hold */
    bool is_last;   /* the last search: the pages were read */
    bool was_short; /* no descriptor was free */
};
