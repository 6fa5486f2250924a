/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pass: what the plan in force gives to this rank is materialised, of all allocations, in large
 * transfers. One thread makes a pass at a time; others wait for it.
 */
#ifndef METASHARD_RUNTIME_FILL_PREFETCH_H
#define METASHARD_RUNTIME_FILL_PREFETCH_H

#include <stdbool.h>

/*
 * Nothing when no plan is in force. When the plan is another than that of the last pass, memory that the old
 * one gave goes back first, as far as its bytes can be read again. Without a claim. False: something could
 * not be materialised; it stays deferred.
 */
bool ms_prefetch_run(const char *why);

/* A plan has come into force, the first or another one. */
void ms_prefetch_begin(bool is_first);

#endif
