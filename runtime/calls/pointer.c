/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/pointer.h"

#include "runtime/memory/delayed_free.h"
#include "runtime/memory/space.h"

bool ms_pointer_is_owned(CUdeviceptr address)
{
    struct ms_allocation_facts facts;
    return ms_space_look_up(address, &facts);
}

/* The driver's memory type of an address, or 0. Returns false if the driver cannot answer. */
static bool ask_type(CUdeviceptr address, unsigned *type_out)
{
    const CUresult result =
        ms_driver.pointer_get_attribute(type_out, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result == CUDA_ERROR_INVALID_VALUE)
        *type_out = 0;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE;
}

bool ms_pointer_is_device(CUdeviceptr address)
{
    unsigned type;
    return ask_type(address, &type) && type == CU_MEMORYTYPE_DEVICE;
}

static bool ask(void *value_out, CUpointer_attribute attribute, CUdeviceptr address)
{
    return ms_driver.pointer_get_attribute(value_out, attribute, address) == CUDA_SUCCESS;
}

bool ms_pointer_is_whole(CUdeviceptr address, size_t bytes, CUdevice device)
{
    CUdeviceptr begin;
    size_t whole_bytes;
    int its_device;
    return ask(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) &&
           ask(&whole_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) &&
           ask(&its_device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) && its_device == device &&
           address - begin <= whole_bytes && bytes <= whole_bytes - (address - begin);
}

bool ms_pointer_is_host(CUdeviceptr address)
{
    unsigned type;
    return ask_type(address, &type) && (type == 0 || type == CU_MEMORYTYPE_HOST);
}

bool ms_pointer_is_pinned(CUdeviceptr address)
{
    unsigned type;
    return ask_type(address, &type) && type == CU_MEMORYTYPE_HOST;
}

bool ms_pointer_is_managed(CUdeviceptr address)
{
    unsigned managed = 0;
    return ask(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) && managed != 0;
}

bool ms_pointer_is_host_writable(CUdeviceptr address)
{
    return ms_pointer_is_pinned(address) || ms_pointer_is_managed(address);
}

bool ms_pointer_meets_allocation(CUdeviceptr address, size_t bytes)
{
    struct ms_allocation_facts facts;
    return ms_space_first_behind(address, &facts) && facts.address < address + bytes &&
           !facts.is_programs;
}

bool ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    return bytes > 0 && ((ms_space_may_hold(address) && ms_space_strays(address, bytes)) ||
                         ms_delayed_free_holds(address));
}

bool ms_pointer_rows_stray(const struct ms_rows *rows)
{
    size_t planes, lines, bytes;
    if (rows->width == 0 || rows->height == 0 || rows->depth == 0)
        return false;
    if (__builtin_mul_overflow(rows->depth - 1, rows->slice, &planes) ||
        __builtin_mul_overflow(rows->height - 1, rows->pitch, &lines) ||
        __builtin_add_overflow(planes, lines, &bytes) ||
        __builtin_add_overflow(bytes, rows->width, &bytes))
        bytes = SIZE_MAX;
    return ms_pointer_strays(rows->begin, bytes);
}
