/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/cat_kernels.h"

#include "tools/simcuda/torch/host.h"

/* Names that are macros are expanded on the way. */
#define KERNEL(name) SIMCUDA_KERNEL(name)
#define PARAMS(name, ...) SIMCUDA_PARAMS(name, __VA_ARGS__)

#define CAT(kernel, bytes)                                             \
    KERNEL(kernel)                                                     \
    {                                                                  \
        host_find_cat(launch->name)(launch, args);                     \
    }                                                                  \
    PARAMS(kernel, {0, 8}, {8, bytes}, {8 + (bytes), CAT_SHAPE_BYTES}, \
           {8 + (bytes) + CAT_SHAPE_BYTES, 4}, {12 + (bytes) + CAT_SHAPE_BYTES, 4})

CAT(CAT_CONTIG, CAT_DENSE_BYTES);
CAT(CAT_VECTORIZED_1, CAT_DENSE_BYTES);
CAT(CAT_VECTORIZED_2, CAT_DENSE_BYTES);
CAT(CAT_STRIDED, CAT_STRIDED_BYTES);
