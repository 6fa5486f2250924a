/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes allocations, deferred where possible, and ends them.
 *
 * The functions run on the program's thread, before the driver's own call. "bool ms_x(...,
 * result_out)" returns true if the shim answers the call: the program gets *result_out. It returns
 * false if the call must be forwarded as it is.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/space.h"

/* Allocates in the current context. The allocation is deferred if it is large enough and the device
 * can map memory; *address_out is then its address. */
bool ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out);

/* Allocates from a memory pool (NULL: the current pool), in the order of a stream. Only allocations
 * of plain pools are deferred (driver/pool.h). The caller asks ms_alloc_wants_pooled first. */
bool ms_alloc_in_stream(size_t bytes, CUmemoryPool handle, CUstream stream,
                        CUdeviceptr *address_out, CUresult *result_out);

/* Returns false if the driver serves the next allocation of a pool. Cheap. */
bool ms_alloc_wants_pooled(void);

/* Frees the allocation that starts at address, after waiting for the device as cuMemFree does. The
 * thread needs no context: the driver decides whether the thread may free. */
bool ms_alloc_free(CUdeviceptr address, CUresult *result_out);

/* Ends an allocation that the program may free. Returns CUDA_ERROR_INVALID_VALUE if another thread
 * has freed the allocation of these facts meanwhile. */
CUresult ms_alloc_end(const struct ms_allocation_facts *facts);

/* Like ms_alloc_free, but in the order of a valid stream: waits for nothing. The memory goes back
 * when the stream has reached the free. Returns false for a captured stream: the driver refuses the
 * free. */
bool ms_alloc_free_in_stream(CUdeviceptr address, CUstream stream, CUresult *result_out);

/* Sets which devices may reach the pool, with `set`, the driver's function. If another device than
 * the pool's own may, the pool's allocations come into memory, and the driver serves later ones. */
CUresult ms_alloc_set_pool_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count,
                                  CUresult (*set)(CUmemoryPool handle, const CUmemAccessDesc *map,
                                                  size_t count));

/* The driver has destroyed a context: its allocations end. */
void ms_alloc_end_context(CUcontext context);

/* The context belongs to a green context: nothing is deferred in it. */
void ms_alloc_add_green_context(CUcontext context);

/* Allows or forbids access from `peer` to allocations of `device`. */
CUresult ms_alloc_set_peer_access(CUdevice device, CUdevice peer, bool enabled);

/* --- shared by all ways to defer an allocation (vmm.c) */

/* True if an allocation of so many bytes may be deferred in the current context. */
bool ms_alloc_may_defer(size_t bytes, struct ms_promise *promise_out);

/* Defers an allocation that ms_alloc_may_defer allows: `make` makes its record. Returns false, so
 * that the driver serves the call, if `make` fails, or if the self-check or queued work forbids
 * deferral. May settle. */
typedef bool ms_promise_maker(const struct ms_promise *promise, void *argument);
bool ms_alloc_promise(struct ms_promise *promise, ms_promise_maker *make, void *argument,
                      CUresult *result_out);

/* Removes a claimed allocation from all records but its own. */
void ms_alloc_forget(struct ms_allocation *allocation);
