/* SPDX-License-Identifier: Apache-2.0 */
/* What a pointer of the program leads to: an allocation, or other memory as the driver knows it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

bool ms_pointer_is_owned(CUdeviceptr address);

/* What the driver says that an address is. */
enum {
    MS_ON_DEVICE = 1,
    MS_PINNED = 2,
    MS_UNKNOWN_TO_DRIVER = 4, /* the driver can answer, and does not know it */
    MS_MANAGED = 8,
};

/* True if it is one of these kinds. False if the driver cannot answer. */
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
 * one, and does not lie wholly in the allocation. Without the shim the driver would refuse it. With
 * the shim the driver knows the whole reservation, and memory up to the end of the last granule.
 */
bool ms_pointer_strays(CUdeviceptr address, size_t bytes);
