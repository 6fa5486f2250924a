/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for PyTorch's libc10_cuda.so: what checks the results of the CUDA runtime
 * (c10/cuda/CUDAException.cpp), under the names of three generations of releases. Each prints what
 * it was given.
 */
#include <stdio.h>

#include "tests/driver/differential/c10.h"

static int last_error = 2;

SIMC10_EXPORT int cudaGetLastError(void);
int cudaGetLastError(void)
{
    const int error = last_error;
    last_error = 0;
    return error;
}

static void print(const char *release, int32_t error, const char *file, const char *function,
                  long line, bool with_assertions)
{
    printf("%s: error %d, %s:%ld, %s%s; last error %d\n", release, error, file, line, function,
           with_assertions ? ", with assertions" : "", last_error);
}

void CHECK_14(int32_t error, const char *file, const char *function, uint32_t line,
              bool with_assertions, void *log)
{
    print(log != NULL ? "2.14, with a log" : "2.14", error, file, function, line, with_assertions);
}

void CHECK_10(int32_t error, const char *file, const char *function, uint32_t line,
              bool with_assertions)
{
    print("2.10", error, file, function, line, with_assertions);
}

void CHECK_4(int32_t error, const char *file, const char *function, int line, bool with_assertions)
{
    print("2.4", error, file, function, line, with_assertions);
}
