/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/delayed_free.h"

#include <pthread.h>

#include "runtime/driver/flags.h"
#include "runtime/order/order.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

#define OTHER ((CUcontext)2)

/* An allocation of one granule, in memory, that was freed during a capture. Returns its address. */
static CUdeviceptr bury(CUcontext context)
{
    struct ms_allocation *allocation = fake_allocation(FAKE_GRANULE);
    fake_set(allocation, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    allocation->context = context;
    ms_space_remove(ms_space_claim(allocation->address));
    ms_delayed_free_add(allocation, NULL, NULL);
    return allocation->address;
}

MS_TEST_AFTER(fake_start, a_delayed_free_keeps_memory_until_its_context_is_done)
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

MS_TEST_AFTER(fake_start, a_free_in_a_stream_ends_when_the_stream_gets_there)
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

STORY_AFTER(fake_start, a_context_that_is_gone_is_not_waited_for, bury(FAKE_CONTEXT), bury(OTHER),
            fake.wait_result = CUDA_ERROR_CONTEXT_IS_DESTROYED, ms_delayed_free_forget(OTHER),
            EQUALS(fake.physical_bytes, FAKE_GRANULE), EQUALS(fake.calls[FAKE_event_create], 0),
            ms_delayed_free_forget(FAKE_CONTEXT), IS(!ms_owns_any()), fake_check_empty())

MS_TEST_AFTER(fake_start, a_run_for_a_context_frees_its_allocations_alone)
{
    const CUdeviceptr first = bury(FAKE_CONTEXT), second = bury(OTHER);
    CHECK(ms_delayed_free_holds(first) && ms_delayed_free_holds(second));
    CHECK_EQ(ms_delayed_free_bytes(0), 0); /* without an event nobody knows when */
    CHECK(ms_delayed_free_run(OTHER));
    CHECK(ms_delayed_free_holds(first) && !ms_delayed_free_holds(second));
    CHECK(ms_delayed_free_run(FAKE_CONTEXT));
    CHECK(!ms_delayed_free_holds(first));
    fake_check_empty();
}

MS_TEST_AFTER(fake_start, a_delayed_free_holds_its_addresses_until_their_end)
{
    const CUdeviceptr address = bury(FAKE_CONTEXT);
    CHECK(!ms_delayed_free_holds(address - 1));
    CHECK(ms_delayed_free_holds(address) && ms_delayed_free_holds(address + FAKE_GRANULE - 1));
    CHECK(!ms_delayed_free_holds(address + FAKE_GRANULE));
    CHECK(ms_delayed_free_run(NULL));
}

/* In a forked child nothing is owned, and nothing is touched. */
MS_TEST_AFTER(fake_start, a_process_that_owns_nothing_frees_nothing)
{
    const CUdeviceptr address = bury(FAKE_CONTEXT);
    const uint32_t owned = atomic_exchange(&ms_hot.owned, 0);
    CHECK(!ms_delayed_free_holds(address) && !ms_delayed_free_run(NULL));
    atomic_store(&ms_hot.owned, owned);
    CHECK(ms_delayed_free_holds(address) && ms_delayed_free_run(NULL));
}

MS_TEST_AFTER(fake_start, the_event_goes_with_the_memory_but_not_with_a_context)
{
    bury_in_stream(1);
    ms_delayed_free_forget(FAKE_CONTEXT);
    CHECK_EQ(fake.calls[FAKE_event_destroy], 0);
    CHECK_EQ(ms_delayed_free_bytes(0), 0);
    bury_in_stream(1);
    ms_order_set_capture(true);
    CHECK(!ms_delayed_free_run(NULL)); /* though its event has passed */
    ms_order_set_capture(false);
    CHECK_EQ(ms_delayed_free_bytes(0), FAKE_GRANULE);
    ms_delayed_free_pass(false);
    CHECK_EQ(fake.calls[FAKE_event_destroy], 1);
}

MS_TEST_AFTER(fake_start, a_few_are_asked_and_the_next_time_others)
{
    enum { MOST = 8, ALL = MOST + 3 };
    fake.is_busy = true;
    for (int i = 0; i < ALL; i++)
        bury_in_stream(2);
    fake.calls[FAKE_event_query] = 0;
    ms_delayed_free_pass(false); /* much, but nobody has time */
    CHECK_EQ(fake.calls[FAKE_event_query], MOST);
    fake.is_busy = false;
    ms_delayed_free_pass(false);
    CHECK_EQ(ms_delayed_free_bytes(0), 0);
    fake_check_empty();
}

/* However many others there are. */
MS_TEST_AFTER(fake_start, all_of_a_context_go_with_it)
{
    enum { MANY = 20 };
    const CUdeviceptr last = bury(OTHER);
    for (int i = 0; i < MANY; i++)
        bury(FAKE_CONTEXT);
    ms_delayed_free_forget(OTHER);
    CHECK(!ms_delayed_free_holds(last));
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(!ms_delayed_free_run(NULL));
    CHECK_EQ(fake.physical_bytes, MANY * FAKE_GRANULE);
    fake.wait_result = CUDA_SUCCESS;
    CHECK(ms_delayed_free_run(NULL));
    fake_check_empty();
}

MS_TEST_AFTER(fake_start, devices_that_cannot_be_have_nothing)
{
    fake.is_busy = true;
    bury_in_stream(1);
    CHECK_EQ(ms_delayed_free_bytes(-1), 0);
    CHECK_EQ(ms_delayed_free_bytes(MS_MAX_DEVICES), 0);
    CHECK(ms_delayed_free_run(NULL));
}

/* --- the lock of the list */

static int takes;
WRAPS(pthread_mutex_lock);
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

MS_TEST_AFTER(fake_start, an_empty_list_takes_no_lock)
{
    struct ms_allocation *living = fake_allocation(FAKE_GRANULE);
    CHECK(ms_owns_any());
    for (int i = 0; i < 2; i++) {
        takes = 0;
        CHECK(!ms_delayed_free_run(NULL) && !ms_delayed_free_holds(living->address));
        CHECK_EQ(takes, 0);
        bury(FAKE_CONTEXT);
        CHECK(ms_delayed_free_run(NULL));
    }
    fake_allocation_free(living);
}
