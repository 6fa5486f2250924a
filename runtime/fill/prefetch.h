/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetching: materialises the local bytes of all allocations, by the plan in force, in large
 * transfers. One thread prefetches at a time; others wait for it.
 */
#pragma once

#include <stdbool.h>

/*
 * Does nothing without a plan. The caller holds no claim. False if something could not be
 * materialised, and stays deferred.
 *
 * For when everything would be materialised without a plan, and for those who ask for it. Any other
 * prefetch could take memory that the program never needs: of tensors that it cuts down by itself.
 */
bool ms_prefetch_run(const char *why);

/* The same, with or without a plan, for what was resident (restore.h), in the order of the files.
 * */
bool ms_prefetch_residents(void);

/* A plan has come into force, the first or a later one: finds its tensors, and fetches nothing. */
void ms_prefetch_prepare(bool is_first);

/*
 * The same for a plan that was handed to the process: who does that wants this rank's part, and no
 * other. So what others keep goes, as far as its bytes can be read again, and the part is fetched.
 * Waits for the device if memory could go. A process that is suspended (suspend.h) fetches nothing
 * before it resumes.
 */
void ms_prefetch_arrive(bool is_first, bool fetches);
