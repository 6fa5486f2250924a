/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the program has opened, and reads unseen (reads.h): io_uring and libaio need no
 * function of libc. When it copies from there, nothing tells where the bytes come from, but few
 * places are likely:
 *
 *     - behind what was copied before from that file, or some such sizes further on;
 *     - at a tensor of that size, in a file with a safetensors header;
 *     - the start of a file, for bytes that begin with such a header.
 *
 * The bytes there are compared: those that are in the page cache. Of others, which were read past
 * it, a sample is, and sums of all are kept, to be checked when they are needed (source_sums.h).
 *
 * A sample never decides between places. Where another place begins as the copied bytes do, all
 * bytes are compared:
 *
 *     file       | tensor |  T  | tensor |  T'  | tensor |      T, T' of one size
 *     copied              [  ]                              T' begins so too: it may be of T' as well
 */
#pragma once

#include "runtime/source/source_internal.h"

/* In the file thread. */
void ms_source_opened_find(struct ms_wanted_source *wanted);
