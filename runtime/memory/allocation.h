/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an allocation, and what is true of it as a whole. */
#pragma once

#include "runtime/memory/space.h"

/*
 * Makes an allocation, adds it to the index, unclaimed, and publishes it. NULL if it cannot be. The
 * first one has addresses of its own, and nothing in it was ever written. The second one lies at
 * addresses that the program has reserved, where nothing is mapped.
 */
struct ms_allocation *ms_allocation_reserve(CUcontext context, CUdevice device, size_t bytes,
                                            struct ms_pool *pool, bool is_transient);
struct ms_allocation *ms_allocation_adopt(CUcontext context, CUdevice device, CUdeviceptr address,
                                          size_t bytes);

/* Frees an allocation that is in no index, with its memory. No queued work may use it. */
void ms_allocation_destroy(struct ms_allocation *allocation);

/* Work that is queued later may use its memory, or its blocks have changed: who has waited for the
 * device before must wait again. The number of times that this happened. */
void ms_allocation_touch(struct ms_allocation *allocation);
uint32_t ms_allocation_touches(const struct ms_allocation *allocation);

/* A captured graph or an exported handle may use its memory, whatever the program returns. */
void ms_allocation_keep_dead(struct ms_allocation *allocation);
bool ms_allocation_keeps_dead(const struct ms_allocation *allocation);

/* Bytes of it were resident, and can be replayed now (restore.h); true if so, since the last time
 * that it was asked. */
void ms_allocation_set_restored(struct ms_allocation *allocation);
bool ms_allocation_take_restored(struct ms_allocation *allocation);

/*
 * Its shadow: memory beside it, as large as it is (fill/shadow.h). The address, or 0 if there is
 * none; memory for the granules of [begin, end), which may fail; and none for those that lie there.
 * The last one frees all of it, so that no byte has a shadow, and returns how many bytes that had.
 */
CUdeviceptr ms_allocation_shadow(const struct ms_allocation *allocation);
bool ms_allocation_cover_shadow(struct ms_allocation *allocation, size_t begin, size_t end);
void ms_allocation_uncover_shadow(struct ms_allocation *allocation, size_t begin, size_t end);
size_t ms_allocation_give_up_shadow(struct ms_allocation *allocation);
