/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/movement.h"

#include "runtime/calls/calls.h"
#include "runtime/calls/copy_rows.h"
#include "runtime/calls/query.h"
#include "runtime/driver/flags.h"

static bool is_empty(const struct ms_movement *movement)
{
    return movement->width == 0 || movement->height == 0 || movement->depth == 0;
}

static struct ms_rows rows_of(const struct ms_movement *movement, const struct ms_side *side)
{
    return (struct ms_rows){.begin = side->begin,
                            .width = movement->width,
                            .height = movement->height,
                            .depth = movement->depth,
                            .pitch = side->pitch,
                            .slice = side->slice};
}

/* Most are one row. */
static inline bool strays(const struct ms_movement *movement, const struct ms_side *side)
{
    if (!ms_side_is_device(*side))
        return false;
    if (movement->height == 1 && movement->depth == 1)
        return ms_strays(side->begin, movement->width);
    const struct ms_rows rows = rows_of(movement, side);
    return ms_rows_stray(&rows);
}

bool ms_movement_strays(const struct ms_movement *movement)
{
    return strays(movement, &movement->to) || strays(movement, &movement->from);
}

/* --- one row each. The functions return true if the call is answered. */

/* What is read is held. */
static bool read_to_host(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    *result_out = ms_access_read(movement->from.begin, movement->width, movement->stream);
    *held_out = *result_out == CUDA_SUCCESS;
    return !*held_out;
}

/* A destination that is in an allocation: the driver decides if that is allowed. */
static bool copy_to_host(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    const CUdeviceptr to = movement->to.begin;
    *result_out =
        ms_is_owned(to) ? ms_access(to, movement->width, MS_NEED_READ_WRITE) : CUDA_SUCCESS;
    return *result_out != CUDA_SUCCESS || read_to_host(movement, held_out, result_out);
}

static bool copy_from_host(const struct ms_movement *movement, CUresult *result_out)
{
    return ms_copy_from_host(movement->to.begin, (const void *)(uintptr_t)movement->from.begin,
                             movement->width, movement->stream, movement->waits, result_out);
}

static bool copy_on_device(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    *held_out = !ms_copy_on_device(movement->to.begin, movement->from.begin, movement->width,
                                   movement->stream, result_out);
    return !*held_out;
}

static bool copy_any(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    const CUdeviceptr to = movement->to.begin, from = movement->from.begin;
    const bool to_block = ms_is_owned(to), from_block = ms_is_owned(from);
    if (from_block && !to_block && !ms_is_device_memory(to))
        return read_to_host(movement, held_out, result_out);
    if (movement->width == 0)
        return false;
    if (from_block || (to_block && !ms_is_host_memory(from)))
        return copy_on_device(movement, held_out, result_out);
    if (!to_block && !ms_is_device_memory(to))
        return false;
    if (ms_is_host_memory(from))
        return copy_from_host(movement, result_out);
    *result_out = ms_access_unowned(from);
    return *result_out != CUDA_SUCCESS;
}

static bool set(const struct ms_movement *movement, CUresult *result_out)
{
    return ms_fill(movement->to.begin, movement->value, movement->element,
                   movement->width / movement->element, movement->stream, result_out);
}

/* --- more than one row */

/* One plane of rows out of an allocation, if the runtime copies it itself. */
static bool copy_plane(const struct ms_movement *movement, CUresult *result_out)
{
    const struct ms_side *to = &movement->to, *from = &movement->from;
    const struct ms_strided_copy rows = {.to = to->begin,
                                         .from = from->begin,
                                         .width = movement->width,
                                         .dims = 1,
                                         .dim = {{movement->height, to->pitch, from->pitch}}};
    return ms_side_is_device(*from) && ms_side_is_device(*to) && !from->is_refused &&
           !to->is_refused && !is_empty(movement) && ms_is_owned(from->begin) &&
           ms_copy_rows(&rows, movement->stream, result_out);
}

/* What the bytes that are read point to: kernels can come to it now. */
static CUresult expose(const struct ms_movement *movement)
{
    const struct ms_side *from = &movement->from;
    const CUdeviceptr begin = from->begin;
    if (is_empty(movement))
        return CUDA_SUCCESS;
    if (movement->element != 0)
        return ms_access_payload_value(movement->value, movement->element);
    if (from->type == 0 || from->type == CU_MEMORYTYPE_ARRAY || begin == 0 ||
        (ms_side_is_device(*from) && ms_is_owned(begin)))
        return CUDA_SUCCESS;
    if (ms_side_is_device(*from) &&
        (!ms_is_host_memory(begin) ||
         (from->type == CU_MEMORYTYPE_DEVICE && !ms_is_pinned_memory(begin))))
        return ms_access_unowned(begin);
    const struct ms_rows rows = rows_of(movement, from);
    return ms_access_payload(&rows, movement->stream);
}

static CUresult access_side(const struct ms_movement *movement, const struct ms_side *side)
{
    const struct ms_rows rows = rows_of(movement, side);
    return ms_side_is_device(*side) && !is_empty(movement) ? ms_access_rows(&rows) : CUDA_SUCCESS;
}

static bool make_real(const struct ms_movement *movement, CUresult *result_out)
{
    *result_out = access_side(movement, &movement->from);
    if (*result_out == CUDA_SUCCESS)
        *result_out = expose(movement);
    if (*result_out == CUDA_SUCCESS)
        *result_out = access_side(movement, &movement->to);
    return *result_out != CUDA_SUCCESS;
}

static bool answer(const struct ms_movement *movement, bool *held_out, CUresult *result_out)
{
    switch (movement->kind) {
    case MS_COPY_FROM_HOST:
        return copy_from_host(movement, result_out);
    case MS_COPY_ON_DEVICE:
        return copy_on_device(movement, held_out, result_out);
    case MS_COPY_TO_HOST:
        return copy_to_host(movement, held_out, result_out);
    case MS_COPY_ANY:
        return copy_any(movement, held_out, result_out);
    case MS_COPY_PLANE:
        return copy_plane(movement, result_out) || make_real(movement, result_out);
    case MS_SET:
        return set(movement, result_out);
    case MS_COPY_UNKNOWN:
        *result_out = ms_access_all();
        return *result_out != CUDA_SUCCESS;
    case MS_COPY_BOX:
    case MS_SET_ROWS:
        break;
    }
    return make_real(movement, result_out);
}

enum ms_verdict ms_movement_begin(const struct ms_movement *movement, bool *held_out,
                                  CUresult *result_out)
{
    *held_out = false;
    if (ms_movement_strays(movement))
        return MS_STRAYS;
    if (ms_defers_any() && answer(movement, held_out, result_out))
        return MS_ANSWERED;
    ms_order_add_gate();
    return MS_FORWARD;
}

CUresult ms_movement_seal(void)
{
    ms_order_add_gate();
    return ms_defers_any() ? ms_access_all() : CUDA_SUCCESS;
}

/* --- the structs of the driver */

/* Where a side of a copy lies. A pitch or a plane of 0 is that of the copy. */
struct place {
    CUmemorytype type;
    CUdeviceptr device; /* also for CU_MEMORYTYPE_UNIFIED */
    const void *host;
    size_t x, y, z, pitch, height;
};

/* They name their members alike. */
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
