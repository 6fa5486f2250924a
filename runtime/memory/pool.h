/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of stream-ordered memory, and their figures. An allocation that the shim makes in the place
 * of a pool's memory counts there: the driver's attributes of the pool plus these sums are what the
 * driver would say without the shim.
 *
 * Only a plain pool has such allocations: a device's default pool, or one that was made without any
 * property, of the device's memory, and that no other device may reach. All functions are
 * thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

struct ms_pool;

/* The program has made a plain pool. */
void ms_pool_add(CUmemoryPool handle, CUdevice device);

/* The plain pool with that handle, of that device; else NULL. It lives until its last allocation is
 * gone. */
struct ms_pool *ms_pool_find(CUmemoryPool handle, CUdevice device);

/* Another device may reach the pool: from now on its memory is the driver's. */
void ms_pool_set_shared(CUmemoryPool handle);

/* Destroys a pool by `destroy`, the driver's function, and forgets it if that succeeds. */
CUresult ms_pool_destroy(CUmemoryPool handle, CUresult (*destroy)(CUmemoryPool handle));

CUmemoryPool ms_pool_handle(const struct ms_pool *pool); /* also of one that was destroyed */

/* An allocation of the pool was made, or is gone. */
void ms_pool_count(struct ms_pool *pool, size_t bytes);
void ms_pool_uncount(struct ms_pool *pool, size_t bytes);

/* The driver is about to serve an allocation of the pool (NULL: the current one), for which it
 * would use what is kept. Cheap if nothing is. */
void ms_pool_use_kept(CUmemoryPool handle, size_t bytes);

/* Adds the shim's part to what the driver says of an attribute. */
void ms_pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *value);

/* The program has set a high mark back to the present value. */
void ms_pool_reset_high(CUmemoryPool handle, CUmemPool_attribute attribute);

/* The pool is to be trimmed to so many bytes. Returns how many of them are the driver's. */
size_t ms_pool_trim(CUmemoryPool handle, size_t keep);

/* What the device's pools would keep for later allocations. */
uint64_t ms_pool_kept_bytes(CUdevice device);
