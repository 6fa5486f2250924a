/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Originals that are used again stay. A copy of deferred bytes of a file takes their lineage, and
 * brings them into memory in its own place. Where the copy is short-lived and its original is not,
 * as the input of an all-gather and the shard, the next copy would send the same bytes once more.
 * So the original comes into memory, and the copy is made of it there: the first time where a call
 * shows that the copy will not stay, else when a second copy is used (needs.def, `original`).
 *
 * The original has memory without the shim, so neither memory nor what is sent becomes more than
 * without it. It is cached, and goes first when memory is short.
 *
 * The table holds the latest copies of 16 KiB or more and owns nothing. Each original is looked at
 * again before it is used. Nothing is done with a plan, which says itself what stays, during a
 * capture, and where little of the device's memory is left.
 */
#pragma once

#include "runtime/fill/materialise.h"

/* Deferred bytes of a file, from `from` on in the claimed source, were copied as lineage. */
void ms_reuse_note(const struct ms_allocation *source, size_t from, size_t bytes,
                   const struct ms_content *content);

/* The program has written bytes of a file there anew, as where it loads again: what was used before
 * is no sign of what will be. */
void ms_reuse_forget(const struct ms_allocation *written, size_t begin, size_t bytes);

/* True if what the source has there was used in a copy before; if not, the next one is told so. For
 * a copy that sends the bytes at once. */
bool ms_reuse_is_again(const struct ms_allocation *source, size_t from, size_t bytes,
                       const struct ms_content *content);

/* Before [begin, end) of a claimed allocation is brought into memory for the need: copies are made
 * of their originals. The rest, and all where something fails, is left as it is. */
void ms_reuse_originals(struct ms_allocation *copy, size_t begin, size_t end, enum ms_need need);
