/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/driver.h"

#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

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

MS_TEST(a_context_that_cannot_be_entered_needs_no_leave)
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

MS_TEST(an_event_is_waited_for_in_its_context)
{
    CUevent event;
    fake_start();
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver_wait_for(OTHER, event), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_ctx_push_current], 1);
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(ms_driver_wait_for(OTHER, event), CUDA_ERROR_LAUNCH_FAILED);
    fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(ms_driver_wait_for(OTHER, event), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 2);
    CHECK_EQ(ms_driver.event_destroy(event), CUDA_SUCCESS);
    fake_check_empty();
}

/* --- memory that is pageable and that a device reaches */

static CUdevice pageable_device, device_count; /* the one that reaches such memory; all there are */
static CUresult attribute_result;
static int asked;

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    asked++;
    CHECK_EQ(attribute, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    CHECK(device >= 0 && device < MS_MAX_DEVICES);
    if (attribute_result != CUDA_SUCCESS)
        return attribute_result;
    if (device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = device == pageable_device;
    return CUDA_SUCCESS;
}

static void have_devices(CUdevice count, CUdevice pageable)
{
    fake_start();
    ms_driver.device_get_attribute = get_attribute;
    device_count = count;
    pageable_device = pageable;
}

/* The answer is kept. */
static void check_any_is_pageable(bool expected, int times)
{
    for (int i = 0; i < 2; i++)
        CHECK_EQ(ms_driver_any_is_pageable(), expected);
    CHECK_EQ(asked, times);
}

STORY_ALONE(no_device_reaches_pageable_memory, have_devices(3, MS_MAX_DEVICES),
            check_any_is_pageable(false, 4))

STORY_ALONE(the_first_device_that_reaches_pageable_memory_decides, have_devices(4, 1),
            check_any_is_pageable(true, 2))

STORY_ALONE(all_devices_are_asked_whether_they_reach_pageable_memory,
            have_devices(MS_MAX_DEVICES, MS_MAX_DEVICES),
            check_any_is_pageable(false, MS_MAX_DEVICES))

STORY_ALONE(the_last_device_may_be_the_one_that_reaches_pageable_memory,
            have_devices(MS_MAX_DEVICES, MS_MAX_DEVICES - 1),
            check_any_is_pageable(true, MS_MAX_DEVICES))

STORY_ALONE(a_driver_that_does_not_tell_yet_is_asked_again, have_devices(1, MS_MAX_DEVICES),
            attribute_result = CUDA_ERROR_NOT_INITIALIZED, check_any_is_pageable(true, 2),
            attribute_result = CUDA_SUCCESS, check_any_is_pageable(false, 4))
