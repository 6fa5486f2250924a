/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <string.h>

#include "runtime/files/source.h"

/* A snapshot of the bytes, or NULL as ms_source_create_snapshot. */
static inline struct ms_source *snapshot_of(const void *address, size_t bytes)
{
    struct ms_source *snapshot = ms_source_create_snapshot(bytes, MS_SNAPSHOT_LIMITED);
    if (snapshot != NULL)
        memcpy(ms_source_data(snapshot), address, bytes);
    return snapshot;
}
