/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/pointer.h"

#include "runtime/fill/delayed_free.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { BYTES = 2 * FAKE_GRANULE - 100 };

/* --- a driver that says one thing of every address */

static CUresult type_result, managed_result;
static unsigned type, managed, asked;

static CUresult pointer_get_attribute(void *value, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    CHECK_EQ(address, 4711);
    asked++;
    if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
        *(unsigned *)value = managed;
        return managed_result;
    }
    CHECK_EQ(attribute, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    *(unsigned *)value = type;
    return type_result;
}

static void start(void)
{
    ms_driver.pointer_get_attribute = pointer_get_attribute;
    type_result = managed_result = CUDA_SUCCESS;
    type = managed = 0;
}

/* The pointer's kind; no kind is the sum of others. */
static unsigned kinds(void)
{
    unsigned found = 0;
    for (unsigned kind = MS_ON_DEVICE; kind <= MS_MANAGED; kind *= 2)
        found |= ms_pointer_is(4711, kind) ? kind : 0;
    CHECK_EQ(ms_pointer_is(4711, MS_ON_DEVICE | MS_PINNED | MS_UNKNOWN_TO_DRIVER | MS_MANAGED),
             found != 0);
    CHECK_EQ(ms_pointer_is_device(4711), (found & MS_ON_DEVICE) != 0);
    CHECK_EQ(ms_pointer_is_host(4711), (found & (MS_PINNED | MS_UNKNOWN_TO_DRIVER)) != 0);
    return found;
}

MS_TEST_AFTER(start, a_pointer_is_of_the_kind_the_driver_says)
{
    CHECK_EQ(kinds(), MS_UNKNOWN_TO_DRIVER);
    type = CU_MEMORYTYPE_DEVICE;
    CHECK_EQ(kinds(), MS_ON_DEVICE);
    type = CU_MEMORYTYPE_HOST;
    CHECK_EQ(kinds(), MS_PINNED);
    type = CU_MEMORYTYPE_ARRAY;
    CHECK_EQ(kinds(), 0);
    managed = 1;
    type = CU_MEMORYTYPE_DEVICE;
    CHECK_EQ(kinds(), MS_ON_DEVICE | MS_MANAGED);
    CHECK(!ms_pointer_is(4711, 0));
}

STORY_AFTER(start, a_pointer_unknown_to_the_driver_is_host_memory,
            type_result = managed_result = CUDA_ERROR_INVALID_VALUE, managed = 1,
            EQUALS(kinds(), MS_UNKNOWN_TO_DRIVER))

STORY_AFTER(start, a_pointer_has_no_kind_where_the_driver_cannot_answer,
            type_result = CUDA_ERROR_INVALID_CONTEXT, type = CU_MEMORYTYPE_HOST, EQUALS(kinds(), 0),
            type = 0, EQUALS(kinds(), 0))

MS_TEST_AFTER(start, the_driver_is_asked_for_nothing_that_is_not_wanted)
{
    asked = 0;
    CHECK(!ms_pointer_is(4711, MS_MANAGED));
    CHECK_EQ(asked, 1);
    CHECK(!ms_pointer_is(4711, MS_ON_DEVICE));
    CHECK_EQ(asked, 2);
    CHECK(!ms_pointer_is(4711, 0));
    CHECK_EQ(asked, 2);
}

/* --- bounds */

MS_TEST(a_range_that_leaves_its_allocation_strays)
{
    fake_start();
    struct ms_allocation *allocation = fake_allocation(BYTES);
    const CUdeviceptr begin = allocation->address, end = begin + BYTES;
    CHECK(ms_pointer_is_owned(begin) && ms_pointer_is_owned(end - 1));
    CHECK(!ms_pointer_is_owned(begin - 1) && !ms_pointer_is_owned(end));
    CHECK(!ms_pointer_strays(begin, BYTES) && !ms_pointer_strays(end - 1, 1));
    CHECK(ms_pointer_strays(begin, BYTES + 1) && ms_pointer_strays(end - 1, 2));
    CHECK(ms_pointer_strays(end, 1) && ms_pointer_strays(begin - 1, 1));
    CHECK(!ms_pointer_strays(end, 0) && !ms_pointer_strays(begin - 1, 0)); /* it touches nothing */
    const CUdeviceptr program = fake_program_memory(FAKE_GRANULE);
    CHECK(!ms_pointer_strays(program, 2 * FAKE_GRANULE)); /* the driver knows */
    fake_program_memory_free(program);
    fake_allocation_free(allocation);
    fake_check_empty();
}

/* The program has freed it, in a stream that has not got there. */
MS_TEST(a_range_that_is_freed_but_still_there_strays)
{
    fake_start();
    struct ms_allocation *allocation = fake_allocation(BYTES);
    const CUdeviceptr address = allocation->address;
    CUevent event;
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    CHECK_EQ(ms_driver.event_record(event, FAKE_STREAM), CUDA_SUCCESS);
    CHECK(ms_space_claim(address) == allocation);
    ms_space_remove(allocation);
    ms_delayed_free_add(allocation, event, FAKE_CONTEXT);
    CHECK(!ms_pointer_is_owned(address) && ms_pointer_strays(address, 1));
    CHECK(ms_pointer_strays(address + BYTES - 1, 1) && !ms_pointer_strays(address, 0));
    ms_delayed_free_run(FAKE_CONTEXT);
    CHECK(!ms_pointer_strays(address, 1));
    fake_check_empty();
}
