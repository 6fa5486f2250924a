/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shadows, with METASHARD=verify. The shadow of an allocation is separate device memory, in which
 * the driver carries out each recorded write, at once and in the stream of the call. The bytes that
 * a replay gives are compared with the shadow (compare.h).
 *
 *     program's call ---> lineage -----------> replay ---> memory --+
 *                   \                                               +--> the same?
 *                    +--> the driver, at once -----------> shadow --+
 *
 * Extents say which bytes have a shadow (lineage.h): those that the program has written since they
 * were deferred, if all inputs of the write had a shadow. Resident bytes have none. A shadow has
 * memory for written bytes only, in whole granules, and is given back when memory is short.
 *
 * The caller has claimed the allocations. Each function waits for its work in a shadow, so that any
 * stream can use the shadow, and the shim can free it, without another wait.
 */
#pragma once

#include <stdbool.h>

#include "runtime/config/config.h"
#include "runtime/memory/space.h"

struct ms_copied;

static inline bool ms_verifies(void)
{
    return ms_config.mode == MS_VERIFY;
}

/* The address of the shadow of the byte at `at`; 0: the allocation has no shadow. */
static inline CUdeviceptr ms_shadow_address(const struct ms_allocation *allocation, size_t at)
{
    const struct ms_backing *shadow = allocation->notes.shadow;
    return shadow != NULL ? shadow->address + at : 0;
}

/*
 * A write is about to be recorded: of the bytes at `host`, or a fill if host is NULL. This
 * function, ms_shadow_copy and ms_shadow_launch mark the new content, which has no mark yet, if the
 * written bytes have a shadow now.
 */
void ms_shadow_write(struct ms_allocation *allocation, struct ms_extent *written, const void *host,
                     CUstream stream);

/* A copy (reuse.h) is about to be recorded as a move of lineage. */
void ms_shadow_copy(const struct ms_copied *copied, struct ms_content *moved, CUstream stream);

/* A launch that writes `out` and reads `in` (NULL: nothing else) is about to be recorded. */
void ms_shadow_launch(const struct ms_part *out, const struct ms_part *in,
                      struct ms_content *launched, CUstream stream);

/* [begin, end) has become resident: frees the shadow's granules there. */
void ms_shadow_trim(struct ms_allocation *allocation, size_t begin, size_t end);

/* Frees all shadows, except those of allocations that other threads have claimed; frees nothing
 * during a capture. Returns how many bytes went back. The caller holds no claim. */
size_t ms_shadow_give_up(void);

/* Waits for the work that is queued in the stream now. */
CUresult ms_shadow_wait(CUstream stream);
