/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the program has opened, and reads unseen (reads.h): io_uring and libaio need no
 * function of libc. Nothing tells where the bytes of a copy come from, but few places are likely:
 *
 *     - behind the last copy from that file, or some sizes of this copy further on;
 *     - at a tensor of that size, in a file with a safetensors header;
 *     - the start of a file, for bytes that begin with such a header.
 *
 * Bytes there that are in the page cache are compared. Bytes that were read past the page cache are
 * sampled; the sums of all are kept, and checked when the bytes are needed (files/sums.h).
 *
 * A sample never decides between places. Where another place begins as the copied bytes do, all
 * bytes are compared:
 *
 *     file       | tensor |  T  | tensor |  T'  | tensor |      T, T' of one size
 *     copied              [  ]                              T' begins so too: the copy may be of T'
 */
#pragma once

#include "runtime/finding/find_internal.h"

/* In the file thread. */
void ms_uring_find(struct ms_wanted_source *wanted);
