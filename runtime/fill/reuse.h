/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Avoids sending bytes that are on the device already.
 *
 * Originals that are used again stay. A copy of deferred bytes of a file takes their lineage, and
 * brings them into memory in its own place. If the copy is short-lived and its original is not,
 * like the input of an all-gather and the shard, the next copy would send the same bytes once more.
 * So the shim brings the original into memory and copies from there: at the first copy where a call
 * shows that the copy will not stay, else when a second copy is used (needs.def, `original`).
 *
 * Dependents are made before their block changes. A kernel that brings a block into memory may
 * write there. Afterwards a deferred copy of the block, or the result that a recorded launch makes
 * of it, could only be made from the file: an average, say, or a reference of a model that training
 * changes. Before such a kernel the shim brings the dependents into memory too.
 *
 * Originals and dependents have memory without the shim as well, so the program neither takes more
 * memory nor sends more bytes than without it. Both are cached, and go first when memory is short.
 *
 * The tables hold the latest copies and results of 16 KiB or more, and own nothing. Each entry is
 * checked again before it is used. The shim does nothing of this with a plan, which itself says
 * what stays, during a capture, or where little of the device's memory is left.
 */
#pragma once

#include "runtime/fill/materialise.h"
#include "runtime/memory/recorded_launch.h"

/* Bytes that were copied from a claimed allocation, or that a recorded launch has made. */
struct ms_copied {
    const struct ms_content *content;   /* of the first byte in the source; deferred */
    const struct ms_allocation *source; /* NULL: a recorded launch */
    size_t from;
    struct ms_allocation *copy; /* NULL: the bytes are sent to the copy at once */
    size_t to, bytes;
};

/* Notes a copy or a recorded launch; to be called for each. True if the bytes are sent at once and
 * a copy of them was used before: then the source should come into memory instead. If none was,
 * this use counts for the next copy. */
bool ms_reuse_note(const struct ms_copied *copied);

/* A kernel may write [begin, begin + bytes): brings the dependents of these bytes into memory,
 * except where that fails. The caller holds no claim. */
void ms_reuse_make_dependents(CUdeviceptr begin, size_t bytes);

/* The program has written bytes of a file there anew, because it loads again, say: earlier uses of
 * copies are no sign of later ones. */
void ms_reuse_forget(const struct ms_allocation *written, size_t begin, size_t bytes);

/* To be called before [begin, end) of a claimed allocation is brought into memory for the need:
 * fills copies from their originals. Leaves all other bytes, and those for which that fails. */
void ms_reuse_originals(struct ms_allocation *copy, size_t begin, size_t end, enum ms_need need);
