/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that the program freed during a stream capture. Queued work may still use their
 * memory, and waiting for the context would end the capture. So they keep it until no stream is
 * captured.
 */
#pragma once

#include "runtime/memory/allocations.h"

/* Frees an allocation that is in no index, with its memory. No queued work may use it. */
void ms_allocation_destroy(struct ms_allocation *allocation);

/* Takes over an allocation that is in no index, to free it later. */
void ms_delay_free(struct ms_allocation *allocation);

/*
 * Waits for the context, or, with NULL, for all, and destroys what is delayed there; not during a
 * capture. For calls that wait for it anyway: others must not wait where the driver does not. True
 * when any was.
 */
bool ms_free_delayed(CUcontext context);

/* The context was destroyed, and its work with it. */
void ms_delayed_free_forget(CUcontext context);
