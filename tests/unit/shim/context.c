/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts as programs make and end them: what the runtime is told, and when. */
#include <stdio.h>
#include <string.h>

#include "runtime/calls/alloc.h"
#include "runtime/order/examining.h"
#include "shim/graphics.h"
#include "shim/newer.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/real_side.h"

#define OURS ((CUcontext)0x100)    /* current, on device 0 */
#define OTHERS ((CUcontext)0x200)  /* on device 1 */
#define PRIMARY ((CUcontext)0x300) /* of device 1 */

/* --- what the runtime is told, in words */

static char told[256];

static void tell(const char *what, uintptr_t one, int two)
{
    const size_t used = strlen(told);
    snprintf(told + used, sizeof(told) - used, "%s %lx %d; ", what, (unsigned long)one, two);
}

static void must_be_told(const char *expected)
{
    if (strcmp(told, expected) != 0)
        ms_test_fail(__FILE__, __LINE__, "told: %s, expected %s", told, expected);
    told[0] = '\0';
}

WRAPS(ms_alloc_end_context, ms_alloc_add_green_context, ms_alloc_set_peer_access);
WRAPS(ms_examining_add_context);

void __wrap_ms_alloc_end_context(CUcontext context)
{
    tell("ends", (uintptr_t)context, 0);
}

void __wrap_ms_alloc_add_green_context(CUcontext context)
{
    tell("green", (uintptr_t)context, 0);
}

static CUresult peer_result;

CUresult __wrap_ms_alloc_set_peer_access(CUdevice device, CUdevice peer, bool enabled)
{
    tell(enabled ? "enabled" : "disabled", (uintptr_t)device, peer);
    return peer_result;
}

void __wrap_ms_examining_add_context(CUcontext context, CUdevice device)
{
    tell("made", (uintptr_t)context, device);
}

/* --- the driver */

static CUresult answer, version_answer, device_answer, push_answer, state_answer, retain_answer;
static int is_active, is_active_later; /* the primary context, before and after the call */
static unsigned references, released, popped;
static CUcontext current = OURS;
static CUdevice own_device;

static CUresult end_it(void)
{
    is_active = is_active_later;
    return answer;
}
REAL(cuCtxDestroy, (CUcontext context), return answer)
REAL(cuCtxDestroy_v2, (CUcontext context), return answer)
REAL(cuCtxDetach, (CUcontext context), return answer)
REAL(cuCtxGetApiVersion, (CUcontext context, unsigned *version), return version_answer)
REAL(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green), *context = OTHERS; return answer)
REAL(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active),
     *active = is_active;
     return state_answer)
REAL(cuDevicePrimaryCtxRelease, (CUdevice device), return end_it())
REAL(cuDevicePrimaryCtxReset, (CUdevice device), return end_it())
REAL(cuDevicePrimaryCtxReset_v2, (CUdevice device), return end_it())
REAL(cuCtxEnablePeerAccess, (CUcontext context, unsigned flags), return answer)
REAL(cuCtxDisablePeerAccess, (CUcontext context), return answer)

/* The first that gives the reference back is the shim itself. */
REAL(cuDevicePrimaryCtxRelease_v2, (CUdevice device), {
    if (references > 0) {
        references--;
        released++;
        return CUDA_SUCCESS;
    }
    return end_it();
})
REAL(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), {
    *context = PRIMARY;
    references += is_active != 0;
    return retain_answer;
})
REAL(cuCtxPushCurrent_v2, (CUcontext context), {
    if (push_answer == CUDA_SUCCESS)
        current = context;
    return push_answer;
})
REAL(cuCtxPopCurrent_v2, (CUcontext * context), {
    *context = current;
    current = OURS;
    popped++;
    return CUDA_SUCCESS;
})
REAL(cuCtxGetDevice, (CUdevice * device), {
    *device = current == OURS ? own_device : 1;
    return device_answer;
})
#define MAKES(symbol, parameters) REAL(symbol, parameters, *made = OTHERS; return answer)
MAKES(cuCtxCreate_v2, (CUcontext * made, unsigned flags, CUdevice device))
MAKES(cuCtxCreate, (CUcontext * made, unsigned flags, CUdevice device))
MAKES(cuCtxCreate_v3, (CUcontext * made, CUexecAffinityParam *parameters, int count, unsigned flags,
                       CUdevice device))
MAKES(cuCtxCreate_v4,
      (CUcontext * made, CUctxCreateParams *parameters, unsigned flags, CUdevice device))
MAKES(cuGLCtxCreate_v2, (CUcontext * made, unsigned flags, CUdevice device))

static void start(void)
{
    own_something(true);
}

static void end(void)
{
    CHECK_EQ(ms_calls_inside, 0);
    CHECK_EQ(references, 0);
    CHECK(current == OURS);
    must_be_told("");
}
#define CONTEXT_TEST(name) MS_TEST_BETWEEN(start, end, name)

/* --- */

static CUresult make(int way, CUcontext *made)
{
    return way == 0   ? cuCtxCreate_v2(made, 0, 1)
           : way == 1 ? cuCtxCreate(made, 0, 1)
           : way == 2 ? cuCtxCreate_v3(made, NULL, 0, 0, 1)
           : way == 3 ? cuCtxCreate_v4(made, NULL, 0, 1)
                      : cuGLCtxCreate_v2(made, 0, 1);
}

CONTEXT_TEST(a_context_that_was_made_is_told_with_its_device)
{
    CUcontext made;
    for (int way = 0; way < 5; way++) {
        CHECK_EQ(make(way, &made), CUDA_SUCCESS);
        must_be_told("made 200 1; ");
        answer = CUDA_ERROR_OUT_OF_MEMORY;
        CHECK_EQ(make(way, &made), CUDA_ERROR_OUT_OF_MEMORY);
        must_be_told("");
        answer = CUDA_SUCCESS;
        atomic_store(&ms_hot.started, 0);
        CHECK_EQ(make(way, &made), CUDA_SUCCESS);
        must_be_told("");
        atomic_store(&ms_hot.started, 1);
    }
    CHECK_EQ(cuDevicePrimaryCtxRetain(&made, 1), CUDA_SUCCESS);
    must_be_told("made 300 1; ");
}

CONTEXT_TEST(a_context_that_was_destroyed_is_told)
{
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(i == 0 ? cuCtxDestroy(OTHERS) : cuCtxDestroy_v2(OTHERS), CUDA_SUCCESS);
        must_be_told("ends 200 0; ");
        answer = CUDA_ERROR_INVALID_CONTEXT;
        CHECK_EQ(i == 0 ? cuCtxDestroy(OTHERS) : cuCtxDestroy_v2(OTHERS),
                 CUDA_ERROR_INVALID_CONTEXT);
        answer = CUDA_SUCCESS;
        atomic_store(&ms_hot.started, 0);
        cuCtxDestroy_v2(OTHERS);
        atomic_store(&ms_hot.started, 1);
        must_be_told("");
    }
}

CONTEXT_TEST(the_last_reference_to_a_context_ends_it)
{
    CHECK_EQ(cuCtxDetach(OTHERS), CUDA_SUCCESS);
    must_be_told(""); /* it has a version: it is there */
    version_answer = CUDA_ERROR_INVALID_CONTEXT;
    CHECK_EQ(cuCtxDetach(OTHERS), CUDA_SUCCESS);
    must_be_told("ends 200 0; ");
    answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuCtxDetach(OTHERS), CUDA_ERROR_INVALID_VALUE);
    answer = CUDA_SUCCESS;
    atomic_store(&ms_hot.started, 0);
    ms_real[MS_ENTRY_cuCtxGetApiVersion] = NULL; /* nor is it asked */
    CHECK_EQ(cuCtxDetach(OTHERS), CUDA_SUCCESS);
}

CONTEXT_TEST(a_green_context_is_told)
{
    CUcontext made;
    CHECK_EQ(cuCtxFromGreenCtx(&made, NULL), CUDA_SUCCESS);
    must_be_told("green 200 0; ");
    answer = CUDA_ERROR_INVALID_VALUE;
    cuCtxFromGreenCtx(&made, NULL);
    answer = CUDA_SUCCESS;
    atomic_store(&ms_hot.started, 0);
    cuCtxFromGreenCtx(&made, NULL);
}

/* --- primary contexts */

static CUresult end_primary(int way)
{
    return way == 0   ? cuDevicePrimaryCtxRelease(1)
           : way == 1 ? cuDevicePrimaryCtxRelease_v2(1)
           : way == 2 ? cuDevicePrimaryCtxReset(1)
                      : cuDevicePrimaryCtxReset_v2(1);
}

static void check_primary(int way, int before, int after, const char *expected)
{
    is_active = before;
    is_active_later = after;
    CHECK_EQ(end_primary(way), answer);
    must_be_told(expected);
}

CONTEXT_TEST(a_primary_context_ends_when_it_is_not_active_any_more)
{
    for (int way = 0; way < 4; way++) {
        const unsigned before = released;
        check_primary(way, 1, 0, "ends 300 0; ");
        CHECK_EQ(released, before + 1); /* the shim's own reference */
        check_primary(way, 1, 1, "");
        check_primary(way, 0, 0, "");
        answer = CUDA_ERROR_INVALID_CONTEXT;
        check_primary(way, 1, 0, "");
        answer = CUDA_SUCCESS;
    }
}

CONTEXT_TEST(a_primary_context_that_is_not_known_is_not_told)
{
    retain_answer = CUDA_ERROR_OUT_OF_MEMORY;
    is_active = 1;
    is_active_later = 0;
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(1), CUDA_SUCCESS);
    references = 0; /* there was none */
    retain_answer = CUDA_SUCCESS;
    state_answer = CUDA_ERROR_INVALID_DEVICE;
    check_primary(2, 1, 0, "");
    state_answer = CUDA_SUCCESS;
    atomic_store(&ms_hot.started, 0);
    ms_real[MS_ENTRY_cuDevicePrimaryCtxGetState] = NULL; /* nor is it asked */
    check_primary(2, 1, 0, "");
}

/* --- peers */

CONTEXT_TEST(memory_follows_the_access_of_peers)
{
    CHECK_EQ(cuCtxEnablePeerAccess(OTHERS, 0), CUDA_SUCCESS);
    must_be_told("enabled 1 0; "); /* what device 1 has, device 0 may use */
    CHECK_EQ(popped, 1);
    CHECK_EQ(cuCtxDisablePeerAccess(OTHERS), CUDA_SUCCESS);
    must_be_told("disabled 1 0; ");
    peer_result = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuCtxEnablePeerAccess(OTHERS, 0), CUDA_ERROR_OUT_OF_MEMORY);
    must_be_told("enabled 1 0; ");
}

CONTEXT_TEST(a_call_that_gives_no_access_changes_nothing)
{
    CHECK_EQ(cuCtxEnablePeerAccess(OURS, 0), CUDA_SUCCESS); /* of the same device */
    must_be_told("");
    CHECK_EQ(popped, 1);
    push_answer = CUDA_ERROR_INVALID_CONTEXT;
    own_device = 5;
    CHECK_EQ(cuCtxEnablePeerAccess(OTHERS, 0), CUDA_SUCCESS);
    CHECK_EQ(popped, 1);
    push_answer = CUDA_SUCCESS;
    device_answer = CUDA_ERROR_INVALID_CONTEXT;
    CHECK_EQ(cuCtxEnablePeerAccess(OTHERS, 0), CUDA_SUCCESS);
    CHECK_EQ(popped, 1); /* nothing was current */
    device_answer = CUDA_SUCCESS;
    answer = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    CHECK_EQ(cuCtxEnablePeerAccess(OTHERS, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CHECK_EQ(cuCtxDisablePeerAccess(OTHERS), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    answer = CUDA_SUCCESS;
    atomic_store(&ms_hot.started, 0);
    CHECK_EQ(cuCtxEnablePeerAccess(OTHERS, 0), CUDA_SUCCESS);
    CHECK_EQ(popped, 1);
}
