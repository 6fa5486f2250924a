/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands on the device already is not sent again.
 *
 * Originals that are used again stay. A copy of deferred bytes of a file takes their lineage, and
 * brings them into memory in its own place. Where the copy is short-lived and its original is not,
 * as the input of an all-gather and the shard, the next copy would send the same bytes once more.
 * So the original comes into memory, and the copy is made of it there: the first time where a call
 * shows that the copy will not stay, else when a second copy is used (needs.def, `original`).
 *
 * Dependents are made before what they are made of changes. A kernel that brings a block into
 * memory may write there, and a deferred copy of the block, or what a recorded launch makes of the
 * block, could only be made of the file afterwards: so an average or a reference of a model that
 * training changes. Before such a kernel the dependents come into memory too.
 *
 * All of them have memory without the shim, so neither memory nor what is sent becomes more than
 * without it. They are cached, and go first when memory is short.
 *
 * The tables hold the latest copies and results of 16 KiB or more and own nothing. Each is looked
 * at again before it is used. Nothing is done with a plan, which says itself what stays, during a
 * capture, and where little of the device's memory is left.
 */
#pragma once

#include "runtime/fill/materialise.h"
#include "runtime/memory/recorded_launch.h"

/* Bytes of a claimed allocation that another one has now, or that a recorded launch has made. */
struct ms_copied {
    const struct ms_content *content;   /* of the first byte in the source; deferred */
    const struct ms_allocation *source; /* NULL: the launch */
    size_t from;
    const struct ms_allocation *copy; /* NULL: the bytes are sent to the copy at once */
    size_t to, bytes;
};

/* To be told of each copy and recorded launch. True if bytes that are sent at once have been used
 * in a copy before: then the source should come into memory instead; if not, the next copy is told
 * so. */
bool ms_reuse_note(const struct ms_copied *copied);

/* A kernel may write [begin, begin + bytes): what else is made of these bytes comes into memory. No
 * claim may be held. What fails is left as it is. */
void ms_reuse_make_dependents(CUdeviceptr begin, size_t bytes);

/* The program has written bytes of a file there anew, as where it loads again: what was used before
 * is no sign of what will be. */
void ms_reuse_forget(const struct ms_allocation *written, size_t begin, size_t bytes);

/* Before [begin, end) of a claimed allocation is brought into memory for the need: copies are made
 * of their originals. The rest, and all where something fails, is left as it is. */
void ms_reuse_originals(struct ms_allocation *copy, size_t begin, size_t end, enum ms_need need);
