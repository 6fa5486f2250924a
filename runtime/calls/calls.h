/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine: what the shim does with the calls that concern device memory. One function per kind
 * of event; called by the shim's entry points, on the program's thread, before the real call.
 *
 * Two shapes. "bool ms_x(..., result_out)": true means that the call is answered and *result_out is
 * what the program gets; false means that the call is none of the shim's business (any more) and
 * must be forwarded as it is. "CUresult ms_access_x": CUDA_SUCCESS means that the call may be
 * forwarded, anything else is to be returned instead (access.h).
 *
 * `stream` is never 0: the entry point has replaced it by CU_STREAM_LEGACY or
 * CU_STREAM_PER_THREAD.
 */
#ifndef METASHARD_RUNTIME_CALLS_CALLS_H
#define METASHARD_RUNTIME_CALLS_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/fill/access.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/order.h"
#include "runtime/plan/tensor_run.h"

/* An allocation in the current context. Deferred when it is large enough and the device can map
 * memory; *address_out is then the address of the allocation. */
bool ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out);

/* Frees the allocation that starts at address, after waiting for the device as cuMemFree does. For the driver too where the
 * thread has no context. */
bool ms_free(CUdeviceptr address, CUresult *result_out);

/*
 * A caching allocator has handed out, or taken back, part of an allocation: a block. From the first of them
 * on, the allocation is carved: its blocks are units of their own, and what lies in none is dead. Work
 * that is queued may still use a block that was taken back. Nothing happens when the address is in no
 * allocation of ours.
 */
void ms_block_taken(CUdeviceptr address, size_t bytes);
void ms_block_returned(CUdeviceptr address);

/* A memset of `count` elements of `width` bytes (1, 2 or 4). */
bool ms_fill(CUdeviceptr address, uint32_t value, unsigned width, size_t count, CUstream stream,
             CUresult *result_out);

/* A copy from host memory; blocking says that the source may be reused only after the data is on
 * the device. */
bool ms_copy_from_host(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream,
                       bool blocking, CUresult *result_out);

/*
 * A copy between device addresses; at least one of them lies in an allocation. When it is to be forwarded, what it reads is held:
 * ms_read_end (evict.h) must follow when the call has been made.
 */
bool ms_copy_on_device(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream,
                       CUresult *result_out);

/*
 * Copies that are a part of a call; what the machine does not record the driver does. Of one of a sequence of tensors that
 * are put one behind the other (NULL: of none); and of one row of many (copy_rows.h), which is no tensor by itself and no event.
 */
CUresult ms_copy_part(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                      const struct ms_sequence *sequence, CUstream stream);
CUresult ms_copy_row(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream);

/* A launch, which is recorded, or what its parameters reach is materialised. `call` has the stream by
 * its true name. */
bool ms_launch(const struct ms_call *call, CUresult *result_out);

/* Code of `library` (NULL: of some module) is about to be unloaded: recorded launches run now. */
CUresult ms_access_unload(CUlibrary library);

/*
 * The call will put host bytes into device memory, in the order of stream: what they point to is
 * materialised. The bytes are a box of rows.
 */
struct ms_box {
    const unsigned char *begin; /* of the first row */
    size_t width, height, depth;
    size_t pitch, slice; /* bytes from row to row, and from plane to plane */
};
CUresult ms_access_payload(const struct ms_box *box, CUstream stream);

/* The call will copy from memory that is no allocation, and that may not be read here: what the host can write
 * may hold any address. */
CUresult ms_access_unowned(CUdeviceptr source);

/* As ms_access_payload for a linear copy, and for a memset with a value of `width` bytes. */
CUresult ms_access_payload_linear(const void *source, size_t bytes, CUstream stream);
CUresult ms_access_payload_value(uint32_t value, unsigned width);

/*
 * [address, address + bytes) begins in an allocation, or in the addresses around one that are nobody's, and is not all
 * in the allocation. The driver would refuse it. Now it knows the whole reservation instead, and the last granule
 * is in memory to its end.
 */
bool ms_strays(CUdeviceptr address, size_t bytes);
bool ms_set_strays(CUdeviceptr address, size_t count, unsigned width);
bool ms_rows_stray(const struct ms_rows *rows); /* from the first byte to the last */

/* Everything of a context is gone (the driver has destroyed it). */
void ms_context_destroyed(CUcontext context);

/* The context belongs to a green context: nothing is deferred in it. */
void ms_add_green_context(CUcontext context);

/* Blocks of device may be reached from peer, or no longer. */
CUresult ms_peer_access(CUdevice device, CUdevice peer, bool enabled);

#endif
