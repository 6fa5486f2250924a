/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/query.h"

#include <string.h>

#include "runtime/calls/vmm.h"
#include "runtime/config/config.h"
#include "runtime/memory/allocation.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { BYTES = 2 * FAKE_GRANULE };

static struct ms_allocation *allocation;
static CUdeviceptr place; /* the program maps a handle at its second half */
static CUmemGenericAllocationHandle handle;

/* A device that has all that it is asked for, or does not say so. */
static CUresult attribute_result;
static CUresult has_all(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CHECK(attribute > 0 && device == 0);
    *value = 1;
    return attribute_result;
}

static void start_with(const CUmemAllocationProp *prop)
{
    CUresult result;
    fake_start();
    if (prop->requestedHandleTypes != 0)
        ms_driver.device_get_attribute = has_all;
    ms_config.min_bytes = 1;
    ms_config.overcommit = 16;
    ms_config.self_check = MS_SELF_CHECK_OFF;
    allocation = fake_allocation(BYTES);
    CHECK_EQ(ms_driver.mem_address_reserve(&place, 2 * BYTES, FAKE_GRANULE, 0, 0), CUDA_SUCCESS);
    ms_vmm_reserved(place, 2 * BYTES);
    CHECK(ms_vmm_defer(BYTES, prop, &handle, &result) && result == CUDA_SUCCESS);
    CHECK(ms_vmm_map(place + BYTES, BYTES, 0, handle, 0, &result) && result == CUDA_SUCCESS);
}

static void start(void)
{
    start_with(&(CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}});
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

enum { UNSET = 0x5a };
static CUresult ask(uint64_t *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    memset(value, UNSET, sizeof(*value));
    CHECK(ms_query_pointer_attribute(value, attribute, address, &result));
    return result;
}

/* The answer has 4 or 8 bytes, and nothing is written behind it. */
static void check_answer(CUpointer_attribute attribute, CUdeviceptr address, size_t bytes,
                         uint64_t wanted)
{
    uint64_t value, expected;
    memset(&expected, UNSET, sizeof(expected));
    memcpy(&expected, &wanted, bytes);
    CHECK_EQ(ask(&value, attribute, address), CUDA_SUCCESS);
    CHECK_EQ(value, expected);
}

/* The answer that needs no driver, of 4 or 8 bytes. */
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
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
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

MS_TEST_BETWEEN(start, end, a_query_from_another_device_finds_no_mapping)
{
    CUresult result;
    set_access();
    fake.device = 1;
    CHECK_EQ(refusal(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, place + BYTES), CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_query_address_range(place + BYTES, NULL, NULL, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_FOUND);
}

MS_TEST_BETWEEN(start, end, the_driver_answers_queries_of_memory_that_is_not_ours)
{
    uint64_t value;
    CUresult result;
    CHECK(!ms_query_address_range(place + BYTES - 1, NULL, NULL, &result));
    CHECK(!ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, place, &result));
    CHECK(!ms_query_pointer_attribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, allocation->address,
                                      &result));
}

MS_TEST_BETWEEN(start, end, a_query_that_the_driver_must_answer_brings_memory_in)
{
    uint64_t value;
    CUresult result;
    CHECK(!ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_P2P_TOKENS,
                                      allocation->address + FAKE_GRANULE - 1, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, an_answer_has_the_bytes_of_its_attribute)
{
    const CUdeviceptr address = allocation->address + BYTES - 1;
    const struct {
        CUpointer_attribute attribute;
        size_t bytes;
        uint64_t value;
    } answers[] = {{CU_POINTER_ATTRIBUTE_CONTEXT, 8, (uintptr_t)FAKE_CONTEXT},
                   {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4, CU_MEMORYTYPE_DEVICE},
                   {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 8, address},
                   {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4, 0},
                   {CU_POINTER_ATTRIBUTE_IS_MANAGED, 4, 0},
                   {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 4, 0},
                   {CU_POINTER_ATTRIBUTE_BUFFER_ID, 8, (UINT64_C(1) << 62) + allocation->id},
                   {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4, 0},
                   {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 8, allocation->address},
                   {CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8, BYTES},
                   {CU_POINTER_ATTRIBUTE_MAPPED, 4, 1},
                   {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 8, CU_MEM_HANDLE_TYPE_NONE},
                   {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 4, 0},
                   {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 4,
                    CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE},
                   {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 8, 0}};
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        check_answer(answers[i].attribute, address, answers[i].bytes, answers[i].value);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, the_answers_of_a_mapping_have_their_bytes)
{
    const CUdeviceptr begin = place + BYTES;
    check_answer(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, begin, 4,
                 CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    set_access();
    check_answer(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, begin, 4,
                 CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    check_answer(CU_POINTER_ATTRIBUTE_CONTEXT, begin, 8, 0);
    check_answer(CU_POINTER_ATTRIBUTE_BUFFER_ID, begin, 8, (UINT64_C(1) << 62) + handle);
    check_answer(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, begin + 1, 8, BYTES);
    check_answer(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, begin + 1, 8, begin);
    check_answer(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, begin, 8, 0);
    check_answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, begin, 4, 0);
    CHECK_EQ(fake.physical_bytes, 0);
}

/* Also of a mapping that is the driver's by now: the shim's memory may allow more. */
MS_TEST(a_query_tells_the_properties_the_program_chose_for_a_handle)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes =
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                      .allocFlags = {.gpuDirectRDMACapable = 1}};
    CUresult result;
    uint64_t value;
    start_with(&prop);
    for (int is_real = 0; is_real < 2; is_real++) {
        check_answer(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, place + BYTES, 8,
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        check_answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, place + BYTES, 4, 1);
        CHECK_EQ(ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_CONTEXT, place + BYTES,
                                            &result),
                 is_real == 0);
        CHECK_EQ(ms_query_address_range(place + BYTES, NULL, NULL, &result), is_real == 0);
        CHECK_EQ(ms_vmm_make_real(place + BYTES, BYTES), CUDA_SUCCESS);
    }
    end();
}

/* --- pools, and what another device sees */

MS_TEST_BETWEEN(start, end, memory_of_a_pool_belongs_to_its_device)
{
    const struct ms_promise promise = {.bytes = BYTES,
                                       .context = FAKE_CONTEXT,
                                       .pool = ms_pool_find(FAKE_POOL, 0)};
    struct ms_allocation *pooled = fake_create(&promise);
    CHECK(pooled != NULL);
    ms_driver.device_get_attribute = has_all;
    check_answer(CU_POINTER_ATTRIBUTE_CONTEXT, pooled->address, 8, 0);
    check_answer(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled->address, 8, (uintptr_t)FAKE_POOL);
    check_answer(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled->address, 4, 0);
    check_answer(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, allocation->address, 4, 1);
    check_answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, pooled->address, 4, 0);
    check_answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, allocation->address, 4, 1);
    allocation->is_opened = true; /* of another process */
    check_answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, allocation->address, 4, 0);
    allocation->is_opened = false;
    attribute_result = CUDA_ERROR_INVALID_VALUE;
    check_answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, allocation->address, 4, 0);
    fake_allocation_free(pooled);
}

/* The driver must see memory to tell whether the other device reaches it. */
MS_TEST_BETWEEN(start, end, whether_another_device_may_use_it_the_driver_tells)
{
    uint64_t value;
    CUresult result;
    const CUdeviceptr address = allocation->address + FAKE_GRANULE;
    fake.device = 1;
    CHECK(!ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, FAKE_GRANULE);
    check_answer(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address, 8, address);
    fake.device = 0;
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK(!ms_query_pointer_attribute(&value, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address - 1,
                                      &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
}

/* --- failures */

MS_TEST_BETWEEN(start, end, an_answer_that_needs_memory_fails_without)
{
    uint64_t value;
    static const CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_P2P_TOKENS,
                                                     CU_POINTER_ATTRIBUTE_ACCESS_FLAGS};
    fake.device = 1;
    for (size_t i = 0; i < 2; i++) {
        fake_fail(FAKE_mem_create, 1, CUDA_ERROR_LAUNCH_FAILED);
        CHECK_EQ(ask(&value, attributes[i], allocation->address), CUDA_ERROR_LAUNCH_FAILED);
        CHECK(fake_has_failed());
    }
}

MS_TEST_BETWEEN(start, end, a_query_without_a_context_returns_the_drivers_error)
{
    CUdeviceptr base = 5;
    size_t bytes = 6;
    CUresult result;
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK(ms_query_address_range(allocation->address, &base, &bytes, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_CONTEXT);
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(ms_query_free_memory(&bytes), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(base == 5 && bytes == 6);
    set_access();
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_INVALID_CONTEXT);
    check_answer(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, place + BYTES, 8, place + BYTES);
}

/* --- free memory */

MS_TEST_BETWEEN(start, end, deferred_memory_counts_as_used)
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

static size_t free_of(size_t bytes)
{
    CHECK_EQ(ms_query_free_memory(&bytes), CUDA_SUCCESS);
    return bytes;
}

/* The driver, which has so much free, has given memory to a part of what was promised. */
MS_TEST_BETWEEN(start, end, memory_to_free_later_or_kept_for_a_pool_counts_as_used)
{
    enum { FREE = 1 << 30 };
    CUevent event;
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    struct ms_allocation *more = fake_allocation(BYTES);
    fake_set(more, 0, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    CHECK_EQ(free_of(FREE), FREE - 2 * BYTES); /* an allocation and a handle have none */
    CHECK_EQ(free_of(2 * BYTES), 0);
    CHECK_EQ(free_of(2 * BYTES + 1), 1);
    CHECK(ms_space_claim(more->address) == more);
    ms_space_remove(more);
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.event_record(event, FAKE_STREAM), CUDA_SUCCESS);
    fake.is_busy = true;
    ms_delayed_free_add(more, event, NULL);
    CHECK_EQ(free_of(FREE), FREE - 2 * BYTES);
    fake.is_busy = false;
    ms_delayed_free_pass(false);
    CHECK_EQ(free_of(FREE), FREE - 2 * BYTES);
    fake.pool[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = UINT64_MAX;
    ms_pool_count(pool, BYTES);
    ms_pool_count(pool, -(int64_t)BYTES);
    CHECK_EQ(free_of(FREE), FREE - 3 * BYTES);
    ms_pool_trim(FAKE_POOL, 0);
    CHECK_EQ(free_of(FREE), FREE - 2 * BYTES);
}
