/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One description of every copy: `depth` slices of `height` rows of `width` bytes. The entry points
 * fill it in, copy.c checks and runs it.
 */
#pragma once

#include "tools/simcuda/driver/sim.h"

struct sim_box {
    CUmemorytype type; /* HOST, DEVICE, or UNIFIED: the address tells */
    uint64_t address;  /* of the first byte */
    size_t pitch;      /* from row to row */
    size_t slice;      /* from slice to slice */
};
struct sim_copy {
    const char *name;
    struct sim_box to, from;
    size_t width, height, depth;
    bool is_async;
    bool reads_in_order; /* also a pageable source is read only when the stream gets there */
};

/* Both return what the entry point returns. */
CUresult sim_copy_submit(const struct sim_copy *copy, CUstream stream, bool per_thread);
CUresult sim_copy_flat(const char *name, CUmemorytype to_type, uint64_t to, CUmemorytype from_type,
                       uint64_t from, size_t bytes, bool is_async, CUstream stream,
                       bool per_thread);
/* Bytes from the first to the last one of a box; false: more than an address can reach. */
bool sim_box_span(const struct sim_box *box, size_t width, size_t height, size_t depth,
                  size_t *bytes_out);
struct sim_memory;
/* For a call, on memory in which the range begins: may the device touch all of it? Memory of a
 * graph is there when the graph runs. */
bool sim_may_take_locked(const struct sim_memory *memory, CUdevice device,
                         const struct sim_range *range, bool write);
/* For work that runs, on a box of the device: may it touch it? If not, it is an illegal access. */
bool sim_box_touch(const struct sim_box *box, size_t width, size_t height, size_t depth,
                   CUdevice device, bool write, const char *name);
