/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SIMC10_EXPORT __attribute__((visibility("default")))

struct c10_device {
    int8_t type, index; /* c10::DeviceType: 1 is CUDA */
};

/* c10::reportMemoryUsageToProfiler */
#define REPORT _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
SIMC10_EXPORT void REPORT(void *block, int64_t size, size_t allocated, size_t reserved,
                          struct c10_device device);

/* How often it was called, and the bytes of all live blocks. */
SIMC10_EXPORT void c10_told(int *calls_out, int64_t *bytes_out);
