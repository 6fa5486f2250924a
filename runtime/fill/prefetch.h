/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetching: materialises the local bytes of all allocations, by the plan in force, in large
 * transfers. One thread prefetches at a time; others wait for it.
 */
#pragma once

#include <stdbool.h>

/*
 * Does nothing without a plan. If the plan has changed since the last prefetch, first frees memory
 * that only the old plan needed, as far as its bytes can be read again. The caller holds no claim.
 * False if something could not be materialised, and stays deferred.
 */
bool ms_prefetch_run(const char *why);

/* A plan has come into force, the first or a later one. */
void ms_prefetch_begin(bool is_first);
