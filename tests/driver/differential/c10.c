/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for PyTorch's libc10.so: the function that its caching allocator reports blocks with
 * (c10/core/Allocator.cpp), which keeps what it was told.
 */
#include "tests/driver/differential/c10.h"

static int64_t bytes;
static int calls;

SIMC10_EXPORT void REPORT(void *block, int64_t size, size_t allocated, size_t reserved,
                          struct c10_device device)
{
    bytes += block != NULL && device.type == 1 && device.index == 0 ? size : 0;
    calls += allocated <= reserved;
}

SIMC10_EXPORT void c10_told(int *calls_out, int64_t *bytes_out)
{
    *calls_out = calls;
    *bytes_out = bytes;
}
