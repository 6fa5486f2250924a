/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call needs of the bytes that it reaches, before it is forwarded. CUDA_SUCCESS means that
 * the call may be forwarded; anything else is to be returned instead.
 */
#ifndef METASHARD_RUNTIME_FILL_ACCESS_H
#define METASHARD_RUNTIME_FILL_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

/* The call will read [address, address + bytes) in the order of stream and write nothing of it. On
 * success, ms_read_end (evict.h) must follow when the call has been made. */
CUresult ms_prepare_read(CUdeviceptr address, size_t bytes, CUstream stream);

/* The same for what is sent to other ranks as it is: a plan has nothing against that. */
CUresult ms_prepare_send(CUdeviceptr address, size_t bytes);

/* The same for a time that is not known: it becomes resident, and no ms_read_end follows. */
CUresult ms_prepare_send_later(CUdeviceptr address, size_t bytes);

/*
 * The call will read, or read and write, what it can reach in [address, address + bytes):
 * materialises the part of it that lies in allocations.
 */
CUresult ms_prepare_touch(CUdeviceptr address, size_t bytes);

/* The call will overwrite all of [address, address + bytes), later and in an order that is not
 * known here: it becomes resident, and what it held is not replayed. */
CUresult ms_prepare_overwrite(CUdeviceptr address, size_t bytes);

/*
 * The same as ms_prepare_touch for a box of rows: from its first byte to its last, gaps included;
 * but where a plan gives something of that to other ranks, row by row.
 */
struct ms_rows {
    CUdeviceptr begin; /* of the first row */
    size_t width, height, depth;
    size_t pitch, slice; /* bytes from row to row, and from plane to plane */
};
CUresult ms_prepare_touch_rows(const struct ms_rows *rows);

/* The same for a kernel, of which it is not known what it does there. */
CUresult ms_prepare_reach(CUdeviceptr address, size_t bytes);

/* As ms_prepare_reach without what is dead. */
CUresult ms_prepare_touch_live(CUdeviceptr address, size_t bytes);

/* No call asks for it: what is neither dead nor, by the plan, remote. */
CUresult ms_prepare_kept(CUdeviceptr address, size_t bytes);

/* As ms_prepare_touch_live for whole allocations, every one of them. For calls that are not
 * modelled. */
CUresult ms_prepare_touch_all(void);

/* As ms_prepare_touch for a call that gives the memory behind the range to others: the allocation's
 * memory stays where it is from now on, also what lies in no block. */
CUresult ms_prepare_pin(CUdeviceptr address, size_t bytes);

/*
 * The call wants physical memory of the allocation that holds address: pins all of it, in one
 * handle if nothing of it was backed before. *one_handle_out tells whether it is in one handle.
 */
CUresult ms_prepare_export(CUdeviceptr address, bool *one_handle_out);

#endif
