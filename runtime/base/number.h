/* SPDX-License-Identifier: Apache-2.0 */
/* The smaller of two numbers, and whole units. */
#pragma once

#include <stdint.h>

static inline uint64_t ms_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t ms_round_down(uint64_t value, uint64_t unit)
{
    return value / unit * unit;
}

static inline uint64_t ms_round_up(uint64_t value, uint64_t unit)
{
    return ms_round_down(value + unit - 1, unit);
}
