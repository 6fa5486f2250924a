/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/query.h"

#include "runtime/calls/vmm.h"
#include "runtime/config/config.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { BYTES = 2 * FAKE_GRANULE };

static struct ms_allocation *allocation;
static CUdeviceptr place; /* the program maps a handle at its second half */
static CUmemGenericAllocationHandle handle;

static void start(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUresult result;
    fake_start();
    ms_config.min_bytes = 1;
    ms_config.overcommit = 16;
    ms_config.self_check = MS_SELF_CHECK_OFF;
    allocation = fake_allocation(BYTES);
    CHECK_EQ(ms_driver.mem_address_reserve(&place, 2 * BYTES, FAKE_GRANULE, 0, 0), CUDA_SUCCESS);
    ms_vmm_reserved(place, 2 * BYTES);
    CHECK(ms_vmm_defer(BYTES, &prop, &handle, &result) && result == CUDA_SUCCESS);
    CHECK(ms_vmm_map(place + BYTES, BYTES, 0, handle, 0, &result) && result == CUDA_SUCCESS);
}

static void set_access(void)
{
    const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result;
    CHECK(ms_vmm_set_access(place + BYTES, BYTES, &access, 1, &result) && result == CUDA_SUCCESS);
}

static void end(void)
{
    CUresult result;
    fake.device = 0;
    CHECK(ms_vmm_release(handle, &result) && result == CUDA_SUCCESS);
    CHECK(ms_vmm_unmap(place + BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK(ms_vmm_free_addresses(place, 2 * BYTES, &result) && result == CUDA_SUCCESS);
    fake_allocation_free(allocation);
    fake_check_empty();
}

/* What is answered without the driver, of 4 or 8 bytes. */
static uint64_t answer(CUpointer_attribute attribute, CUdeviceptr address)
{
    uint64_t value = 0;
    CUresult result;
    CHECK(ms_query_pointer_attribute(&value, attribute, address, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    return value;
}

static CUresult refusal(CUpointer_attribute attribute, CUdeviceptr address)
{
    uint64_t value = 0;
    CUresult result;
    CHECK(ms_query_pointer_attribute(&value, attribute, address, &result));
    CHECK_EQ(value, 0);
    return result;
}

static void check_range(CUdeviceptr address, CUdeviceptr wanted, size_t wanted_bytes)
{
    CUdeviceptr base;
    size_t bytes;
    CUresult result;
    CHECK(ms_query_address_range(address, &base, &bytes, &result) && result == CUDA_SUCCESS);
    CHECK(base == wanted && bytes == wanted_bytes);
    CHECK(ms_query_address_range(address, NULL, NULL, &result) && result == CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, an_allocation_is_as_the_driver_would_have_made_it)
{
    const CUdeviceptr inside = allocation->address + BYTES - 1;
    check_range(inside, allocation->address, BYTES);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_CONTEXT, inside), (uintptr_t)FAKE_CONTEXT);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), allocation->address);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), BYTES);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), 0);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), 0);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside),
             CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    CHECK_EQ(refusal(CU_POINTER_ATTRIBUTE_HOST_POINTER, inside), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(allocation->backing.backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_mapping_is_of_its_handle)
{
    const CUdeviceptr begin = place + BYTES, inside = begin + 8;
    set_access();
    check_range(inside, begin, BYTES);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside), BYTES);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside), begin);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_CONTEXT, inside), 0);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside), CU_MEM_HANDLE_TYPE_NONE);
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside),
             answer(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, begin));
    CHECK(answer(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside) !=
          answer(CU_POINTER_ATTRIBUTE_BUFFER_ID, allocation->address));
}

MS_TEST_BETWEEN(start, end, a_mapping_that_nobody_may_use_says_so)
{
    const CUdeviceptr begin = place + BYTES;
    CUresult result;
    CHECK_EQ(answer(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, begin),
             CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    CHECK_EQ(refusal(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, begin), CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_query_address_range(begin, NULL, NULL, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_FOUND);
}

MS_TEST_BETWEEN(start, end, from_another_device_a_mapping_is_not_there)
{
    CUresult result;
    set_access();
    fake.device = 1;
    CHECK_EQ(refusal(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, place + BYTES), CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_query_address_range(place + BYTES, NULL, NULL, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_FOUND);
}

MS_TEST_BETWEEN(start, end, what_is_not_ours_is_the_drivers_to_answer)
{
    uint64_t value;
    CUresult result;
    CHECK(!ms_query_address_range(place + BYTES - 1, NULL, NULL, &result));
    CHECK(!ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, place, &result));
    CHECK(!ms_query_pointer_attribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, allocation->address,
                                      &result));
}

MS_TEST_BETWEEN(start, end, what_only_the_driver_knows_it_is_asked_of_memory)
{
    uint64_t value;
    CUresult result;
    CHECK(!ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_P2P_TOKENS,
                                      allocation->address + FAKE_GRANULE, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.backed_bytes, FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, what_is_deferred_counts_as_used)
{
    size_t before = (size_t)1 << 30, after = before;
    CHECK_EQ(ms_query_free_memory(&before), CUDA_SUCCESS);
    struct ms_allocation *more = fake_allocation(BYTES);
    CHECK_EQ(ms_query_free_memory(&after), CUDA_SUCCESS);
    CHECK_EQ(before - after, BYTES);
    after = BYTES;
    CHECK_EQ(ms_query_free_memory(&after), CUDA_SUCCESS);
    CHECK_EQ(after, 0);
    fake_allocation_free(more);
}
