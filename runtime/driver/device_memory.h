/* SPDX-License-Identifier: Apache-2.0 */
/* The device memory that the shim makes: what its handles are like, and its granules. */
#pragma once

#include <stddef.h>

#include "runtime/driver/driver.h"

/* The properties of the handles that the shim creates on the device. */
CUmemAllocationProp ms_device_memory_properties(CUdevice device);

/* `bytes`, rounded up to whole granules. */
size_t ms_device_memory_rounded(CUdevice device, size_t bytes);
