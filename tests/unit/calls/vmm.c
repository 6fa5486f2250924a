/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/vmm.h"

#include <string.h>

#include "runtime/config/config.h"
#include "runtime/fill/access.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { BYTES = 2 * FAKE_GRANULE };

static const CUmemAccessDesc access_of_device = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static CUdeviceptr place; /* of two handles */
static CUmemGenericAllocationHandle handle;

static CUmemGenericAllocationHandle create(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle created;
    CUresult result;
    CHECK(ms_vmm_defer(BYTES, &prop, &created, &result) && result == CUDA_SUCCESS);
    return created;
}

static CUresult map(CUdeviceptr address, CUmemGenericAllocationHandle mapped)
{
    CUresult result;
    CHECK(ms_vmm_map(address, BYTES, 0, mapped, 0, &result));
    return result;
}

static CUresult release(CUmemGenericAllocationHandle released)
{
    CUresult result;
    CHECK(ms_vmm_release(released, &result));
    return result;
}

static CUresult free_place(void)
{
    CUresult result;
    CHECK(ms_vmm_free_addresses(place, 2 * BYTES, &result));
    return result;
}

/* A handle that is mapped at the first half of the place. */
static void start(void)
{
    fake_start();
    ms_config.min_bytes = 1;
    ms_config.overcommit = 16;
    ms_config.self_check = MS_SELF_CHECK_OFF;
    CHECK_EQ(ms_driver.mem_address_reserve(&place, 2 * BYTES, FAKE_GRANULE, 0, 0), CUDA_SUCCESS);
    ms_vmm_reserved(place, 2 * BYTES);
    handle = create();
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
}

static void set_access(void)
{
    CUresult result;
    CHECK(ms_vmm_set_access(place, BYTES, &access_of_device, 1, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
}

static void unmap(void)
{
    CUresult result;
    CHECK(ms_vmm_unmap(place, BYTES, &result) && result == CUDA_SUCCESS);
}

/* Once the handle is released. */
static void end(void)
{
    unmap();
    CHECK_EQ(free_place(), CUDA_SUCCESS);
    fake_check_empty();
}

MS_TEST_BETWEEN(start, end, a_handle_is_released_as_often_as_it_was_taken)
{
    CUmemGenericAllocationHandle again;
    CUresult result;
    CHECK(ms_vmm_retain(place + 5, &again, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(again, handle);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_ERROR_INVALID_VALUE); /* it lives by its mapping */
}

MS_TEST_BETWEEN(start, end, addresses_with_a_mapping_are_not_freed)
{
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK_EQ(free_place(), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(fake.reservations, 1);
}

MS_TEST_BETWEEN(start, end, nothing_is_mapped_where_something_is)
{
    const CUmemGenericAllocationHandle other = create();
    CHECK_EQ(map(place, other), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(map(place + FAKE_GRANULE, other), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(fake.calls[FAKE_mem_map] + fake.calls[FAKE_mem_create], 0);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* It could end the process. */
MS_TEST_BETWEEN(start, end, the_driver_sees_no_number_of_ours)
{
    CUresult result;
    const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const CUmemGenericAllocationHandle other = create();
    CUmemGenericAllocationHandle number = other;
    CHECK_EQ(ms_vmm_make_handle_real(&number, &type), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(map(place + BYTES, other), CUDA_SUCCESS);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    const CUmemGenericAllocationHandle gone[] = {other, other + 1000};
    for (int i = 0; i < 2; i++) {
        number = gone[i];
        CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(map(place + BYTES, number), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(map(place + 4 * BYTES, number), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(release(number), CUDA_ERROR_INVALID_VALUE);
    }
    CHECK_EQ(fake.calls[FAKE_mem_map] + fake.calls[FAKE_mem_create], 0);
    CHECK(ms_vmm_unmap(place + BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

static CUresult refuse(CUdeviceptr address, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle mapped, unsigned long long flags)
{
    CHECK(address != 0 && bytes > 0 && offset < BYTES && mapped != 0 && flags == 0);
    return CUDA_ERROR_NOT_SUPPORTED;
}

MS_TEST_BETWEEN(start, end, a_part_of_a_handle_is_for_the_driver)
{
    CUresult result;
    const CUmemGenericAllocationHandle other = create();
    ms_driver.mem_map = refuse;
    CHECK(ms_vmm_map(place + BYTES, FAKE_GRANULE, 0, other, 0, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_SUPPORTED);
    CHECK(ms_vmm_map(place + BYTES, BYTES, FAKE_GRANULE, other, 0, &result));
    CHECK_EQ(result, CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, no_handle_of_the_driver_is_left_when_it_cannot_be_mapped)
{
    CUmemGenericAllocationHandle number = handle;
    fake_fail(FAKE_mem_map, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_ERROR_UNKNOWN);
    CHECK(number == handle && fake.handles == 0 && fake.physical_bytes == 0);
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK(number != handle && fake.handles == 1);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

static bool has_waited;

static void note_wait(void)
{
    has_waited = true;
}

static CUresult memcpy_dtoh(void *to, CUdeviceptr from, size_t bytes)
{
    CHECK(has_waited);
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_htod(CUdeviceptr to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

/* Queued work may use what moves. */
MS_TEST_BETWEEN(start, end, bytes_move_under_one_handle_when_the_device_is_done_with_them)
{
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707};
    set_access();
    struct ms_allocation *allocation = ms_space_find_claimed(place);
    fake_set(allocation, 0, BYTES, &fill);
    CHECK_EQ(ms_access(place, FAKE_GRANULE, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK_EQ(ms_access(place + FAKE_GRANULE, FAKE_GRANULE, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.chunks.count, 2);
    CUmemGenericAllocationHandle number = handle;
    fake.on_wait = note_wait;
    ms_driver.memcpy_dtoh = memcpy_dtoh;
    ms_driver.memcpy_htod = memcpy_htod;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.chunks.count, 1);
    CHECK_EQ(((unsigned char *)(uintptr_t)place)[BYTES - 1], 7);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}
