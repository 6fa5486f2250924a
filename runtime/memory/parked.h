/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parked memory: device memory that holds some of a block's granules one behind the other, until their
 * bytes are needed in their places: what was received only to be copied on (receive.h).
 *
 *     block   |   | A |   |   | B |   |   | C |   |      A, B, C: content of kind MS_PARKED
 *     parked memory   | A | B | C |
 *
 * By reference count; usable from any thread.
 */
#ifndef METASHARD_RUNTIME_MEMORY_PARKED_H
#define METASHARD_RUNTIME_MEMORY_PARKED_H

#include <stddef.h>

#include "runtime/driver/driver.h"

struct ms_backing;
struct ms_range;
struct ms_parked;

/*
 * Memory on a device for ranges of whole granules, one behind the other, with one reference. Each is
 * a chunk of the parked memory's backing, so that it can be lent (backing.h). Work of that context will write
 * it (ms_parked_attach_event).
 */
CUresult ms_parked_create(CUcontext context, CUdevice device, const struct ms_range *ranges,
                          size_t count, struct ms_parked **parked_out);
const struct ms_backing *ms_parked_backing(const struct ms_parked *parked);

/* With the last reference the memory goes, after waiting for the work. */
void ms_parked_drop(struct ms_parked *parked);

CUdeviceptr ms_parked_address(const struct ms_parked *parked);
CUdevice ms_parked_device(const struct ms_parked *parked);

/* The work is queued: the event, which the parked memory owns from now on, tells when it is done. */
void ms_parked_attach_event(struct ms_parked *parked, CUevent event);

/* Waits until the bytes are there. Fails while the work is not queued. */
CUresult ms_parked_wait(struct ms_parked *parked);

#endif
