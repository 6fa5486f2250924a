/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating, freeing and asking, as programs do: what is the runtime's, and what the driver's. */
#include <stdio.h>
#include <string.h>

#include "runtime/calls/alloc.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/query.h"
#include "runtime/calls/recurring.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/delayed_free.h"
#include "shim/init.h"
#include "shim/nccl_wrappers.h"
#include "shim/observer.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

enum { OURS = 0x1000, STRAY = 0x2000, THEIRS = 0x3000, BYTES = 0x400 };

/* --- what is called: a small letter for the runtime, a large one for the driver */

static bool is_ours, is_in_nccl, is_ready = true;
static CUresult answer, real_answer;

WRAPS(ms_alloc, ms_alloc_free, ms_host_memory_forget, ms_delayed_free_pass, ms_query_free_memory);
WRAPS(ms_query_address_range, ms_query_pointer_attribute, ms_pointer_is_owned, ms_pointer_strays);
WRAPS(ms_evict_try_again);

bool __wrap_ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out)
{
    CHECK_EQ(bytes, BYTES);
    note('a');
    *address_out = OURS;
    *result_out = answer;
    return is_ours;
}

bool __wrap_ms_alloc_free(CUdeviceptr address, CUresult *result_out)
{
    CHECK_EQ(address, OURS);
    note('f');
    *result_out = answer;
    return is_ours;
}

void __wrap_ms_host_memory_forget(uint64_t address)
{
    CHECK_EQ(address, OURS);
    note('h');
}

void __wrap_ms_delayed_free_pass(bool is_pressed)
{
    CHECK(!is_pressed);
    note('d');
}

CUresult __wrap_ms_query_free_memory(size_t *free_out)
{
    CHECK_EQ(*free_out, 100);
    note('q');
    *free_out = 70;
    return answer;
}

bool __wrap_ms_query_address_range(CUdeviceptr address, CUdeviceptr *begin_out, size_t *bytes_out,
                                   CUresult *result_out)
{
    CHECK(begin_out == NULL && bytes_out == NULL);
    note('q');
    *result_out = answer;
    return address == OURS;
}

static CUpointer_attribute unanswered = CU_POINTER_ATTRIBUTE_P2P_TOKENS;

bool __wrap_ms_query_pointer_attribute(void *data, CUpointer_attribute attribute,
                                       CUdeviceptr address, CUresult *result_out)
{
    note('q');
    if (address != OURS || attribute == unanswered)
        return false;
    if (data != NULL)
        *(unsigned *)data = 1000 + (unsigned)attribute;
    *result_out =
        attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ? CUDA_ERROR_INVALID_VALUE : answer;
    return true;
}

bool __wrap_ms_pointer_is_owned(CUdeviceptr address)
{
    return address == OURS;
}

bool __wrap_ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    CHECK_EQ(bytes, 1);
    return address == STRAY;
}

bool __wrap_ms_evict_try_again(CUresult result, int *attempts)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && ++*attempts < 3;
}

bool ms_ready_to_defer(void)
{
    note('y');
    return is_ready;
}

bool ms_nccl_is_inside(const void *return_address)
{
    CHECK(return_address != NULL);
    return is_in_nccl;
}

void ms_observer_prepare(bool is_pooled)
{
    CHECK(!is_pooled);
    note('o');
}

/* --- the driver */

static CUdeviceptr seen;
static CUresult device_answer, nothing_answer; /* of cuCtxGetDevice, and of freeing nothing */
static unsigned asked;                         /* attributes of one call */

static CUresult go(char letter, CUdeviceptr address)
{
    note(letter);
    seen = address;
    return real_answer;
}

REAL(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes), *address = THEIRS; return go('A', bytes))
REAL(cuMemAllocPitch_v2,
     (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned element),
     CHECK(width == 1 && height == 2 && element == 4);
     return go('P', 0))
REAL(cuMemFree_v2, (CUdeviceptr address), return address == 0 ? nothing_answer : go('F', address))
REAL(cuCtxGetDevice, (CUdevice * device), return device_answer)
REAL(cuMemGetInfo_v2, (size_t * free, size_t *total), if (free != NULL) *free = 100;
     return go('I', 0))
REAL(cuMemGetAddressRange_v2, (CUdeviceptr * begin, size_t *bytes, CUdeviceptr address),
     return go('R', address))
REAL(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr address),
     return go('G', address))
REAL(cuPointerGetAttributes,
     (unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address),
     asked = count;
     return go('S', address))
REAL(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr address),
     return go('W', address))

static void start(void)
{
    own_something(true);
    is_ours = true;
    ms_log_open(MS_ERROR, NULL);
}

static void end(void)
{
    CHECK_EQ(ms_calls_inside, 0);
    must_have("");
}
#define MEMORY_TEST(name) MS_TEST_BETWEEN(start, end, name)

/* --- */

MEMORY_TEST(an_allocation_is_deferred_or_the_drivers)
{
    CUdeviceptr address = 0;
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
    must_have("yao");
    CHECK_EQ(address, OURS);
    answer = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("yao");
    is_ours = false;
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
    must_have("yaA");
    CHECK(address == THEIRS && seen == BYTES);
    is_in_nccl = true;
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
    must_have("yA");
    is_ready = false;
    real_answer = CUDA_ERROR_OUT_OF_MEMORY; /* asked again while something is evicted */
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("yAAA");
}

MEMORY_TEST(an_allocation_of_a_recurring_size_is_the_drivers_if_it_has_memory)
{
    struct ms_recurring_size *size =
        &ms_recurring.sizes[ms_recurring_hash(BYTES, MS_RECURRING_SIZE_BITS)];
    CUdeviceptr address = 0;
    size->bytes = BYTES;
    size->room = 1;
    size->turn = 10;
    real_answer = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
    must_have("Ayao");
    CHECK(address == OURS && size->room == 1);
    real_answer = CUDA_SUCCESS;
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
    must_have("A");
    CHECK(address == THEIRS && size->room == 0);
    CHECK_EQ(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
    must_have("yao"); /* the driver has no room for another one */
    CHECK_EQ(cuMemFree_v2(THEIRS), CUDA_SUCCESS);
    must_have("F");
    CHECK_EQ(size->room, 1);
}

MEMORY_TEST(rows_are_the_drivers_after_eviction)
{
    CUdeviceptr address;
    size_t pitch;
    CHECK_EQ(cuMemAllocPitch_v2(&address, &pitch, 1, 2, 4), CUDA_SUCCESS);
    must_have("P");
    real_answer = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuMemAllocPitch_v2(&address, &pitch, 1, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("PPP");
}

STORY_BETWEEN(start, end, a_free_is_the_runtimes_or_the_drivers, answer = CUDA_ERROR_INVALID_VALUE,
              EQUALS(cuMemFree_v2(OURS), CUDA_ERROR_INVALID_VALUE), must_have("f"), is_ours = false,
              EQUALS(cuMemFree_v2(OURS), CUDA_SUCCESS), must_have("fFh"),
              real_answer = CUDA_ERROR_INVALID_VALUE,
              EQUALS(cuMemFree_v2(OURS), CUDA_ERROR_INVALID_VALUE), must_have("fF"),
              real_answer = CUDA_SUCCESS, atomic_store(&ms_hot.owned, 0),
              EQUALS(cuMemFree_v2(OURS), CUDA_SUCCESS), must_have("Fh"),
              atomic_store(&ms_hot.started, 0), EQUALS(cuMemFree_v2(OURS), CUDA_SUCCESS),
              must_have("Fh"))

/* Some drivers free without a context, too. */
STORY_BETWEEN(start, end, the_driver_says_whether_it_frees_without_a_context,
              device_answer = CUDA_ERROR_INVALID_CONTEXT, EQUALS(cuMemFree_v2(OURS), CUDA_SUCCESS),
              must_have("f"), nothing_answer = real_answer = CUDA_ERROR_INVALID_CONTEXT,
              EQUALS(cuMemFree_v2(OURS), CUDA_ERROR_INVALID_CONTEXT), must_have("F"))

MEMORY_TEST(free_memory_is_what_the_program_would_have)
{
    size_t bytes = 0;
    CHECK_EQ(cuMemGetInfo_v2(&bytes, NULL), CUDA_SUCCESS);
    must_have("dIq");
    CHECK_EQ(bytes, 70);
    CHECK_EQ(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
    must_have("dI");
    real_answer = CUDA_ERROR_INVALID_CONTEXT;
    CHECK_EQ(cuMemGetInfo_v2(&bytes, NULL), CUDA_ERROR_INVALID_CONTEXT);
    must_have("dI");
    real_answer = CUDA_SUCCESS;
    answer = CUDA_ERROR_UNKNOWN;
    atomic_store(&ms_hot.owned, 0);
    CHECK_EQ(cuMemGetInfo_v2(&bytes, NULL), CUDA_ERROR_UNKNOWN);
    must_have("Iq");
    atomic_store(&ms_hot.started, 0);
    CHECK_EQ(cuMemGetInfo_v2(&bytes, NULL), CUDA_SUCCESS);
    must_have("I");
    CHECK_EQ(bytes, 100);
}

STORY_BETWEEN(start, end, a_range_is_the_runtimes_or_the_drivers_and_none_between,
              answer = CUDA_ERROR_NOT_FOUND,
              EQUALS(cuMemGetAddressRange_v2(NULL, NULL, OURS), CUDA_ERROR_NOT_FOUND),
              must_have("q"), EQUALS(cuMemGetAddressRange_v2(NULL, NULL, THEIRS), CUDA_SUCCESS),
              must_have("qR"), EQUALS(seen, THEIRS),
              EQUALS(cuMemGetAddressRange_v2(NULL, NULL, STRAY), CUDA_SUCCESS), must_have("qR"),
              EQUALS(seen, 0), atomic_store(&ms_hot.owned, 0),
              EQUALS(cuMemGetAddressRange_v2(NULL, NULL, OURS), CUDA_SUCCESS), must_have("R"))

MEMORY_TEST(an_attribute_is_the_runtimes_or_the_drivers)
{
    unsigned value = 0;
    CHECK_EQ(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, OURS), CUDA_SUCCESS);
    must_have("q");
    CHECK_EQ(value, 1000 + CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    CHECK_EQ(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, STRAY), CUDA_SUCCESS);
    must_have("qG");
    CHECK_EQ(seen, 0);
    atomic_store(&ms_hot.owned, 0);
    CHECK_EQ(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, OURS), CUDA_SUCCESS);
    must_have("G");
    CHECK_EQ(seen, OURS);
}

/* NCCL then shares the driver's handle, which there is. */
MEMORY_TEST(an_allocation_is_not_one_of_legacy_ipc_for_nccl)
{
    const CUpointer_attribute legacy = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    unsigned value = 0;
    CHECK_EQ(cuPointerGetAttribute(&value, legacy, OURS), CUDA_SUCCESS);
    CHECK_EQ(value, 1000 + legacy);
    is_in_nccl = true;
    CHECK_EQ(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, OURS), CUDA_SUCCESS);
    CHECK_EQ(value, 1000 + CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    CHECK_EQ(cuPointerGetAttribute(&value, legacy, OURS), CUDA_SUCCESS);
    CHECK_EQ(value, 0);
    must_have("qqq");
}

static CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                           CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                           CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           CU_POINTER_ATTRIBUTE_P2P_TOKENS};
static void *host;
static unsigned values[3];
static void *data[] = {&host, &values[0], &values[1], &values[2]};

MEMORY_TEST(several_attributes_of_an_allocation_are_asked_for_one_by_one)
{
    host = &host;
    CHECK_EQ(cuPointerGetAttributes(4, attributes, data, OURS), CUDA_SUCCESS);
    must_have("qqqS"); /* one that the runtime has no answer to is the driver's */
    CHECK(host == NULL && asked == 1 && seen == OURS);
    CHECK_EQ(values[0], 1000 + CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
    CHECK_EQ(values[1], 1000 + CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    answer = CUDA_ERROR_NOT_SUPPORTED;
    CHECK_EQ(cuPointerGetAttributes(4, attributes, data, OURS), CUDA_ERROR_NOT_SUPPORTED);
    must_have("qq");
    answer = CUDA_SUCCESS;
    real_answer = CUDA_ERROR_UNKNOWN;
    CHECK_EQ(cuPointerGetAttributes(4, attributes, data, OURS), CUDA_ERROR_UNKNOWN);
    must_have("qqqS");
    CHECK_EQ(cuPointerGetAttributes(0, attributes, data, OURS), CUDA_SUCCESS);
}

MEMORY_TEST(several_attributes_of_anything_else_are_the_drivers)
{
    CHECK_EQ(cuPointerGetAttributes(4, attributes, data, THEIRS), CUDA_SUCCESS);
    CHECK(asked == 4 && seen == THEIRS);
    CHECK_EQ(cuPointerGetAttributes(4, attributes, data, STRAY), CUDA_SUCCESS);
    CHECK_EQ(seen, 0);
    CHECK_EQ(cuPointerGetAttributes(4, NULL, data, OURS), CUDA_SUCCESS);
    CHECK_EQ(cuPointerGetAttributes(4, attributes, NULL, OURS), CUDA_SUCCESS);
    must_have("SSSS");
    atomic_store(&ms_hot.owned, 0);
    CHECK_EQ(cuPointerGetAttributes(4, attributes, data, OURS), CUDA_SUCCESS);
    must_have("S");
}

MEMORY_TEST(an_allocation_cannot_have_an_order_of_its_copies)
{
    const CUpointer_attribute sync = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    const unsigned on = 1;
    CHECK_EQ(cuPointerSetAttribute(&on, sync, OURS), CUDA_ERROR_NOT_SUPPORTED);
    must_have("");
    CHECK_EQ(cuPointerSetAttribute(&on, sync, THEIRS), CUDA_SUCCESS);
    CHECK_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, OURS), CUDA_SUCCESS);
    atomic_store(&ms_hot.owned, 0);
    CHECK_EQ(cuPointerSetAttribute(&on, sync, OURS), CUDA_SUCCESS);
    must_have("WWW");
}
