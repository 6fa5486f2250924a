/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of torch_kernels.h, for the simulated driver. */
#include "tools/simcuda/kernels/torch_kernels.h"

#include <math.h>
#include <string.h>

#include "tools/simcuda/driver/simcuda.h"

/* Names that are macros are expanded on the way. */
#define KERNEL(name) SIMCUDA_KERNEL(name)
#define PARAMS(name, ...) SIMCUDA_PARAMS(name, __VA_ARGS__)

/* A number of elements; a negative one means none. */
static size_t count_of(int64_t numel)
{
    return numel > 0 ? (size_t)numel : 0;
}

KERNEL(TORCH_FILL)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int));
    const float value = SIMCUDA_ARG(args, 1, float);
    float *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), count * sizeof(*out));
    for (size_t i = 0; out != NULL && i < count; i++)
        out[i] = value;
}
PARAMS(TORCH_FILL, {0, 4}, {4, 4}, {8, 8});

KERNEL(TORCH_FILL_LONG)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int));
    const int64_t value = SIMCUDA_ARG(args, 1, int64_t);
    int64_t *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), count * sizeof(*out));
    for (size_t i = 0; out != NULL && i < count; i++)
        out[i] = value;
}
PARAMS(TORCH_FILL_LONG, {0, 4}, {8, 8}, {16, 8});

/* The generator's place: its numbers, or where a captured launch finds them. */
static bool read_philox(const struct simcuda_launch *launch, const struct torch_philox *state,
                        uint64_t *seed_out, uint64_t *offset_out)
{
    *seed_out = state->seed.value;
    *offset_out = state->offset.value;
    if (!state->captured)
        return true;
    const int64_t *seed = launch->touch(launch, state->seed.place, sizeof(*seed));
    const int64_t *offset =
        seed == NULL ? NULL : launch->touch(launch, state->offset.place, sizeof(*offset));
    if (offset == NULL)
        return false;
    *seed_out = (uint64_t)*seed;
    *offset_out = (uint64_t)*offset + state->offset_intragraph;
    return true;
}

/* The place of an element in bytes; without a calculator the tensor is dense. */
static size_t place_of(const struct torch_offsets *offsets, size_t index)
{
    if (offsets == NULL)
        return index * sizeof(float);
    size_t place = 0;
    for (int i = 0; i + 1 < offsets->dims; i++) {
        place += index % offsets->sizes[i].divisor * offsets->strides[i];
        index /= offsets->sizes[i].divisor;
    }
    return place + index * offsets->strides[offsets->dims - 1];
}

/* Bytes from the first element's place to the end of the last one's. */
static size_t reach_of(const struct torch_offsets *offsets, size_t count)
{
    size_t reach = 0;
    if (offsets == NULL)
        return count * sizeof(float);
    for (size_t i = 0; i < count; i++) {
        const size_t end = place_of(offsets, i) + sizeof(float);
        reach = end > reach ? end : reach;
    }
    return reach;
}

struct draw {
    CUdeviceptr out;
    const struct torch_offsets *offsets;
    float low, high;
    bool is_normal;
};

static void distribute(const struct simcuda_launch *launch, void **args, const struct draw *draw)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int64_t));
    const size_t threads = (size_t)launch->grid[0] * launch->block[0];
    uint64_t seed, offset;
    if (!read_philox(launch, args[1], &seed, &offset))
        return;
    unsigned char *out = launch->touch(launch, draw->out, reach_of(draw->offsets, count));
    for (size_t i = 0; out != NULL && i < count; i++) {
        const float value =
            torch_draw(seed, offset, threads, i, draw->low, draw->high, draw->is_normal);
        memcpy(out + place_of(draw->offsets, i), &value, sizeof(value));
    }
}

static void distribute_dense(const struct simcuda_launch *launch, void **args, bool is_normal)
{
    const struct torch_transform *to = args[3];
    const struct draw draw = {to->out, NULL, to->low, to->high, is_normal};
    distribute(launch, args, &draw);
}

static void distribute_strided(const struct simcuda_launch *launch, void **args, bool is_normal)
{
    const struct torch_strided_transform *to = args[3];
    const struct draw draw = {to->out, &to->offsets, to->low, to->high, is_normal};
    distribute(launch, args, &draw);
}

#define DISTRIBUTION(name, distribute_as, is_normal, transform) \
    KERNEL(name)                                                \
    {                                                           \
        distribute_as(launch, args, is_normal);                 \
    }                                                           \
    PARAMS(name, {0, 8}, {8, sizeof(struct torch_philox)}, {32, 1}, {40, sizeof(transform)})

DISTRIBUTION(TORCH_UNIFORM, distribute_dense, false, struct torch_transform);
DISTRIBUTION(TORCH_NORMAL, distribute_dense, true, struct torch_transform);
DISTRIBUTION(TORCH_UNIFORM_STRIDED, distribute_strided, false, struct torch_strided_transform);
DISTRIBUTION(TORCH_NORMAL_STRIDED, distribute_strided, true, struct torch_strided_transform);

/* in and out of an elementwise loop over dense tensors; false when one of them cannot be
 * touched. */
static bool touch_both(const struct simcuda_launch *launch, const CUdeviceptr *data, size_t count,
                       float **out, const float **in)
{
    *in = launch->touch(launch, data[1], count * sizeof(**in));
    *out = *in == NULL ? NULL : launch->touch(launch, data[0], count * sizeof(**out));
    return *out != NULL;
}

KERNEL(TORCH_MUL)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int));
    const float operand = SIMCUDA_ARG(args, 1, float);
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] * operand;
}
PARAMS(TORCH_MUL, {0, 4}, {4, 4}, {8, 16});

KERNEL(TORCH_ADD)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int));
    const float operand = SIMCUDA_ARG(args, 1, float);
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] + operand;
}
PARAMS(TORCH_ADD, {0, 4}, {4, 4}, {8, 16});

KERNEL(TORCH_CLAMP_DENSE)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int));
    const struct torch_limits *limits = args[1];
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] < limits->low ? limits->low : in[i] > limits->high ? limits->high : in[i];
}
PARAMS(TORCH_CLAMP_DENSE, {0, 4}, {4, sizeof(struct torch_limits)}, {16, 16});

/* One side of a calculator for two tensors. */
static struct torch_offsets side_of(const struct torch_offsets2 *both, int side)
{
    struct torch_offsets one = {.dims = both->dims};
    for (int i = 0; i < both->dims; i++) {
        one.sizes[i] = both->sizes[i];
        one.strides[i] = both->strides[i][side];
    }
    return one;
}

/* The loop of elementwise_kernel, element by element and in order: in may be where out is. */
static void map_strided(const struct simcuda_launch *launch, int numel, const CUdeviceptr *data,
                        const struct torch_offsets2 *offsets, float low, float high)
{
    const size_t count = count_of(numel);
    const struct torch_offsets outs = side_of(offsets, 0);
    const struct torch_offsets ins = side_of(offsets, 1);
    const unsigned char *in = launch->touch(launch, data[1], reach_of(&ins, count));
    unsigned char *out = in == NULL ? NULL : launch->touch(launch, data[0], reach_of(&outs, count));
    for (size_t i = 0; out != NULL && i < count; i++) {
        float value;
        memcpy(&value, in + place_of(&ins, i), sizeof(value));
        value = value < low ? low : value > high ? high : value;
        memcpy(out + place_of(&outs, i), &value, sizeof(value));
    }
}

KERNEL(TORCH_CLAMP)
{
    const struct torch_clamp *clamp = args[1];
    map_strided(launch, SIMCUDA_ARG(args, 0, int), clamp->data, &clamp->offsets, clamp->low,
                clamp->high);
}
PARAMS(TORCH_CLAMP, {0, 4}, {8, sizeof(struct torch_clamp)});

KERNEL(TORCH_COPY)
{
    const struct torch_copy *copy = args[1];
    map_strided(launch, SIMCUDA_ARG(args, 0, int), copy->data, &copy->offsets, -INFINITY, INFINITY);
}
PARAMS(TORCH_COPY, {0, 4}, {8, sizeof(struct torch_copy)});

KERNEL(TORCH_ARANGE)
{
    const size_t count = count_of(SIMCUDA_ARG(args, 0, int));
    const struct torch_range *range = args[1];
    float *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), count * sizeof(*out));
    for (size_t i = 0; out != NULL && i < count; i++)
        out[i] = range->start + range->step * (float)i;
}
PARAMS(TORCH_ARANGE, {0, 4}, {4, sizeof(struct torch_range)}, {16, 8});

KERNEL(TORCH_ROW_SUM)
{
    const size_t rows = (size_t)SIMCUDA_ARG(args, 2, int);
    const size_t columns = (size_t)SIMCUDA_ARG(args, 3, int);
    const CUdeviceptr from = SIMCUDA_ARG(args, 1, CUdeviceptr);
    const float *in = launch->touch(launch, from, rows * columns * sizeof(*in));
    float *out =
        in == NULL ? NULL
                   : launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), rows * sizeof(*out));
    for (size_t row = 0; out != NULL && row < rows; row++) {
        out[row] = 0;
        for (size_t column = 0; column < columns; column++)
            out[row] += in[row * columns + column];
    }
}
PARAMS(TORCH_ROW_SUM, {0, 8}, {8, 8}, {16, 4}, {20, 4});

SIMCUDA_KERNEL_LIST(TORCH_NAME(TORCH_FILL), TORCH_NAME(TORCH_FILL_LONG), TORCH_NAME(TORCH_UNIFORM),
                    TORCH_NAME(TORCH_NORMAL), TORCH_NAME(TORCH_UNIFORM_STRIDED),
                    TORCH_NAME(TORCH_NORMAL_STRIDED), TORCH_NAME(TORCH_MUL), TORCH_NAME(TORCH_ADD),
                    TORCH_NAME(TORCH_CLAMP_DENSE), TORCH_NAME(TORCH_CLAMP), TORCH_NAME(TORCH_COPY),
                    TORCH_NAME(TORCH_ARANGE), TORCH_NAME(TORCH_ROW_SUM));
