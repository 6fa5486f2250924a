/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <string.h>

#include "runtime/files/host_snapshot.h"
#include "runtime/files/source.h"

/* A snapshot of the bytes, or NULL as ms_host_snapshot_create. */
static inline struct ms_source *snapshot_of(const void *address, size_t bytes)
{
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(bytes, MS_SNAPSHOT_LIMITED);
    if (snapshot != NULL)
        memcpy(ms_host_snapshot_data(snapshot), address, bytes);
    return ms_host_snapshot_source(snapshot);
}
