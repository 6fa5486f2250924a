/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/alloc.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/regular.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

/* The nth allocation of a record fails; the linker's --wrap leads here. */
static unsigned failing, seen;
void *__real_ms_heap_zalloc(size_t bytes);
void *__wrap_ms_heap_zalloc(size_t bytes);
void *__wrap_ms_heap_zalloc(size_t bytes)
{
    return ++seen == failing ? NULL : __real_ms_heap_zalloc(bytes);
}

static bool allocate(CUdeviceptr *address_out)
{
    CUresult result;
    ms_config.min_bytes = 1;
    ms_config.overcommit = 16;
    ms_config.self_check = MS_SELF_CHECK_OFF;
    return ms_alloc(FAKE_GRANULE, address_out, &result) && result == CUDA_SUCCESS;
}

MS_TEST_AFTER(fake_start, addresses_go_back_where_there_is_no_record_of_them)
{
    CUdeviceptr address;
    CUresult result;
    seen = 0;
    failing = 1;
    CHECK(!allocate(&address));
    CHECK(seen > 0);
    fake_check_empty();
    CHECK(allocate(&address));
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}

/* It takes as much memory as the driver's own would. */
static void fill(CUdeviceptr address)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    ms_space_release(allocation);
    fake_set(allocation, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
}

MS_TEST_AFTER(fake_start, a_size_that_comes_again_and_again_is_left_to_the_driver)
{
    enum { ENOUGH = 16 };
    CUdeviceptr address;
    CUresult result;
    atomic_store(&ms_hot.started, 1);
    for (int i = 0; i < ENOUGH; i++) {
        CHECK(ms_regular_take(FAKE_GRANULE) == NULL);
        CHECK(allocate(&address));
        fill(address);
        CHECK(ms_alloc_free(address, &result) && result == CUDA_SUCCESS);
    }
    CHECK(ms_regular_take(FAKE_GRANULE) != NULL);
    CHECK(ms_regular_take(FAKE_GRANULE) == NULL); /* it never had two */
}

/* --- freeing */

static CUdeviceptr freed;

/* Another thread has freed it, and allocated at the same address. */
static void replace_meanwhile(void)
{
    fake.on_wait = NULL;
    struct ms_allocation *allocation = ms_space_claim(freed);
    allocation->id += 1000;
    ms_space_release(allocation);
}

MS_TEST_AFTER(fake_start, what_took_its_place_during_the_wait_is_not_freed)
{
    CUresult result;
    CHECK(allocate(&freed));
    fake.on_wait = replace_meanwhile;
    CHECK(ms_alloc_free(freed, &result));
    CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}

MS_TEST_AFTER(fake_start, nothing_is_freed_where_the_wait_fails)
{
    CUresult result;
    CHECK(allocate(&freed));
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(ms_alloc_free(freed, &result));
    CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(fake.reservations, 1);
    CHECK(ms_alloc_free(freed + 1, &result) && result == CUDA_ERROR_INVALID_VALUE);
    fake.wait_result = CUDA_SUCCESS;
    CHECK(ms_alloc_free(freed, &result) && result == CUDA_SUCCESS);
    fake_check_empty();
}
