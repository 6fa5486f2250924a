/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a claim. It publishes what has changed (publish.h) while the allocation is still
 * claimed, so it lies above the index of allocations. */
#include "runtime/memory/invariants.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/space.h"

void ms_claim_release(struct ms_allocation *allocation)
{
    if (allocation == NULL)
        return;
    if (MS_DEBUG_CHECKS)
        ms_check_allocation(allocation);
    ms_publish_allocation(allocation);
    ms_space_unclaim(allocation);
}

struct ms_allocation *ms_claim_after(struct ms_allocation *before)
{
    const CUdeviceptr at = before != NULL ? before->address + before->bytes : 0;
    ms_claim_release(before);
    return ms_space_claim_next(at);
}
