/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/pool.h"

#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"

enum { MIB = 1 << 20 };
static const CUmemPool_attribute used = CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                 used_high = CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                                 reserved = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                 reserved_high = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                                 threshold = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;

/* The driver has so many bytes in use. */
static void set_drivers(uint64_t bytes)
{
    fake.pool[used] = bytes;
    if (fake.pool[used_high] < bytes)
        fake.pool[used_high] = bytes;
}

/* The figure that the program gets. */
static uint64_t figure(CUmemPool_attribute attribute)
{
    uint64_t value = fake.pool[attribute];
    ms_pool_add_figures(FAKE_POOL, attribute, &value);
    return value;
}

MS_TEST_AFTER(fake_start, the_high_mark_is_that_of_the_sum)
{
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    CHECK(pool != NULL && ms_pool_handle(pool) == FAKE_POOL);
    set_drivers(5 * MIB);
    set_drivers(1 * MIB);
    ms_pool_count(pool, 2 * MIB); /* 3 */
    CHECK_EQ(figure(used), 3 * MIB);
    CHECK_EQ(figure(used_high), 5 * MIB);
    set_drivers(4 * MIB); /* 6 */
    set_drivers(0);
    CHECK_EQ(figure(used_high), 6 * MIB);
    ms_pool_count(pool, -2 * MIB);
    set_drivers(5 * MIB);
    CHECK_EQ(figure(used), 5 * MIB);
    CHECK_EQ(figure(used_high), 6 * MIB);
    set_drivers(1 * MIB);
    fake.pool[used_high] = fake.pool[used]; /* the program sets it back */
    ms_pool_reset_high(FAKE_POOL, used_high);
    CHECK_EQ(figure(used_high), 1 * MIB);
}

MS_TEST_AFTER(fake_start, a_pool_keeps_freed_memory_up_to_its_threshold)
{
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    ms_pool_count(pool, 4 * MIB);
    ms_pool_count(pool, -4 * MIB);
    CHECK_EQ(figure(reserved), 0);
    fake.pool[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = UINT64_MAX;
    ms_pool_count(pool, 4 * MIB);
    ms_pool_count(pool, -4 * MIB);
    CHECK_EQ(figure(reserved), 4 * MIB);
    CHECK_EQ(ms_pool_kept_bytes(0), 4 * MIB);
    ms_pool_count(pool, 1 * MIB); /* of what is kept */
    CHECK_EQ(figure(reserved), 4 * MIB);
    CHECK_EQ(figure(used), 1 * MIB);
    fake.pool[reserved] = 3 * MIB;
    CHECK_EQ(ms_pool_trim(FAKE_POOL, 6 * MIB), 3 * MIB); /* 6 of 7 */
    CHECK_EQ(ms_pool_kept_bytes(0), 2 * MIB);
    CHECK_EQ(ms_pool_trim(FAKE_POOL, 0), 0);
    CHECK_EQ(ms_pool_kept_bytes(0), 0);
    ms_pool_count(pool, -1 * MIB);
}

static CUresult refuse(CUmemoryPool handle)
{
    CHECK(ms_pool_find(handle, 1) == NULL); /* another pool may have it already */
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult destroy(CUmemoryPool handle)
{
    CHECK(ms_pool_find(handle, 1) == NULL);
    return CUDA_SUCCESS;
}

MS_TEST(a_pool_that_is_destroyed_or_shared_gives_nothing)
{
    const CUmemoryPool other = (CUmemoryPool)17;
    fake_start();
    CHECK(ms_pool_find(other, 0) == NULL);
    ms_pool_add(other, 1);
    CHECK(ms_pool_find(other, 0) == NULL);
    struct ms_pool *pool = ms_pool_find(other, 1);
    CHECK(pool != NULL);
    CHECK_EQ(ms_pool_destroy(other, refuse), CUDA_ERROR_INVALID_VALUE);
    CHECK(ms_pool_find(other, 1) == pool);
    CHECK_EQ(ms_pool_destroy(other, destroy), CUDA_SUCCESS);
    CHECK(ms_pool_find(other, 1) == NULL);
    CHECK_EQ(ms_pool_destroy(other, destroy), CUDA_SUCCESS); /* of which nothing is known */

    ms_pool_set_shared(FAKE_POOL);
    CHECK(ms_pool_find(FAKE_POOL, 0) == NULL);
}

MS_TEST_AFTER(fake_start, a_pool_that_others_reach_is_left_to_the_driver)
{
    CHECK(ms_pool_find(FAKE_POOL, 0) != NULL);
    ms_pool_set_shared(FAKE_POOL);
    CHECK(ms_pool_find(FAKE_POOL, 0) == NULL);
}

/* A pool that keeps so many bytes. */
static struct ms_pool *keep(size_t bytes)
{
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    fake.pool[threshold] = UINT64_MAX;
    ms_pool_count(pool, bytes);
    ms_pool_count(pool, -bytes);
    CHECK_EQ(ms_pool_kept_bytes(0), bytes);
    return pool;
}

MS_TEST_AFTER(fake_start, the_driver_uses_what_is_kept)
{
    fake.calls[FAKE_ctx_get_device] = 0;
    ms_pool_use_kept(FAKE_POOL, MIB);
    CHECK_EQ(fake.calls[FAKE_ctx_get_device], 0); /* nothing is */
    keep(8 * MIB);
    ms_pool_use_kept(FAKE_POOL, MIB);
    CHECK_EQ(ms_pool_kept_bytes(0), 7 * MIB);
    CHECK_EQ(figure(reserved_high), 8 * MIB);
    fake.pool[reserved] = fake.pool[reserved_high] = 2 * MIB;
    ms_pool_use_kept(FAKE_POOL, 0);
    fake.pool[reserved] = 0;
    CHECK_EQ(figure(reserved_high), 9 * MIB); /* as the driver's high mark begins anew */
    ms_pool_use_kept(NULL, 2 * MIB);          /* the current pool */
    CHECK_EQ(ms_pool_kept_bytes(0), 5 * MIB);
    ms_pool_use_kept((CUmemoryPool)17, MIB);
    CHECK_EQ(ms_pool_kept_bytes(0), 5 * MIB);
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_INVALID_CONTEXT);
    ms_pool_use_kept(FAKE_POOL, MIB);
    fake_fail(FAKE_device_get_default_mem_pool, 1, CUDA_ERROR_UNKNOWN);
    ms_pool_use_kept(NULL, MIB);
    CHECK_EQ(ms_pool_kept_bytes(0), 5 * MIB);
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    ms_pool_use_kept(FAKE_POOL, 6 * MIB);
    CHECK_EQ(ms_pool_kept_bytes(0), 0);
    fake.calls[FAKE_ctx_get_device] = 0;
    ms_pool_use_kept(FAKE_POOL, MIB);
    CHECK_EQ(fake.calls[FAKE_ctx_get_device], 0);
}

MS_TEST_AFTER(fake_start, the_threshold_is_of_the_sum)
{
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    fake.pool[reserved] = MIB;
    for (int more = 1; more >= 0; more--) {
        fake.pool[threshold] = 5 * MIB - (uint64_t)more;
        ms_pool_count(pool, 4 * MIB);
        ms_pool_count(pool, -4 * MIB);
        CHECK_EQ(ms_pool_kept_bytes(0), more > 0 ? 0 : 4 * MIB);
    }
}

MS_TEST_AFTER(fake_start, a_trim_leaves_the_high_mark_of_a_pool)
{
    keep(4 * MIB);
    fake.pool[reserved] = fake.pool[reserved_high] = 3 * MIB;
    CHECK_EQ(ms_pool_trim(FAKE_POOL, 0), 0);
    CHECK_EQ(figure(reserved_high), 7 * MIB);
    ms_pool_reset_high(FAKE_POOL, used_high); /* the other one's */
    CHECK_EQ(figure(reserved_high), 7 * MIB);
}

MS_TEST_AFTER(fake_start, a_pool_that_is_destroyed_keeps_nothing)
{
    keep(4 * MIB);
    ms_pool_add((CUmemoryPool)17, 1); /* before it in the list */
    CHECK_EQ(live, 2);
    CHECK_EQ(ms_pool_destroy(FAKE_POOL, destroy), CUDA_SUCCESS);
    CHECK_EQ(ms_pool_kept_bytes(0), 0);
    CHECK_EQ(live, 1);
    struct ms_pool *pool = ms_pool_find((CUmemoryPool)17, 1);
    CHECK(pool != NULL);
    CHECK_EQ(figure(reserved), 0);
    CHECK_EQ(ms_pool_destroy((CUmemoryPool)17, destroy), CUDA_SUCCESS);
    CHECK_EQ(live, 0);
}

/* The record stays for as long as there is an allocation. */
MS_TEST_AFTER(fake_start, a_pool_that_is_destroyed_has_allocations_still)
{
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    fake.pool[threshold] = UINT64_MAX;
    ms_pool_count(pool, MIB);
    ms_pool_count(pool, MIB);
    CHECK_EQ(ms_pool_destroy(FAKE_POOL, destroy), CUDA_SUCCESS);
    CHECK_EQ(live, 1);
    ms_pool_count(pool, -MIB);
    CHECK_EQ(live, 1);
    CHECK(ms_pool_find(FAKE_POOL, 0) != pool); /* a new one has the handle */
    CHECK_EQ(live, 2);
    ms_pool_count(pool, -MIB);
    CHECK_EQ(live, 1);
    CHECK_EQ(ms_pool_kept_bytes(0), 0);
    CHECK_EQ(figure(used), 0);
}

MS_TEST_AFTER(fake_start, a_pool_of_no_device_that_there_may_be_is_none)
{
    const CUmemoryPool first = (CUmemoryPool)17, other = (CUmemoryPool)18;
    keep(MIB);
    CHECK_EQ(ms_pool_kept_bytes(-1), 0);
    CHECK_EQ(ms_pool_kept_bytes(MS_MAX_DEVICES), 0);
    ms_pool_add(other, -1);
    ms_pool_add(other, MS_MAX_DEVICES);
    CHECK_EQ(live, 1);
    ms_pool_add(first, 0);
    CHECK(ms_pool_find(first, 0) != NULL && ms_pool_find(FAKE_POOL, 0) != NULL);
    ms_pool_set_shared(other); /* of which nothing is known */
    CHECK(ms_pool_find(other, 0) == NULL && ms_pool_find(other, -1) == NULL);
    CHECK_EQ(ms_pool_trim(other, MIB), MIB);
    CHECK_EQ(ms_pool_destroy(other, destroy), CUDA_SUCCESS);
    CHECK_EQ(live, 2);
    uint64_t value = 5;
    ms_pool_add_figures(other, used_high, &value);
    ms_pool_reset_high(other, used_high);
    CHECK_EQ(value, 5);
    CHECK_EQ(ms_pool_trim(other, MIB), MIB);
}

STORY_AFTER(fake_start, a_pool_without_a_record_is_the_drivers, may_make = 0,
            IS(ms_pool_find(FAKE_POOL, 0) == NULL), ms_pool_set_shared(FAKE_POOL), EQUALS(live, 0))
