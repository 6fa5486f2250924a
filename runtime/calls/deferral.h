/* SPDX-License-Identifier: Apache-2.0 */
/* What all ways to defer an allocation share. */
#pragma once

#include "runtime/memory/space.h"

/* True if so many bytes may be deferred in the current context. */
bool ms_may_defer(size_t bytes, CUcontext *context_out, CUdevice *device_out);

/*
 * Before so many bytes begin to be deferred on the device. False: the driver serves it, because the
 * self-check or queued work (examining.h) forbids to defer. True: ms_deferral_end must follow.
 */
bool ms_deferral_begin(CUcontext current, CUdevice device, size_t bytes);
void ms_deferral_end(void);

/* True if the program may have so many bytes more, of a pool or (NULL) not. May settle. */
bool ms_overcommit_admits(CUdevice device, size_t bytes, const struct ms_pool *pool);

/* The program was promised so many bytes; is_transient as in pooled.h. */
void ms_deferral_begun(CUdevice device, size_t bytes, bool is_transient);

/* An allocation of `bytes` bytes with this backing, which it takes over, of a pool or (NULL) not.
 * NULL if out of memory: the backing is still the caller's. */
struct ms_allocation *ms_allocation_create(const struct ms_backing *backing, CUcontext context,
                                           size_t bytes, enum ms_kind kind, struct ms_pool *pool,
                                           bool is_transient);

/* Removes a claimed allocation from all records but its own. */
void ms_allocation_forget(struct ms_allocation *allocation);
