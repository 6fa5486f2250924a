/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim does with calls that concern device memory: one function per kind of event. The
 * shim's entry points call them on the program's thread, before the real call.
 *
 * There are two shapes. "bool ms_x(..., result_out)" returns true if the call is answered and
 * *result_out is what the program gets; false if the call must be forwarded as it is. "CUresult
 * ms_access_x" returns CUDA_SUCCESS if the call may be forwarded; any other result is what the
 * program gets (access.h).
 *
 * `stream` is never 0: the entry point has replaced it by CU_STREAM_LEGACY or CU_STREAM_PER_THREAD.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/fill/access.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/order.h"
#include "runtime/plan/layout_sizes.h"

/* Allocates in the current context. The allocation is deferred if it is large enough and the device
 * can map memory; *address_out is then its address. */
bool ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out);

/* The same of a memory pool (NULL: of the current one), in a stream. Only plain pools are deferred
 * (memory/pool.h), and only if ms_pooled_is_wanted (pooled.h). */
bool ms_alloc_in_stream(size_t bytes, CUmemoryPool handle, CUstream stream,
                        CUdeviceptr *address_out, CUresult *result_out);

/* Frees the allocation that starts at address, after waiting for the device as cuMemFree does. The
 * thread needs no context: whether it may free is the driver's to say. */
bool ms_free(CUdeviceptr address, CUresult *result_out);

/* The same in the order of a valid stream: waits for nothing. The memory goes back when the stream
 * has got there. Returns false for a stream that is captured: the driver refuses it. */
bool ms_free_in_stream(CUdeviceptr address, CUstream stream, CUresult *result_out);

/* Other devices may reach the pool: its allocations are brought into memory, and later ones are the
 * driver's. ms_pool_access follows the driver's call for each of these devices. */
CUresult ms_pool_share(CUmemoryPool handle);
CUresult ms_pool_access(CUmemoryPool handle, CUdevice peer, bool enabled);

/*
 * A caching allocator has handed out, or taken back, a block: a part of an allocation. The first
 * block makes the allocation carved: its blocks are units of their own, and bytes in no block are
 * dead. Queued work may still use a block that was taken back. Does nothing if the shim owns no
 * allocation there.
 */
void ms_block_taken(CUdeviceptr address, size_t bytes);
void ms_block_returned(CUdeviceptr address);

/* A memset of `count` elements of `width` bytes (1, 2 or 4). */
bool ms_fill(CUdeviceptr address, uint32_t value, unsigned width, size_t count, CUstream stream,
             CUresult *result_out);

/* A copy from host memory. `blocking`: the source may be reused only once the data has arrived. */
bool ms_copy_from_host(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream,
                       bool blocking, CUresult *result_out);

/* A copy between device addresses, at least one of them in an allocation. If it is to be forwarded,
 * what it reads is held: ms_read_end (evict.h) must follow the real call. */
bool ms_copy_on_device(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream,
                       CUresult *result_out);

/*
 * Copies that are a part of a call; the driver does what is not recorded. ms_copy_part copies one
 * of a sequence of tensors that lie one behind the other (NULL: none). ms_copy_row copies one row
 * of many (copy_rows.h), which by itself is no tensor and no event.
 */
CUresult ms_copy_part(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                      const struct ms_sequence *sequence, CUstream stream);
CUresult ms_copy_row(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream);

/* A launch, with an explicit stream, is recorded, or what its parameters reach is materialised. */
bool ms_launch(const struct ms_call *call, CUresult *result_out);

/* Code of `library` (NULL: of some module) is about to be unloaded: recorded launches run now. */
CUresult ms_access_unload(CUlibrary library);

/*
 * The call will put host bytes into device memory, in the order of stream: what they point to is
 * materialised.
 */
CUresult ms_access_payload(const struct ms_rows *rows, CUstream stream);

/* The call will copy from memory that is no allocation, and that may not be read here: what the
 * host can write may hold any address. */
CUresult ms_access_unowned(CUdeviceptr source);

/* As ms_access_payload for a linear copy, and for a memset with a value of `width` bytes. */
CUresult ms_access_payload_linear(const void *source, size_t bytes, CUstream stream);
CUresult ms_access_payload_value(uint32_t value, unsigned width);

/*
 * True if [address, address + bytes) begins in an allocation, or in the reserved addresses around
 * one, and does not lie wholly in the allocation. Without the shim the driver would refuse it. With
 * the shim the driver knows the whole reservation, and memory up to the end of the last granule.
 */
bool ms_strays(CUdeviceptr address, size_t bytes);
bool ms_set_strays(CUdeviceptr address, size_t count, unsigned width);
bool ms_rows_stray(const struct ms_rows *rows); /* from the first byte to the last */

/* The driver has destroyed a context: everything in it ends. */
void ms_context_destroyed(CUcontext context);

/* The context belongs to a green context: nothing is deferred in it. */
void ms_add_green_context(CUcontext context);

/* Allows or forbids access from `peer` to allocations of `device`. */
CUresult ms_peer_access(CUdevice device, CUdevice peer, bool enabled);
