/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of newer.c, for tests. */
#pragma once

#include <cuda.h>

typedef CUresult read_function(unsigned char *byte, CUdeviceptr address, long a, double b, int c,
                               float d, long e, double f, int g, long h, double i, float j,
                               long *sum);

enum {
    CERTAIN_VERSION = 13041, /* older than shim/entries.h has it */
    UNCERTAIN_VERSION = 13051,
    FUTURE_VERSION = 99990
};
