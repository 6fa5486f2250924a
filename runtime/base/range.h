/* SPDX-License-Identifier: Apache-2.0 */
/* A half-open range: of bytes of a tensor, a file, an allocation; or of indices. */
#pragma once

#include <stdint.h>

struct ms_range {
    uint64_t begin, end;
};
