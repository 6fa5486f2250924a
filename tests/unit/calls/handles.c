/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/handles.h"

#include "tools/simcuda/harness/test.h"

enum { MANY = 1000 };
#define GRANULE ((size_t)2 << 20)
#define CONTEXT ((CUcontext)5)

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {CU_MEM_LOCATION_TYPE_DEVICE, 3}};

static struct ms_handle *create(size_t bytes)
{
    struct ms_handle *handle = ms_handle_create(bytes, &prop, CONTEXT);
    CHECK(handle != NULL && ms_handle_is_ours(handle->number));
    CHECK(ms_handle_find(handle->number) == handle);
    return handle;
}

static void end(struct ms_handle *handle)
{
    const CUmemGenericAllocationHandle number = handle->number;
    handle->users = handle->mappings = 0;
    ms_handle_end_if_unused(handle);
    CHECK(ms_handle_find(number) == NULL);
}

MS_TEST(a_new_handle_has_one_reference_and_no_memory)
{
    const struct ms_handle *handle = create(10 * GRANULE);
    CHECK_EQ(handle->bytes, 10 * GRANULE);
    CHECK_EQ(handle->prop.location.id, 3);
    CHECK(handle->context == CONTEXT);
    CHECK_EQ(handle->users, 1);
    CHECK_EQ(handle->mappings, 0);
    CHECK_EQ(handle->real, 0);
    CHECK_EQ(handle->address, 0);
}

MS_TEST(a_number_that_is_no_handle_is_not_found)
{
    const CUmemGenericAllocationHandle number = create(GRANULE)->number;
    static const CUmemGenericAllocationHandle others[] = {0, 1, 12345, 0x5143000000000001,
                                                          UINT64_MAX};
    for (int i = 0; i < 5; i++) {
        CHECK(!ms_handle_is_ours(others[i]));
        CHECK(ms_handle_find(others[i]) == NULL);
    }
    /* Our handles that were never given out: the next place, a far one, another use of this one. */
    CHECK(ms_handle_find(number + 1) == NULL);
    CHECK(ms_handle_find(number + UINT32_MAX) == NULL);
    CHECK(ms_handle_find(number + (UINT64_C(1) << 32)) == NULL);
}

MS_TEST(a_handle_lives_while_it_has_a_reference_or_a_mapping)
{
    struct ms_handle *handle = create(GRANULE);
    const CUmemGenericAllocationHandle number = handle->number;
    ms_handle_end_if_unused(handle);
    CHECK(ms_handle_find(number) == handle);
    handle->users = 0;
    handle->mappings = 2;
    ms_handle_end_if_unused(handle);
    CHECK(ms_handle_find(number) == handle);
    handle->mappings = 0;
    ms_handle_end_if_unused(handle);
    CHECK(ms_handle_find(number) == NULL);
}

MS_TEST(a_number_is_not_given_out_again_soon)
{
    CUmemGenericAllocationHandle seen[MANY];
    for (int i = 0; i < MANY; i++) {
        struct ms_handle *handle = create(GRANULE);
        seen[i] = handle->number;
        for (int k = 0; k < i; k++)
            CHECK(seen[k] != seen[i]);
        end(handle);
    }
    struct ms_handle *last = create(GRANULE);
    for (int i = 0; i < MANY; i++)
        CHECK(ms_handle_find(seen[i]) == NULL);
    /* After as many uses as a place can count, it still is a handle. */
    for (int i = 0; i < 1 << 17; i++) {
        end(last);
        last = create(GRANULE);
    }
}

MS_TEST(many_handles_come_and_go_in_any_order)
{
    struct ms_handle *all[MANY] = {NULL};
    uint32_t random = 1;
    for (int turn = 0; turn < 20 * MANY; turn++) {
        random = random * 1664525 + 1013904223;
        struct ms_handle **one = &all[(random >> 8) % MANY];
        if (*one == NULL) {
            *one = create((random >> 20) * GRANULE);
            continue;
        }
        CHECK(ms_handle_find((*one)->number) == *one);
        end(*one);
        *one = NULL;
    }
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < i; k++)
            CHECK(all[i] == NULL || all[k] == NULL || all[i]->number != all[k]->number);
    }
    for (int i = 0; i < MANY; i++) {
        if (all[i] != NULL)
            end(all[i]);
    }
}

/* --- reservations */

MS_TEST(a_range_in_a_reservation_finds_it)
{
    const CUdeviceptr at = (CUdeviceptr)1 << 40;
    CHECK(ms_handle_find_reservation(at, 1) == NULL);
    CHECK(ms_handle_add_reservation(at, 8 * GRANULE));
    struct ms_reservation *found = ms_handle_find_reservation(at, 8 * GRANULE);
    CHECK(found != NULL);
    CHECK_EQ(found->address, at);
    CHECK_EQ(found->bytes, 8 * GRANULE);
    CHECK(!found->has_others);
    CHECK(ms_handle_find_reservation(at + 7 * GRANULE, GRANULE) == found);
    CHECK(ms_handle_find_reservation(at + 7 * GRANULE, GRANULE + 1) == NULL);
    CHECK(ms_handle_find_reservation(at - 1, 2) == NULL);
    CHECK(ms_handle_find_reservation(at + 8 * GRANULE, 1) == NULL);
    CHECK(ms_handle_find_reservation(at + 8 * GRANULE, 0) == found);
    CHECK(ms_handle_find_reservation(at + 8 * GRANULE + 1, 0) == NULL);
    CHECK(ms_handle_find_reservation(at + GRANULE, SIZE_MAX) == NULL);
    CHECK(ms_handle_find_reservation(UINT64_MAX, 1) == NULL);
    found->has_others = true;
    CHECK(ms_handle_find_reservation(at + GRANULE, GRANULE)->has_others);
    ms_handle_remove_reservation(at + GRANULE); /* not where it begins */
    CHECK(ms_handle_find_reservation(at, 1) != NULL);
    ms_handle_remove_reservation(at);
    CHECK(ms_handle_find_reservation(at, 1) == NULL);
    ms_handle_remove_reservation(at);
}

/* In any order, side by side. */
MS_TEST(many_reservations_are_told_apart)
{
    enum { COUNT = 101 };
    for (uint64_t i = 0; i < COUNT; i++)
        CHECK(ms_handle_add_reservation((1 + i * 37 % COUNT) * GRANULE, GRANULE));
    for (uint64_t i = 1; i <= COUNT; i++) {
        const struct ms_reservation *found = ms_handle_find_reservation(i * GRANULE + 5, 10);
        CHECK(found != NULL);
        CHECK_EQ(found->address, i * GRANULE);
        CHECK(ms_handle_find_reservation(i * GRANULE + 5, GRANULE) == NULL); /* over a border */
    }
    for (uint64_t i = 1; i <= COUNT; i += 2)
        ms_handle_remove_reservation(i * GRANULE);
    for (uint64_t i = 1; i <= COUNT; i++)
        CHECK_EQ(ms_handle_find_reservation(i * GRANULE, GRANULE) != NULL, i % 2 == 0);
}
