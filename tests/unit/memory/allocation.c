/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/allocation.h"

#include "runtime/driver/pool.h"
#include "runtime/memory/memory_internal.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"

enum { BYTES = 3 * FAKE_GRANULE + 8 };

static const struct ms_promise promise = {.bytes = BYTES, .context = FAKE_CONTEXT};

static void destroy(struct ms_allocation *allocation)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_space_remove(allocation);
    ms_allocation_destroy(allocation);
}

MS_TEST(a_reserved_allocation_has_addresses_and_no_memory)
{
    fake_start();
    struct ms_allocation *allocation = fake_create(&promise);
    CHECK(allocation != NULL && allocation->bytes == BYTES && allocation->context == FAKE_CONTEXT);
    CHECK(allocation->granule == FAKE_GRANULE && allocation->granule_bytes == 4 * FAKE_GRANULE);
    CHECK(!allocation->is_programs && !allocation->is_opened && allocation->pool == NULL);
    CHECK(ms_allocation_backing(allocation)->backed_bytes == 0 && fake.physical_bytes == 0);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(allocation), BYTES - 1).content.kind,
             MS_UNDEFINED);
    struct ms_allocation *other = fake_create(&promise);
    CHECK(other->id != allocation->id);
    destroy(other);
    destroy(allocation);
    fake_check_empty();
}

/* At each piece of memory that it takes. */
MS_TEST(an_allocation_without_host_memory_fails_and_leaves_nothing)
{
    fake_start();
    destroy(fake_create(&promise)); /* what is made once */
    const int before = live;
    bool is_made = false;
    for (int most = 0; !is_made; most++) {
        may_make = most;
        struct ms_allocation *allocation = fake_create(&promise);
        may_make = 1000000;
        is_made = allocation != NULL;
        CHECK(most < 50);
        if (is_made)
            destroy(allocation);
        CHECK(fake.reservations == 0 && ms_space_sums(0).reserved == 0);
        CHECK(live == before || is_made);
    }
    fake_check_empty();
}

MS_TEST(an_allocation_without_addresses_fails_or_lies_elsewhere)
{
    fake_start();
    fake_fail(FAKE_mem_address_reserve, 1, CUDA_ERROR_OUT_OF_MEMORY);
    struct ms_allocation *allocation = fake_create(&promise);
    if (allocation != NULL) /* at another place */
        destroy(allocation);
    CHECK(fake_has_failed());
    fake_check_empty();
}

MS_TEST(an_allocation_at_addresses_of_the_program_maps_nothing)
{
    CUdeviceptr place;
    fake_start();
    CHECK_EQ(ms_driver.mem_address_reserve(&place, 2 * FAKE_GRANULE, FAKE_GRANULE, 0, 0),
             CUDA_SUCCESS);
    struct ms_allocation *allocation = fake_create(
        &(struct ms_promise){.bytes = 2 * FAKE_GRANULE, .context = FAKE_CONTEXT, .address = place});
    CHECK(allocation != NULL && allocation->address == place && allocation->is_programs);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind, MS_UNMAPPED);
    destroy(allocation);
    CHECK_EQ(fake.reservations, 1); /* the program frees them */
    CHECK_EQ(ms_driver.mem_address_free(place, 2 * FAKE_GRANULE), CUDA_SUCCESS);
    fake_check_empty();
}

MS_TEST(an_allocation_says_where_device_memory_is_out)
{
    fake_start();
    struct ms_allocation *allocation = fake_create(&promise);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_allocation_cover(allocation, 0, BYTES), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_allocation_cover(allocation, 0, FAKE_GRANULE + 1), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * FAKE_GRANULE);
    destroy(allocation);
    fake_check_empty();
}
