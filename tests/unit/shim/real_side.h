/* SPDX-License-Identifier: Apache-2.0 */
/* The driver as the shim's entries see it, without shim/real.c: what a test gives for an entry. Any
 * other call ends the test. For one file of a test. */
#pragma once

/* A stand-in has the parameters of what it stands for. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "runtime/driver/flags.h"
#include "runtime/state/caller.h"
#include "shim/entries.h"
#include "shim/real.h"
#include "tools/simcuda/harness/test.h"

void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];

void *ms_real_get(enum ms_entry entry)
{
    if (ms_real[entry] == NULL)
        ms_test_fail(__FILE__, __LINE__, "entry %d of the driver was called", (int)entry);
    return ms_real[entry];
}

CUresult ms_missing(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* A driver's function of those parameters that says `body`. */
#define REAL(symbol, parameters, body)                          \
    static CUresult real_##symbol parameters                    \
    {                                                           \
        body;                                                   \
    }                                                           \
    __attribute__((constructor)) static void set_##symbol(void) \
    {                                                           \
        ms_real[MS_ENTRY_##symbol] = (void *)real_##symbol;     \
    }

/* The shim has an allocation, so calls are looked at; or none, and they go straight on. */
static inline void own_something(bool owns)
{
    atomic_store(&ms_hot.started, 1);
    atomic_store(&ms_hot.owned, owns);
    atomic_store(&ms_hot.gated_copies, 1);
    atomic_store(&ms_hot.gated, 1);
}
