/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shadows, with METASHARD=verify. The shadow of an allocation is device memory of its own, mapped
 * nowhere else. The driver carries out there each write that is recorded, at once and in the stream
 * of the call. What a replay gives is compared with it (compare.h).
 *
 *     program's call ---> lineage -----------> replay ---> memory --+
 *                   \                                               +--> the same?
 *                    +--> the driver, at once -----------> shadow --+
 *
 * Extents say of which bytes there is a shadow (lineage.h): what the program has written since the
 * bytes were deferred, as far as all that it was made of has one. When bytes become resident they
 * have none any more. A shadow is given back when memory is short. It covers what was written, in
 * whole granules.
 *
 * The allocations are claimed. All work in a shadow is waited for, so that it can be used in any
 * stream, and freed, without another wait.
 */
#pragma once

#include <stdbool.h>

#include "runtime/config/config.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/space.h"

static inline bool ms_verifies(void)
{
    return ms_config.mode == MS_VERIFY;
}

/* Where the shadow of the byte at `at` is; 0: the allocation has none. */
static inline CUdeviceptr ms_shadow_address(const struct ms_allocation *allocation, size_t at)
{
    return allocation->shadow != NULL ? allocation->shadow->address + at : 0;
}

/*
 * A write of [begin, end), of `host` bytes or, if that is NULL, a fill, is recorded as this
 * content. Returns true if the bytes have a shadow now. So do the others here.
 */
bool ms_shadow_write(struct ms_allocation *allocation, size_t begin, size_t end,
                     const struct ms_content *content, const void *host, CUstream stream);

/* A copy of what `from` has at from_at, of this content, is recorded as a move of lineage. */
bool ms_shadow_copy(struct ms_allocation *to, size_t to_at, const struct ms_allocation *from,
                    size_t from_at, size_t bytes, const struct ms_content *content,
                    CUstream stream);

/* A block as a range of its claimed allocation. It may have been returned meanwhile, or be two
 * blocks with a gap between them: it is still a range. */
struct ms_part {
    struct ms_allocation *allocation;
    size_t begin, end;
};

/* A launch that writes `out` and reads `in` (NULL: nothing else) is about to be recorded. */
bool ms_shadow_launch(const struct ms_part *out, const struct ms_part *in,
                      const struct ms_launch *launch, CUstream stream);

/* [begin, end) has become resident: frees the shadow's granules there. */
void ms_shadow_trim(struct ms_allocation *allocation, size_t begin, size_t end);

/* Frees all shadows, but those of allocations that are claimed, and none during a capture. Returns
 * how many bytes that gave. The caller holds no claim. */
size_t ms_shadow_give_up(void);

/* Waits for the work that is queued in the stream now. */
CUresult ms_shadow_wait(CUstream stream);
