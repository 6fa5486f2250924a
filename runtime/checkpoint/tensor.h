/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor: its name, dtype (of safetensors), shape, and the place of its bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "runtime/document/fault.h"

#define MS_DTYPES(ROW)  \
    ROW(BOOL, 8)        \
    ROW(U8, 8)          \
    ROW(I8, 8)          \
    ROW(F8_E5M2, 8)     \
    ROW(F8_E4M3, 8)     \
    ROW(F8_E8M0, 8)     \
    ROW(F8_E4M3FNUZ, 8) \
    ROW(F8_E5M2FNUZ, 8) \
    ROW(I16, 16)        \
    ROW(U16, 16)        \
    ROW(F16, 16)        \
    ROW(BF16, 16)       \
    ROW(I32, 32)        \
    ROW(U32, 32)        \
    ROW(F32, 32)        \
    ROW(I64, 64)        \
    ROW(U64, 64)        \
    ROW(F64, 64)        \
    ROW(C64, 64)        \
    ROW(F4, 4)          \
    ROW(F6_E2M3, 6)     \
    ROW(F6_E3M2, 6)

enum ms_dtype {
#define ROW(name, bits) MS_DTYPE_##name,
    MS_DTYPES(ROW)
#undef ROW
        MS_DTYPE_COUNT
};

enum { MS_DTYPE_NAME_BYTES = 16 };
extern const char ms_dtype_names[MS_DTYPE_COUNT][MS_DTYPE_NAME_BYTES];
extern const unsigned ms_dtype_bits[MS_DTYPE_COUNT];

enum { MS_TENSOR_DIMS_MAX = 8 };

/*
 * Equations: elements = product of shape; bytes = elements * bits / 8 < 2^63, and the product of
 * the dimensions that are not 0 is below 2^63, too.
 */
struct ms_tensor {
    const char *name;
    const char *file; /* NULL: known only from a plan */
    uint64_t offset;  /* of the first byte in the file */
    uint64_t elements, bytes;
    uint64_t shape[MS_TENSOR_DIMS_MAX];
    unsigned dims;
    enum ms_dtype dtype;
};

bool ms_tensor_find_dtype(const char *name, enum ms_dtype *dtype_out);

/* Sets elements and bytes from dtype and shape. Returns NULL, or why the shape is invalid. */
const char *ms_tensor_measure(struct ms_tensor *tensor);

/* True if dtype and shape are the same. */
static inline bool ms_tensor_is_alike(const struct ms_tensor *a, const struct ms_tensor *b)
{
    return a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof(a->shape[0])) == 0;
}

/* Reads the values `dtype` and `shape` of the object at `place` of a JSON document. */
bool ms_tensor_parse(const struct ms_fault_context *reading, const struct ms_place *place,
                     const char *dtype, const char *shape, struct ms_tensor *tensor);
