/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: a launch is recorded, or what its parameters reach is materialised. */
#pragma once

#include <stdbool.h>

#include "runtime/kernel/call.h"

/* Returns true if the launch, with an explicit stream (never 0), is answered: recorded, or refused.
 * Returns false if it must be forwarded. */
bool ms_launch(const struct ms_call *call, CUresult *result_out);
