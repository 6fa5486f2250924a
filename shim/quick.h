/* SPDX-License-Identifier: Apache-2.0 */
/* The macros of the entry points, with a way to the driver that costs next to nothing. */
#pragma once

#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/state/caller.h"
#include "shim/cancellation.h"
#include "shim/real.h"

/*
 * An entry that jumps to the driver when nothing is deferred (a copy or set: when the shim owns
 * nothing). Otherwise the entry goes inside (cancellation.h), to the body that follows the macro.
 * The body is a separate function, so that the fast path needs no stack frame.
 */
#define MS_QUICK(symbol, parameters, arguments) \
    MS_QUICK_WHEN(ms_is_quiet(), ms_is_quiet_but_counted(), symbol, parameters, arguments)
#define MS_QUICK_COPY(symbol, parameters, arguments) \
    MS_QUICK_WHEN(ms_is_quiet_for_copies(), false, symbol, parameters, arguments)
#define MS_QUICK_WHEN(is_quiet, is_quiet_inside, symbol, parameters, arguments)                  \
    static CUresult inside_##symbol parameters;                                                  \
    static __attribute__((noinline)) CUresult slow_##symbol parameters                           \
    {                                                                                            \
        MS_ENTER(#symbol);                                                                       \
        if (is_quiet_inside)                                                                     \
            return MS_REAL(symbol) arguments;                                                    \
        return inside_##symbol arguments;                                                        \
    }                                                                                            \
    CUresult symbol parameters                                                                   \
    {                                                                                            \
        if (__builtin_expect(!(is_quiet), 0))                                                    \
            return slow_##symbol arguments;                                                      \
        const __typeof__(&symbol) real =                                                         \
            (__typeof__(&symbol))__atomic_load_n(&ms_real[MS_ENTRY_##symbol], __ATOMIC_ACQUIRE); \
        if (__builtin_expect(real != NULL, 1))                                                   \
            return real arguments;                                                               \
        return slow_##symbol arguments;                                                          \
    }                                                                                            \
    static CUresult inside_##symbol parameters

/* An entry that calls the driver if `prepared`, the preparation for the call, is CUDA_SUCCESS. */
#define MS_PREPARED(symbol, prepared, parameters, arguments)                \
    CUresult symbol parameters                                              \
    {                                                                       \
        MS_ENTER(#symbol);                                                  \
        const CUresult result = prepared;                                   \
        return result != CUDA_SUCCESS ? result : MS_REAL(symbol) arguments; \
    }

/* An entry whose call the runtime answers, with `result`, if `answered` is true. */
#define MS_ANSWERED(symbol, answered, parameters, arguments) \
    CUresult symbol parameters                               \
    {                                                        \
        CUresult result;                                     \
        MS_ENTER(#symbol);                                   \
        if (answered)                                        \
            return result;                                   \
        return MS_REAL(symbol) arguments;                    \
    }

/* A list in parentheses, as a part of a longer list. */
#define MS_UNPACK(...) __VA_ARGS__

/* The null address. A copy or set that strays (ms_pointer_strays) goes to the driver with this
 * address, so that the driver checks the other arguments first and then refuses the call; so does a
 * query about the reserved addresses around an allocation, which the driver knows and the program
 * must not. */
#define MS_NOWHERE ((CUdeviceptr)0)
static inline CUdeviceptr ms_bounded(CUdeviceptr address, size_t bytes)
{
    return ms_pointer_strays(address, bytes) ? MS_NOWHERE : address;
}

/* The driver's answer to a call that needs memory; the call is repeated after memory was freed. */
#define MS_REAL_WITH_MEMORY(symbol, arguments)           \
    __extension__({                                      \
        int attempts_ = 0;                               \
        CUresult result_;                                \
        do                                               \
            result_ = MS_REAL(symbol) arguments;         \
        while (ms_evict_try_again(result_, &attempts_)); \
        result_;                                         \
    })
