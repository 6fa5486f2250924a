/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads: bytes that a call puts into device memory, where kernels can read them. What addresses
 * in them point to is materialised before.
 *
 * Tracked host memory (host_memory.h) that a call on a busy stream will copy: earlier work may
 * still write it, and so may the program, if that work waits for it. So the bytes are looked at
 * when the stream gets there, by a host function in front of the copy. What they point to is then
 * materialised by a thread, for which the stream waits, and the program's call does not.
 *
 * ms_has_late_payloads (flags.h): a stream has not got to such a copy yet. What is freed or
 * overwritten in the order of a stream then may be what the bytes point to, and kernels that are
 * queued may read what it was.
 */
#pragma once

#include "runtime/calls/movement.h"

/* Of the bytes that a copy reads, or a set repeats: kernels can come to what they point to now. To
 * be called right before the copy is queued. Bytes of allocations point to nothing deferred. */
CUresult ms_payload_expose(const struct ms_movement *movement);

/* The same of device memory that is no allocation, and that may not be read here: what the host can
 * write may hold any address. */
CUresult ms_payload_expose_unowned(CUdeviceptr source);

/* The same for bytes of the host, which a replay will read. They are copied on the way, and so are
 * in the processor's caches; `to` NULL: not copied. */
CUresult ms_payload_copy(void *to, const void *bytes, size_t count);

/* For payload.c and its unit test: false if the bytes may hold a part of an address that could be
 * exposed. Takes no lock. */
bool ms_payload_is_clean(const void *bytes, size_t count);
