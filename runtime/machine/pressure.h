/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure: what to give back when device memory runs out. Cached bytes can be played again, and granules
 * with nothing present hold nothing; both can be unmapped, once no queued work uses them.
 */
#ifndef METASHARD_RUNTIME_MACHINE_PRESSURE_H
#define METASHARD_RUNTIME_MACHINE_PRESSURE_H

#include <stdbool.h>

#include "runtime/driver.h"

/*
 * True when `result` says that memory is out and another try is worth while: the device was waited for,
 * and what lineage can restore was unmapped. *attempts counts the tries and starts at 0; they end, because
 * what is given back may be what the try itself had taken. The caller holds no claim.
 */
bool ms_try_again(CUresult result, int *attempts);

/*
 * A bracket around the preparation of a read (ms_prepare_read opens it) and the call itself: between them
 * nothing is taken away. Both cheap.
 */
void ms_read_begin(void);
void ms_read_end(void);

#endif
