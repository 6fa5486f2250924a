/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where bytes of files and of shared snapshots (host_snapshot.h) are in device memory, or wait to
 * come there. A program may need bytes in two places, such as a tensor and a copy of a part of it:
 * the shim sends them once, then copies them on the device.
 *
 * The tables hold the latest places only, and own nothing. Who uses a place checks it again.
 */
#pragma once

#include "runtime/files/host_snapshot.h"
#include "runtime/memory/space.h"

/* `bytes` bytes of a source, from `offset`, at address. Sources are compared, never followed: a
 * place may be older than its source. */
struct ms_loaded_place {
    const struct ms_source *source;
    uint64_t offset, bytes;
    CUdeviceptr address;
};

/* Callers leave fewer bytes of a file: a search costs as much as to send them. Pieces in one line,
 * with less than MS_LOADED_NEAR between them, count together. */
enum { MS_LOADED_LEAST = 256 << 10, MS_LOADED_NEAR = 16 << 10 };

/* True if other places may have, or wait for, so many bytes of a source. */
static inline bool ms_loaded_is_likely(const struct ms_content *content, size_t bytes)
{
    return ms_content_file(content) != NULL ? bytes >= MS_LOADED_LEAST
                                            : ms_host_snapshot_is_shared(content->source);
}

/* Notes a place. A place that goes on from one of the latest, or that begins shortly behind it,
 * makes that one longer: the bytes between them are checked when they are wanted. So a snapshot
 * that the program cuts into many pieces takes one entry. */
enum ms_loaded_state { MS_LOADED_IS_THERE, MS_LOADED_WAITS };
void ms_loaded_note(const struct ms_loaded_place *place, enum ms_loaded_state state);

/*
 * The bytes of the place belong there: copies one piece of them that is in memory elsewhere in the
 * context, in the order of stream. Returns the piece as offsets in the source; empty if nothing was
 * copied: read the source then. Waits for stream. The caller has claimed the place, or it is
 * scratch memory.
 */
struct ms_range ms_loaded_copy(CUcontext context, const struct ms_loaded_place *place,
                               CUstream stream);

/* Finds another place that has waited for some bytes of this one, and makes it the part with these
 * bytes. Only the rest of that place waits from then on. */
bool ms_loaded_take_waiting(const struct ms_loaded_place *place,
                            struct ms_loaded_place *waiting_out);
