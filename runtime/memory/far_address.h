/* SPDX-License-Identifier: Apache-2.0 */
/* Which words can be addresses of the shim's reservations (addresses.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A pair of 32-bit integers (sizes, strides, counts) whose upper integer is below 256 is no far
 * address. A far word counts as an address at any offset; other words only where a pointer can
 * lie. */
#define MS_FAR_ADDRESS (UINT64_C(1) << 40)
static inline bool ms_address_is_far(uint64_t word)
{
    return word >= MS_FAR_ADDRESS;
}
