/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver: where its functions are.
 *
 * The first libcuda that a program reaches is the driver; a second copy (another path, another
 * namespace) is left alone. Nothing here calls the driver; all of it works before cuInit and under
 * the loader's lock.
 */
#ifndef METASHARD_SHIM_REAL_H
#define METASHARD_SHIM_REAL_H

#include <stdbool.h>

#include "shim/entries.h"

/*
 * Code that may run before the constructors, when some other library looks a symbol up: sanitizers
 * are not ready then, and must not watch it.
 */
#define MS_EARLY \
    __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

/* The C library's dlsym. */
typedef void *ms_dlsym(void *handle, const char *name);
ms_dlsym *ms_libc_dlsym(void) MS_EARLY;

/* Fills ms_real from the library that holds `address`, if it is a libcuda; from the loaded driver
 * when address is NULL. True when ms_real is filled, now or before. */
bool ms_real_load(const void *address);

/* True for an address in the driver's library. Only where ms_real is filled. */
bool ms_is_driver(const void *address);

/* True for an address in this library: of one of our own functions, where a function was looked up. */
bool ms_is_own(const void *address);

#endif
