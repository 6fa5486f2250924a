/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares device memory, by a kernel of the shim's own (compare.ptx), or on the host where the
 * driver does not take that kernel. With METASHARD=verify it compares memory with its shadow
 * (shadow.h). A difference makes one line in the log and one event in the state page, and changes
 * nothing for the program. Bytes that differ have no shadow afterwards.
 */
#pragma once

#include "runtime/memory/space.h"

/*
 * Compares the bytes of [begin, end) of a claimed allocation that have a shadow: the cached bytes,
 * or those that were just replayed and are about to become present. No work may write there.
 */
enum ms_compared { MS_COMPARE_CACHED, MS_COMPARE_REPLAYED };
void ms_compare(struct ms_allocation *allocation, size_t begin, size_t end, enum ms_compared what);

/* A replay has copied an extent of a claimed allocation to the address `copy`, in stream: compares
 * the copy with the shadow, if the extent has one. If is_plain is false, `copy` may be any kind of
 * memory. */
void ms_compare_copy(struct ms_allocation *from, const struct ms_extent *extent, CUdeviceptr copy,
                     bool is_plain, CUstream stream);

/* True if the bytes at two addresses of device memory are equal. Waits for stream, whose context
 * must be current. */
bool ms_compare_is_equal(CUdeviceptr one, CUdeviceptr other, size_t bytes, CUcontext context,
                         CUstream stream);

/* The process ends: compares the bytes that are still cached, and logs the sums. */
void ms_compare_finish(void);
