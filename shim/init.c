/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim starts nothing before the program's own cuInit has succeeded: no thread, no file, no
 * output, no memory. The constructor reads one environment variable. That of resolver.c sets a
 * pointer.
 */
#include "shim/init.h"

#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/driver.h"
#include "runtime/start/start.h"
#include "shim/real.h"

static bool off; /* immutable after the constructor */

__attribute__((constructor)) static void read_switch(void)
{
    off = ms_config_is_off();
}

__attribute__((destructor)) static void report(void)
{
    ms_finish();
}

bool ms_is_off(void)
{
    return off;
}

/* A few lines for each function. NOLINTNEXTLINE(readability-function-size) */
static bool fill_driver_table(void)
{
    struct ms_driver table;
    const char *missing = NULL;
    int missing_count = 0;
#define MS_DRIVER(field, symbol)                       \
    table.field = MS_REAL(symbol);                     \
    if ((void *)table.field == (void *)ms_missing) {   \
        missing = missing != NULL ? missing : #symbol; \
        missing_count++;                               \
    }
#define MS_DRIVER_OPTIONAL(field, symbol) table.field = MS_REAL(symbol);
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    if (missing_count > 1)
        ms_log(MS_WARN, "the driver has no %s, nor %d more functions: the shim steps aside",
               missing, missing_count - 1);
    else if (missing_count > 0)
        ms_log(MS_WARN, "the driver has no %s: the shim steps aside", missing);
    else
        ms_driver = table;
    return missing_count == 0;
}

static void start(void)
{
    static bool done; /* atomic; the first thread starts */
    if (!__atomic_exchange_n(&done, true, __ATOMIC_ACQ_REL) && fill_driver_table())
        ms_start(environ);
}

CUresult cuInit(unsigned int Flags)
{
    const CUresult result = MS_REAL(cuInit)(Flags);
    MS_INSIDE;
    if (result == CUDA_SUCCESS && !off)
        start();
    return result;
}
