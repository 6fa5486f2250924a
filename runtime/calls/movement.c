/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/movement.h"

/* Where a side of a copy lies. A pitch or a height of 0 follows from the size of the copy. */
struct place {
    CUmemorytype type;
    CUdeviceptr device; /* also for CU_MEMORYTYPE_UNIFIED */
    const void *host;
    size_t x, y, z, pitch, height;
};

/* The driver's structures name these members alike. */
#define PLACE(copy, end, z, height)                                                  \
    ((struct place){(copy)->end##MemoryType, (copy)->end##Device, (copy)->end##Host, \
                    (copy)->end##XInBytes, (copy)->end##Y, z, (copy)->end##Pitch, height})

static struct ms_side side_of(const struct place *place, size_t width, size_t height)
{
    const size_t pitch = place->pitch != 0 ? place->pitch : place->x + width;
    const size_t slice = pitch * (place->height != 0 ? place->height : height);
    const bool is_host = place->type == CU_MEMORYTYPE_HOST;
    const CUdeviceptr base = is_host ? (uintptr_t)place->host : place->device;
    const CUdeviceptr begin = base + place->z * slice + place->y * pitch + place->x;
    return (struct ms_side){.type = place->type,
                            .is_refused = pitch < place->x + width || pitch > INT32_MAX,
                            .begin = is_host && base == 0 ? 0 : begin,
                            .pitch = pitch,
                            .slice = slice};
}

static struct ms_movement between(enum ms_movement_kind kind, const struct place *to,
                                  const struct place *from, size_t width, size_t height,
                                  size_t depth, CUstream stream)
{
    return (struct ms_movement){.kind = kind,
                                .stream = stream,
                                .width = width,
                                .height = height,
                                .depth = depth,
                                .to = side_of(to, width, height),
                                .from = side_of(from, width, height)};
}

struct ms_movement ms_movement_of_box(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    if (copy == NULL)
        return (struct ms_movement){.kind = MS_COPY_BOX};
    const struct place to = PLACE(copy, dst, copy->dstZ, copy->dstHeight);
    const struct place from = PLACE(copy, src, copy->srcZ, copy->srcHeight);
    return between(MS_COPY_BOX, &to, &from, copy->WidthInBytes, copy->Height, copy->Depth, stream);
}

struct ms_movement ms_movement_of_plane(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    if (copy == NULL)
        return (struct ms_movement){.kind = MS_COPY_BOX};
    const struct place to = PLACE(copy, dst, 0, 0), from = PLACE(copy, src, 0, 0);
    return between(MS_COPY_PLANE, &to, &from, copy->WidthInBytes, copy->Height, 1, stream);
}

struct ms_movement ms_movement_of_peers(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
    if (copy == NULL)
        return (struct ms_movement){.kind = MS_COPY_BOX};
    const struct place to = PLACE(copy, dst, copy->dstZ, copy->dstHeight);
    const struct place from = PLACE(copy, src, copy->srcZ, copy->srcHeight);
    return between(MS_COPY_UNKNOWN, &to, &from, copy->WidthInBytes, copy->Height, copy->Depth,
                   stream);
}
