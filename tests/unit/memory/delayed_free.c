/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/delayed_free.h"

#include <pthread.h>

#include "runtime/driver/flags.h"
#include "runtime/memory/order.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

#define OTHER ((CUcontext)2)

/* An allocation of one granule, in memory, that was freed during a capture. */
static void bury(CUcontext context)
{
    struct ms_allocation *allocation = fake_allocation(FAKE_GRANULE);
    fake_set(allocation, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    allocation->context = context;
    ms_space_remove(ms_space_claim(allocation->address));
    ms_delayed_free_add(allocation, NULL, NULL);
}

MS_TEST_AFTER(fake_start, what_is_buried_keeps_its_memory_until_its_context_was_waited_for)
{
    bury(FAKE_CONTEXT);
    bury(OTHER);
    CHECK(ms_owns_any()); /* calls that may unbury are not passed by */
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);

    ms_order_set_capture(true);
    CHECK(!ms_delayed_free_run(NULL));
    ms_order_set_capture(false);
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(!ms_delayed_free_run(NULL));
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
    fake.wait_result = CUDA_SUCCESS;

    CHECK(ms_delayed_free_run(OTHER) && !ms_delayed_free_run(OTHER));
    CHECK_EQ(fake.physical_bytes, FAKE_GRANULE);
    CHECK(ms_owns_any());
    CHECK(ms_delayed_free_run(NULL) && !ms_delayed_free_run(NULL));
    CHECK(!ms_owns_any());
    fake_check_empty();
}

static void bury_in_stream(size_t granules)
{
    struct ms_allocation *allocation = fake_allocation(granules * FAKE_GRANULE);
    fake_set(allocation, 0, granules * FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    ms_space_remove(ms_space_claim(allocation->address));
    CUevent freed;
    CHECK_EQ(ms_driver.event_create(&freed, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.event_record(freed, FAKE_STREAM), CUDA_SUCCESS);
    ms_delayed_free_add(allocation, freed, NULL);
}

MS_TEST_AFTER(fake_start, what_is_freed_in_a_stream_goes_when_the_stream_got_there)
{
    fake.is_busy = true;
    bury_in_stream(1);
    ms_delayed_free_pass(true);
    CHECK_EQ(fake.physical_bytes, FAKE_GRANULE);
    CHECK_EQ(ms_delayed_free_bytes(0), FAKE_GRANULE);
    CHECK_EQ(fake.calls[FAKE_event_query], 1); /* asked, and not waited for */
    bury_in_stream(1);
    ms_delayed_free_pass(true);
    CHECK(fake.calls[FAKE_event_query] > 3); /* so much that a moment is waited */
    fake.is_busy = false;
    ms_order_set_capture(true);
    ms_delayed_free_pass(true);
    CHECK_EQ(fake.physical_bytes, 2 * FAKE_GRANULE);
    ms_order_set_capture(false);
    ms_delayed_free_pass(true);
    CHECK_EQ(ms_delayed_free_bytes(0), 0);
    fake.is_busy = true;
    bury_in_stream(1);
    CHECK(ms_delayed_free_run(NULL)); /* it waits for the context */
    fake_check_empty();
}

MS_TEST_AFTER(fake_start, a_context_that_is_gone_is_not_waited_for)
{
    bury(FAKE_CONTEXT);
    bury(OTHER);
    fake.wait_result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    ms_delayed_free_forget(OTHER);
    CHECK_EQ(fake.physical_bytes, FAKE_GRANULE);
    CHECK_EQ(fake.calls[FAKE_event_create], 0);
    ms_delayed_free_forget(FAKE_CONTEXT);
    CHECK(!ms_owns_any());
    fake_check_empty();
}

/* --- the lock of the list */

static int takes;
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    takes++;
    return __real_pthread_mutex_lock(mutex);
}

MS_TEST_AFTER(fake_start, the_list_changes_under_its_lock)
{
    struct ms_allocation *allocation = fake_allocation(FAKE_GRANULE);
    ms_space_remove(ms_space_claim(allocation->address));
    takes = 0;
    ms_delayed_free_add(allocation, NULL, NULL);
    CHECK_EQ(takes, 1);
    CHECK(ms_delayed_free_holds(allocation->address));
    CHECK_EQ(takes, 2);
    CHECK(ms_delayed_free_run(NULL));
    CHECK_EQ(takes, 3);
    fake_check_empty();
}
