/* SPDX-License-Identifier: Apache-2.0 */
/* What torch_kernels.h declares, for the simulated driver. */
#include "tests/sim/kernels/torch_kernels.h"

#include <math.h>
#include <string.h>

#include "tests/sim/simcuda.h"

/* Names that are macros are expanded on the way. */
#define KERNEL(name) SIMCUDA_KERNEL(name)
#define PARAMS(name, ...) SIMCUDA_PARAMS(name, __VA_ARGS__)

/* How many of `count` elements the grid does, with so many a thread. */
static size_t covered(const struct simcuda_launch *launch, int count, unsigned work)
{
    const size_t most = (size_t)launch->grid[0] * launch->block[0] * work;
    return count < 0 ? 0 : (size_t)count < most ? (size_t)count : most;
}

KERNEL(TORCH_FILL)
{
    const size_t count = covered(launch, SIMCUDA_ARG(args, 0, int), TORCH_VECTORIZED_WORK);
    const float value = SIMCUDA_ARG(args, 1, float);
    float *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), count * sizeof(*out));
    for (size_t i = 0; out != NULL && i < count; i++)
        out[i] = value;
}
PARAMS(TORCH_FILL, {0, 4}, {4, 4}, {8, 8});

KERNEL(TORCH_FILL_LONG)
{
    const size_t count = covered(launch, SIMCUDA_ARG(args, 0, int), TORCH_VECTORIZED_WORK);
    const int64_t value = SIMCUDA_ARG(args, 1, int64_t);
    int64_t *out = launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), count * sizeof(*out));
    for (size_t i = 0; out != NULL && i < count; i++)
        out[i] = value;
}
PARAMS(TORCH_FILL_LONG, {0, 4}, {8, 8}, {16, 8});

/* One block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). */
static void philox_block(uint64_t seed, uint64_t thread, uint64_t block, uint32_t out[4])
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32);
    uint32_t c = (uint32_t)thread, d = (uint32_t)(thread >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t even = UINT64_C(0xD2511F53) * a;
        const uint64_t odd = UINT64_C(0xCD9E8D57) * c;
        a = (uint32_t)(odd >> 32) ^ b ^ key[0];
        b = (uint32_t)odd;
        c = (uint32_t)(even >> 32) ^ d ^ key[1];
        d = (uint32_t)even;
        key[0] += UINT32_C(0x9E3779B9);
        key[1] += UINT32_C(0xBB67AE85);
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

/* Four numbers of a thread's sequence, from the one at `place` on. */
static void philox(uint64_t seed, uint64_t thread, uint64_t place, uint32_t out[4])
{
    uint32_t words[8] = {0};
    philox_block(seed, thread, place / 4, words);
    if (place % 4 != 0)
        philox_block(seed, thread, place / 4 + 1, words + 4);
    memcpy(out, words + place % 4, 4 * sizeof(*out));
}

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

/* In (0, 1], as curand_uniform's. */
static float uniform(uint32_t word)
{
    return (float)word * 0x1p-32F + 0x1p-33F;
}

/* Mean 0 and deviation 1; triangular, which is near enough to a normal distribution for a test. */
static float normal(uint32_t word)
{
    return ((float)((word >> 16) + (word & 0xffff)) * 0x1p-16F - 1.0F) * 2.4494897F;
}

/* The place of an element in bytes; without a calculator the tensor is dense. */
static size_t place_of(const struct torch_offsets *offsets, size_t index)
{
    if (offsets == NULL)
        return index * sizeof(float);
    size_t place = 0;
    for (int i = 0; i < offsets->dims; i++) {
        place += index % offsets->sizes[i].divisor * offsets->strides[i];
        index /= offsets->sizes[i].divisor;
    }
    return place;
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

static void store(unsigned char *out, const struct draw *draw, size_t index, uint32_t word)
{
    const float value = draw->is_normal ? draw->low + draw->high * normal(word)
                                        : draw->low + (draw->high - draw->low) * uniform(word);
    memcpy(out + place_of(draw->offsets, index), &value, sizeof(value));
}

/*
 * The grid-stride loop of distribution_elementwise_grid_stride_kernel: each step of a thread draws four
 * numbers, which go to elements that lie a whole grid apart. So a value depends on seed, offset, the
 * number of threads, and the element.
 */
static void distribute(const struct simcuda_launch *launch, void **args, const struct draw *draw)
{
    const int64_t numel = SIMCUDA_ARG(args, 0, int64_t);
    const size_t count = numel > 0 ? (size_t)numel : 0;
    const size_t threads = (size_t)launch->grid[0] * launch->block[0];
    uint64_t seed, offset;
    if (!read_philox(launch, args[1], &seed, &offset))
        return;
    unsigned char *out = launch->touch(launch, draw->out, reach_of(draw->offsets, count));
    for (size_t first = 0; out != NULL && first < count; first += 4 * threads, offset += 4) {
        for (size_t thread = 0; thread < threads && first + thread < count; thread++) {
            uint32_t words[4];
            philox(seed, thread, offset, words);
            size_t index = first + thread;
            for (int i = 0; i < 4 && index < count; i++, index += threads)
                store(out, draw, index, words[i]);
        }
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

/* in and out of an elementwise loop over dense tensors; false when one of them cannot be touched. */
static bool touch_both(const struct simcuda_launch *launch, const CUdeviceptr *data, size_t count,
                       float **out, const float **in)
{
    *in = launch->touch(launch, data[1], count * sizeof(**in));
    *out = *in == NULL ? NULL : launch->touch(launch, data[0], count * sizeof(**out));
    return *out != NULL;
}

KERNEL(TORCH_MUL)
{
    const size_t count = covered(launch, SIMCUDA_ARG(args, 0, int), TORCH_VECTORIZED_WORK);
    const struct torch_unary *mul = args[1];
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] * mul->operand;
}
PARAMS(TORCH_MUL, {0, 4}, {4, sizeof(struct torch_unary)}, {16, 16});

KERNEL(TORCH_ADD)
{
    const size_t count = covered(launch, SIMCUDA_ARG(args, 0, int), TORCH_UNROLLED_WORK);
    const struct torch_add *add = args[1];
    float *out;
    const float *in;
    if (!touch_both(launch, args[2], count, &out, &in))
        return;
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] + add->other * add->alpha;
}
PARAMS(TORCH_ADD, {0, 4}, {4, sizeof(struct torch_add)}, {16, 16}, {32, 1}, {33, 1}, {34, 1},
       {35, 1});

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
    const size_t count = covered(launch, numel, TORCH_PLAIN_WORK);
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
    const size_t count = covered(launch, SIMCUDA_ARG(args, 0, int), TORCH_INDEX_WORK);
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
                    TORCH_NAME(TORCH_CLAMP), TORCH_NAME(TORCH_COPY), TORCH_NAME(TORCH_ARANGE),
                    TORCH_NAME(TORCH_ROW_SUM));
