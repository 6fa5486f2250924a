/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/pool.h"

#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { MIB = 1 << 20 };
static const CUmemPool_attribute used = CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                 used_high = CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                                 reserved = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;

/* The driver has so many bytes in use. */
static void set_drivers(uint64_t bytes)
{
    fake.pool[used] = bytes;
    if (fake.pool[used_high] < bytes)
        fake.pool[used_high] = bytes;
}

/* What the program is told. */
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
    ms_pool_uncount(pool, 2 * MIB);
    set_drivers(5 * MIB);
    CHECK_EQ(figure(used), 5 * MIB);
    CHECK_EQ(figure(used_high), 6 * MIB);
    set_drivers(1 * MIB);
    fake.pool[used_high] = fake.pool[used]; /* the program sets it back */
    ms_pool_reset_high(FAKE_POOL, used_high);
    CHECK_EQ(figure(used_high), 1 * MIB);
}

MS_TEST_AFTER(fake_start, what_is_freed_is_kept_up_to_the_threshold)
{
    struct ms_pool *pool = ms_pool_find(FAKE_POOL, 0);
    ms_pool_count(pool, 4 * MIB);
    ms_pool_uncount(pool, 4 * MIB);
    CHECK_EQ(figure(reserved), 0);
    fake.pool[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = UINT64_MAX;
    ms_pool_count(pool, 4 * MIB);
    ms_pool_uncount(pool, 4 * MIB);
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
    ms_pool_uncount(pool, 1 * MIB);
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
