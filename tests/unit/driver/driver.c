/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/driver.h"

#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"

#define OTHER ((CUcontext)2)

static CUcontext current(void)
{
    CUcontext context;
    CHECK_EQ(ms_driver.ctx_get_current(&context), CUDA_SUCCESS);
    return context;
}

MS_TEST(a_bracket_is_in_its_context_and_lets_memory_calls_through)
{
    struct ms_driver_scope scope;
    fake_start();
    CHECK_EQ(ms_driver_enter(OTHER, &scope), CUDA_SUCCESS);
    CHECK(current() == OTHER);
    CHECK_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    ms_driver_leave(&scope);
    CHECK(current() == FAKE_CONTEXT);
    fake_check_empty();

    CHECK_EQ(ms_driver_enter(FAKE_CONTEXT, &scope), CUDA_SUCCESS); /* it is current already */
    CHECK_EQ(fake.pushed_contexts, 0);
    ms_driver_leave(&scope);
    fake_check_empty();
}

MS_TEST(what_cannot_be_entered_needs_no_leave)
{
    static const enum fake_call calls[] = {FAKE_ctx_get_current, FAKE_ctx_push_current,
                                           FAKE_exchange_capture_mode};
    for (size_t i = 0; i < 3; i++) {
        struct ms_driver_scope scope;
        fake_start();
        fake_fail(calls[i], 1, CUDA_ERROR_INVALID_CONTEXT);
        CHECK_EQ(ms_driver_enter(OTHER, &scope), CUDA_ERROR_INVALID_CONTEXT);
        fake_check_empty();
    }
}

MS_TEST(a_wait_that_fails_is_asked_for_once_more)
{
    fake_start();
    fake_fail(FAKE_stream_synchronize, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_driver_wait(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 2);
    CHECK_EQ(ms_driver_wait(FAKE_STREAM), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 3);
    fake.refused_stream = FAKE_STREAM;
    CHECK_EQ(ms_driver_wait(FAKE_STREAM), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 5);
}
