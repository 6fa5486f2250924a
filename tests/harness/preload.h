/* SPDX-License-Identifier: Apache-2.0 */
#ifndef METASHARD_TESTS_HARNESS_PRELOAD_H
#define METASHARD_TESTS_HARNESS_PRELOAD_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool device_has_shim(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload != NULL && strstr(preload, "libmetashard") != NULL;
}

#endif
