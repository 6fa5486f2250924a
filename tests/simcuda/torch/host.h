/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host versions of the kernels in PyTorch's wheel that loading and initialising a model needs, for
 * the simulated driver (SIMCUDA_FATBIN_KERNELS): found by the mangled name, which also tells types
 * and functors; parameters lie where nvcc put them. Sources: aten/src/ATen/native/cuda of PyTorch
 * 2.15, curand_kernel.h.
 */
#pragma once

#include "tests/simcuda/driver/kernel.h"

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
};

size_t host_size(enum host_type type);

/* The type whose mangled name is at *text, which moves behind it; "S4_" is `same`. */
enum host_type host_parse_type(const char **text, enum host_type same);

/* The type behind the first `before` in name, or HOST_NONE. */
enum host_type host_type_behind(const char *name, const char *before);

/* By the number of c10::ScalarType. */
enum host_type host_scalar_type(unsigned number);

double host_load(const void *place, enum host_type type);
void host_store(void *place, enum host_type type, double value);

/* A value as an operation on that type sees it: rounded to float but for double and integers. */
double host_round(enum host_type type, double value);

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

/* The place of an element of one operand. */
void *host_place(const struct host_operands *operands, unsigned operand, size_t element);

static inline uint64_t host_word(const void *bytes, size_t offset)
{
    uint64_t word;
    memcpy(&word, (const char *)bytes + offset, sizeof(word));
    return word;
}

/* --- families, each in a file of its own; NULL for a name they do not know */

simcuda_kernel *host_find_elementwise(const char *name);
simcuda_kernel *host_find_random(const char *name);
simcuda_kernel *host_find_cat(const char *name);
simcuda_kernel *host_find_foreach(const char *name);
simcuda_kernel *host_find_range(const char *name);
simcuda_kernel *host_find_transpose(const char *name);
simcuda_kernel *host_find_reduce(const char *name);
simcuda_kernel *host_find_sleep(const char *name);
