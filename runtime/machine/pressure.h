/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure: what to give back when device memory runs out. Cached bytes can be played again, and granules
 * with nothing present hold nothing; both can be unmapped, once no queued work uses them.
 */
#ifndef METASHARD_RUNTIME_MACHINE_PRESSURE_H
#define METASHARD_RUNTIME_MACHINE_PRESSURE_H

#include <stdbool.h>

/*
 * Waits for the device and unmaps what lineage can restore. True when some memory was given back, and
 * the call that failed is worth another try. The caller holds no claim.
 */
bool ms_relieve(void);

/*
 * A bracket around the preparation of a read (ms_prepare_read opens it) and the call itself: between them
 * nothing is taken away. Both cheap.
 */
void ms_read_begin(void);
void ms_read_end(void);

#endif
