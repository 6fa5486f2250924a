/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/parked.h"

#include "runtime/base/range.h"
#include "runtime/memory/backing.h"
#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"

static const struct ms_range ranges[] = {{FAKE_GRANULE, 3 * FAKE_GRANULE},
                                         {7 * FAKE_GRANULE, 8 * FAKE_GRANULE}};

static CUevent new_event(void)
{
    CUevent event;
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
}

MS_TEST(each_range_is_a_chunk_behind_the_one_before)
{
    struct ms_parked *parked;
    fake_start();
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, ranges, 2, &parked), CUDA_SUCCESS);
    const struct ms_backing *backing = ms_parked_backing(parked);
    CHECK_EQ(backing->count, 2);
    CHECK(backing->chunks[0].begin == 0 && backing->chunks[0].end == 2 * FAKE_GRANULE);
    CHECK_EQ(backing->chunks[1].end, 3 * FAKE_GRANULE);
    CHECK_EQ(ms_parked_address(parked), backing->address);
    CHECK_EQ(ms_parked_device(parked), 0);
    ms_parked_drop(parked);
    ms_parked_drop(NULL);
    fake_check_empty();
}

MS_TEST(its_bytes_are_waited_for_and_so_is_its_end)
{
    struct ms_parked *parked;
    fake_start();
    CHECK_EQ(ms_parked_create((CUcontext)2, 0, ranges, 2, &parked), CUDA_SUCCESS);
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
        const CUresult result = ms_parked_create(FAKE_CONTEXT, 0, ranges, 2, &parked);
        has_failed = fake_has_failed();
        if (result == CUDA_SUCCESS)
            ms_parked_drop(parked);
        fake_check_empty();
    }
}
