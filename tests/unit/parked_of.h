/* SPDX-License-Identifier: Apache-2.0 */
/* Parked bytes for tests, which write them where a collective would. */
#pragma once

#include "runtime/memory/parked.h"
#include "tools/simcuda/harness/test.h"

/* The memory at its own address, also before the work is queued. */
static inline unsigned char *bytes_of_parked(struct ms_parked *parked)
{
    CUdeviceptr address;
    const bool is_filled = parked->is_filled;
    parked->is_filled = true;
    CHECK_EQ(ms_parked_read(parked, &address), CUDA_SUCCESS);
    parked->is_filled = is_filled;
    return (unsigned char *)(uintptr_t)address;
}
