/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target begins with. For one file of a target. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The fuzzer tells of a process that aborts, and keeps its input. */
static inline void require(bool condition)
{
    if (!condition)
        abort();
}
