/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure: what to give back when device memory runs out. Cached bytes can be replayed again, and granules
 * with nothing present hold nothing; both can be unmapped, once no queued work uses them.
 */
#ifndef METASHARD_RUNTIME_FILL_EVICT_H
#define METASHARD_RUNTIME_FILL_EVICT_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/fill/materialise.h"

/*
 * True when `result` says that memory is out and another try is worth while: the device was waited for,
 * and what lineage can restore was unmapped. *attempts counts the tries and starts at 0; they end, because
 * what is given back may be what the try itself had taken. The caller holds no claim.
 */
bool ms_try_again(CUresult result, int *attempts);

/* The same, for bytes that a call needs and the program has not asked memory for now: a failure is told. */
bool ms_try_bytes_again(CUresult result, int *attempts);

/*
 * Calls evict for every allocation of which something is in memory and not needed there for ever, claimed,
 * after the device was waited for: what it held then is not in use. Allocations that are busy are left
 * out; none is taken while a stream is being captured. Returns the sum of the bytes that evict gives back.
 */
struct ms_allocation;
typedef size_t ms_evictor(struct ms_allocation *allocation);
size_t ms_pressure_evict(ms_evictor *evict);

/*
 * For a block that was handed out without memory, before there is work for it: gives back what blocks left behind that
 * were returned (METASHARD_LEFTOVER_BYTES), if the device is done with it within a moment. The caller holds no claim.
 */
void ms_pressure_trim(void);

/* The same for the allocation at address alone, however little it is. */
void ms_pressure_trim_one(CUdeviceptr address);

/*
 * A bracket around the preparation of a read (ms_access opens it for what becomes cached) and the
 * call itself: between them nothing is taken away. Both cheap.
 */
void ms_read_begin(void);
void ms_read_end(void);

/* The need that applies to the allocation when the call is queued in stream: need itself, or its
 * `elsewhere` in needs.def. */
enum ms_need ms_need_in(const struct ms_allocation *allocation, enum ms_need need, CUstream stream);

#endif
