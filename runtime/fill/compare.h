/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares device memory, by a kernel of the shim's own (compare.ptx), or on the host where the
 * driver does not take that. With METASHARD=verify memory is compared with its shadow (shadow.h). A
 * difference is one line in
 * the log and an event in the state page, and changes nothing for the program. The bytes have no
 * shadow afterwards.
 */
#pragma once

#include "runtime/memory/space.h"

/*
 * Compares what lies in [begin, end) of a claimed allocation and has a shadow: what is cached, or
 * what is about to become present because it has been replayed. No work may write there.
 */
enum ms_compared { MS_COMPARE_CACHED, MS_COMPARE_REPLAYED };
void ms_compare(struct ms_allocation *allocation, size_t begin, size_t end, enum ms_compared what);

/* What the shadow has at from_at of a claimed allocation was replayed to this address, in stream.
 * It may be of any kind of memory if is_plain is false. */
void ms_compare_copy(struct ms_allocation *from, size_t from_at, size_t bytes, CUdeviceptr copy,
                     bool is_plain, CUstream stream);

/* True if the bytes at two addresses of device memory are the same. Waits for stream, whose context
 * must be current. */
bool ms_compare_is_equal(CUdeviceptr one, CUdeviceptr other, size_t bytes, CUcontext context,
                         CUstream stream);

/* The process ends: compares what is still cached, and logs the sums. */
void ms_compare_finish(void);
