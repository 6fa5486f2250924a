/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: the shim records a launch, or materialises the blocks that its parameters reach. */
#pragma once

#include <stdbool.h>

#include "runtime/kernel/call.h"

/* Returns true if the launch, with an explicit stream (never 0), is answered: recorded, made as
 * copies, or refused. Returns false if it must be forwarded. */
bool ms_launch(const struct ms_call *call, CUresult *result_out);
