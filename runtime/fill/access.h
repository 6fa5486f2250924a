/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares the bytes that a call reaches, before the shim forwards the call. CUDA_SUCCESS: the call
 * may be forwarded. Any other result is the call's result instead.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/strided_copy.h"
#include "runtime/fill/materialise.h"

/* One call's use of [begin, begin + bytes). Parts of the range in no allocation do not matter. */
struct ms_use {
    enum ms_need need; /* a row of needs.def */
    CUdeviceptr begin;
    size_t bytes;
    CUstream stream;    /* the call's; NULL: one of the current context */
    enum ms_reason why; /* MS_REASON_CALL: as needs.def says. The first use's counts */
};

/*
 * Prepares all uses of one call. Frees bytes that can be restored where memory is short, and tries
 * again. Holds the bytes of all uses if a need makes bytes cached: ms_evict_let_go must follow the
 * call then. After a failure nothing is held.
 */
CUresult ms_access_uses(const struct ms_use *uses, size_t count);

static inline CUresult ms_access(CUdeviceptr address, size_t bytes, enum ms_need need)
{
    return ms_access_uses(&(struct ms_use){.need = need, .begin = address, .bytes = bytes}, 1);
}

/* MS_NEED_READ_WRITE for a box of rows: from its first byte to its last, gaps included, or row by
 * row if a plan gives some of these bytes to other ranks. */
CUresult ms_access_rows(const struct ms_rows *rows);

/* ms_materialise_granules_later for a range of addresses. */
void ms_access_granules_later(CUdeviceptr address, size_t bytes);

/* MS_NEED_REACH_LIVE for all allocations. For calls that are not modelled (MS_REASON_SEALED), and
 * kernels that can reach anything. */
CUresult ms_access_all(enum ms_reason why);

/*
 * The call will share the memory of [address, address + bytes): MS_NEED_PIN for the whole
 * allocations. An allocation gets one handle if nothing of it was backed before. *one_handle_out:
 * each allocation has one handle.
 */
CUresult ms_access_export(CUdeviceptr address, size_t bytes, bool *one_handle_out);
