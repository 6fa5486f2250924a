/* SPDX-License-Identifier: Apache-2.0 */
/* Sets and copies of rows and boxes, and through arrays. */
#include "tests/driver/differential/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 64 << 10, ARRAY_BYTES = 4096 };

struct rows {
    CUdeviceptr at;
    size_t pitch, count, height; /* count elements a row */
};

static bool draw_rows(struct rows *rows_out, size_t width)
{
    const struct fuzz_range range = fuzz_fresh_range(MOST, 4);
    const size_t pitch = 4 * (1 + fuzz_below(range.bytes / 4));
    *rows_out = (struct rows){.at = range.at,
                              .pitch = pitch,
                              .count = 1 + fuzz_below(pitch / width),
                              .height = range.bytes / pitch};
    return rows_out->height > 0;
}

static void set_rows_8(struct rows rows, bool twin, bool async)
{
    const unsigned char value = (unsigned char)fuzz_random();
    if (async)
        SEE_QUEUED(twin, cuMemsetD2D8Async, rows.at, rows.pitch, value, rows.count, rows.height);
    else
        SEE_NOW(twin, cuMemsetD2D8_v2, rows.at, rows.pitch, value, rows.count, rows.height);
}

static void set_rows_16(struct rows rows, bool twin, bool async)
{
    const unsigned short value = (unsigned short)fuzz_random();
    if (async)
        SEE_QUEUED(twin, cuMemsetD2D16Async, rows.at, rows.pitch, value, rows.count, rows.height);
    else
        SEE_NOW(twin, cuMemsetD2D16_v2, rows.at, rows.pitch, value, rows.count, rows.height);
}

static void set_rows_32(struct rows rows, bool twin, bool async)
{
    const unsigned value = (unsigned)fuzz_random();
    if (async)
        SEE_QUEUED(twin, cuMemsetD2D32Async, rows.at, rows.pitch, value, rows.count, rows.height);
    else
        SEE_NOW(twin, cuMemsetD2D32_v2, rows.at, rows.pitch, value, rows.count, rows.height);
}

static void set_rows(void)
{
    static void (*const ways[])(struct rows, bool, bool) = {set_rows_8, set_rows_16, set_rows_32};
    const size_t way = fuzz_below(3);
    struct rows rows;
    if (!draw_rows(&rows, (size_t)1 << way))
        return;
    const bool twin = fuzz_one_in(2);
    ways[way](rows, twin, fuzz_one_in(2));
}

/* The sides of a copy: device memory and, one time in three, host memory on one side. */
struct sides {
    struct fuzz_range from, to;
    const unsigned char *host_from;
    unsigned char *host_to;
    size_t bytes;
};

static bool draw_sides(struct sides *sides_out)
{
    struct sides sides = {.host_from = NULL};
    if (!fuzz_two_ranges(&sides.from, &sides.to, MOST, 1))
        return false;
    sides.bytes = sides.to.bytes;
    const size_t kind = fuzz_below(6);
    if (kind == 0)
        sides.host_from = fuzz_source(sides.bytes);
    if (kind == 1) {
        sides.host_to = fuzz_one_in(2) ? fuzz_scratch : fuzz_landing;
        fuzz_wait();
        memset(sides.host_to, 0, sides.bytes);
    }
    *sides_out = sides;
    return true;
}

static void see_sides(const struct sides *sides)
{
    if (sides->host_to == NULL && sides->host_from == NULL)
        return;
    fuzz_wait();
    if (sides->host_to != NULL)
        fuzz_see_bytes(sides->host_to, sides->bytes);
}

static void copy_plane(void)
{
    struct sides sides;
    if (!draw_sides(&sides))
        return;
    const size_t pitch = 1 + fuzz_below(sides.bytes);
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = sides.host_from != NULL ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .srcHost = sides.host_from,
        .srcDevice = sides.host_from != NULL ? 0 : sides.from.at,
        .srcPitch = pitch,
        .dstMemoryType = sides.host_to != NULL ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dstHost = sides.host_to,
        .dstDevice = sides.host_to != NULL ? 0 : sides.to.at,
        .dstPitch = pitch,
        .WidthInBytes = 1 + fuzz_below(pitch),
        .Height = sides.bytes / pitch};
    const bool twin = fuzz_one_in(2);
    const size_t way = fuzz_below(3);
    if (way == 2) {
        SEE_QUEUED(twin, cuMemcpy2DAsync_v2, &copy);
    } else {
        fuzz_default_stream(twin);
        if (way == 1)
            SEE(TWIN(twin, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds)(&copy));
        else
            SEE(TWIN(twin, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds)(&copy));
    }
    see_sides(&sides);
}

static void copy_box(void)
{
    struct sides sides;
    if (!draw_sides(&sides))
        return;
    const size_t pitch = 1 + fuzz_below(sides.bytes);
    const size_t rows = sides.bytes / pitch;
    const size_t height = 1 + fuzz_below(rows);
    const CUDA_MEMCPY3D copy = {
        .srcMemoryType = sides.host_from != NULL ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .srcHost = sides.host_from,
        .srcDevice = sides.host_from != NULL ? 0 : sides.from.at,
        .srcPitch = pitch,
        .srcHeight = height,
        .dstMemoryType = sides.host_to != NULL ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dstHost = sides.host_to,
        .dstDevice = sides.host_to != NULL ? 0 : sides.to.at,
        .dstPitch = pitch,
        .dstHeight = height,
        .WidthInBytes = 1 + fuzz_below(pitch),
        .Height = 1 + fuzz_below(height),
        .Depth = rows / height};
    const bool twin = fuzz_one_in(2);
    if (fuzz_one_in(2))
        SEE_QUEUED(twin, cuMemcpy3DAsync_v2, &copy);
    else
        SEE_NOW(twin, cuMemcpy3D_v2, &copy);
    see_sides(&sides);
}

/* Device to array to device. Made once: arrays are not what is tested. */
static void through_array(void)
{
    static CUarray array;
    const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = ARRAY_BYTES,
                                              .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                              .NumChannels = 1};
    struct fuzz_range from, to;
    if (array == NULL && CALL(cuArrayCreate_v2)(&array, &descriptor) != CUDA_SUCCESS)
        exit(2);
    if (!fuzz_two_ranges(&from, &to, ARRAY_BYTES, 1))
        return;
    const bool twin = fuzz_one_in(2);
    const bool other = fuzz_one_in(2);
    fuzz_wait();
    fuzz_default_stream(twin);
    if (fuzz_one_in(2))
        SEE(TWIN(twin, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds)(array, 0, from.at, from.bytes));
    else
        SEE(TWIN(twin, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds)(array, 0, fuzz_source(from.bytes),
                                                              from.bytes));
    fuzz_wait();
    SEE_NOW(other, cuMemcpyAtoD_v2, to.at, array, 0, to.bytes);
    fuzz_wait();
}

const struct fuzz_operation fuzz_shapes[] = {
    {"set rows", set_rows, 40},
    {"copy a plane", copy_plane, 30},
    {"copy a box", copy_box, 20},
    {"copy through an array", through_array, 12},
    {NULL, NULL, 0},
};
