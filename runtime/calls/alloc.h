/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations begin and end.
 *
 * The functions are called on the program's thread, before the driver's own call. "bool ms_x(...,
 * result_out)" returns true if the call is answered and *result_out is what the program gets; false
 * if the call must be forwarded as it is.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/allocation.h"

/* Allocates in the current context. The allocation is deferred if it is large enough and the device
 * can map memory; *address_out is then its address. */
bool ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out);

/* The same of a memory pool (NULL: of the current one), in a stream. Only plain pools are deferred
 * (memory/pool.h), and only if ms_alloc_wants_pooled. */
bool ms_alloc_in_stream(size_t bytes, CUmemoryPool handle, CUstream stream,
                        CUdeviceptr *address_out, CUresult *result_out);

/* False: the driver serves the next allocation of a pool. Cheap. */
bool ms_alloc_wants_pooled(void);

/* Frees the allocation that starts at address, after waiting for the device as cuMemFree does. The
 * thread needs no context: whether it may free is the driver's to say. */
bool ms_alloc_free(CUdeviceptr address, CUresult *result_out);

/* The same for an allocation of which the program has that right: it is still the one of the
 * facts. */
CUresult ms_alloc_end(const struct ms_allocation_facts *facts);

/* ms_alloc_free in the order of a valid stream: waits for nothing. The memory goes back when the
 * stream has got there. Returns false for a stream that is captured: the driver refuses it. */
bool ms_alloc_free_in_stream(CUdeviceptr address, CUstream stream, CUresult *result_out);

/* Sets who may reach the pool by `set`, the driver's function. If another device than its own may,
 * its allocations are brought into memory, and later ones are the driver's. */
CUresult ms_alloc_set_pool_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count,
                                  CUresult (*set)(CUmemoryPool handle, const CUmemAccessDesc *map,
                                                  size_t count));

/* The driver has destroyed a context: everything in it ends. */
void ms_alloc_end_context(CUcontext context);

/* The context belongs to a green context: nothing is deferred in it. */
void ms_alloc_add_green_context(CUcontext context);

/* Allows or forbids access from `peer` to allocations of `device`. */
CUresult ms_alloc_set_peer_access(CUdevice device, CUdevice peer, bool enabled);

/* --- what all ways to defer an allocation share (vmm.c) */

/* True if so many bytes may be deferred in the current context. */
bool ms_alloc_may_defer(size_t bytes, struct ms_promise *promise_out);

/* Keeps a promise that may be made; `make` makes the record. Returns false if it cannot be, or the
 * self-check or queued work forbids to defer: the driver serves the call. May settle. */
typedef bool ms_promise_maker(const struct ms_promise *promise, void *argument);
bool ms_alloc_promise(struct ms_promise *promise, ms_promise_maker *make, void *argument,
                      CUresult *result_out);

/* Removes a claimed allocation from all records but its own. */
void ms_alloc_forget(struct ms_allocation *allocation);
