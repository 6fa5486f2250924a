/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's kernels for cat (aten/src/ATen/native/cuda/Shape.cu, v1.8 to v2.15) with 32-bit
 * indices: CatArrayBatchedCopy and its variants _contig, _alignedK_contig and _vectorized.
 *
 *     (T *out, CatArrInputTensorMetadata<T, uint32, N, S>,
 *      TensorSizeStride<uint32, 4> {size[4], stride[4]}, int dimension, uint32 stride of it)
 *
 * The metadata is input[N], offset[N], dimSize[N], nElements[N], isContiguous[N], tensorStride[S]:
 * a TensorSizeStride for each input that is not dense. Sizes and strides count elements, and an
 * input begins at offset * stride. blockIdx.y is the input.
 *
 * The vectorized variant copies vectors of 16 bytes, and merges the dimension of concatenation with
 * those behind it. Sizes and strides of the output count vectors. The last parameter is the product
 * of the dimensions behind, in elements: the unit of offset and dimSize.
 */
#include "runtime/kernel/concatenate.h"

#include <stdlib.h>
#include <string.h>

enum { SHAPE_BYTES = 4 * 2 * MS_CAT_DIMS };

/* Reads a number between two texts, and moves *at behind the second. */
static bool read_number(const char **at, const char *before, const char *after, size_t *number_out)
{
    char *end;
    if (strncmp(*at, before, strlen(before)) != 0)
        return false;
    *at += strlen(before);
    if (**at < '0' || **at > '9')
        return false;
    *number_out = strtoul(*at, &end, 10);
    if (strncmp(end, after, strlen(after)) != 0)
        return false;
    *at = end + strlen(after);
    return true;
}

/* "...Li16ELi4E" at the end: bytes and elements of a vector. */
static bool read_vector(const char *at, struct ms_concatenation *cat)
{
    size_t bytes;
    return read_number(&at, "Li", "E", &bytes) && read_number(&at, "Li", "E", &cat->vector) &&
           bytes == cat->vector * cat->element;
}

/* "...OpaqueTypeILj4EEEjLi1ELi128ELi1E...": bytes of an element, dimensions, N and S. */
static bool read_name(const char *name, struct ms_concatenation *cat)
{
    const char *at = strstr(name, "10OpaqueTypeILj");
    size_t dims;
    if (at == NULL || !read_number(&at, "10OpaqueTypeILj", "EEEj", &cat->element) ||
        !read_number(&at, "Li", "E", &dims) || !read_number(&at, "Li", "E", &cat->capacity) ||
        !read_number(&at, "Li", "E", &cat->shapes))
        return false;
    cat->dims = (unsigned)dims;
    cat->vector = 1;
    if (cat->element < 1 || cat->element > 16 || dims < 1 || dims > MS_CAT_DIMS ||
        cat->capacity < 1 || cat->capacity > MS_MAX_INPUTS || cat->shapes > MS_MAX_INPUTS)
        return false;
    return strstr(name, "CatArrayBatchedCopy_vectorized") == NULL || read_vector(at, cat);
}

static size_t shapes_at(const struct ms_concatenation *cat)
{
    return (cat->capacity * (8 + 3 * 4 + 1) + 3) / 4 * 4;
}

static size_t metadata_bytes(const struct ms_concatenation *cat)
{
    return (shapes_at(cat) + cat->shapes * SHAPE_BYTES + 7) / 8 * 8;
}

static uint32_t word_at(const unsigned char *bytes, size_t index)
{
    uint32_t word;
    memcpy(&word, bytes + 4 * index, sizeof(word));
    return word;
}

static void read_shape(const unsigned char *bytes, struct ms_concatenation *cat)
{
    for (unsigned dim = 0; dim < cat->dims; dim++) {
        cat->size[dim] = word_at(bytes, dim);
        cat->stride[dim] = word_at(bytes, MS_CAT_DIMS + dim);
    }
}

/* Converts sizes and strides from vectors to elements. */
static bool unfold_vectors(struct ms_concatenation *cat)
{
    if (cat->dims != cat->dimension + 1 || cat->stride[cat->dimension] != 1)
        return false;
    cat->size[cat->dimension] *= cat->vector;
    for (unsigned dim = 0; dim < cat->dimension; dim++)
        cat->stride[dim] *= cat->vector;
    return true;
}

static bool read_parameters(const struct ms_param_layout *layout, const struct ms_packed *packed,
                            struct ms_concatenation *cat)
{
    static const size_t sizes[] = {8, 0, SHAPE_BYTES, 4, 4};
    if (layout->count != 5)
        return false;
    for (unsigned i = 0; i < 5; i++) {
        if (layout->params[i].bytes != (i == 1 ? metadata_bytes(cat) : sizes[i]))
            return false;
    }
    memcpy(&cat->out, packed->bytes + layout->params[0].offset, sizeof(cat->out));
    cat->metadata = packed->bytes + layout->params[1].offset;
    read_shape(packed->bytes + layout->params[2].offset, cat);
    cat->dimension = word_at(packed->bytes + layout->params[3].offset, 0);
    const uint32_t last = word_at(packed->bytes + layout->params[4].offset, 0);
    if (cat->dimension >= cat->dims)
        return false;
    cat->scale = cat->vector > 1 ? last : 1;
    return cat->vector > 1 ? unfold_vectors(cat) : last == cat->stride[cat->dimension];
}

/* Returns the bytes from the first element to the end of the last; 0 unless each stride spans the
 * dimensions behind it, so that no two elements have one place. */
static uint64_t measure_result(const struct ms_concatenation *cat)
{
    uint64_t extent = 1, count = 1;
    for (unsigned dim = cat->dims; dim-- > 0;) {
        if (cat->size[dim] == 0 || cat->size[dim] > INT32_MAX / count ||
            (cat->size[dim] > 1 && (cat->stride[dim] < extent || cat->stride[dim] > INT32_MAX)))
            return 0;
        count *= cat->size[dim];
        extent += (cat->size[dim] - 1) * cat->stride[dim];
    }
    return extent * cat->element;
}

enum { OFFSET, SIZE, COUNT }; /* the arrays of words */

static uint64_t word(const struct ms_concatenation *cat, unsigned array, size_t input)
{
    return word_at(cat->metadata + cat->capacity * (8 + 4 * (size_t)array), input);
}

/* One input, in elements. */
struct input {
    uint64_t address;
    uint64_t begin, end; /* in the dimension of concatenation */
    uint64_t size[MS_CAT_DIMS], stride[MS_CAT_DIMS];
    uint64_t bytes; /* from the first to the end of the last */
};

static void set_dense(const struct ms_concatenation *cat, struct input *input)
{
    uint64_t stride = 1;
    for (unsigned dim = cat->dims; dim-- > 0;) {
        input->stride[dim] = stride;
        stride *= input->size[dim];
    }
}

/* Reads the strides of an input that is not dense. Returns false if its shape differs. */
static bool read_strides(const struct ms_concatenation *cat, size_t index, struct input *input)
{
    const unsigned char *shape = cat->metadata + shapes_at(cat) + index * SHAPE_BYTES;
    if (index >= cat->shapes || cat->shapes == 1 || cat->vector > 1)
        return false;
    for (unsigned dim = 0; dim < cat->dims; dim++) {
        if (word_at(shape, dim) != input->size[dim])
            return false;
        input->stride[dim] = word_at(shape, MS_CAT_DIMS + dim);
    }
    return true;
}

/* Returns false if the input is not as PyTorch makes it. An empty input has no bytes. */
static bool read_input(const struct ms_concatenation *cat, size_t index, struct input *input)
{
    const unsigned char *dense = cat->metadata + cat->capacity * (8 + 3 * 4);
    uint64_t count = 1, last = 0;
    *input =
        (struct input){.begin = word(cat, OFFSET, index) * cat->scale,
                       .end = (word(cat, OFFSET, index) + word(cat, SIZE, index)) * cat->scale};
    memcpy(&input->address, cat->metadata + 8 * index, sizeof(input->address));
    if (word(cat, COUNT, index) == 0)
        return true;
    memcpy(input->size, cat->size, sizeof(input->size));
    input->size[cat->dimension] = input->end - input->begin;
    if (input->end > cat->size[cat->dimension] || input->begin % cat->vector != 0 ||
        input->end % cat->vector != 0)
        return false;
    set_dense(cat, input);
    if (dense[index] == 0 && !read_strides(cat, index, input))
        return false;
    for (unsigned dim = 0; dim < cat->dims; dim++) {
        count *= input->size[dim];
        last += (input->size[dim] - 1) * input->stride[dim];
    }
    input->bytes = (last + 1) * cat->element;
    return count == word(cat, COUNT, index);
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* True if the inputs are valid, in the order of the result, and do not overlap it. */
static bool check_inputs(const struct ms_concatenation *cat, uint64_t result_bytes)
{
    uint64_t behind = 0;
    struct input input;
    for (size_t i = 0; i < cat->count; i++) {
        if (!read_input(cat, i, &input))
            return false;
        if (input.bytes == 0)
            continue;
        if (input.begin < behind || overlap(input.address, input.bytes, cat->out, result_bytes))
            return false;
        behind = input.end;
    }
    return true;
}

bool ms_concatenate_find(const struct ms_call *call, const struct ms_param_layout *layout,
                         const struct ms_packed *packed, struct ms_concatenation *concatenation_out)
{
    struct ms_concatenation *cat = concatenation_out;
    *cat = (struct ms_concatenation){.count = call->grid[1]};
    if (!read_name(layout->name, cat) || !read_parameters(layout, packed, cat) ||
        cat->count > cat->capacity)
        return false;
    const uint64_t bytes = measure_result(cat);
    return bytes > 0 && check_inputs(cat, bytes);
}

/* Adds the next outer dimension: a longer row if both sides go on without a gap, or more rows. */
static void add_dimension(struct ms_strided_copy *rows, uint64_t count, uint64_t to_stride,
                          uint64_t from_stride)
{
    if (count == 1)
        return;
    if (rows->dims == 0 && to_stride == rows->width && from_stride == rows->width) {
        rows->width *= count;
        return;
    }
    if (rows->dims > 0) {
        const unsigned last = rows->dims - 1;
        if (to_stride == rows->dim[last].count * rows->dim[last].to_stride &&
            from_stride == rows->dim[last].count * rows->dim[last].from_stride) {
            rows->dim[last].count *= count;
            return;
        }
    }
    rows->dim[rows->dims].count = count;
    rows->dim[rows->dims].to_stride = to_stride;
    rows->dim[rows->dims].from_stride = from_stride;
    rows->dims++;
}

void ms_concatenate_input(const struct ms_concatenation *concatenation, size_t input,
                          struct ms_strided_copy *rows_out)
{
    const struct ms_concatenation *cat = concatenation;
    struct input from;
    *rows_out = (struct ms_strided_copy){0};
    if (!read_input(cat, input, &from) || from.bytes == 0)
        return;
    rows_out->from = from.address;
    rows_out->to = cat->out + from.begin * cat->stride[cat->dimension] * cat->element;
    rows_out->width = cat->element;
    for (unsigned dim = cat->dims; dim-- > 0;)
        add_dimension(rows_out, from.size[dim], cat->stride[dim] * cat->element,
                      from.stride[dim] * cat->element);
}
