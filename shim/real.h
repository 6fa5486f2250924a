/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver: where its functions are, and which of ours stands for which of them.
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

/*
 * What a program should get for `real`, which it got under the name `base`, version and per-thread
 * flag: our function, a spare thunk for a function that the table
 * does not know, or real itself.
 */
void *ms_substitute(void *real, const char *base, int version, bool per_thread);

/* True for the address of one of our own functions. */
bool ms_is_wrapper(const void *address);

#endif
