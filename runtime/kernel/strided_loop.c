/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of PyTorch's gpu_kernel_impl_nocast (aten/src/ATen/native/cuda/CUDALoops.cuh) takes
 * (int count, closure). The closure has OffsetCalculator<N> and N pointers, in either order:
 *
 *     int dims;
 *     struct { unsigned divisor, m1, shift; } sizes[25];
 *     unsigned strides[25][N];
 *
 * (OffsetCalculator.cuh, IntegerDivider.cuh). The kernel reads the first `dims` of each.
 *
 * The kernel of reductions (Reduce.cuh) takes one structure. This is in it, behind others:
 *
 *     int element_bytes, inputs, outputs, others[13];
 *     OffsetCalculator<1> of the inputs of one output;
 *     OffsetCalculator<2> of all outputs;
 *     void *in, *out[2], *buffers[2], *semaphores; int64_t first; bool flags[2]; int results;
 */
#include "runtime/kernel/strided_loop.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DIMS = 25,
    SIZE_BYTES = 12,
    STRIDE_BYTES = 8,
    SIZES_AT = 4,
    STRIDES_AT = SIZES_AT + MAX_DIMS * SIZE_BYTES,
    CALCULATOR_BYTES = STRIDES_AT + MAX_DIMS * STRIDE_BYTES,
    POINTERS_BYTES = 16,
    ONE_UNPADDED_BYTES = STRIDES_AT + MAX_DIMS * 4, /* one operand */
    ONE_BYTES = (ONE_UNPADDED_BYTES + 7) / 8 * 8,   /* so that a pointer can follow */
    INPUTS_BEFORE = 60,                             /* the calculator of a reduction's inputs */
    OUTPUTS_BEFORE = 56,
    LEAST_BEHIND = 64, /* a reduction's calculators: pointers, numbers, and what aligns them */
    MOST_BEHIND = LEAST_BEHIND + 12,
    REDUCTION_BYTES = INPUTS_BEFORE + ONE_UNPADDED_BYTES + CALCULATOR_BYTES
};

static uint32_t word(const struct ms_packed *packed, size_t at)
{
    uint32_t value;
    memcpy(&value, packed->bytes + at, sizeof(value));
    return value;
}

/* Returns the offset of the calculator, given that of the pointers, or SIZE_MAX. */
static size_t find_calculator(const struct ms_param *closure, size_t pointers)
{
    if (closure->bytes < CALCULATOR_BYTES + POINTERS_BYTES)
        return SIZE_MAX;
    if (pointers == closure->offset)
        return closure->offset + POINTERS_BYTES;
    return pointers == closure->offset + CALCULATOR_BYTES ? closure->offset : SIZE_MAX;
}

/* Finds the calculator in the packed parameters, and the number of its dimensions. */
static bool read_dims(const struct ms_param_layout *layout, const struct ms_packed *packed,
                      size_t pointers, size_t *at_out, unsigned *dims_out)
{
    int dims;
    if (layout->count != 2 || layout->params[0].bytes != sizeof(int))
        return false;
    *at_out = find_calculator(&layout->params[1], pointers);
    if (*at_out == SIZE_MAX || *at_out + CALCULATOR_BYTES > packed->count)
        return false;
    memcpy(&dims, packed->bytes + *at_out, sizeof(dims));
    *dims_out = (unsigned)dims;
    return dims >= 0 && dims <= MAX_DIMS;
}

static const char loop_name[] = "18elementwise_kernelI";

static bool is_loop(const struct ms_param_layout *layout)
{
    return strstr(layout->name, loop_name) != NULL && layout->count == 2 &&
           layout->params[0].bytes == sizeof(int);
}

/* True if the calculator at `at` has sizes for so many elements. */
static bool counts(const struct ms_packed *packed, size_t at, uint32_t count)
{
    const uint32_t dims = word(packed, at);
    uint64_t product = 1;
    for (uint32_t i = 0; i < dims && dims <= MAX_DIMS && product <= INT32_MAX; i++)
        product *= word(packed, at + SIZES_AT + (size_t)i * SIZE_BYTES);
    return dims <= MAX_DIMS && product == count;
}

/* True if a calculator of so many bytes lies at `at`, and its sizes have as many elements as the
 * launch. */
static bool counts_launch(const struct ms_param_layout *layout, const struct ms_packed *packed,
                          size_t at, size_t bytes)
{
    const size_t count_at = layout->params[0].offset;
    return at + bytes <= packed->count && count_at + sizeof(int) <= packed->count &&
           counts(packed, at, word(packed, count_at));
}

static bool is_reduction(const struct ms_param_layout *layout, const struct ms_packed *packed)
{
    static const char name[] = "_ZN2at6native13reduce_kernelI";
    return layout->count == 1 && strncmp(layout->name, name, strlen(name)) == 0 &&
           layout->params[0].offset + layout->params[0].bytes <= packed->count;
}

/* True if the size at `at` has the factor and the shift by which IntDivider divides. */
static bool is_divider(const struct ms_packed *packed, size_t at)
{
    const uint32_t divisor = word(packed, at);
    uint32_t shift = 0;
    if (divisor == 0 || divisor > INT32_MAX)
        return false;
    while (UINT64_C(1) << shift < divisor)
        shift++;
    const uint64_t factor = (((UINT64_C(1) << shift) - divisor) << 32) / divisor + 1;
    return word(packed, at + 4) == factor && word(packed, at + 8) == shift;
}

/* No rule is about reductions, so nothing else may pass for a calculator. */
static bool is_calculator(const struct ms_packed *packed, size_t at, uint32_t count)
{
    bool is_one = counts(packed, at, count);
    for (uint32_t i = 0; is_one && i < word(packed, at); i++)
        is_one = is_divider(packed, at + SIZES_AT + (size_t)i * SIZE_BYTES);
    return is_one;
}

/* Tries the most padding first: what is found never reaches into the pointers. */
static bool find_in_reduction(const struct ms_param_layout *layout, const struct ms_packed *packed,
                              struct ms_range *numbers_out)
{
    if (!is_reduction(layout, packed))
        return false;
    const struct ms_param *param = &layout->params[0];
    for (size_t behind = MOST_BEHIND; behind >= LEAST_BEHIND; behind -= 4) {
        if (param->bytes < REDUCTION_BYTES + behind)
            continue;
        const size_t end = param->offset + param->bytes - behind;
        const size_t outputs = end - CALCULATOR_BYTES, inputs = outputs - ONE_UNPADDED_BYTES;
        /* Without a size nothing is proved. */
        if ((word(packed, inputs) == 0 && word(packed, outputs) == 0) ||
            !is_calculator(packed, inputs, word(packed, inputs - INPUTS_BEFORE)) ||
            !is_calculator(packed, outputs, word(packed, inputs - OUTPUTS_BEFORE)))
            continue;
        *numbers_out = (struct ms_range){inputs, end};
        return true;
    }
    return false;
}

static bool find_in_loop(const struct ms_param_layout *layout, const struct ms_packed *packed,
                         struct ms_range *numbers_out)
{
    const bool has_one = layout->rule == MS_RULE_WRITE_ONLY;
    const size_t bytes = has_one ? ONE_BYTES : CALCULATOR_BYTES;
    const size_t pointers = has_one ? sizeof(uint64_t) : POINTERS_BYTES;
    if ((!has_one && layout->rule != MS_RULE_FROM_OTHER && layout->rule != MS_RULE_IN_PLACE) ||
        !is_loop(layout) || layout->params[1].bytes < bytes + pointers)
        return false;
    const size_t first = layout->params[1].offset, second = first + pointers;
    const bool is_first = counts_launch(layout, packed, first, bytes);
    if (is_first == counts_launch(layout, packed, second, bytes))
        return false;
    const size_t at = is_first ? first : second;
    *numbers_out = (struct ms_range){at, at + bytes};
    return true;
}

bool ms_strided_loop_find_numbers(const struct ms_param_layout *layout,
                                  const struct ms_packed *packed, struct ms_range *numbers_out)
{
    return find_in_loop(layout, packed, numbers_out) ||
           find_in_reduction(layout, packed, numbers_out);
}

/* Adds the next outer dimension. False if it leads backwards. */
static bool add_dimension(const struct ms_packed *packed, size_t at, unsigned dimension,
                          struct ms_strides *strides, uint64_t *out_span)
{
    const size_t strides_at = at + STRIDES_AT + (size_t)dimension * STRIDE_BYTES;
    const uint32_t out = word(packed, strides_at), in = word(packed, strides_at + 4);
    *out_span += (strides->rows - 1) * strides->out_step;
    strides->in_span += (strides->rows - 1) * strides->in_step;
    strides->rows = word(packed, at + SIZES_AT + (size_t)dimension * SIZE_BYTES);
    strides->in_step = in;
    strides->out_step = out;
    if (strides->elements <= INT32_MAX)
        strides->elements *= strides->rows;
    strides->is_parallel &= out == in;
    return strides->rows > 0 && in <= INT32_MAX && out <= INT32_MAX;
}

enum ms_strided ms_strided_loop_find_strides(const struct ms_param_layout *layout,
                                             const struct ms_packed *packed, size_t pointers,
                                             struct ms_strides *strides_out)
{
    struct ms_strides strides = {.elements = 1, .rows = 1, .is_parallel = true};
    uint64_t out_span = 0;
    unsigned dims;
    size_t at;
    if (strstr(layout->name, loop_name) == NULL)
        return MS_STRIDED_NOT;
    if (!read_dims(layout, packed, pointers, &at, &dims))
        return MS_STRIDED_UNCLEAR;
    for (unsigned i = 0; i < dims; i++) {
        if (!add_dimension(packed, at, i, &strides, &out_span))
            return MS_STRIDED_UNCLEAR;
    }
    strides.has_rows = strides.rows > 1 && out_span < strides.out_step;
    *strides_out = strides;
    return MS_STRIDED_FOUND;
}

/* --- copies */

static const char copy_name[] =
    "22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEE";

/* Returns the element size of the copy's lambda; 0: unknown, or a copy may change its bytes. */
static size_t element_bytes(const char *name)
{
    static const struct {
        char type[20];
        size_t bytes;
    } types[] = {{"aE_", 1}, {"hE_", 1}, {"sE_", 2},           {"tE_", 2},
                 {"iE_", 4}, {"jE_", 4}, {"fE_", 4},           {"lE_", 8},
                 {"mE_", 8}, {"dE_", 8}, {"N3c104HalfEE_", 2}, {"N3c108BFloat16EE_", 2}};
    const char *at = strstr(name, copy_name);
    at = at != NULL ? strstr(at, "EUl") : NULL; /* the lambdas around it are "ENKUlvE" */
    for (size_t i = 0; at != NULL && i < sizeof(types) / sizeof(types[0]); i++) {
        if (strncmp(at + strlen("EUl"), types[i].type, strlen(types[i].type)) == 0)
            return types[i].bytes;
    }
    return 0;
}

/* "elementwise_kernelILi128ELi4E...": threads of a block, and elements of a thread. */
static bool covers(const struct ms_call *call, const char *name, uint64_t count)
{
    static const char family[] = "_ZN2at6native18elementwise_kernelILi";
    char *end;
    if (strncmp(name, family, sizeof(family) - 1) != 0)
        return false;
    const uint64_t threads = strtoul(name + sizeof(family) - 1, &end, 10);
    if (strncmp(end, "ELi", 3) != 0)
        return false;
    const uint64_t each = strtoul(end + 3, NULL, 10);
    return call->block[0] == threads && call->block[1] == 1 && call->block[2] == 1 &&
           call->grid[0] * threads * each >= count;
}

/* The first dimension is the row; the others are the places of rows. */
static bool read_rows(const struct ms_packed *packed, size_t at, unsigned dims, size_t element,
                      uint64_t *count_out, struct ms_strided_copy *rows)
{
    *count_out = 1;
    if (dims < 1 || dims > MS_ROW_DIMS + 1)
        return false;
    for (unsigned i = 0; i < dims; i++) {
        const uint32_t size = word(packed, at + SIZES_AT + (size_t)i * SIZE_BYTES);
        const uint32_t to = word(packed, at + STRIDES_AT + (size_t)i * STRIDE_BYTES);
        const uint32_t from = word(packed, at + STRIDES_AT + (size_t)i * STRIDE_BYTES + 4);
        if (size == 0 || *count_out > INT32_MAX / size)
            return false;
        *count_out *= size;
        if (i == 0) {
            rows->width = size * element;
            if (to != element || from != element)
                return false;
            continue;
        }
        rows->dim[i - 1].count = size;
        rows->dim[i - 1].to_stride = to;
        rows->dim[i - 1].from_stride = from;
    }
    rows->dims = dims - 1;
    return true;
}

bool ms_strided_loop_find(const struct ms_call *call, const struct ms_param_layout *layout,
                          const struct ms_packed *packed, size_t pointers,
                          struct ms_strided_copy *rows_out)
{
    unsigned dims;
    size_t at;
    uint64_t count;
    const size_t element = element_bytes(layout->name);
    *rows_out = (struct ms_strided_copy){0};
    if (element == 0 || !read_dims(layout, packed, pointers, &at, &dims) ||
        !read_rows(packed, at, dims, element, &count, rows_out) ||
        count != word(packed, layout->params[0].offset) || !covers(call, layout->name, count))
        return false;
    memcpy(&rows_out->to, packed->bytes + pointers, sizeof(rows_out->to));
    memcpy(&rows_out->from, packed->bytes + pointers + 8, sizeof(rows_out->from));
    return true;
}
