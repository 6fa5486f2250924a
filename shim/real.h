/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver: where its functions are.
 *
 * The first libcuda that a program reaches is the driver. A second copy (another path, another
 * namespace) is left alone. Nothing here calls the driver; all of it works before cuInit and under
 * the loader's lock.
 */
#pragma once

#include <stdbool.h>

#include "shim/entries.h"

/* Marks code that may run before the constructors, when another library looks up a symbol:
 * sanitizers are not ready then and must not instrument it. */
#define MS_EARLY \
    __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

/* libc's dlsym. */
typedef void *ms_dlsym(void *handle, const char *name);
ms_dlsym *ms_libc_dlsym(void) MS_EARLY;

/* Fills ms_real from the library that holds `address`, if it is a libcuda, or from the loaded
 * driver if address is NULL. Returns true if ms_real is filled, now or before. */
bool ms_real_load(const void *address);

/* True for an address in the driver's library. Requires that ms_real is filled. */
bool ms_is_driver(const void *address);

/* True for an address in this library, for example an answer of a lookup. */
bool ms_is_own(const void *address);
