/* SPDX-License-Identifier: Apache-2.0 */
/* Answers the driver's queries about allocations as for memory from cuMemAlloc, except where the
 * memory really differs (it cannot have SYNC_MEMOPS). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

/* cuMemGetAddressRange; either output may be NULL. Returns false if the address is in no
 * allocation. *result_out is an error if the driver refuses the thread. */
bool ms_query_address_range(CUdeviceptr address, CUdeviceptr *base_out, size_t *bytes_out,
                            CUresult *result_out);

/* One attribute. Returns false if the address is in no allocation, or only the driver can answer
 * (the address is then materialised, or *result_out has the error). */
bool ms_query_pointer_attribute(void *value_out, CUpointer_attribute attribute, CUdeviceptr address,
                                CUresult *result_out);

/* Turns the driver's free bytes of the current device into the number that cuMemGetInfo reports:
 * deferred bytes count as used. An error leaves the number unchanged. */
CUresult ms_query_free_memory(size_t *free_bytes);
