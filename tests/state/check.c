/* SPDX-License-Identifier: Apache-2.0 */
/* CHECK of harness/test.h for programs that are no list of tests: what fails ends the program. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/simcuda/harness/test.h"

void ms_test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "# %s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}
