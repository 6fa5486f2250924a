/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's kernels for cat (aten/src/ATen/native/cuda/Shape.cu, v1.8 to v2.10): CatArrayBatchedCopy and its
 * _contig, _alignedK_contig and _vectorized variants, for 32-bit indices.
 *
 *     (T *out, CatArrInputTensorMetadata<T, uint32, N, S>, TensorSizeStride<uint32, 4> {size[4], stride[4]},
 *      int dimension, uint32 stride of it)
 *
 * The metadata is input[N], offset[N], dimSize[N], nElements[N], isContiguous[N], tensorStride[S]. Sizes and
 * strides of the output count elements, or, in the vectorized variant, vectors of 16 bytes. An input goes to
 * offset * stride, in elements; it lies there in one piece when the output is dense and is concatenated by its
 * first dimension. blockIdx.y is the input.
 */
#include "runtime/launch/concatenate.h"

#include <stdlib.h>
#include <string.h>

enum { CAT_DIMS = 4, SHAPE_BYTES = 4 * 2 * CAT_DIMS };

struct cat {
    size_t element; /* bytes */
    unsigned dims;
    size_t room;   /* N */
    size_t shapes; /* S */
    CUdeviceptr out;
    const unsigned char *metadata;
    uint32_t size[CAT_DIMS], stride[CAT_DIMS];
    uint32_t dimension, dimension_stride;
};

/* A number between two texts; *at is moved behind the second. */
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

/* "...OpaqueTypeILj4EEEjLi1ELi128ELi1E...": bytes of an element, dimensions, N and S. */
static bool read_name(const char *name, struct cat *cat)
{
    const char *at = strstr(name, "10OpaqueTypeILj");
    size_t dims;
    if (at == NULL || !read_number(&at, "10OpaqueTypeILj", "EEEj", &cat->element) ||
        !read_number(&at, "Li", "E", &dims) || !read_number(&at, "Li", "E", &cat->room) ||
        !read_number(&at, "Li", "E", &cat->shapes))
        return false;
    cat->dims = (unsigned)dims;
    return cat->element >= 1 && cat->element <= 16 && dims >= 1 && dims <= CAT_DIMS &&
           cat->room >= 1 && cat->room <= MS_MAX_PIECES && cat->shapes <= MS_MAX_PIECES;
}

static size_t metadata_bytes(const struct cat *cat)
{
    const size_t behind_flags = (cat->room * (8 + 3 * 4 + 1) + 3) / 4 * 4;
    return (behind_flags + cat->shapes * SHAPE_BYTES + 7) / 8 * 8;
}

static bool read_parameters(const struct ms_param_layout *layout, const struct ms_packed *packed,
                            struct cat *cat)
{
    static const size_t sizes[] = {8, 0, SHAPE_BYTES, 4, 4};
    if (layout->count != 5)
        return false;
    for (unsigned i = 0; i < 5; i++) {
        if (layout->params[i].bytes != (i == 1 ? metadata_bytes(cat) : sizes[i]))
            return false;
    }
    const unsigned char *shape = packed->bytes + layout->params[2].offset;
    cat->metadata = packed->bytes + layout->params[1].offset;
    memcpy(&cat->out, packed->bytes + layout->params[0].offset, sizeof(cat->out));
    memcpy(cat->size, shape, sizeof(cat->size));
    memcpy(cat->stride, shape + sizeof(cat->size), sizeof(cat->stride));
    memcpy(&cat->dimension, packed->bytes + layout->params[3].offset, sizeof(cat->dimension));
    memcpy(&cat->dimension_stride, packed->bytes + layout->params[4].offset,
           sizeof(cat->dimension_stride));
    return true;
}

/* Inputs lie in the output one behind the other. */
static bool is_linear(const struct cat *cat)
{
    uint64_t stride = 1;
    if (cat->dimension != 0)
        return false;
    for (unsigned dim = cat->dims; dim-- > 0;) {
        if (cat->stride[dim] != stride)
            return false;
        stride *= cat->size[dim];
    }
    return true;
}

enum { OFFSET, SIZE, COUNT }; /* the arrays of words */

static uint32_t word(const struct cat *cat, unsigned array, size_t input)
{
    uint32_t value;
    memcpy(&value, cat->metadata + cat->room * (8 + 4 * array) + 4 * input, sizeof(value));
    return value;
}

/* False: not one dense piece; no bytes: nothing. */
static bool read_piece(const struct cat *cat, size_t input, struct ms_piece *piece)
{
    const unsigned char *dense = cat->metadata + cat->room * (8 + 3 * 4);
    const uint64_t elements = word(cat, COUNT, input);
    memcpy(&piece->from, cat->metadata + 8 * input, sizeof(piece->from));
    piece->bytes = elements * cat->element;
    piece->to =
        cat->out + (uint64_t)word(cat, OFFSET, input) * cat->dimension_stride * cat->element;
    return elements == 0 || (dense[input] != 0 &&
                             elements == (uint64_t)word(cat, SIZE, input) * cat->dimension_stride);
}

static bool overlap(CUdeviceptr a, size_t a_bytes, CUdeviceptr b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static bool is_apart(const struct ms_piece *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            if (overlap(pieces[i].to, pieces[i].bytes, pieces[j].from, pieces[j].bytes) ||
                (i != j && overlap(pieces[i].to, pieces[i].bytes, pieces[j].to, pieces[j].bytes)))
                return false;
        }
    }
    return true;
}

bool ms_concatenation_find(const struct ms_call *call, const struct ms_param_layout *layout,
                           const struct ms_packed *packed, struct ms_piece pieces[MS_MAX_PIECES],
                           size_t *count_out)
{
    struct cat cat = {0};
    *count_out = 0;
    if (!read_name(layout->name, &cat) || !read_parameters(layout, packed, &cat) ||
        !is_linear(&cat) || call->grid[1] > cat.room)
        return false;
    for (size_t input = 0; input < call->grid[1]; input++) {
        struct ms_piece *piece = &pieces[*count_out];
        if (!read_piece(&cat, input, piece))
            return false;
        *count_out += piece->bytes > 0;
    }
    return is_apart(pieces, *count_out);
}
