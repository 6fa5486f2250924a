/* SPDX-License-Identifier: Apache-2.0 */
/* Which of our functions stands for which of the driver's. */
#ifndef METASHARD_SHIM_SUBSTITUTE_H
#define METASHARD_SHIM_SUBSTITUTE_H

#include <stdbool.h>

/*
 * What a program should get for `real`, which it got under the name `base`, version and per-thread
 * flag: our function, a spare thunk for a function that the table
 * does not know, or real itself.
 */
void *ms_substitute(void *real, const char *base, int version, bool per_thread);

#endif
