/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim starts nothing before the program's own cuInit has succeeded: no thread, no file, no
 * output, no memory. Exceptions: large reads are noted, in static memory (finding/reads.h); a
 * constructor reads one environment variable (off.c); another sets a pointer (resolver.c).
 * Preparations that only allocations need wait for the first allocation (ms_ready_to_defer).
 */
#include "shim/init.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/driver/driver.h"
#include "runtime/kernel/rules.h"
#include "runtime/start/lifetime.h"
#include "runtime/state/state.h"
#include "shim/cancellation.h"
#include "shim/file_calls.h"
#include "shim/libc.h"
#include "shim/off.h"
#include "shim/others.h"
#include "shim/real.h"
#include "shim/torch_release.h"

/* By field of ms_driver: the distance of its thunk (trampoline.S) from this table. */
enum { MS_CALL_COUNT = sizeof(struct ms_driver) / sizeof(void *) };
extern const int32_t ms_calls[MS_CALL_COUNT];

static bool has_begun; /* atomic: the program's cuInit has arrived here */

/* The driver answers NOT_INITIALIZED until cuInit, and in a forked child. */
static bool is_driver_used(void)
{
    int count;
    return ms_image_is_loaded("libcuda.so") && ms_real_load(NULL) &&
           MS_REAL(cuDeviceGetCount)(&count) != CUDA_ERROR_NOT_INITIALIZED;
}

/* A library that stands before the shim may have called the driver itself, which the shim can know
 * only at the end. A driver opens files through the shim's functions, whose first call looks up
 * libc's dlsym: a process without such a call pays one load. */
static void tell_if_bypassed(void)
{
    if (__atomic_load_n(&ms_libc_dlsym_address, __ATOMIC_ACQUIRE) == NULL ||
        __atomic_load_n(&has_begun, __ATOMIC_ACQUIRE) || ms_is_off() ||
        !(ms_libc_is_before("dlsym") || ms_libc_is_before("cuInit")) || !is_driver_used())
        return;
    const char *library = ms_others_before();
    if (library[0] != '\0')
        ms_lifetime_begin(environ, library);
}

__attribute__((destructor)) static void report(void)
{
    tell_if_bypassed();
    ms_lifetime_end();
}

/* The thunks look up the driver's functions at the first call. */
static void fill_driver_table(void)
{
    void *slots[MS_CALL_COUNT] = {NULL};
    for (int i = 0; i < MS_CALL_COUNT; i++)
        slots[i] = (char *)ms_calls + ms_calls[i];
    memcpy(&ms_driver, slots, sizeof(ms_driver));
}

/* True if the driver has all functions that the shim cannot work without. */
static bool is_complete(void)
{
    static const uint16_t needed[] = {
#define MS_DRIVER(field, symbol) MS_ENTRY_##symbol,
#define MS_DRIVER_OPTIONAL(field, symbol)
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    };
    const char *missing = NULL;
    int missing_count = 0;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (ms_real_get(needed[i]) != (void *)ms_missing)
            continue;
        missing = missing != NULL ? missing : ms_entry_symbol(needed[i]);
        missing_count++;
    }
    if (missing_count > 1)
        ms_log(MS_WARN, "the driver has no %s, nor %d more functions: MetaShard does nothing",
               missing, missing_count - 1);
    else if (missing_count > 0)
        ms_log(MS_WARN, "the driver has no %s: MetaShard does nothing", missing);
    return missing_count == 0;
}

static void prepare_to_defer(void)
{
    if (!is_complete()) {
        atomic_store(&ms_hot.started, 0);
        return;
    }
    ms_others_tell();
    ms_file_calls_find();
    ms_state_open();
}

bool ms_ready_to_defer(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (ms_is_started())
        pthread_once(&once, prepare_to_defer);
    return ms_is_started();
}

/* Starts the shim; only the first call does anything. */
static void start(void)
{
    if (__atomic_exchange_n(&has_begun, true, __ATOMIC_ACQ_REL))
        return;
    fill_driver_table();
    ms_rules_hold = ms_torch_release_is_proved;
    ms_lifetime_begin(environ, ms_others_around());
}

CUresult cuInit(unsigned int Flags)
{
    const CUresult result = MS_REAL(cuInit)(Flags);
    MS_INSIDE;
    if (result == CUDA_SUCCESS && !ms_is_off())
        start();
    return result;
}
