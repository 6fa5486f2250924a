/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that look random and depend on their place alone, so that a byte in a wrong place shows. */
#pragma once

#include "tools/simcuda/harness/range_access.h"

/* The bytes of the places from `first` on; other shifts give other bytes. */
RANGE_ACCESS static inline void scramble(unsigned char *bytes, size_t count, size_t first,
                                         unsigned shift)
{
    range_write(bytes, count);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)((first + i) * 2654435761U >> shift);
}
