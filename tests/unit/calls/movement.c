/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/movement.h"

#include "tools/simcuda/harness/test.h"

#define STREAM ((CUstream)7)
#define HOST ((void *)0x1000)

static void check_side(const struct ms_side *side, CUmemorytype type, CUdeviceptr begin,
                       size_t pitch, size_t slice)
{
    CHECK_EQ(side->type, type);
    CHECK_EQ(side->begin, begin);
    CHECK_EQ(side->pitch, pitch);
    CHECK_EQ(side->slice, slice);
    CHECK(!side->is_refused);
}

MS_TEST(a_plane_has_a_pitch_on_each_side)
{
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = HOST,
                                .srcXInBytes = 3,
                                .srcY = 2,
                                .srcPitch = 100,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = 0x9000,
                                .dstXInBytes = 5,
                                .dstY = 4,
                                .dstPitch = 200,
                                .WidthInBytes = 10,
                                .Height = 6};
    const struct ms_movement movement = ms_movement_of_plane(&copy, STREAM);
    CHECK(movement.kind == MS_COPY_PLANE && movement.stream == STREAM);
    CHECK(movement.width == 10 && movement.height == 6 && movement.depth == 1);
    check_side(&movement.from, CU_MEMORYTYPE_HOST, 0x1000 + 2 * 100 + 3, 100, 600);
    check_side(&movement.to, CU_MEMORYTYPE_DEVICE, 0x9000 + 4 * 200 + 5, 200, 1200);
}

MS_TEST(rows_without_a_pitch_lie_close)
{
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = 0x8000,
                                .srcXInBytes = 6,
                                .srcY = 1,
                                .dstMemoryType = CU_MEMORYTYPE_HOST,
                                .WidthInBytes = 10,
                                .Height = 2};
    const struct ms_movement movement = ms_movement_of_plane(&copy, STREAM);
    check_side(&movement.from, CU_MEMORYTYPE_DEVICE, 0x8000 + 16 + 6, 16, 32);
    check_side(&movement.to, CU_MEMORYTYPE_HOST, 0, 10, 20); /* no memory stays no memory */
}

MS_TEST(a_box_has_planes)
{
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                .srcDevice = 0x8000,
                                .srcZ = 3,
                                .srcPitch = 32,
                                .srcHeight = 5,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = 0x9000,
                                .dstZ = 2,
                                .dstPitch = 64,
                                .WidthInBytes = 16,
                                .Height = 4,
                                .Depth = 2};
    const struct ms_movement movement = ms_movement_of_box(&copy, STREAM);
    CHECK(movement.kind == MS_COPY_BOX && movement.stream == STREAM && movement.depth == 2);
    check_side(&movement.from, CU_MEMORYTYPE_UNIFIED, 0x8000 + 3 * 5 * 32, 32, 5 * 32);
    check_side(&movement.to, CU_MEMORYTYPE_DEVICE, 0x9000 + 2 * 4 * 64, 64, 4 * 64);
}

MS_TEST(a_movement_between_devices_is_not_modelled)
{
    const CUDA_MEMCPY3D_PEER copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .srcDevice = 0x8000,
                                     .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                     .dstDevice = 0x9000,
                                     .dstZ = 1,
                                     .WidthInBytes = 16,
                                     .Height = 4,
                                     .Depth = 2};
    const struct ms_movement movement = ms_movement_of_peers(&copy, STREAM);
    CHECK(movement.kind == MS_COPY_UNKNOWN && movement.depth == 2 && movement.stream == STREAM);
    check_side(&movement.to, CU_MEMORYTYPE_DEVICE, 0x9000 + 64, 16, 64);
}

MS_TEST(a_pitch_that_is_too_small_or_too_large_is_refused)
{
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcXInBytes = 6,
                          .srcPitch = 16,
                          .dstPitch = INT32_MAX,
                          .WidthInBytes = 10,
                          .Height = 2};
    struct ms_movement movement = ms_movement_of_plane(&copy, STREAM);
    CHECK(!movement.from.is_refused && !movement.to.is_refused);
    copy.srcPitch = 15;
    copy.dstPitch = (size_t)INT32_MAX + 1;
    movement = ms_movement_of_plane(&copy, STREAM);
    CHECK(movement.from.is_refused && movement.to.is_refused);
}

MS_TEST(a_movement_of_no_description_is_a_box_of_no_bytes)
{
    CHECK_EQ(ms_movement_of_plane(NULL, STREAM).kind, MS_COPY_BOX);
    CHECK_EQ(ms_movement_of_box(NULL, STREAM).width, 0);
    CHECK_EQ(ms_movement_of_peers(NULL, STREAM).kind, MS_COPY_BOX);
}
