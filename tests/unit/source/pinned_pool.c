/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/pinned_pool.h"

#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static struct ms_pinned_area take(CUcontext context, size_t bytes)
{
    struct ms_pinned_area area;
    CHECK_EQ(ms_pinned_pool_take(context, bytes, &area), CUDA_SUCCESS);
    CHECK(area.bytes >= bytes && area.context == context && area.is_pinned);
    area.memory[bytes - 1] = 1;
    return area;
}

MS_TEST_AFTER(fake_start, what_is_kept_serves_who_wants_no_more)
{
    const struct ms_pinned_area small = take(FAKE_CONTEXT, 4096);
    ms_pinned_pool_drop(&small);
    const struct ms_pinned_area large = take(FAKE_CONTEXT, 4097);
    CHECK(large.memory != small.memory);
    CHECK(take(FAKE_CONTEXT, 100).memory == small.memory);
    CHECK_EQ(fake.calls[FAKE_mem_host_alloc], 2);
}

MS_TEST_AFTER(fake_start, what_is_kept_belongs_to_a_context)
{
    const struct ms_pinned_area area = take(FAKE_CONTEXT, 4096);
    ms_pinned_pool_drop(&area);
    CHECK(take((CUcontext)2, 4096).memory != area.memory);
    ms_pinned_pool_give_back((CUcontext)2);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 0);
    ms_pinned_pool_give_back(FAKE_CONTEXT);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 1);
}

MS_TEST_AFTER(fake_start, without_pinned_memory_there_is_other)
{
    struct ms_pinned_area area;
    fake_fail(FAKE_mem_host_alloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, &area), CUDA_SUCCESS);
    CHECK(!area.is_pinned);
    area.memory[4095] = 1;
    ms_pinned_pool_drop(&area); /* it is not kept */
    CHECK(take(FAKE_CONTEXT, 4096).is_pinned);
}
