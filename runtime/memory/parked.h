/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores: device memory that holds some of a block's granules one behind the other, until their
 * bytes are needed in their places: what was received only to be copied on (receive.h).
 *
 *     block   |   | A |   |   | B |   |   | C |   |      A, B, C: content of kind MS_STORED
 *     store   | A | B | C |
 *
 * By reference count; usable from any thread.
 */
#ifndef METASHARD_RUNTIME_MEMORY_PARKED_H
#define METASHARD_RUNTIME_MEMORY_PARKED_H

#include <stddef.h>

#include "runtime/driver/driver.h"

struct ms_backing;
struct ms_range;
struct ms_store;

/*
 * Memory on a device for ranges of whole granules, one behind the other, with one reference. Each is
 * a chunk of the store's backing, so that it can be lent (backing.h). Work of that context will write
 * it (ms_store_queued).
 */
CUresult ms_store_create(CUcontext context, CUdevice device, const struct ms_range *ranges,
                         size_t count, struct ms_store **store_out);
const struct ms_backing *ms_store_backing(const struct ms_store *store);

/* With the last reference the memory goes, after waiting for the work. */
void ms_store_drop(struct ms_store *store);

CUdeviceptr ms_store_address(const struct ms_store *store);
CUdevice ms_store_device(const struct ms_store *store);

/* The work is queued: the event, which the store owns from now on, tells when it is done. */
void ms_store_queued(struct ms_store *store, CUevent event);

/* Waits until the bytes are there. Fails while the work is not queued. */
CUresult ms_store_wait(struct ms_store *store);

#endif
