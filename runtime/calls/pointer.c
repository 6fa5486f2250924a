/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/pointer.h"

#include "runtime/fill/delayed_free.h"
#include "runtime/memory/space.h"

bool ms_pointer_is_owned(CUdeviceptr address)
{
    struct ms_allocation_facts facts;
    return ms_space_look_up(address, &facts);
}

/* The kind for the driver's memory type of an address; 0: none. */
static unsigned ask_kind(CUdeviceptr address)
{
    unsigned type = 0;
    const CUresult result =
        ms_driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && type == 0))
        return MS_UNKNOWN_TO_DRIVER;
    if (result != CUDA_SUCCESS)
        return 0;
    return type == CU_MEMORYTYPE_DEVICE ? MS_ON_DEVICE : type == CU_MEMORYTYPE_HOST ? MS_PINNED : 0;
}

static bool is_managed(CUdeviceptr address)
{
    unsigned managed = 0;
    return ms_driver.pointer_get_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
               CUDA_SUCCESS &&
           managed != 0;
}

bool ms_pointer_is(CUdeviceptr address, unsigned kinds)
{
    return ((kinds & ~MS_MANAGED) != 0 && (ask_kind(address) & kinds) != 0) ||
           ((kinds & MS_MANAGED) != 0 && is_managed(address));
}

bool ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    return bytes > 0 && ((ms_space_may_hold(address) && ms_space_strays(address, bytes)) ||
                         ms_delayed_free_holds(address));
}
