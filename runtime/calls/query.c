/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/query.h"

#include <string.h>

#include "runtime/calls/ipc.h"
#include "runtime/calls/vmm.h"
#include "runtime/fill/access.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/space.h"

/* Buffer identifiers are unique in the process; the shim's start where the driver's never get. */
#define FIRST_BUFFER_ID (UINT64_C(1) << 62)

bool ms_query_address_range(CUdeviceptr address, CUdeviceptr *base_out, size_t *bytes_out,
                            CUresult *result_out)
{
    CUdevice device;
    struct ms_allocation_facts facts;
    struct ms_program_mapping mapping;
    if (!ms_space_look_up(address, &facts))
        return false;
    *result_out = ms_driver.ctx_get_device(&device);
    if (*result_out != CUDA_SUCCESS)
        return true;
    if (facts.is_programs) {
        if (!ms_space_find_mapping(address, &mapping, &facts) || mapping.is_real)
            return false;
        if (!mapping.is_accessible || device != facts.device) {
            *result_out = CUDA_ERROR_NOT_FOUND;
            return true;
        }
        facts.address += mapping.begin;
        facts.bytes = mapping.end - mapping.begin;
    }
    if (base_out != NULL)
        *base_out = facts.address;
    if (bytes_out != NULL)
        *bytes_out = facts.bytes;
    return true;
}

static bool is_other_current(CUdevice device)
{
    const CUdevice current = ms_driver_device();
    return current >= 0 && current != device;
}

/* The attribute is about physical memory, which must exist before the driver can answer. */
static bool ask_driver(CUdeviceptr address, CUresult *result_out)
{
    *result_out = ms_access(address, 1, MS_NEED_READ_WRITE);
    return *result_out != CUDA_SUCCESS;
}

/* Asking for P2P_TOKENS has "a side effect of setting the attribute
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS", says cuda.h. Returns whether the program has asked. */
static bool has_tokens(const struct ms_allocation_facts *facts, bool asks_now)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim_same(facts->address, facts->id);
    if (allocation == NULL)
        return false;
    if (asks_now)
        allocation->notes.has_tokens = true;
    return allocation->notes.has_tokens;
}

/* Attributes have 4 or 8 bytes. Both architectures are little-endian. */
static bool give(void *value_out, uint64_t value, size_t bytes)
{
    memcpy(value_out, &value, bytes);
    return true;
}

/* Answers with the properties that the program chose for the handle: the shim's memory may allow
 * more. */
static bool handle_attribute(void *value_out, CUpointer_attribute attribute,
                             const struct ms_program_mapping *mapping)
{
    CUmemAllocationProp prop;
    const bool is_types = attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
    if ((!is_types && attribute != CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE) ||
        !ms_vmm_mapping_properties(mapping, &prop))
        return false;
    return is_types ? give(value_out, prop.requestedHandleTypes, 8)
                    : give(value_out, prop.allocFlags.gpuDirectRDMACapable, 4);
}

/* Attributes that differ for memory that the program maps: it belongs to a device, not to a
 * context. */
static bool mapping_attribute(void *value_out, CUpointer_attribute attribute,
                              const struct ms_program_mapping *mapping,
                              const struct ms_allocation_facts *facts)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return give(value_out, 0, 8);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return give(value_out, FIRST_BUFFER_ID + mapping->handle, 8);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return give(value_out, mapping->end - mapping->begin, 8);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return give(value_out, facts->address + mapping->begin, 8);
    default:
        return false;
    }
}

/* True if only the driver can answer, or its answer changes later ones. The driver can answer as
 * soon as the mapping is real, even if the program may not use the mapping. */
static bool is_of_driver(CUpointer_attribute attribute)
{
#if CUDA_VERSION < 12080
    enum { CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21 };
#endif
    return (int)attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS ||
           (int)attribute == CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

bool ms_query_pointer_attribute(void *value_out, CUpointer_attribute attribute, CUdeviceptr address,
                                CUresult *result_out)
{
    struct ms_allocation_facts facts;
    if (value_out == NULL || !ms_space_look_up(address, &facts))
        return false;
    *result_out = CUDA_SUCCESS;
    if (facts.is_programs) {
        struct ms_program_mapping mapping;
        if (!ms_space_find_mapping(address, &mapping, &facts))
            return false;
        if (handle_attribute(value_out, attribute, &mapping))
            return true;
        if (mapping.is_real)
            return false;
        if (mapping_attribute(value_out, attribute, &mapping, &facts))
            return true;
        if (is_of_driver(attribute)) {
            *result_out = ms_vmm_make_real(address, 1);
            return *result_out != CUDA_SUCCESS;
        }
        if (attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS && !mapping.is_accessible)
            return give(value_out, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE, 4);
        if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER &&
            (!mapping.is_accessible || is_other_current(facts.device))) {
            *result_out = CUDA_ERROR_INVALID_VALUE;
            return give(value_out, 0, 8);
        }
    }
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* Pooled memory belongs to a device. */
        return give(value_out, facts.pool != NULL ? 0 : (uintptr_t)facts.context, 8);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return give(value_out, CU_MEMORYTYPE_DEVICE, 4);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return give(value_out, address, 8);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *result_out = CUDA_ERROR_INVALID_VALUE;
        return true;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        has_tokens(&facts, true);
        return ask_driver(address, result_out);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return give(value_out, has_tokens(&facts, false), 4);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return give(value_out, false, 4);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return give(value_out, ms_ipc_can_share(&facts), 4);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return give(value_out, FIRST_BUFFER_ID + facts.id, 8);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return give(value_out, (uint64_t)facts.device, 4);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return give(value_out, facts.address, 8);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return give(value_out, facts.bytes, 8);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: /* the driver maps whole granules */
        return give(value_out, facts.granule_bytes, 8);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return give(value_out, true, 4);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return give(value_out, CU_MEM_HANDLE_TYPE_NONE, 8);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return give(value_out,
                    facts.pool == NULL && !facts.is_opened &&
                        ms_driver_has(facts.device,
                                      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
                    4);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        give(value_out, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE, 4);
        return ms_driver_device() == facts.device || ask_driver(address, result_out);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return give(value_out, (uintptr_t)facts.pool, 8);
    default:
        return ask_driver(address, result_out);
    }
}

CUresult ms_query_free_memory(size_t *free_bytes)
{
    CUdevice device;
    const CUresult result = ms_driver.ctx_get_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    const struct ms_space_sums sums = ms_space_sums(device);
    const uint64_t left = *free_bytes + sums.held;
    const uint64_t promised =
        sums.reserved + ms_pool_kept_bytes(device) + ms_delayed_free_bytes(device);
    *free_bytes = promised < left ? left - promised : 0;
    return CUDA_SUCCESS;
}
