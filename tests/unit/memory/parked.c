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

static CUresult wait_for(struct ms_parked *parked)
{
    CUdeviceptr address;
    const CUresult result = ms_parked_read(parked, &address);
    CHECK_EQ(address != 0, result == CUDA_SUCCESS);
    return result;
}

MS_TEST(parked_bytes_are_mapped_by_their_first_reader)
{
    struct ms_parked *parked;
    CUdeviceptr first, second;
    fake_start();
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, BYTES, true, &parked), CUDA_SUCCESS);
    CHECK(parked->pieces.count == 1 && fake.mappings == 0 && fake.physical_bytes == BYTES);
    CHECK_EQ(ms_backing_device_bytes(0), BYTES);
    CHECK_EQ(ms_parked_read(parked, &first), CUDA_SUCCESS);
    CHECK_EQ(ms_parked_read(parked, &second), CUDA_SUCCESS);
    CHECK(first == second && fake.mappings == 1 && fake.handles == 0);
    CHECK(fake_memory_at(first) != 0 && fake_memory_at(first) == fake_memory_at(first + BYTES - 1));
    CHECK(fake.physical_bytes == BYTES && ms_backing_device_bytes(0) == BYTES);
    ms_parked_drop(parked);
    ms_parked_drop(NULL);
    CHECK_EQ(ms_backing_device_bytes(0), 0);
    fake_check_empty();
}

MS_TEST(parked_bytes_that_nobody_reads_are_mapped_nowhere)
{
    struct ms_parked *parked;
    fake_start();
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, BYTES, false, &parked), CUDA_SUCCESS);
    ms_parked_attach_event(parked, new_event());
    ms_parked_drop(parked);
    CHECK(fake.calls[FAKE_mem_map] == 0 && ms_backing_device_bytes(0) == 0);
    fake_check_empty();
}

MS_TEST(a_parked_store_is_waited_for_by_its_readers_and_its_end)
{
    struct ms_parked *parked;
    fake_start();
    CHECK_EQ(ms_parked_create((CUcontext)2, 0, BYTES, false, &parked), CUDA_SUCCESS);
    CHECK_EQ(wait_for(parked), CUDA_ERROR_NOT_PERMITTED); /* nothing is queued yet */
    ms_parked_attach_event(parked, new_event());
    CHECK_EQ(wait_for(parked), CUDA_SUCCESS);
    CHECK_EQ(fake.calls[FAKE_event_synchronize], 1);
    CHECK_EQ(fake.calls[FAKE_ctx_push_current], 1); /* in its own context */
    fake.wait_result = CUDA_ERROR_LAUNCH_FAILED;
    CHECK_EQ(wait_for(parked), CUDA_ERROR_LAUNCH_FAILED);
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
        const CUresult result = ms_parked_create(FAKE_CONTEXT, 0, BYTES, true, &parked);
        if (result == CUDA_SUCCESS) {
            if (wait_for(parked) != CUDA_SUCCESS)
                CHECK_EQ(wait_for(parked), CUDA_SUCCESS); /* the next reader tries again */
            ms_parked_drop(parked);
        }
        has_failed = fake_has_failed();
        fake_check_empty();
    }
}
