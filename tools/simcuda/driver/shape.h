/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptions of cuda.h, turned into boxes. */
#pragma once

#include "tools/simcuda/driver/copy.h"

/* One side of a 2D or 3D copy, as the descriptions of cuda.h have it. */
struct sim_side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x_bytes, y, z, lod;
    size_t pitch, height;
};
CUresult sim_side_box(const struct sim_side *side, size_t width, size_t height, size_t depth,
                      struct sim_box *box_out);

/* Arrays are plain rows in device memory, without gaps (array.c). */
struct sim_array_layout {
    CUdeviceptr address;
    size_t element_bytes, row_bytes, height, depth; /* height and depth are at least 1 */
};
CUresult sim_array_get(CUarray array, struct sim_array_layout *layout_out);
