/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that the program has freed, and whose memory queued work may still use. Those freed
 * in the order of a stream keep it until that work is done: an event follows it. Those freed during
 * a stream capture keep it until no stream is captured, because waiting for the context would end
 * the capture.
 */
#pragma once

#include "runtime/memory/space.h"

/* Takes over an allocation that is in no index, to free it later: when the event is complete, which
 * it takes over, too; or without one (NULL) when the context was waited for. NULL: its own. */
void ms_delayed_free_add(struct ms_allocation *allocation, CUevent freed, CUcontext freed_in);

/*
 * Destroys what events show to be done, not during a capture. Asks for a few only, if many are not.
 * If patient, waits a moment when it is more memory than METASHARD_LEFTOVER_BYTES. The caller holds
 * no claim.
 */
void ms_delayed_free_pass(bool patient);

/* True for an address that the program has freed, and the driver still knows. */
bool ms_delayed_free_holds(CUdeviceptr address);

/* Bytes of the device that are freed in the order of a stream, when the stream gets there. */
uint64_t ms_delayed_free_bytes(CUdevice device);

/*
 * Waits for the context, or, with NULL, for all, and destroys what its work may use; not during a
 * capture. For calls that wait for it anyway: others must not wait where the driver does not. True
 * when any was.
 */
bool ms_delayed_free_run(CUcontext context);

/* The context was destroyed, and its work with it. */
void ms_delayed_free_forget(CUcontext context);
