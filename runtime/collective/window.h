/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window: device memory in which the root of a scatter lays side by side what a rank gets, piece by piece, where that
 * lies in many ranges of a tensor. It is used in the order of streams, so one serves all pieces.
 *
 * Used by one thread at a time, as its communicator is.
 */
#ifndef METASHARD_RUNTIME_COLLECTIVE_WINDOW_H
#define METASHARD_RUNTIME_COLLECTIVE_WINDOW_H

#include "runtime/machine/backing.h"
#include "runtime/machine/ranges.h"

/* All zero: there is no memory yet. */
struct ms_window {
    struct ms_backing backing;
    CUcontext context;
    CUstream stream; /* that used it last */
    CUevent used;    /* after that */
};

/* Memory of so many bytes, or more, for work of stream. Waits for work of another one. */
CUresult ms_window_open(struct ms_window *window, CUcontext context, CUdevice device, size_t bytes,
                        CUstream stream);

/* Lays [offset, offset + bytes) of the ranges' bytes, counted one range behind the other, at `at` of the window. `from` is what
 * the ranges are relative to. */
CUresult ms_window_pack(const struct ms_window *window, size_t at, CUdeviceptr from,
                        const struct ms_ranges *ranges, size_t offset, size_t bytes);

/* All work that uses it is queued. */
CUresult ms_window_queued(struct ms_window *window);

/* Waits for that work. */
void ms_window_close(struct ms_window *window);

#endif
