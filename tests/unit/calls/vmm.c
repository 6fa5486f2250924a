/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/vmm.h"

#include <string.h>
#include <time.h>

#include "runtime/config/config.h"
#include "runtime/fill/access.h"
#include "runtime/memory/space.h"
#include "runtime/order/order.h"
#include "runtime/state/state.h"
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

/* Addresses for four handles. */
static CUdeviceptr reserve_more(void)
{
    CUdeviceptr more;
    CHECK_EQ(ms_driver.mem_address_reserve(&more, 4 * BYTES, FAKE_GRANULE, 0, 0), CUDA_SUCCESS);
    ms_vmm_reserved(more, 4 * BYTES);
    return more;
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
    CHECK_EQ(ms_space_sums(0).live, 0);
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
    /* A part of it is refused for that first, and all of it with flags for the mapping. */
    static const struct {
        size_t bytes, offset;
        unsigned long long flags;
        CUresult result;
    } cases[] = {{BYTES, FAKE_GRANULE, 0, CUDA_ERROR_NOT_SUPPORTED},
                 {FAKE_GRANULE, 0, 0, CUDA_ERROR_NOT_SUPPORTED},
                 {FAKE_GRANULE, 0, 1, CUDA_ERROR_INVALID_VALUE},
                 {BYTES, 0, 1, CUDA_ERROR_INVALID_VALUE}};
    for (size_t i = 0; i < 4; i++) {
        CUresult result;
        CHECK(ms_vmm_map(place, cases[i].bytes, cases[i].offset, other, cases[i].flags, &result));
        CHECK_EQ(result, cases[i].result);
    }
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
    struct ms_allocation *allocation = fake_find(place);
    fake_set(allocation, 0, BYTES, &fill);
    CHECK_EQ(ms_access(place, FAKE_GRANULE, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK_EQ(ms_access(place + FAKE_GRANULE, FAKE_GRANULE, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->chunks.count, 2);
    CUmemGenericAllocationHandle number = handle;
    fake.on_wait = note_wait;
    ms_driver.memcpy_dtoh = memcpy_dtoh;
    ms_driver.memcpy_htod = memcpy_htod;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->chunks.count, 1);
    CHECK_EQ(((unsigned char *)(uintptr_t)place)[BYTES - 1], 7);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- what is deferred */

static bool may_defer(size_t bytes, CUmemAllocationProp prop)
{
    CUmemGenericAllocationHandle created = 0;
    CUresult result;
    if (!ms_vmm_defer(bytes, &prop, &created, &result))
        return false;
    CHECK(result == CUDA_SUCCESS && created != 0);
    CHECK_EQ(release(created), CUDA_SUCCESS);
    return true;
}

MS_TEST_BETWEEN(start, end, only_granules_of_the_current_device_are_deferred)
{
    CUresult result;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CHECK(may_defer(FAKE_GRANULE, prop) && may_defer(3 * FAKE_GRANULE, prop));
    CHECK(!may_defer(FAKE_GRANULE + 1, prop) && !may_defer(FAKE_GRANULE / 2, prop));
    CHECK(!may_defer(0, prop));
    CHECK(!ms_vmm_defer(FAKE_GRANULE, &prop, NULL, &result));
    fake_fail(FAKE_mem_get_granularity, 1, CUDA_ERROR_UNKNOWN);
    CHECK(!may_defer(FAKE_GRANULE, prop));
    prop.location.id = 1;
    CHECK(!may_defer(FAKE_GRANULE, prop));
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* Until it has memory, or is gone. */
MS_TEST_BETWEEN(start, end, a_handle_is_owed_memory)
{
    CHECK_EQ(ms_space_sums(0).live, BYTES);
    CUmemGenericAllocationHandle other = create(), number = other;
    CHECK_EQ(ms_space_sums(0).live, 2 * BYTES);
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK_EQ(ms_space_sums(0).live, BYTES);
    CHECK_EQ(map(place + BYTES, other), CUDA_SUCCESS);
    CHECK_EQ(ms_space_sums(0).live, 2 * BYTES);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(ms_space_sums(0).live, 2 * BYTES);
    CUresult result;
    CHECK(ms_vmm_unmap(place + BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(ms_space_sums(0).live, BYTES);
    other = create();
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(ms_space_sums(0).live, BYTES);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- handles */

MS_TEST_BETWEEN(start, end, a_handle_says_how_it_was_made_until_it_is_gone)
{
    CUmemAllocationProp prop;
    CUresult result;
    CHECK(!ms_vmm_handle_properties(5, &prop, &result)); /* the driver's */
    memset(&prop, 0xff, sizeof(prop));
    CHECK(ms_vmm_handle_properties(handle, &prop, &result) && result == CUDA_SUCCESS);
    CHECK(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && prop.location.id == 0);
    CHECK(ms_vmm_handle_properties(handle, NULL, &result) && result == CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_vmm_handle_properties(handle + 1000, &prop, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK(ms_vmm_handle_properties(handle, &prop, &result) && result == CUDA_ERROR_INVALID_VALUE);

    /* The mapping's properties are still known. */
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    memset(&prop, 0xff, sizeof(prop));
    CHECK(ms_space_find_mapping(place, &mapping, &facts));
    CHECK(ms_vmm_mapping_properties(&mapping, &prop) && prop.location.id == 0);
    mapping.handle += 1000;
    CHECK(!ms_vmm_mapping_properties(&mapping, &prop));
}

MS_TEST_BETWEEN(start, end, the_drivers_own_handles_stay_the_drivers)
{
    CUresult result;
    CUmemGenericAllocationHandle number = 5;
    CHECK(!ms_vmm_release(5, &result));
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK_EQ(number, 5);
    CHECK(!ms_vmm_retain(place + 3 * BYTES, &number, &result));
    CHECK(!ms_vmm_retain(place, NULL, &result));
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_handle_made_for_an_export_can_be_exported)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle created, number;
    CUresult result;
    if (ms_vmm_defer(BYTES, &prop, &created, &result)) {
        number = created;
        CHECK_EQ(ms_vmm_make_handle_real(&number, &type), CUDA_ERROR_INVALID_VALUE);
        type = CU_MEM_HANDLE_TYPE_FABRIC;
        CHECK_EQ(ms_vmm_make_handle_real(&number, &type), CUDA_SUCCESS);
        CHECK_EQ(release(created), CUDA_SUCCESS);
    }
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_real_handle_lives_by_its_last_reference_or_mapping)
{
    CUmemGenericAllocationHandle number = handle, again;
    CUresult result;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    fake_fail(FAKE_mem_release, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(release(handle), CUDA_ERROR_UNKNOWN); /* it still has it */
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK(fake.handles == 0 && fake.physical_bytes == BYTES);
    set_access();
    fake_fail(FAKE_mem_retain, 1, CUDA_ERROR_UNKNOWN);
    CHECK(ms_vmm_retain(place + 1, &again, &result) && result == CUDA_ERROR_UNKNOWN);
    CHECK_EQ(release(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_vmm_retain(place + 1, &again, &result) && result == CUDA_SUCCESS);
    CHECK(again == handle && fake.handles == 1);
    CHECK(ms_vmm_retain(place + 1, &again, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(fake.handles, 1); /* two of the program's are one of the driver's */
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK_EQ(fake.handles, 1);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK_EQ(fake.handles, 0);
}

/* --- mapping */

static unsigned char *at(CUdeviceptr address)
{
    return (unsigned char *)(uintptr_t)address;
}

static CUresult set_access_to(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                              size_t count)
{
    CUresult result;
    CHECK(ms_vmm_set_access(address, bytes, desc, count, &result));
    return result;
}

MS_TEST_BETWEEN(start, end, a_handle_mapped_at_two_places_is_the_same_memory)
{
    CHECK_EQ(map(place + BYTES, handle), CUDA_SUCCESS);
    CHECK_EQ(fake.physical_bytes, BYTES);
    CHECK_EQ(set_access_to(place, 2 * BYTES, &access_of_device, 1), CUDA_SUCCESS);
    *at(place + BYTES + 5) = 77;
    CHECK_EQ(*at(place + 5), 77);
    CUresult result;
    CHECK(ms_vmm_unmap(place + BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(*at(place + 5), 77);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_mapping_at_unknown_addresses_is_the_drivers)
{
    CUdeviceptr elsewhere;
    CUresult result;
    const CUmemGenericAllocationHandle other = create();
    CHECK_EQ(ms_driver.mem_address_reserve(&elsewhere, BYTES, FAKE_GRANULE, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(map(elsewhere, other), CUDA_SUCCESS);
    CHECK_EQ(fake.physical_bytes, BYTES);
    CHECK(!ms_vmm_unmap(elsewhere, BYTES, &result));
    CHECK(!ms_vmm_set_access(elsewhere, BYTES, &access_of_device, 1, &result));
    CHECK_EQ(ms_driver.mem_unmap(elsewhere, BYTES), CUDA_SUCCESS);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK(ms_vmm_free_addresses(elsewhere, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_second_mapping_that_fails_leaves_nothing)
{
    const CUmemGenericAllocationHandle other = create();
    const enum fake_call calls[] = {FAKE_mem_create, FAKE_mem_map, FAKE_mem_map};
    const unsigned nth[] = {1, 1, 2};
    for (int i = 0; i < 3; i++) {
        fake_fail(calls[i], nth[i], CUDA_ERROR_UNKNOWN);
        CHECK_EQ(map(place + BYTES, handle), CUDA_ERROR_UNKNOWN);
        CHECK_EQ(fake.mappings, i == 2);
    }
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, addresses_that_the_driver_keeps_are_still_reserved)
{
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    unmap();
    fake_fail(FAKE_mem_address_free, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(free_place(), CUDA_ERROR_UNKNOWN);
    handle = create();
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_mem_map], 0); /* so it is deferred */
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- access */

static unsigned long long flags_at(CUdeviceptr address, int device)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    unsigned long long flags = 99;
    CUresult result;
    if (!ms_vmm_get_access(address, &location, &flags, &result))
        return 77; /* the driver knows */
    CHECK_EQ(result, CUDA_SUCCESS);
    return flags;
}

MS_TEST_BETWEEN(start, end, access_is_for_the_device_and_deferred)
{
    CHECK_EQ(flags_at(place, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    set_access();
    CHECK_EQ(flags_at(place, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQ(flags_at(place + BYTES - 1, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQ(flags_at(place, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK_EQ(flags_at(place + BYTES, 0), 77);
    set_access(); /* again */
    CHECK(fake.physical_bytes == 0 && fake.calls[FAKE_mem_set_access] == 0);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, questions_about_access_that_make_no_sense_are_the_drivers)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned long long flags;
    CUresult result;
    CHECK(!ms_vmm_get_access(place, NULL, &flags, &result));
    CHECK(!ms_vmm_get_access(place, &location, NULL, &result));
    fake_fail(FAKE_device_get_attribute, 1, CUDA_ERROR_INVALID_DEVICE);
    CHECK(!ms_vmm_get_access(place, &location, &flags, &result));
    location.type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK(!ms_vmm_get_access(place, &location, &flags, &result));
    CHECK_EQ(ms_vmm_make_real(place, BYTES), CUDA_SUCCESS);
    CHECK_EQ(flags_at(place, 0), 77);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, access_to_what_is_no_whole_mapping_is_refused)
{
    const CUmemGenericAllocationHandle other = create();
    CHECK_EQ(set_access_to(place, BYTES, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(set_access_to(place, BYTES, &access_of_device, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(set_access_to(place, 0, &access_of_device, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(set_access_to(place, FAKE_GRANULE, &access_of_device, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(set_access_to(place + FAKE_GRANULE, FAKE_GRANULE, &access_of_device, 1),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(set_access_to(place, 2 * BYTES, &access_of_device, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(flags_at(place, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK_EQ(map(place + BYTES, other), CUDA_SUCCESS);
    CHECK_EQ(set_access_to(place, 2 * BYTES, &access_of_device, 1), CUDA_SUCCESS);
    CHECK_EQ(flags_at(place, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQ(flags_at(place + BYTES, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUresult result;
    CHECK(ms_vmm_unmap(place + BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

static bool is_accessible(CUdeviceptr address)
{
    struct ms_program_mapping mapping;
    struct ms_allocation_facts facts;
    CHECK(ms_space_find_mapping(address, &mapping, &facts));
    return mapping.is_accessible;
}

/* The driver sets it, of memory that it knows. */
MS_TEST_BETWEEN(start, end, other_access_is_the_drivers_and_followed)
{
    CUmemAccessDesc both[] = {access_of_device, access_of_device};
    const CUmemGenericAllocationHandle other = create();
    CHECK_EQ(map(place + BYTES, other), CUDA_SUCCESS);
    both[0].location.id = 1;
    CHECK_EQ(set_access_to(place, 2 * BYTES, both, 2), CUDA_SUCCESS);
    CHECK(fake.physical_bytes == 2 * BYTES);
    CHECK(fake_access_at(place) == 3 && fake_access_at(place + BYTES) == 3);
    CHECK(is_accessible(place) && is_accessible(place + BYTES));
    both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CHECK_EQ(set_access_to(place, BYTES, &both[1], 1), CUDA_SUCCESS);
    CHECK(fake_access_at(place) == 2 && fake_access_at(place + BYTES) == 3);
    CHECK(!is_accessible(place) && is_accessible(place + BYTES));
    both[0].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CHECK_EQ(set_access_to(place + BYTES, BYTES, both, 1), CUDA_SUCCESS);
    CHECK(fake_access_at(place + BYTES) == 1 && is_accessible(place + BYTES));
    CUresult result;
    CHECK(ms_vmm_unmap(place + BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, access_that_fails_changes_nothing)
{
    CUmemAccessDesc desc = access_of_device;
    desc.location.id = 1;
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(set_access_to(place, BYTES, &desc, 1), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(fake.calls[FAKE_mem_set_access], 0);
    CHECK_EQ(ms_vmm_make_real(place, BYTES), CUDA_SUCCESS);
    desc.location.id = 0;
    fake_fail(FAKE_mem_set_access, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(set_access_to(place, BYTES, &desc, 1), CUDA_ERROR_UNKNOWN);
    CHECK(!is_accessible(place));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    set_access();
    fake_fail(FAKE_mem_set_access, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(set_access_to(place, BYTES, &desc, 1), CUDA_ERROR_UNKNOWN);
    CHECK(is_accessible(place));
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- unmapping */

static CUresult unmap_range(CUdeviceptr address, size_t bytes)
{
    CUresult result;
    CHECK(ms_vmm_unmap(address, bytes, &result));
    return result;
}

/* A hole is in a range that reaches over it. */
MS_TEST_BETWEEN(start, end, whole_mappings_are_unmapped_with_what_lies_between_them)
{
    CUresult result;
    CHECK_EQ(unmap_range(place, FAKE_GRANULE), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(unmap_range(place + FAKE_GRANULE, FAKE_GRANULE), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(unmap_range(place + FAKE_GRANULE, 2 * FAKE_GRANULE), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(unmap_range(place, 3 * BYTES), CUDA_ERROR_INVALID_VALUE); /* beyond what is reserved */
    CHECK_EQ(unmap_range(place + BYTES, BYTES), CUDA_SUCCESS);         /* nothing */
    CHECK(!is_accessible(place));
    CHECK(!ms_vmm_unmap(place, 0, &result));
    CHECK_EQ(unmap_range(place, 2 * BYTES), CUDA_SUCCESS);
    CHECK(!ms_vmm_unmap(place, BYTES, &result)); /* its record is gone */
    CHECK_EQ(map(place + BYTES, handle), CUDA_SUCCESS);
    CHECK_EQ(unmap_range(place, 2 * BYTES), CUDA_SUCCESS);
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

static void fill_all(uint32_t value)
{
    fake_set(fake_find(place), 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = value});
}

/* By its handle the program gets at them again. */
/* The first of them does not begin where the reservation does. */
MS_TEST_BETWEEN(start, end, each_of_some_mappings_is_unmapped)
{
    const CUdeviceptr more = reserve_more();
    CUresult result;
    for (size_t i = 1; i < 4; i++)
        CHECK_EQ(map(more + i * BYTES, handle), CUDA_SUCCESS);
    CHECK(ms_vmm_unmap(more + BYTES, 2 * BYTES, &result) && result == CUDA_SUCCESS);
    for (size_t i = 0; i < 4; i++) {
        struct ms_program_mapping mapping;
        struct ms_allocation_facts facts;
        CHECK_EQ(ms_space_find_mapping(more + i * BYTES, &mapping, &facts), i == 3);
    }
    CHECK(ms_vmm_unmap(more + 3 * BYTES, BYTES, &result) && result == CUDA_SUCCESS);
    CHECK(ms_vmm_free_addresses(more, 4 * BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_handle_keeps_its_content_where_it_is_mapped_again)
{
    for (int in_pieces = 0; in_pieces < 2; in_pieces++) {
        set_access();
        fill_all(0x07070707);
        for (size_t i = 0; in_pieces && i < 2; i++)
            CHECK_EQ(ms_access(place + i * FAKE_GRANULE, FAKE_GRANULE, MS_NEED_READ_WRITE),
                     CUDA_SUCCESS);
        unmap();
        CHECK_EQ(fake.physical_bytes, BYTES);
        CHECK_EQ(map(place + BYTES, handle), CUDA_SUCCESS);
        CHECK_EQ(set_access_to(place + BYTES, BYTES, &access_of_device, 1), CUDA_SUCCESS);
        CHECK_EQ(ms_access(place + BYTES, BYTES, MS_NEED_READ), CUDA_SUCCESS);
        CHECK(*at(place + BYTES) == 7 && *at(place + 2 * BYTES - 1) == 7);
        CHECK_EQ(unmap_range(place + BYTES, BYTES), CUDA_SUCCESS);
        CHECK_EQ(release(handle), CUDA_SUCCESS);
        CHECK_EQ(fake.physical_bytes, 0);
        handle = create();
        CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    }
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, pieces_of_a_handle_become_one_memory_when_the_driver_must_know_it)
{
    set_access();
    fill_all(0x07070707);
    for (size_t i = 0; i < 2; i++)
        CHECK_EQ(ms_access(place + i * FAKE_GRANULE, FAKE_GRANULE, MS_NEED_READ_WRITE),
                 CUDA_SUCCESS);
    unmap();
    ms_driver.memcpy_dtoh = memcpy_dtoh;
    ms_driver.memcpy_htod = memcpy_htod;
    has_waited = true;
    CUmemGenericAllocationHandle number = handle;
    fake_fail(FAKE_mem_map, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK(fake.physical_bytes == BYTES && fake.handles == 1 && fake.reservations == 1);
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    set_access();
    CHECK(*at(place) == 7 && *at(place + BYTES - 1) == 7);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, an_unmap_makes_no_memory_for_unreachable_content)
{
    set_access();
    fill_all(0x07070707);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    unmap();
    CHECK_EQ(fake.calls[FAKE_mem_create], 0);
    handle = create();
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    set_access(); /* and was never written */
    CHECK_EQ(unmap_range(place, BYTES), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_mem_create], 0);
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, an_unmap_that_cannot_keep_its_content_leaves_it_mapped)
{
    set_access();
    fill_all(0x07070707);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(unmap_range(place, BYTES), CUDA_ERROR_UNKNOWN);
    CHECK(is_accessible(place));
    CHECK_EQ(ms_access(place, BYTES, MS_NEED_READ), CUDA_SUCCESS);
    CHECK_EQ(*at(place + BYTES - 1), 7);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- ranges */

MS_TEST_BETWEEN(start, end, all_mappings_of_a_range_are_made_real)
{
    const CUmemGenericAllocationHandle other = create();
    CHECK_EQ(map(place + BYTES, other), CUDA_SUCCESS);
    CHECK_EQ(ms_vmm_make_real(place + 2 * BYTES, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_vmm_make_real(place, 0), CUDA_SUCCESS);
    CHECK_EQ(fake.physical_bytes, 0);
    CHECK_EQ(ms_vmm_make_real(place + BYTES - 1, 1), CUDA_SUCCESS);
    CHECK(fake.physical_bytes == BYTES && fake.mappings == 1);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_vmm_make_real(place, BYTES + 1), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_vmm_make_real(place, BYTES + 1), CUDA_SUCCESS);
    CHECK(fake.physical_bytes == 2 * BYTES && fake.mappings == 2);
    CHECK_EQ(ms_vmm_make_real(place, 2 * BYTES), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_mem_create], 3);
    CHECK_EQ(unmap_range(place + BYTES, BYTES), CUDA_SUCCESS);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- at the second place of a reservation */

static struct ms_event pinned;

WRAPS(ms_state_event, nanosleep, clock_gettime);
void __wrap_ms_state_event(const struct ms_event *event)
{
    if (event->kind == MS_EVENT_PIN)
        pinned = *event;
}

/* Its bytes are in two pieces of memory. */
static void start_second(void)
{
    start();
    const CUmemGenericAllocationHandle first = handle;
    handle = create();
    CHECK_EQ(map(place + BYTES, handle), CUDA_SUCCESS);
    CHECK_EQ(set_access_to(place + BYTES, BYTES, &access_of_device, 1), CUDA_SUCCESS);
    fake_set(fake_find(place), BYTES, 2 * BYTES,
             &(struct ms_content){.kind = MS_FILL, .pattern = 0x07070707});
    for (size_t i = 0; i < 2; i++)
        CHECK_EQ(ms_access(place + BYTES + i * FAKE_GRANULE, FAKE_GRANULE, MS_NEED_READ_WRITE),
                 CUDA_SUCCESS);
    CHECK_EQ(release(first), CUDA_SUCCESS);
    ms_driver.memcpy_dtoh = memcpy_dtoh;
    ms_driver.memcpy_htod = memcpy_htod;
    has_waited = false;
    fake.on_wait = note_wait;
}

static void end_second(void)
{
    CHECK(*at(place + BYTES) == 7 && *at(place + 2 * BYTES - 1) == 7);
    CHECK_EQ(unmap_range(place + BYTES, BYTES), CUDA_SUCCESS);
    end();
}

MS_TEST_BETWEEN(start_second, end_second, pieces_are_joined_and_nothing_beside_them)
{
    CUmemGenericAllocationHandle number = handle;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK(has_waited && fake.physical_bytes == BYTES && fake.handles == 1);
    CHECK(pinned.address == place + BYTES && pinned.bytes == BYTES);
    CHECK_EQ(flags_at(place, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE); /* that is still deferred */
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* Only the mapping holds it then. */
MS_TEST_BETWEEN(start_second, end_second, a_mapping_of_a_released_handle_keeps_no_handle)
{
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK_EQ(ms_vmm_make_real(place + BYTES, 1), CUDA_SUCCESS);
    CHECK(fake.handles == 0 && fake.physical_bytes == BYTES);
}

MS_TEST_BETWEEN(start_second, end_second, a_handle_that_cannot_be_joined_is_as_it_was)
{
    CUmemGenericAllocationHandle number = handle;
    fake.wait_result = CUDA_ERROR_UNKNOWN;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_ERROR_UNKNOWN);
    fake.wait_result = CUDA_SUCCESS;
    CHECK(number == handle && fake.handles == 0);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- while a stream captures */

static int sleeps, ends_with; /* the sleep in which the capture ends; 0: in none */
static time_t slept_seconds;
static bool is_counted; /* no other time passes */

int __wrap_nanosleep(const struct timespec *time, struct timespec *rest)
{
    CHECK(time->tv_sec == 0 && time->tv_nsec > 0 && rest == NULL);
    if (++sleeps == ends_with)
        ms_order_set_capture(false);
    slept_seconds++; /* it took longer than was asked for */
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!is_counted)
        return __real_clock_gettime(clock, time);
    *time = (struct timespec){.tv_sec = 1000 + slept_seconds};
    return 0;
}

MS_TEST_BETWEEN(start_second, end_second, joining_waits_for_the_end_of_a_capture)
{
    CUmemGenericAllocationHandle number = handle;
    ms_order_set_capture(true);
    ends_with = 1;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_SUCCESS);
    CHECK_EQ(sleeps, 1);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* The capturing thread may be this one. */
MS_TEST_BETWEEN(start_second, end_second, a_join_waits_for_a_capture_for_some_seconds_at_most)
{
    CUmemGenericAllocationHandle number = handle;
    ms_order_set_capture(true);
    ends_with = 0;
    is_counted = true;
    CHECK_EQ(ms_vmm_make_handle_real(&number, NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(sleeps, 2);
    ms_order_set_capture(false);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* --- the driver's own */

MS_TEST_BETWEEN(start, end, a_handle_of_the_driver_is_mapped_beside_ours)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle drivers;
    CHECK_EQ(ms_driver.mem_create(&drivers, BYTES, &prop, 0), CUDA_SUCCESS);
    CHECK_EQ(map(place + BYTES, drivers), CUDA_SUCCESS);
    CHECK_EQ(map(place + BYTES, drivers), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(free_place(), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(set_access_to(place, 2 * BYTES, &access_of_device, 1), CUDA_SUCCESS);
    *at(place + BYTES) = 1;
    CHECK_EQ(fake.physical_bytes, BYTES);
    CHECK_EQ(unmap_range(place + BYTES, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.mem_release(drivers), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* The driver's mapping is in no record. */
MS_TEST_BETWEEN(start, end, a_mapping_beside_one_of_the_driver_is_not_deferred)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle drivers;
    CUdeviceptr elsewhere;
    CUresult result;
    CHECK_EQ(ms_driver.mem_address_reserve(&elsewhere, 2 * BYTES, FAKE_GRANULE, 0, 0),
             CUDA_SUCCESS);
    ms_vmm_reserved(elsewhere, 2 * BYTES);
    CHECK_EQ(ms_driver.mem_create(&drivers, BYTES, &prop, 0), CUDA_SUCCESS);
    CHECK_EQ(map(elsewhere, drivers), CUDA_SUCCESS);
    const CUmemGenericAllocationHandle other = create();
    CHECK_EQ(map(elsewhere + BYTES, other), CUDA_SUCCESS);
    CHECK_EQ(fake.physical_bytes, 2 * BYTES);
    CHECK(!ms_vmm_unmap(elsewhere, 2 * BYTES, &result));
    CHECK_EQ(ms_driver.mem_unmap(elsewhere, BYTES) | ms_driver.mem_unmap(elsewhere + BYTES, BYTES),
             CUDA_SUCCESS);
    CHECK_EQ(ms_driver.mem_release(drivers), CUDA_SUCCESS);
    CHECK_EQ(release(other), CUDA_SUCCESS);
    CHECK(ms_vmm_free_addresses(elsewhere, 2 * BYTES, &result) && result == CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, a_deferred_handle_is_retained_without_the_driver)
{
    CUmemGenericAllocationHandle again;
    CUresult result;
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    CHECK(ms_vmm_retain(place, &again, &result) && result == CUDA_SUCCESS);
    CHECK(again == handle && fake.calls[FAKE_mem_retain] == 0);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}

/* The driver may give them to somebody else. */
MS_TEST_BETWEEN(start, end, freed_addresses_are_forgotten)
{
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    unmap();
    CHECK_EQ(free_place(), CUDA_SUCCESS);
    CUdeviceptr again;
    CHECK_EQ(ms_driver.mem_address_reserve(&again, 2 * BYTES, FAKE_GRANULE, place, 0),
             CUDA_SUCCESS);
    handle = create();
    CHECK_EQ(map(again, handle), CUDA_SUCCESS);
    CHECK_EQ(fake.physical_bytes, BYTES);
    CHECK_EQ(ms_driver.mem_unmap(again, BYTES), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
    place = again;
    ms_vmm_reserved(place, 2 * BYTES);
    handle = create();
    CHECK_EQ(map(place, handle), CUDA_SUCCESS);
    CHECK_EQ(release(handle), CUDA_SUCCESS);
}
