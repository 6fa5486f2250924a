/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetching: materialises the local bytes of all allocations, by the plan in force, in large
 * transfers. One thread prefetches at a time; others wait for it.
 */
#pragma once

#include <stdbool.h>

/*
 * Prefetches, or does nothing without a plan. The caller holds no claim. False if something could
 * not be materialised, and stays deferred.
 *
 * To be called where everything would be materialised without a plan, or on request. Any other
 * prefetch could bring in bytes that the program never needs, of tensors that it cuts down itself.
 */
bool ms_prefetch_run(const char *why);

/* Prefetches, with or without a plan, the bytes that were resident (restore.h), in the order of the
 * files. */
bool ms_prefetch_residents(void);

/* A plan has come into force, the first or a later one: finds the plan's tensors, fetches
 * nothing. */
void ms_prefetch_prepare(bool is_first);

/*
 * ms_prefetch_prepare for a plan that was handed to the process: its sender wants this rank's part
 * in memory, and nothing else. So the shim frees the memory of bytes that other ranks keep, if they
 * can be read again, and fetches this rank's part. Waits for the device if memory could go. A
 * suspended process (suspend.h) passes fetches = false: it fetches nothing before it resumes.
 */
void ms_prefetch_arrive(bool is_first, bool fetches);
