/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that do nothing and take one struct of so many bytes by value. */
#include "tools/simcuda/driver/kernel.h"

#define TAKES(bytes)              \
    SIMCUDA_KERNEL(takes_##bytes) \
    {                             \
    }                             \
    SIMCUDA_PARAMS(takes_##bytes, {0, bytes})

TAKES(16);
TAKES(64);
TAKES(256);
TAKES(1024);
TAKES(4096);

SIMCUDA_KERNEL_LIST("takes_16", "takes_64", "takes_256", "takes_1024", "takes_4096");
