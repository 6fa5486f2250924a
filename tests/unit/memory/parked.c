/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/parked.h"

#include "runtime/memory/backing.h"
#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"

enum { BYTES = 3 * FAKE_GRANULE };

static CUevent new_event(void)
{
    CUevent event;
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
}

MS_TEST(a_parked_store_is_one_chunk)
{
    struct ms_parked *parked;
    fake_start();
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, BYTES, false, &parked), CUDA_SUCCESS);
    const struct ms_backing *backing = ms_parked_backing(parked);
    CHECK_EQ(backing->chunks.count, 1);
    CHECK(ms_backing_is_one_chunk(backing, 0, BYTES) && backing->bytes == BYTES);
    ms_parked_drop(parked);
    ms_parked_drop(NULL);
    fake_check_empty();
}

MS_TEST(a_parked_store_is_waited_for_by_its_readers_and_its_end)
{
    struct ms_parked *parked;
    fake_start();
    CHECK_EQ(ms_parked_create((CUcontext)2, 0, BYTES, false, &parked), CUDA_SUCCESS);
    CHECK_EQ(ms_parked_wait(parked), CUDA_ERROR_NOT_PERMITTED); /* nothing is queued yet */
    ms_parked_attach_event(parked, new_event());
    CHECK_EQ(ms_parked_wait(parked), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    CHECK_EQ(fake.calls[FAKE_ctx_push_current], 1); /* in its own context */
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(ms_parked_wait(parked), CUDA_ERROR_LAUNCH_FAILED);
    ms_parked_drop(parked);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 3);
    fake_check_empty();
}

MS_TEST(nothing_is_left_when_a_call_fails)
{
    bool has_failed = true;
    for (unsigned nth = 1; has_failed; nth++) {
        struct ms_parked *parked;
        fake_start();
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_OUT_OF_MEMORY);
        const CUresult result = ms_parked_create(FAKE_CONTEXT, 0, BYTES, false, &parked);
        has_failed = fake_has_failed();
        if (result == CUDA_SUCCESS)
            ms_parked_drop(parked);
        fake_check_empty();
    }
}
