/* SPDX-License-Identifier: Apache-2.0 */
/* The lines that are logged, by the linker's --wrap of ms_log (meson.build). For one file of a
 * test. */
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/log.h"
#include "tools/simcuda/harness/wraps.h"

static char logged[2048]; /* the last line */
static enum ms_log_level logged_level;
static unsigned lines;
static enum ms_log_level log_level = MS_TRACE; /* those above are left out */

WRAPS(ms_log);
void __wrap_ms_log(enum ms_log_level level, const char *format, ...)
{
    va_list arguments;
    if (level > log_level)
        return;
    va_start(arguments, format);
    vsnprintf(logged, sizeof(logged), format, arguments);
    va_end(arguments);
    logged_level = level;
    lines++;
}
