/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Granules with memory of which a part is not filled yet. A copy has written the rest, and the next
 * one mostly writes this part as well: what is brought in between them is sent in vain. Nothing
 * comes there unseen meanwhile: when the first granule is noted, no kernel of the program is
 * queued, and a launch that is not recorded fills them first (ms_access_unfilled).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

enum { MS_MAX_UNFILLED = 64 };

/* Notes a granule of a claimed allocation of that context. Returns false if it must be filled now:
 * queued work may come there, or there are too many. May wait a moment for work (order.h). */
bool ms_unfilled_add(CUdeviceptr granule, CUcontext context);

/* What begins in [begin, end) is filled now, or is gone. */
void ms_unfilled_remove(CUdeviceptr begin, CUdeviceptr end);

/* Lists all of them, and returns how many there are. */
size_t ms_unfilled_list(CUdeviceptr granules_out[MS_MAX_UNFILLED]);
