/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where reservations lie, and which words can be addresses at all.
 *
 * Drivers on Linux hand out reservations from 0x302000000 on (docs/design.md), where a pair of small integers is an
 * address. So reservations are made at addresses of the shim's own choice, which are far from such numbers; a driver
 * may still give others.
 */
#ifndef METASHARD_RUNTIME_MEMORY_ADDRESSES_H
#define METASHARD_RUNTIME_MEMORY_ADDRESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

/* Two integers of 32 bits, of which the upper one is below 256, are no far address: sizes, strides, counts. A far word
 * is taken for an address wherever it begins; another one only where a pointer can lie. */
#define MS_FAR_ADDRESS (UINT64_C(1) << 40)
static inline bool ms_address_is_far(uint64_t word)
{
    return word >= MS_FAR_ADDRESS;
}

/* Reserves addresses, far ones if the driver honours a wish. As cuMemAddressReserve; granule is the alignment. */
CUresult ms_addresses_reserve(CUdeviceptr *address_out, size_t bytes, size_t granule);

#endif
