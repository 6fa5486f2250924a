/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that the program has freed, and whose memory queued work may still use. An allocation
 * freed in the order of a stream keeps its memory until an event behind that work is complete. An
 * allocation freed during a stream capture keeps its memory until no stream is captured, because
 * waiting for the context would end the capture.
 */
#pragma once

#include "runtime/memory/space.h"

/* Takes over an allocation that is in no index, and frees it later: when the event `freed`, which
 * it takes over too, is complete; or without an event (NULL) when the shim has waited for the
 * context `freed_in` (NULL: the allocation's own). */
void ms_delayed_free_add(struct ms_allocation *allocation, CUevent freed, CUcontext freed_in);

/*
 * Destroys the allocations whose events are complete, except during a capture. Stops asking after a
 * few events that are not. Waits a moment, if patient, when allocations with events hold more
 * memory than METASHARD_DEAD_BYTES. The caller holds no claim.
 */
void ms_delayed_free_pass(bool patient);

/* True for an address in an allocation that the program has freed and that still exists. */
bool ms_delayed_free_holds(CUdeviceptr address);

/* Bytes of the device that will be free when streams reach the frees queued in them. */
uint64_t ms_delayed_free_bytes(CUdevice device);

/*
 * Waits for the context, or, with NULL, for all contexts, and destroys the allocations that their
 * work may use; does nothing during a capture. For calls that wait for the context anyway: others
 * must not wait where the driver does not. True when any allocation was destroyed.
 */
bool ms_delayed_free_run(CUcontext context);

/* The driver has destroyed the context, and its work with it. */
void ms_delayed_free_forget(CUcontext context);
