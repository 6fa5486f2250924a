/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about a pointer. */
#include "tools/simcuda/driver/state.h"

#include <string.h>

/* Facts about an address; all NULL and 0 for an address that is not the driver's. */
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
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return sizeof(int);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return sizeof(uint64_t) + sizeof(int);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
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

/* A mapping is an address of the device when the device may use it. */
static bool is_usable(const struct facts *facts)
{
    return facts->mapping == NULL || access_flags(facts) != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/* Mapped and pooled memory belongs to a device, not to a context. */
static uint64_t context_of(const struct facts *facts)
{
    const enum sim_kind kind = facts->memory->kind;
    const bool is_of_device = kind == SIM_POOLED || kind == SIM_GRAPHED || facts->mapping != NULL;
    return is_of_device ? 0 : (uint64_t)facts->memory->context;
}

/* A reservation has no answer where nothing is mapped. *value_out is 0 where there is none. */
static CUresult answer_locked(const struct facts *facts, CUpointer_attribute attribute,
                              uint64_t *value_out)
{
    struct sim_memory *memory = facts->memory;
    const struct sim_mapping *mapping = facts->mapping;
    const struct sim_region *range = mapping != NULL ? &mapping->region : &memory->region;
    const CUmemAllocationProp *prop = mapping != NULL ? &mapping->physical->prop : NULL;
    *value_out = 0;
    if (is_reserved(facts) && mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *value_out = context_of(facts);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *value_out = is_host(facts) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!is_usable(facts))
            return CUDA_ERROR_INVALID_VALUE;
        *value_out = sim_host_device_address_locked(memory, facts->address);
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(facts) && memory->kind != SIM_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *value_out = facts->address;
        if (memory->alias != 0 && memory->internal)
            *value_out += memory->alias - memory->region.begin;
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        /* cuda.h: it "has a side effect of setting the attribute" SYNC_MEMOPS. */
        if (is_host(facts))
            return CUDA_ERROR_INVALID_VALUE;
        memory->sync_memops = true;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *value_out = memory->sync_memops;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *value_out = mapping != NULL ? mapping->buffer_id : memory->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *value_out = memory->kind == SIM_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *value_out = (uint64_t)device_of(facts);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *value_out = memory->kind == SIM_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *value_out = memory->region.begin;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *value_out = memory->region.bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *value_out = true;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *value_out = prop != NULL ? prop->requestedHandleTypes : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *value_out =
            prop != NULL ? prop->allocFlags.gpuDirectRDMACapable : memory->kind == SIM_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *value_out = access_flags(facts);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *value_out = (uint64_t)memory->pool;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *value_out = (range->bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *value_out = range->begin;
        break;
    }
    return CUDA_SUCCESS;
}

static void write_answer(void *place, uint64_t value, size_t bytes)
{
    const int narrow = (int)value;
    memset(place, 0, bytes);
    if (bytes == sizeof(narrow))
        memcpy(place, &narrow, sizeof(narrow));
    else
        memcpy(place, &value, sizeof(value));
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
    const size_t bytes = answer_bytes(attribute);
    if (data == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct facts facts = facts_locked(ptr);
    const CUresult result =
        facts.memory == NULL ? CUDA_ERROR_INVALID_VALUE : answer_locked(&facts, attribute, &value);
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS ||
        (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && facts.mapping != NULL))
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
        if (facts.memory == NULL && attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
            continue;
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
    else if (is_reserved(&facts))
        result = facts.mapping != NULL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    else
        facts.memory->sync_memops = *(const unsigned *)value != 0;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* The range of mapped memory is the one chunk in which the address lies. */
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
        range = is_usable(&facts) ? &facts.mapping->region : NULL;
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
