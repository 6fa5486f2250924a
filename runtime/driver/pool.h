/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of stream-ordered memory, and their figures. An allocation that the shim makes in place of
 * a pool's memory counts in the pool: the driver's figure plus the shim's is what the driver would
 * report without the shim.
 *
 * Only a plain pool has such allocations: a device's default pool, or a pool of device memory made
 * without any property, that no other device may reach. All functions are thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

struct ms_pool;

/* The program has made a plain pool. */
void ms_pool_add(CUmemoryPool handle, CUdevice device);

/* The device's plain pool with that handle, or NULL. A pool lives until its last allocation is
 * gone. */
struct ms_pool *ms_pool_find(CUmemoryPool handle, CUdevice device);

/* Another device may reach the pool: from now on the driver serves it. */
void ms_pool_set_shared(CUmemoryPool handle);

/* Destroys a pool by `destroy`, the driver's function, and forgets it if that succeeds. */
CUresult ms_pool_destroy(CUmemoryPool handle, CUresult (*destroy)(CUmemoryPool handle));

CUmemoryPool ms_pool_handle(const struct ms_pool *pool); /* also of a destroyed pool */

/* An allocation of the pool was made, with so many bytes, or with a negative number is gone. */
void ms_pool_count(struct ms_pool *pool, int64_t change);

/* The driver is about to serve an allocation of the pool (NULL: the current pool), for which it
 * would use kept memory. Cheap if no pool keeps any. */
void ms_pool_use_kept(CUmemoryPool handle, size_t bytes);

/* Adds the shim's part to *value, the driver's figure for an attribute. */
void ms_pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *value);

/* The program has reset a high-water mark to the present value. */
void ms_pool_reset_high(CUmemoryPool handle, CUmemPool_attribute attribute);

/* The program trims the pool to `keep` bytes. Returns the driver's part of them. */
size_t ms_pool_trim(CUmemoryPool handle, size_t keep);

/* Bytes that the driver would keep in the device's pools for later allocations. */
uint64_t ms_pool_kept_bytes(CUdevice device);
