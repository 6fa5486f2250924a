/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call needs of the bytes that it reaches, before it is forwarded. CUDA_SUCCESS means that
 * the call may be forwarded; anything else is to be returned instead.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/strided_copy.h"
#include "runtime/fill/materialise.h"

/* What lies in allocations of [address, address + bytes) becomes what needs.def says. */
CUresult ms_access(CUdeviceptr address, size_t bytes, enum ms_need need);

/* MS_NEED_READ in the order of a stream; ms_access takes the current context's. */
CUresult ms_access_read(CUdeviceptr address, size_t bytes, CUstream stream);

/* MS_NEED_READ_WRITE for a box of rows: from its first byte to its last, gaps included. Where a
 * plan gives some of that to other ranks: row by row. */
CUresult ms_access_rows(const struct ms_rows *rows);

/* ms_materialise_granules_later of a range of addresses. */
void ms_access_granules_later(CUdeviceptr address, size_t bytes);

/* MS_NEED_REACH_LIVE for all allocations. For calls that are not modelled. */
CUresult ms_access_all(void);

/*
 * MS_NEED_PIN for the whole allocation that holds address, in one handle if nothing of it was
 * backed before. *one_handle_out: it is in one handle.
 */
CUresult ms_access_export(CUdeviceptr address, bool *one_handle_out);
