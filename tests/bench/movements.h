/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets of a program, as its entry points make them. */
#pragma once

#include "runtime/calls/move.h"

/* True if it is recorded. */
static inline bool is_recorded(const struct ms_movement *movement)
{
    bool is_held;
    CUresult result;
    return ms_move_begin(movement, &is_held, &result) == MS_ANSWERED && result == CUDA_SUCCESS;
}

static inline bool set_is_recorded(CUdeviceptr address, uint32_t value, size_t bytes)
{
    const struct ms_movement movement = {.kind = MS_SET,
                                         .stream = CU_STREAM_LEGACY,
                                         .value = value,
                                         .element = sizeof(value),
                                         .width = bytes,
                                         .height = 1,
                                         .depth = 1,
                                         .to = ms_side_of_device(address)};
    return is_recorded(&movement);
}

static inline bool copy_is_recorded(enum ms_movement_kind kind, CUdeviceptr address,
                                    struct ms_side from, size_t bytes)
{
    const struct ms_movement movement = {.kind = kind,
                                         .stream = CU_STREAM_LEGACY,
                                         .waits = true,
                                         .width = bytes,
                                         .height = 1,
                                         .depth = 1,
                                         .to = ms_side_of_device(address),
                                         .from = from};
    return is_recorded(&movement);
}
