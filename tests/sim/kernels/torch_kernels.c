/* SPDX-License-Identifier: Apache-2.0 */
/* What torch_kernels.h declares, for the simulated driver. */
#include "tests/sim/kernels/torch_kernels.h"

#include "tests/sim/simcuda.h"

/* Names that are macros are expanded on the way. */
#define KERNEL(name) SIMCUDA_KERNEL(name)
#define PARAMS(name, ...) SIMCUDA_PARAMS(name, __VA_ARGS__)

KERNEL(TORCH_FILL)
{
    const int count = SIMCUDA_ARG(args, 0, int);
    const float value = SIMCUDA_ARG(args, 1, float);
    float *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), (size_t)count * 4);
    for (int i = 0; out != NULL && i < count; i++)
        out[i] = value;
}
PARAMS(TORCH_FILL, {0, 4}, {4, 4}, {8, 8});

KERNEL(TORCH_FILL_LONG)
{
    const int count = SIMCUDA_ARG(args, 0, int);
    const int64_t value = SIMCUDA_ARG(args, 1, int64_t);
    int64_t *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), (size_t)count * 8);
    for (int i = 0; out != NULL && i < count; i++)
        out[i] = value;
}
PARAMS(TORCH_FILL_LONG, {0, 4}, {8, 8}, {16, 8});

/* The generator's place: its numbers, or where a captured launch finds them. */
static bool read_philox(const struct simcuda_launch *launch, const struct torch_philox *philox,
                        uint64_t *seed_out, uint64_t *offset_out)
{
    *seed_out = philox->seed.value;
    *offset_out = philox->offset.value;
    if (!philox->captured)
        return true;
    const int64_t *seed = launch->touch(launch, philox->seed.place, 8);
    const int64_t *offset = seed == NULL ? NULL : launch->touch(launch, philox->offset.place, 8);
    if (offset == NULL)
        return false;
    *seed_out = (uint64_t)*seed;
    *offset_out = (uint64_t)*offset + philox->offset_intragraph;
    return true;
}

static void draw(const struct simcuda_launch *launch, void **args, CUdeviceptr address, float low,
                 float high, bool is_normal)
{
    const int64_t count = SIMCUDA_ARG(args, 0, int64_t);
    const uint64_t threads = (uint64_t)launch->grid[0] * launch->block[0];
    uint64_t seed, offset;
    if (!read_philox(launch, args[1], &seed, &offset))
        return;
    float *out = launch->touch(launch, address, (size_t)count * 4);
    for (uint64_t i = 0; out != NULL && i < (uint64_t)count; i++)
        out[i] = torch_draw(seed, offset, threads, i, low, high, is_normal);
}

KERNEL(TORCH_UNIFORM)
{
    const struct torch_transform *to = args[3];
    draw(launch, args, to->out, to->low, to->high, false);
}
PARAMS(TORCH_UNIFORM, {0, 8}, {8, sizeof(struct torch_philox)}, {32, 1},
       {40, sizeof(struct torch_transform)});

KERNEL(TORCH_NORMAL)
{
    const struct torch_transform *to = args[3];
    draw(launch, args, to->out, to->low, to->high, true);
}
PARAMS(TORCH_NORMAL, {0, 8}, {8, sizeof(struct torch_philox)}, {32, 1},
       {40, sizeof(struct torch_transform)});

KERNEL(TORCH_UNIFORM_STRIDED)
{
    const struct torch_strided_transform *to = args[3];
    draw(launch, args, to->out, to->low, to->high, false);
}
PARAMS(TORCH_UNIFORM_STRIDED, {0, 8}, {8, sizeof(struct torch_philox)}, {32, 1},
       {40, sizeof(struct torch_strided_transform)});

/* out and in of an elementwise loop; false when one of them cannot be touched. */
static bool touch_both(const struct simcuda_launch *launch, const CUdeviceptr *data, int count,
                       float **out, const float **in)
{
    *in = launch->touch(launch, data[1], (size_t)count * 4);
    *out = *in == NULL ? NULL : launch->touch(launch, data[0], (size_t)count * 4);
    return *out != NULL;
}

KERNEL(TORCH_MUL)
{
    const int count = SIMCUDA_ARG(args, 0, int);
    const float operand = SIMCUDA_ARG(args, 1, float);
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (int i = 0; i < count; i++)
        out[i] = in[i] * operand;
}
PARAMS(TORCH_MUL, {0, 4}, {4, 4}, {8, 16});

KERNEL(TORCH_ADD)
{
    const int count = SIMCUDA_ARG(args, 0, int);
    const float operand = SIMCUDA_ARG(args, 1, float);
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (int i = 0; i < count; i++)
        out[i] = in[i] + operand;
}
PARAMS(TORCH_ADD, {0, 4}, {4, 4}, {8, 16});

KERNEL(TORCH_CLAMP)
{
    const int count = SIMCUDA_ARG(args, 0, int);
    const struct torch_clamp *clamp = args[1];
    float *out;
    const float *in;
    if (!touch_both(launch, clamp->data, count, &out, &in))
        return;
    for (int i = 0; i < count; i++)
        out[i] = in[i] < clamp->low ? clamp->low : in[i] > clamp->high ? clamp->high : in[i];
}
PARAMS(TORCH_CLAMP, {0, 4}, {8, sizeof(struct torch_clamp)});

KERNEL(TORCH_ARANGE)
{
    const int count = SIMCUDA_ARG(args, 0, int);
    const struct torch_range *range = args[1];
    float *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), (size_t)count * 4);
    for (int i = 0; out != NULL && i < count; i++)
        out[i] = range->start + range->step * (float)i;
}
PARAMS(TORCH_ARANGE, {0, 4}, {4, 8}, {16, 8});

KERNEL(TORCH_ROW_SUM)
{
    const int rows = SIMCUDA_ARG(args, 2, int);
    const int columns = SIMCUDA_ARG(args, 3, int);
    const float *in = launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr),
                                    (size_t)rows * (size_t)columns * 4);
    float *out = in == NULL
                     ? NULL
                     : launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), (size_t)rows * 4);
    for (int row = 0; out != NULL && row < rows; row++) {
        out[row] = 0;
        for (int column = 0; column < columns; column++)
            out[row] += in[(size_t)row * (size_t)columns + (size_t)column];
    }
}
PARAMS(TORCH_ROW_SUM, {0, 8}, {8, 8}, {16, 4}, {20, 4});

SIMCUDA_KERNEL_LIST(TORCH_NAME(TORCH_FILL), TORCH_NAME(TORCH_FILL_LONG), TORCH_NAME(TORCH_UNIFORM),
                    TORCH_NAME(TORCH_NORMAL), TORCH_NAME(TORCH_UNIFORM_STRIDED),
                    TORCH_NAME(TORCH_MUL), TORCH_NAME(TORCH_ADD), TORCH_NAME(TORCH_CLAMP),
                    TORCH_NAME(TORCH_ARANGE), TORCH_NAME(TORCH_ROW_SUM));
