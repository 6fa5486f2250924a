/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver's query functions return for allocations: the same as for memory from cuMemAlloc,
 * except where the memory really differs (cuIpcGetMemHandle cannot share it).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

/* cuMemGetAddressRange; either output may be NULL. Returns false if the address is in no
 * allocation. *result_out is an error if the driver refuses the thread. */
bool ms_address_range(CUdeviceptr address, CUdeviceptr *base_out, size_t *bytes_out,
                      CUresult *result_out);

/* One attribute. Returns false if the address is in no allocation, or only the driver can answer
 * (the address is then materialised, or *result_out has the error). */
bool ms_pointer_attribute(void *value_out, CUpointer_attribute attribute, CUdeviceptr address,
                          CUresult *result_out);

/* From the driver's free bytes of the current device to what cuMemGetInfo reports: deferred bytes
 * count as used. An error leaves them. */
CUresult ms_free_memory(size_t *free_bytes);

bool ms_is_owned(CUdeviceptr address);

/* True for device memory that is in no allocation, as the driver knows it. */
bool ms_is_device_memory(CUdeviceptr address);

/* True if one piece of that device's memory holds the range for the driver. Not for allocations. */
bool ms_is_whole(CUdeviceptr address, size_t bytes, CUdevice device);

/* True for memory that this process can read: pinned, or unknown to a driver that can answer. */
bool ms_is_host_memory(CUdeviceptr address);

/* True for host memory that the driver knows. */
bool ms_is_pinned_memory(CUdeviceptr address);

/* True for managed memory, as the driver knows it. */
bool ms_is_managed(CUdeviceptr address);

/* True for pinned or managed memory. */
bool ms_host_can_write(CUdeviceptr address);

/* True if [address, address + bytes) meets an allocation. */
bool ms_meets_allocation(CUdeviceptr address, size_t bytes);
