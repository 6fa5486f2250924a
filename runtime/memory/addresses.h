/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where reservations lie, and which words can be addresses.
 *
 * Drivers on Linux reserve from 0x302000000 on (docs/design.md), where a pair of small integers is
 * an address. So the shim asks for addresses that are far from such numbers. A driver may give
 * others.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

/* A pair of 32-bit integers (sizes, strides, counts) whose upper one is below 256 is not a far
 * address. A far word counts as an address at any offset; other words only where a pointer can
 * lie. */
#define MS_FAR_ADDRESS (UINT64_C(1) << 40)
static inline bool ms_address_is_far(uint64_t word)
{
    return word >= MS_FAR_ADDRESS;
}

/* As cuMemAddressReserve with an alignment of granule; far addresses if the driver honours the
 * hint. */
CUresult ms_addresses_reserve(CUdeviceptr *address_out, size_t bytes, size_t granule);

/* The same for a program that leaves the address to the driver. */
CUresult ms_addresses_reserve_for_program(CUdeviceptr *address_out, size_t bytes, size_t alignment);

/* True if address is one of those that are asked for. */
bool ms_address_is_wanted(CUdeviceptr address);
