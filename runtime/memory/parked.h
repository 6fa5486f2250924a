/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parked bytes: device memory that holds some granules of a block side by side until they are
 * needed at their own addresses. It takes what is received only to be copied on (receive.h).
 *
 *     block    |   | A |   |   | B |   |   | C |   |      A, B, C: content of kind MS_PARKED
 *     parked   | A | B | C |
 *
 * By reference count; usable from any thread.
 */
#pragma once

#include <stddef.h>

#include "runtime/driver/driver.h"

struct ms_backing;
struct ms_range;
struct ms_parked;

/*
 * Device memory for ranges of whole granules, one behind the other, with one reference. Each range
 * is a chunk of the backing, so that it can be lent (backing.h). Work of `context` will write it
 * (ms_parked_attach_event).
 */
CUresult ms_parked_create(CUcontext context, CUdevice device, const struct ms_range *ranges,
                          size_t count, struct ms_parked **parked_out);
const struct ms_backing *ms_parked_backing(const struct ms_parked *parked);

/* Drops a reference. The last one waits for the work, then frees the memory. May be NULL. */
void ms_parked_drop(struct ms_parked *parked);

CUdeviceptr ms_parked_address(const struct ms_parked *parked);
CUdevice ms_parked_device(const struct ms_parked *parked);

/* The work is queued, followed by `event`, which the parked bytes own from now on. */
void ms_parked_attach_event(struct ms_parked *parked, CUevent event);

/* Waits until the bytes are written. Fails if the work is not queued yet. */
CUresult ms_parked_wait(struct ms_parked *parked);
