/* SPDX-License-Identifier: Apache-2.0 */
/*
 * distribution_elementwise_grid_stride_kernel (DistributionTemplates.h) with cuRAND's generator
 * Philox4x32-10 (Salmon et al., SC 2011): the numbers a device draws, up to rounding in log, sin
 * and cos.
 *
 *     (int64_t numel, PhiloxCudaState, dist, lambda)
 *     lambda of dense operands:   {char *out, int stride, transform}
 *     lambda of strided operands: {OffsetCalculator<1>, char *out, transform}
 */
#include "tools/simcuda/torch/host.h"

#include <math.h>

static void philox_round(uint32_t *counter, const uint32_t *key)
{
    const uint64_t a = UINT64_C(0xD2511F53) * counter[0];
    const uint64_t b = UINT64_C(0xCD9E8D57) * counter[2];
    const uint32_t next[4] = {(uint32_t)(b >> 32) ^ counter[1] ^ key[0], (uint32_t)b,
                              (uint32_t)(a >> 32) ^ counter[3] ^ key[1], (uint32_t)a};
    memcpy(counter, next, sizeof(next));
}

/* The four numbers of a thread at a place of its sequence. */
static void philox(uint64_t seed, uint64_t thread, uint64_t place, uint32_t *numbers)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    numbers[0] = (uint32_t)place;
    numbers[1] = (uint32_t)(place >> 32);
    numbers[2] = (uint32_t)thread;
    numbers[3] = (uint32_t)(thread >> 32);
    for (int i = 0; i < 10; i++) {
        philox_round(numbers, key);
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
}

/* (0, 1], curand_uniform4 */
static float to_uniform(uint32_t number)
{
    return (float)number * 0x1p-32F + 0x1p-33F;
}

void host_draw_uniform(const struct host_philox *state, uint64_t thread, uint64_t place,
                       float *values)
{
    uint32_t numbers[4];
    philox(state->seed, thread, state->offset / 4 + place, numbers);
    for (int i = 0; i < 4; i++)
        values[i] = to_uniform(numbers[i]);
}

/* curand_box_muller */
static void to_normal(const uint32_t *numbers, float *values)
{
    const float angle = (float)numbers[1] * (0x1p-32F * 6.2831855F) + 0x1p-33F * 6.2831855F;
    const float radius = sqrtf(-2.0F * logf(to_uniform(numbers[0])));
    values[0] = sinf(angle) * radius;
    values[1] = cosf(angle) * radius;
}

/* The values that the transform's lambda captured. */
struct transform {
    bool is_normal, is_whole;
    enum host_type type;
    float a, b; /* mean and deviation; or range and from */
    double to;
    uint64_t range; /* of whole numbers: how many there are */
    int64_t least;
};

static void draw(const struct transform *transform, const uint32_t *numbers, float *values)
{
    if (transform->is_normal) {
        to_normal(numbers, values);
        to_normal(numbers + 2, values + 2);
        return;
    }
    for (int i = 0; i < 4; i++)
        values[i] = to_uniform(numbers[i]);
}

static void store(const struct transform *transform, void *place, float value, uint32_t number)
{
    if (transform->is_whole) {
        const uint64_t above = number % transform->range;
        host_store(place, transform->type, (double)(transform->least + (int64_t)above));
        return;
    }
    if (transform->is_normal) {
        host_store(place, transform->type, (double)(value * transform->b + transform->a));
        return;
    }
    host_store(place, transform->type, (double)(value * transform->a + transform->b));
    if (host_load(place, transform->type) == transform->to)
        host_store(place, transform->type, (double)transform->b);
}

/* random_from_to: {uint64 range, int64 least}, of a word for each element */
static const char whole_name[] = "21random_from_to_kernelI";
static const char whole_type[] = "27distribution_nullary_kernelI";

static struct transform read_transform(const char *name, const unsigned char *captured)
{
    const char *behind = strstr(name, "20normal_and_transformI");
    struct transform transform = {.is_normal = behind != NULL,
                                  .is_whole = strstr(name, whole_name) != NULL};
    if (transform.is_whole) {
        transform.type = host_type_behind(name, whole_type);
        transform.range = host_word(captured, 0);
        transform.least = (int64_t)host_word(captured, 8);
        return transform;
    }
    transform.type = host_type_behind(name, transform.is_normal ? "20normal_and_transformI"
                                                                : "21uniform_and_transformI");
    memcpy(&transform.a, captured, sizeof(float));
    const size_t size = host_size(transform.type);
    if (transform.is_normal) {
        memcpy(&transform.b, captured + 4, sizeof(float));
        return transform;
    }
    transform.b = (float)host_load(captured + 4, transform.type);
    transform.to = host_load(captured + 4 + size, transform.type);
    return transform;
}

/* More than 1 in torch_thin: of so many neighbours one is drawn, the others stay as they are. */
#ifndef HOST_DRAWN_EVERY
#define HOST_DRAWN_EVERY 1
#endif

static void distribute(const struct simcuda_launch *launch, const struct host_philox *state,
                       size_t numel, const struct host_operands *operands,
                       const struct transform *transform)
{
    const size_t threads = (size_t)launch->grid[0] * launch->block[0];
    for (size_t thread = 0; thread < threads && thread < numel; thread += HOST_DRAWN_EVERY) {
        uint64_t place = state->offset / 4;
        for (size_t element = thread; element < numel; element += 4 * threads) {
            uint32_t numbers[4];
            float values[4];
            philox(state->seed, thread, place++, numbers);
            if (!transform->is_whole)
                draw(transform, numbers, values);
            for (size_t i = 0; i < 4 && element + i * threads < numel; i++)
                store(transform, host_place(operands, 0, element + i * threads), values[i],
                      numbers[i]);
        }
    }
}

static void run(const struct simcuda_launch *launch, void **args)
{
    const int64_t numel = SIMCUDA_ARG(args, 0, int64_t);
    const struct host_philox *state = args[1];
    const unsigned char *lambda = args[3];
    struct host_operands operands = {.count = 1};
    /* The second lambda of distribution_nullary_kernel has the calculator. */
    const bool is_strided =
        strstr(launch->name, "EUlifE0_") != NULL || strstr(launch->name, "EUlijE0_") != NULL;
    size_t at = is_strided ? (host_read_calculator(&operands, lambda) + 7) / 8 * 8 : 0;
    operands.address[0] = host_word(lambda, at);
    at += is_strided ? 8 : strstr(launch->name, whole_name) != NULL ? 16 : 12;
    const struct transform transform = read_transform(launch->name, lambda + at);
    operands.type[0] = transform.type;
    if (numel > 0 && host_touch(launch, &operands, (size_t)numel))
        distribute(launch, state, (size_t)numel, &operands, &transform);
}

simcuda_kernel *host_find_random(const char *name)
{
    if (strstr(name, "43distribution_elementwise_grid_stride_kernelIjLi4E") != NULL &&
        strstr(name, whole_name) != NULL && strstr(name, "j5uint4") != NULL)
        return host_type_behind(name, whole_type) != HOST_NONE ? run : NULL;
    if (strstr(name, "43distribution_elementwise_grid_stride_kernelIfLi4E") == NULL)
        return NULL;
    if (strstr(name, "14uniform_kernelI") != NULL)
        return host_type_behind(name, "21uniform_and_transformI") != HOST_NONE ? run : NULL;
    if (strstr(name, "13normal_kernelI") != NULL)
        return host_type_behind(name, "20normal_and_transformI") != HOST_NONE ? run : NULL;
    return NULL;
}
