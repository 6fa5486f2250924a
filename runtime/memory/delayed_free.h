/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that were freed while a stream was captured. Work that is queued may still use their memory, and waiting for
 * the context would end the capture; so they keep it until no stream is captured.
 */
#ifndef METASHARD_RUNTIME_MEMORY_DELAYED_FREE_H
#define METASHARD_RUNTIME_MEMORY_DELAYED_FREE_H

#include "runtime/memory/allocations.h"

/* Gives back the memory of an allocation that is in no index, and the allocation. Nothing that is queued uses it. */
void ms_allocation_destroy(struct ms_allocation *allocation);

/* Takes an allocation that is in no index. */
void ms_delay_free(struct ms_allocation *allocation);

/*
 * Waits for the context, or, with NULL, for all, and destroys what is buried there; not during a capture. For calls that wait for
 * it anyway: others must not wait where the driver does not. True when any was.
 */
bool ms_free_delayed(CUcontext context);

/* The context is gone, and its work. */
void ms_delayed_free_forget(CUcontext context);

#endif
