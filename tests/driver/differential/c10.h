/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
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

/* c10::GetAllocator: a request for memory calls its third function, which passes its arguments to
 * `told`. `told` does not return: PyTorch throws an exception. */
#define GET_ALLOCATOR _ZN3c1012GetAllocatorERKNS_10DeviceTypeE
SIMC10_EXPORT void *GET_ALLOCATOR(const int8_t *type);
SIMC10_EXPORT void c10_on_request(void (*told)(int8_t type, size_t bytes));

/* c10_cuda_check_implementation of libc10_cuda, as PyTorch 2.14, 2.10 and 2.4 have it. */
#define CHECK_14 _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jbPNS0_19CUDAErrorLogCaptureE
#define CHECK_10 _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb
#define CHECK_4 _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib
SIMC10_EXPORT void CHECK_14(int32_t error, const char *file, const char *function, uint32_t line,
                            bool with_assertions, void *log);
SIMC10_EXPORT void CHECK_10(int32_t error, const char *file, const char *function, uint32_t line,
                            bool with_assertions);
SIMC10_EXPORT void CHECK_4(int32_t error, const char *file, const char *function, int line,
                           bool with_assertions);
