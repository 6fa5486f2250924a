/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where reservations lie.
 *
 * Drivers on Linux reserve from 0x302000000 on (docs/design/memory.md), where a pair of small
 * integers is an address. So the shim asks for addresses that are far from such numbers. A driver
 * may give others.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

/* As cuMemAddressReserve, for the shim, or for a program that leaves the address to the driver.
 * Gets far addresses if the driver honours the hint. */
CUresult ms_addresses_reserve(CUdeviceptr *address_out, size_t bytes, size_t alignment,
                              bool for_program);

/* Reserves addresses for `bytes` bytes on device, with a guard granule on either side. Nothing is
 * backed. */
CUresult ms_addresses_reserve_backing(struct ms_backing *backing, CUdevice device, size_t bytes);
