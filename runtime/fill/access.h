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

/* What a call does with [begin, begin + bytes). Anything there that is in no allocation is left. */
struct ms_use {
    enum ms_need need; /* what happens to it (needs.def) */
    CUdeviceptr begin;
    size_t bytes;
    CUstream stream;    /* in whose order; NULL: one of the current context */
    enum ms_reason why; /* MS_REASON_CALL: as needs.def says. The first one's counts */
};

/*
 * Prepares all uses of one call. Where memory is short, what can be restored is freed, and they are
 * prepared again. If one of them makes bytes cached, all of them are held, and ms_evict_let_go must
 * follow the call. After a failure nothing is held.
 */
CUresult ms_access_uses(const struct ms_use *uses, size_t count);

static inline CUresult ms_access(CUdeviceptr address, size_t bytes, enum ms_need need)
{
    return ms_access_uses(&(struct ms_use){.need = need, .begin = address, .bytes = bytes}, 1);
}

/* MS_NEED_READ_WRITE for a box of rows: from its first byte to its last, gaps included. Where a
 * plan gives some of that to other ranks: row by row. */
CUresult ms_access_rows(const struct ms_rows *rows);

/* ms_materialise_granules_later of a range of addresses. */
void ms_access_granules_later(CUdeviceptr address, size_t bytes);

/* MS_NEED_REACH_LIVE for all allocations. For calls that are not modelled (MS_REASON_SEALED), and
 * kernels that can reach anything. */
CUresult ms_access_all(enum ms_reason why);

/*
 * The call will share the memory of [address, address + bytes): MS_NEED_PIN for the whole
 * allocations. Each is in one handle if nothing of it was backed before. *one_handle_out: each is.
 */
CUresult ms_access_export(CUdeviceptr address, size_t bytes, bool *one_handle_out);
