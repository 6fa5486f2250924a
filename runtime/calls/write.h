/* SPDX-License-Identifier: Apache-2.0 */
/* Sets, and copies from host memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/calls/movement.h"
#include "runtime/memory/space.h"

/* Write one row. Return true if the call is answered: recorded, done, or refused. Return false if
 * the driver has to write: the destination then has memory. */
bool ms_write_set(const struct ms_movement *movement, CUresult *result_out);
bool ms_write_from_host(const struct ms_movement *movement, CUresult *result_out);

/* Materialises the block at an offset of a claimed allocation if the block was written in very many
 * small parts, before its lineage costs more than its bytes. To be called before something is
 * recorded there. */
CUresult ms_write_bound(struct ms_allocation *allocation, size_t offset);

/* Backs a range that the call overwrites on that stream. Replays the old content if the driver may
 * refuse the call: the stream is destroyed, the thread has no context, or a capture forbids it. */
CUresult ms_write_prepare(struct ms_allocation *allocation, size_t begin, size_t end,
                          CUstream stream);
