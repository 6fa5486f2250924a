/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pointer of the program leads: to an allocation, or to memory that the driver knows. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

bool ms_pointer_is_owned(CUdeviceptr address);

/* Kinds of memory that the driver reports for an address. */
enum {
    MS_ON_DEVICE = 1,
    MS_PINNED = 2,
    MS_UNKNOWN_TO_DRIVER = 4, /* the driver answers that it does not know the address */
    MS_MANAGED = 8,
};

/* True if the address is of one of these kinds. False if the driver cannot answer. */
bool ms_pointer_is(CUdeviceptr address, unsigned kinds);

/* True for device memory that is in no allocation. */
static inline bool ms_pointer_is_device(CUdeviceptr address)
{
    return ms_pointer_is(address, MS_ON_DEVICE);
}

/* True for memory that this process can read. */
static inline bool ms_pointer_is_host(CUdeviceptr address)
{
    return ms_pointer_is(address, MS_PINNED | MS_UNKNOWN_TO_DRIVER);
}

/*
 * True if [address, address + bytes) begins in an allocation, or in the reserved addresses around
 * one, and does not lie wholly in the allocation. Without the shim the driver would refuse such a
 * range. With the shim the driver knows the whole reservation, and memory up to the end of the last
 * granule.
 */
bool ms_pointer_strays(CUdeviceptr address, size_t bytes);
