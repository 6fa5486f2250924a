/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a program, as its entry points make them. A call that fails ends the program. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "runtime/calls/alloc.h"
#include "runtime/calls/move.h"

static inline void must(bool is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "it failed: %s\n", what);
    exit(1);
}

static inline CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address = 0;
    CUresult result = CUDA_ERROR_UNKNOWN;
    must(ms_alloc(size, &address, &result) && result == CUDA_SUCCESS, "cuMemAlloc");
    return address;
}

static inline void release(CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    must(ms_alloc_free(address, &result) && result == CUDA_SUCCESS, "cuMemFree");
}

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

/* Different bytes for each number, none of which could be an address. */
static inline void set(CUdeviceptr address, size_t number, size_t bytes)
{
    const uint32_t value = 0x80000000u | (uint32_t)number;
    must(set_is_recorded(address, value, bytes), "cuMemsetD32");
}

static inline void copy_from(CUdeviceptr address, const void *source, size_t bytes)
{
    must(copy_is_recorded(MS_COPY_FROM_HOST, address, ms_side_of_host(source), bytes),
         "cuMemcpyHtoD");
}
