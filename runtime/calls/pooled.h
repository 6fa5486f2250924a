/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which allocations of pools are deferred, and which of them show that the program still loads.
 *
 * A program that takes its memory from a pool allocates and frees in each training step. Once it
 * has freed a few times what it had at most, an allocation that takes the place of what was freed
 * is *transient*: neither it nor what is written there keeps the window of deferral open. When the
 * program has settled because it moved on, the driver serves the pools, until the program has freed
 * nearly all of what it kept.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* False: the driver serves the next allocation of a pool. Cheap. */
bool ms_pooled_is_wanted(void);

/* True for the next allocation, of so many bytes. */
bool ms_pooled_is_transient(size_t bytes);

/* An allocation of a pool begins, or ends; with so much memory behind it. */
void ms_pooled_begin(size_t bytes, bool is_transient);
void ms_pooled_end(size_t bytes, size_t backed_bytes, bool is_transient);
