/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads: bytes that a call puts into device memory, where kernels can read them. The shim first
 * materialises the blocks that addresses in these bytes point to.
 *
 * If a call on a busy stream will copy tracked host memory (host_memory.h), earlier work may still
 * write that memory, and so may the program, if such work waits for it. So a host function in front
 * of the copy looks at the bytes when the stream gets there. A thread then materialises the blocks
 * that they point to. The stream waits for the thread; the program's call does not.
 *
 * ms_has_late_payloads (flags.h): a stream has not got to such a copy yet. The bytes may point to
 * memory that is freed or overwritten now in the order of a stream, and queued kernels may read its
 * old content.
 */
#pragma once

#include "runtime/calls/movement.h"

/* Materialises the blocks that the bytes of a copy, or the value of a set, point to. To be called
 * right before the copy is queued. Bytes of allocations point to nothing deferred. */
CUresult ms_payload_expose(const struct ms_movement *movement);

/* The same for a source in device memory outside all allocations, which must not be read here:
 * memory that the host can write may hold any address. */
CUresult ms_payload_expose_unowned(CUdeviceptr source);

/* The same for host bytes that a replay will read. Copies them to `to` (unless NULL) on the way,
 * while they are in the processor's caches. */
CUresult ms_payload_copy(void *to, const void *bytes, size_t count);

/* For payload.c and its unit test: false if the bytes may hold a part of an address that could be
 * exposed. Takes no lock. */
bool ms_payload_is_clean(const void *bytes, size_t count);
