/* SPDX-License-Identifier: Apache-2.0 */
/* What a pointer of the program leads to: an allocation, or other memory as the driver knows it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/strided_copy.h"
#include "runtime/driver/driver.h"

bool ms_pointer_is_owned(CUdeviceptr address);

/* True for device memory that is in no allocation, as the driver knows it. */
bool ms_pointer_is_device(CUdeviceptr address);

/* True if one piece of that device's memory holds the range for the driver. Not for allocations. */
bool ms_pointer_is_whole(CUdeviceptr address, size_t bytes, CUdevice device);

/* True for memory that this process can read: pinned, or unknown to a driver that can answer. */
bool ms_pointer_is_host(CUdeviceptr address);

/* True for host memory that the driver knows. */
bool ms_pointer_is_pinned(CUdeviceptr address);

/* True for managed memory, as the driver knows it. */
bool ms_pointer_is_managed(CUdeviceptr address);

/* True for pinned or managed memory. */
bool ms_pointer_is_host_writable(CUdeviceptr address);

/* True if [address, address + bytes) meets an allocation. */
bool ms_pointer_meets_allocation(CUdeviceptr address, size_t bytes);

/*
 * True if [address, address + bytes) begins in an allocation, or in the reserved addresses around
 * one, and does not lie wholly in the allocation. Without the shim the driver would refuse it. With
 * the shim the driver knows the whole reservation, and memory up to the end of the last granule.
 */
bool ms_pointer_strays(CUdeviceptr address, size_t bytes);
bool ms_pointer_rows_stray(const struct ms_rows *rows); /* from the first byte to the last */
