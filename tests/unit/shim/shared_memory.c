/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share: what is the runtime's, and what the driver's. */
#include <string.h>

#include "runtime/calls/ipc.h"
#include "runtime/calls/pointer.h"
#include "shim/init.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

enum { ADDRESS = 0x1000, STRAY = 0x2000, FLAGS = 3 };

/* --- what is called: a small letter for the runtime, a large one for the driver */

static bool is_ours, is_handle, is_ready;
static CUipcMemHandle handle = {{7}};

WRAPS(ms_ipc_share, ms_ipc_is_handle, ms_ipc_open, ms_ipc_close, ms_pointer_strays);
bool __wrap_ms_ipc_share(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out)
{
    CHECK(address == ADDRESS && handle_out == &handle);
    note('s');
    *result_out = CUDA_ERROR_INVALID_VALUE;
    return is_ours;
}

bool __wrap_ms_ipc_is_handle(const CUipcMemHandle *one)
{
    CHECK(one->reserved[0] == 7);
    return is_handle;
}

CUresult __wrap_ms_ipc_open(const CUipcMemHandle *one, unsigned flags, CUdeviceptr *address_out)
{
    CHECK(one->reserved[0] == 7 && flags == FLAGS);
    note('o');
    *address_out = ADDRESS;
    return CUDA_ERROR_INVALID_VALUE;
}

bool __wrap_ms_ipc_close(CUdeviceptr address, CUresult *result_out)
{
    CHECK_EQ(address, ADDRESS);
    note('c');
    *result_out = CUDA_ERROR_INVALID_VALUE;
    return is_ours;
}

bool __wrap_ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    CHECK_EQ(bytes, 1);
    return address == STRAY;
}

bool ms_ready_to_defer(void)
{
    note('y');
    return is_ready;
}

static CUdeviceptr shared; /* as the driver sees it */

REAL(cuIpcGetMemHandle, (CUipcMemHandle * one, CUdeviceptr address), CHECK(one == &handle);
     note('S'); shared = address; return CUDA_SUCCESS)
REAL(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle one, unsigned flags),
     CHECK(one.reserved[0] == 7 && flags == FLAGS);
     note('O'); *address = ADDRESS + 1; return CUDA_SUCCESS)
REAL(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle one, unsigned flags),
     CHECK(one.reserved[0] == 7 && flags == FLAGS);
     note('P'); *address = ADDRESS + 1; return CUDA_SUCCESS)
REAL(cuIpcCloseMemHandle, (CUdeviceptr address), CHECK_EQ(address, ADDRESS); note('C');
     return CUDA_SUCCESS)

static void must_be(CUresult result, CUresult expected, const char *calls)
{
    CHECK_EQ(result, expected);
    CHECK_EQ(ms_calls_inside, 0);
    must_have(calls);
}

MS_TEST(an_allocation_is_shared_by_the_runtime)
{
    own_something(false);
    must_be(cuIpcGetMemHandle(&handle, ADDRESS), CUDA_SUCCESS, "S");
    own_something(true);
    must_be(cuIpcGetMemHandle(&handle, ADDRESS), CUDA_SUCCESS, "sS");
    CHECK_EQ(shared, ADDRESS);
    is_ours = true;
    must_be(cuIpcGetMemHandle(&handle, ADDRESS), CUDA_ERROR_INVALID_VALUE, "s");
    must_be(cuIpcCloseMemHandle(ADDRESS), CUDA_ERROR_INVALID_VALUE, "c");
    is_ours = false;
    must_be(cuIpcCloseMemHandle(ADDRESS), CUDA_SUCCESS, "cC");
    own_something(false);
    must_be(cuIpcCloseMemHandle(ADDRESS), CUDA_SUCCESS, "C");
    must_be(cuIpcGetMemHandle(&handle, STRAY), CUDA_SUCCESS, "S");
    CHECK_EQ(shared, 0); /* for the driver to refuse */
}

static void must_open(bool by_runtime, bool asks)
{
    CUdeviceptr address = 0;
    for (int i = 0; i < 2; i++) {
        const char *calls = by_runtime ? "yo" : i == 0 ? (asks ? "yO" : "O") : asks ? "yP" : "P";
        must_be((i == 0 ? cuIpcOpenMemHandle : cuIpcOpenMemHandle_v2)(&address, handle, FLAGS),
                by_runtime ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS, calls);
        CHECK_EQ(address, by_runtime ? ADDRESS : ADDRESS + 1);
    }
}

STORY_ALONE(a_handle_of_the_runtimes_is_opened_by_it_where_it_may_defer, must_open(false, false),
            is_handle = true, must_open(false, true), is_ready = true, must_open(true, true),
            is_handle = false, must_open(false, false))
