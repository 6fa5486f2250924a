/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What METASHARD_EXPLAIN prints at the end: one line for each reason, however many kernels, tensors
 * and ranks it adds up. The last rank of a run that ends on this machine prints it for all of them.
 */
#pragma once

#include <stdbool.h>

/* Ends the state page, and prints. Returns false if another rank is to print, which still runs. */
bool ms_explanation_end(void);
