/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host versions of the kernels in PyTorch's wheel that loading, initialising and training a model
 * needs, for the simulated driver (SIMCUDA_FATBIN_KERNELS): found by the mangled name, which also
 * tells types and functors; parameters lie where nvcc put them. Sources:
 * aten/src/ATen/native/cuda of PyTorch 2.15, curand_kernel.h.
 */
#pragma once

#include "tools/simcuda/driver/kernel.h"

#include <stdbool.h>
#include <string.h>

/* --- element types */

enum host_type {
    HOST_NONE,
    HOST_BOOL,
    HOST_UINT8,
    HOST_INT8,
    HOST_INT16,
    HOST_INT32,
    HOST_INT64,
    HOST_HALF,
    HOST_BFLOAT16,
    HOST_FLOAT,
    HOST_DOUBLE,
    HOST_E4M3FN, /* these two of eight bits: torch.float8_e4m3fn, torch.float8_e5m2 */
    HOST_E5M2,
};

size_t host_size(enum host_type type);

/* The type whose mangled name is at *text, which moves behind it; "S4_" is `same`. */
enum host_type host_parse_type(const char **text, enum host_type same);

/* The type behind the first `before` in name, or HOST_NONE. */
enum host_type host_type_behind(const char *name, const char *before);

/* So many of them, one behind the other. False when one of them is not known. */
bool host_types_behind(const char *name, const char *before, enum host_type *types, unsigned count);

/* By the number of c10::ScalarType. */
enum host_type host_scalar_type(unsigned number);

double host_load_any(const void *place, enum host_type type);
void host_store_any(void *place, enum host_type type, double value);

/* Nearly all are float. */
static inline double host_load(const void *place, enum host_type type)
{
    float value;
    if (type != HOST_FLOAT)
        return host_load_any(place, type);
    memcpy(&value, place, sizeof(value));
    return value;
}

static inline void host_store(void *place, enum host_type type, double value)
{
    const float rounded = (float)value;
    if (type == HOST_FLOAT)
        memcpy(place, &rounded, sizeof(rounded));
    else
        host_store_any(place, type, value);
}

/* A value as an operation on that type sees it: rounded to float but for double and integers. */
double host_round(enum host_type type, double value);

/* torch.lerp, each step rounded (Lerp.h). */
double host_lerp(enum host_type type, double from, double to, double weight);

/* --- elements that lie side by side */

struct host_vector {
    unsigned char *data;
    enum host_type type;
};

/* False when they may not be touched. */
bool host_open(const struct simcuda_launch *launch, struct host_vector *vector, CUdeviceptr address,
               enum host_type type, size_t count);

static inline double host_get(const struct host_vector *vector, size_t element)
{
    return vector->type == HOST_FLOAT
               ? host_load(vector->data + element * sizeof(float), HOST_FLOAT)
               : host_load_any(vector->data + element * host_size(vector->type), vector->type);
}

static inline void host_set(const struct host_vector *vector, size_t element, double value)
{
    if (vector->type == HOST_FLOAT)
        host_store(vector->data + element * sizeof(float), HOST_FLOAT, value);
    else
        host_store_any(vector->data + element * host_size(vector->type), vector->type, value);
}

/* --- the offset calculator of operands with strides (OffsetCalculator.cuh) */

enum { HOST_MAX_DIMS = 25, HOST_MAX_OPERANDS = 4 };

struct host_operands {
    unsigned count;
    unsigned char *data[HOST_MAX_OPERANDS]; /* out first; host addresses after host_touch */
    CUdeviceptr address[HOST_MAX_OPERANDS];
    enum host_type type[HOST_MAX_OPERANDS];
    unsigned dims; /* 0: dense */
    uint32_t sizes[HOST_MAX_DIMS];
    uint32_t strides[HOST_MAX_DIMS][HOST_MAX_OPERANDS]; /* bytes */
};

/* Reads a calculator for operands->count operands at `bytes`; returns its size. */
size_t host_read_calculator(struct host_operands *operands, const unsigned char *bytes);

/* Makes all elements of all operands reachable; false when one may not be touched. */
bool host_touch(const struct simcuda_launch *launch, struct host_operands *operands, size_t numel);

/* Bytes from the beginning of an operand to one of its elements. */
size_t host_offset(const struct host_operands *operands, unsigned operand, size_t element);

/* Bytes from the first of so many elements of an operand to the end of the last: strides are not
 * negative. */
size_t host_extent(const struct host_operands *operands, unsigned operand, size_t numel);

/* The place of an element of one operand. */
void *host_place(const struct host_operands *operands, unsigned operand, size_t element);

static inline uint64_t host_word(const void *bytes, size_t offset)
{
    uint64_t word;
    memcpy(&word, (const char *)bytes + offset, sizeof(word));
    return word;
}

/* --- at::cuda::detail::TensorInfo with 32-bit indices */

struct host_tensor_info {
    CUdeviceptr data;
    uint32_t sizes[HOST_MAX_DIMS],
        strides[HOST_MAX_DIMS]; /* elements; the last dimension is the fastest */
    int dims;
};

/* The place of an element, and how many there are from the first place to the last, in elements. */
size_t host_info_place(const struct host_tensor_info *info, size_t element);
size_t host_info_extent(const struct host_tensor_info *info);

/* --- random numbers, as cuRAND's generator gives them (random.c) */

/* at::PhiloxCudaState */
struct host_philox {
    uint64_t seed, offset; /* places of them when captured */
    uint64_t unused;
    bool captured;
};

/* Four numbers in (0, 1] of a thread, at a place of its sequence. */
void host_draw_uniform(const struct host_philox *state, uint64_t thread, uint64_t place,
                       float *values);

/* --- families, each in a file of its own; NULL for a name they do not know */

simcuda_kernel *host_find_elementwise(const char *name);
simcuda_kernel *host_find_random(const char *name);
simcuda_kernel *host_find_cat(const char *name);
simcuda_kernel *host_find_foreach(const char *name);
simcuda_kernel *host_find_range(const char *name);
simcuda_kernel *host_find_transpose(const char *name);
simcuda_kernel *host_find_reduce(const char *name);
simcuda_kernel *host_find_sleep(const char *name);
simcuda_kernel *host_find_multi_tensor(const char *name);
simcuda_kernel *host_find_softmax(const char *name);
simcuda_kernel *host_find_norm(const char *name);
simcuda_kernel *host_find_loss(const char *name);
simcuda_kernel *host_find_embedding(const char *name);
simcuda_kernel *host_find_dropout(const char *name);
simcuda_kernel *host_find_triangle(const char *name);
simcuda_kernel *host_find_shards(const char *name);
simcuda_kernel *host_find_scan(const char *name);
simcuda_kernel *host_find_scaler(const char *name);
simcuda_kernel *host_find_roll(const char *name);
simcuda_kernel *host_find_polar(const char *name);
