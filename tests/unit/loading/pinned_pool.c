/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/pinned_pool.h"

#include <sys/mman.h>

#include "runtime/base/headroom.h"
#include "runtime/state/state.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static struct ms_event event; /* the last one */
static int event_count;

WRAPS(ms_state_event, mmap64, munmap, ms_headroom_find);
void __wrap_ms_state_event(const struct ms_event *happened)
{
    event = *happened;
    event_count++;
}

/* Bytes of pageable memory that the last call maps, or unmaps. */
static size_t mapped_bytes, unmapped_bytes;

void *__wrap_mmap64(void *address, size_t bytes, int rights, int flags, int file, off_t offset)
{
    mapped_bytes = bytes;
    return __real_mmap64(address, bytes, rights, flags, file, offset);
}

int __wrap_munmap(void *address, size_t bytes)
{
    unmapped_bytes = bytes;
    return __real_munmap(address, bytes);
}

static uint64_t host_bytes = UINT64_MAX;
static int asked;
struct ms_headroom __wrap_ms_headroom_find(enum ms_headroom_kind kind)
{
    CHECK_EQ(kind, MS_HEADROOM_MEMORY);
    asked++;
    return (struct ms_headroom){host_bytes, "the test"};
}

static struct ms_pinned_area take(CUcontext context, size_t bytes)
{
    struct ms_pinned_area area;
    CHECK_EQ(ms_pinned_pool_take(context, bytes, bytes, &area), CUDA_SUCCESS);
    CHECK(area.bytes >= bytes && area.context == context && area.is_pinned);
    area.memory[bytes - 1] = 1;
    return area;
}

MS_TEST_AFTER(fake_start, a_kept_area_serves_a_request_that_is_no_larger)
{
    const struct ms_pinned_area small = take(FAKE_CONTEXT, 4096);
    ms_pinned_pool_drop(&small);
    const struct ms_pinned_area large = take(FAKE_CONTEXT, 4097);
    CHECK(large.memory != small.memory);
    CHECK(take(FAKE_CONTEXT, 100).memory == small.memory);
    CHECK_EQ(fake.calls[FAKE_mem_host_alloc], 2);
}

MS_TEST_AFTER(fake_start, the_pool_takes_the_least_where_host_memory_is_short)
{
    struct ms_pinned_area small, large;
    host_bytes = 8191 * 8 / 7;
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, 8192, &small), CUDA_SUCCESS);
    CHECK_EQ(small.bytes, 4096);
    ms_pinned_pool_drop(&small);
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, 8192, &large), CUDA_SUCCESS);
    CHECK_EQ(large.memory, small.memory); /* what is kept serves */
    ms_pinned_pool_drop(&large);
    host_bytes = UINT64_MAX;
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, 8192, &large), CUDA_SUCCESS);
    CHECK_EQ(large.bytes, 8192);
    ms_pinned_pool_drop(&large);
    asked = 0;
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, 8192, &large), CUDA_SUCCESS);
    CHECK(large.bytes == 8192 && asked == 0); /* the system is asked for new memory alone */
}

MS_TEST_AFTER(fake_start, a_kept_area_belongs_to_its_context)
{
    const struct ms_pinned_area area = take(FAKE_CONTEXT, 4096);
    ms_pinned_pool_drop(&area);
    CHECK(take((CUcontext)2, 4096).memory != area.memory);
    ms_pinned_pool_give_back((CUcontext)2);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 0);
    ms_pinned_pool_give_back(FAKE_CONTEXT);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 1);
}

MS_TEST_AFTER(fake_start, the_pool_takes_other_memory_where_none_can_be_pinned)
{
    struct ms_pinned_area area;
    fake_fail(FAKE_mem_host_alloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, 4096, &area), CUDA_SUCCESS);
    CHECK(!area.is_pinned);
    CHECK_EQ(mapped_bytes, 4096);
    area.memory[4095] = 1;
    ms_pinned_pool_drop(&area); /* it is not kept */
    CHECK_EQ(unmapped_bytes, 4096);
    CHECK(take(FAKE_CONTEXT, 4096).is_pinned);
}

/* As with its context. */
static void free_by_driver(const struct ms_pinned_area *area)
{
    CHECK_EQ(ms_driver.mem_free_host(area->memory), CUDA_SUCCESS);
}

MS_TEST_AFTER(fake_start, memory_that_is_pinned_is_told_once)
{
    const struct ms_pinned_area area = take(FAKE_CONTEXT, 4096);
    CHECK_EQ(event.kind, MS_EVENT_PIN);
    CHECK_EQ(event.address, (uintptr_t)area.memory);
    CHECK_EQ(event.bytes, 4096);
    ms_pinned_pool_drop(&area);
    CHECK(take(FAKE_CONTEXT, 4096).memory == area.memory);
    fake_fail(FAKE_mem_host_alloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
    struct ms_pinned_area other;
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, 4096, 4096, &other), CUDA_SUCCESS);
    CHECK_EQ(event_count, 1);
    ms_pinned_pool_drop(&other);
    ms_pinned_pool_drop(&area);
}

MS_TEST_AFTER(fake_start, a_take_fails_without_any_memory)
{
    struct ms_pinned_area area;
    fake_fail(FAKE_mem_host_alloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_pinned_pool_take(FAKE_CONTEXT, SIZE_MAX / 4, SIZE_MAX / 4, &area),
             CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(event_count, 0);
}

MS_TEST_AFTER(fake_start, sixteen_areas_are_kept_and_the_next_is_freed)
{
    enum { KEPT = 16 };
    struct ms_pinned_area areas[KEPT + 1];
    for (int i = 0; i <= KEPT; i++)
        areas[i] = take(FAKE_CONTEXT, 4096);
    for (int i = 0; i <= KEPT; i++) {
        CHECK_EQ(fake.calls[FAKE_mem_free_host], 0);
        ms_pinned_pool_drop(&areas[i]);
    }
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 1);
    ms_pinned_pool_give_back(FAKE_CONTEXT);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], KEPT + 1);
}

MS_TEST_AFTER(fake_start, a_forgotten_area_is_not_freed)
{
    const struct ms_pinned_area areas[] = {take(FAKE_CONTEXT, 4096), take(FAKE_CONTEXT, 4096)};
    ms_pinned_pool_drop(&areas[0]);
    ms_pinned_pool_drop(&areas[1]);
    ms_pinned_pool_forget((CUcontext)2);
    ms_pinned_pool_forget(FAKE_CONTEXT);
    ms_pinned_pool_give_back(FAKE_CONTEXT);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 0);
    const struct ms_pinned_area another = take(FAKE_CONTEXT, 4096);
    CHECK_EQ(fake.calls[FAKE_mem_host_alloc], 3);
    ms_pinned_pool_drop(&another);
    free_by_driver(&areas[0]);
    free_by_driver(&areas[1]);
}

/* Memory that cannot be freed ends nothing, but a context that cannot be entered does. */
MS_TEST_AFTER(fake_start, giving_areas_back_leaves_the_context_as_it_was)
{
    const CUcontext other = (CUcontext)2;
    const struct ms_pinned_area areas[] = {take(other, 4096), take(other, 4096), take(other, 1)};
    ms_pinned_pool_drop(&areas[0]);
    ms_pinned_pool_drop(&areas[1]);
    fake_fail(FAKE_mem_free_host, 1, CUDA_ERROR_DEINITIALIZED);
    ms_pinned_pool_give_back(other);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 2);
    CHECK_EQ(fake.pushed_contexts, 0);
    ms_pinned_pool_drop(&areas[2]);
    fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_DEINITIALIZED);
    ms_pinned_pool_give_back(other);
    CHECK_EQ(fake.calls[FAKE_mem_free_host], 2);
    CHECK_EQ(fake.pushed_contexts, 0);
    free_by_driver(&areas[0]);
    free_by_driver(&areas[2]);
}
