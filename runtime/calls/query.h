/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver's query functions say about blocks: as for memory of cuMemAlloc, except where
 * the memory behind a block really is different (it cannot be shared by cuIpcGetMemHandle).
 */
#ifndef METASHARD_RUNTIME_CALLS_QUERY_H
#define METASHARD_RUNTIME_CALLS_QUERY_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

/* cuMemGetAddressRange; either output may be NULL. False: not ours, or the driver refuses the thread. */
bool ms_address_range(CUdeviceptr address, CUdeviceptr *base_out, size_t *bytes_out);

/*
 * One attribute. False: not ours, or only the driver can say (then address is materialised, or
 * *result_out tells why not).
 */
bool ms_pointer_attribute(void *value_out, CUpointer_attribute attribute, CUdeviceptr address,
                          CUresult *result_out);

/* What cuMemGetInfo reports as free on the current device: deferred bytes count as used. */
size_t ms_free_memory(size_t free_bytes);

bool ms_is_owned(CUdeviceptr address);

/* True for device memory that is not a block, as the driver knows it. */
bool ms_is_device_memory(CUdeviceptr address);

/* True when the driver knows one piece of memory, of that device, that holds all of the range. Not for blocks. */
bool ms_is_whole(CUdeviceptr address, size_t bytes, CUdevice device);

/* True for memory that this process can read: pinned, or unknown to the driver. False also when the
 * driver cannot say. */
bool ms_is_host_memory(CUdeviceptr address);

/* True for host memory that the driver knows. */
bool ms_is_pinned_memory(CUdeviceptr address);

/* True for managed memory, as the driver knows it. */
bool ms_is_managed(CUdeviceptr address);

/* True for either. */
bool ms_host_can_write(CUdeviceptr address);

/* True when [address, address + bytes) meets a block. */
bool ms_meets_allocation(CUdeviceptr address, size_t bytes);

#endif
