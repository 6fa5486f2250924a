/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving memory of a claimed allocation back. The device must be done with it, and nothing may have
 * begun to use it since it was waited for.
 */
#pragma once

#include "runtime/memory/space.h"

/* What to give back: the memory of blocks that were returned, except what others may use; or that
 * of all bytes that can be replayed, too. */
enum ms_give_back { MS_LEFTOVER, MS_RESTORABLE };

/* True if there may be such memory. */
bool ms_give_back_applies(const struct ms_allocation *allocation, enum ms_give_back what);

/* Returns how many bytes of memory that freed. */
size_t ms_give_back(struct ms_allocation *allocation, enum ms_give_back what);
