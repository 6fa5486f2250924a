/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says about a pointer. */
#include "tools/simcuda/driver/state.h"

#include <string.h>

/* What is known of an address; all NULL and 0 for one that is not the driver's. */
struct facts {
    struct sim_memory *memory;
    const struct sim_mapping *mapping; /* of reserved addresses */
    const struct CUctx_st *current;
    CUdeviceptr address;
};

/* The answer, and how many bytes of it the program's variable has. */
struct answer {
    uint64_t value;
    size_t bytes;
};

static size_t answer_bytes(CUpointer_attribute attribute)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return sizeof(int);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return sizeof(uint64_t);
    default:
        return 0;
    }
}

static bool is_host(const struct facts *facts)
{
    return facts->memory->kind == SIM_HOST || facts->memory->kind == SIM_REGISTERED;
}

static bool is_reserved(const struct facts *facts)
{
    return facts->memory->kind == SIM_RESERVED;
}

static uint64_t access_flags(const struct facts *facts)
{
    const CUdevice device = facts->current == NULL ? 0 : facts->current->device;
    const struct sim_memory *memory = facts->memory;
    if (facts->mapping != NULL)
        return facts->mapping->access[device];
    if (is_reserved(facts))
        return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const bool is_far =
        (memory->kind == SIM_DEVICE || memory->kind == SIM_POOLED || memory->kind == SIM_GRAPHED) &&
        memory->device != device &&
        (facts->current == NULL || !facts->current->peers[memory->device]);
    return is_far ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static CUdevice device_of(const struct facts *facts)
{
    return facts->mapping != NULL ? facts->mapping->physical->device : facts->memory->device;
}

/* For memory that has an answer only when it is there: a reservation without a mapping has none. */
static CUresult backed_value(const struct facts *facts, uint64_t value, uint64_t *value_out)
{
    if (is_reserved(facts) && facts->mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *value_out = value;
    return CUDA_SUCCESS;
}

static CUresult answer_locked(const struct facts *facts, CUpointer_attribute attribute,
                              uint64_t *value_out)
{
    const struct sim_memory *memory = facts->memory;
    const struct sim_mapping *mapping = facts->mapping;
    const struct sim_region *range = mapping != NULL ? &mapping->region : &memory->region;
    const CUmemAllocationProp *prop = mapping != NULL ? &mapping->physical->prop : NULL;
    const bool is_mapped = !is_reserved(facts) || mapping != NULL;
    *value_out = 0;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* Mapped and pooled memory belongs to a device, not to a context. */
        return backed_value(facts,
                            memory->kind == SIM_POOLED || memory->kind == SIM_GRAPHED ||
                                    mapping != NULL
                                ? 0
                                : (uint64_t)memory->context,
                            value_out);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return backed_value(facts, is_host(facts) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                            value_out);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return backed_value(facts, sim_host_device_address_locked(memory, facts->address),
                            value_out);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *value_out = facts->address;
        if (memory->alias != 0 && memory->internal)
            *value_out += memory->alias - memory->region.begin;
        return is_host(facts) || memory->kind == SIM_MANAGED ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return backed_value(facts, memory->sync_memops, value_out);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return backed_value(facts, mapping != NULL ? mapping->buffer_id : memory->buffer_id,
                            value_out);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *value_out = memory->kind == SIM_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return backed_value(facts, (uint64_t)device_of(facts), value_out);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *value_out = memory->kind == SIM_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *value_out = memory->region.begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *value_out = memory->region.bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *value_out = is_mapped;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *value_out = prop != NULL ? prop->requestedHandleTypes : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *value_out =
            prop != NULL ? prop->allocFlags.gpuDirectRDMACapable : memory->kind == SIM_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *value_out = access_flags(facts);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *value_out = (uint64_t)memory->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return backed_value(facts, range->bytes, value_out);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return backed_value(facts, range->begin, value_out);
    default:
        return CUDA_SUCCESS;
    }
}

static void write_answer(void *place, uint64_t value, size_t bytes)
{
    const int narrow = (int)value;
    if (bytes == sizeof(narrow))
        memcpy(place, &narrow, bytes);
    else
        memcpy(place, &value, bytes);
}

static struct facts facts_locked(CUdeviceptr address)
{
    struct facts facts = {.address = address, .current = sim_context_current()};
    facts.memory = sim_memory_find_locked(address);
    if (facts.memory != NULL && is_reserved(&facts))
        facts.mapping = (struct sim_mapping *)sim_table_find(&sim_mappings, address);
    return facts;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerGetAttribute);
    uint64_t value = 0;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        return CUDA_ERROR_NOT_SUPPORTED;
    const size_t bytes = answer_bytes(attribute);
    if (data == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct facts facts = facts_locked(ptr);
    const CUresult result =
        facts.memory == NULL ? CUDA_ERROR_INVALID_VALUE : answer_locked(&facts, attribute, &value);
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS)
        write_answer(data, value, bytes);
    return result;
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                void **data, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerGetAttributes);
    if (numAttributes == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; i++) {
        if (data[i] == NULL || answer_bytes(attributes[i]) == 0)
            return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_lock);
    const struct facts facts = facts_locked(ptr);
    for (unsigned i = 0; i < numAttributes; i++) {
        uint64_t value = 0;
        if (facts.memory != NULL && answer_locked(&facts, attributes[i], &value) != CUDA_SUCCESS)
            value = 0;
        write_answer(data[i], value, answer_bytes(attributes[i]));
    }
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerSetAttribute);
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    const struct facts facts = facts_locked(ptr);
    if (facts.memory == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (is_reserved(&facts) || facts.memory->kind == SIM_POOLED ||
             facts.memory->kind == SIM_GRAPHED)
        result = CUDA_ERROR_NOT_SUPPORTED;
    else
        facts.memory->sync_memops = *(const unsigned *)value != 0;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Of mapped memory, the one chunk in which the address lies. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    SIM_ENTER(cuMemGetAddressRange_v2);
    CUdevice device;
    CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    const struct facts facts = facts_locked(dptr);
    const struct sim_region *range = NULL;
    if (facts.mapping != NULL)
        range = &facts.mapping->region;
    else if (facts.memory != NULL && !is_reserved(&facts))
        range = &facts.memory->region;
    if (range != NULL && pbase != NULL)
        *pbase = range->begin;
    if (range != NULL && psize != NULL)
        *psize = range->bytes;
    result = range != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    pthread_mutex_unlock(&sim_lock);
    return result;
}
