/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.cat (Shape.cu): CatArrayBatchedCopy and its variants.
 *
 *     (T *out, CatArrInputTensorMetadata<T, uint32, N, S>, TensorSizeStride<uint32, 4> {size[4], stride[4]},
 *      int dimension, uint32 stride of it)
 *
 * The metadata of N inputs: input[N], offset[N], dimSize[N], nElements[N], isContiguous[N], and for
 * strided inputs tensorStride[S] (TensorSizeStride each). The vectorized variant folds the
 * dimensions behind the one of concatenation into it: sizes and strides of the output count vectors
 * of 16 bytes, and the last parameter is what those dimensions come to; all else counts elements.
 */
#include "tools/simcuda/torch/host.h"

#include <stdlib.h>

enum { CAT_DIMS = 4 };

struct shape {
    uint32_t size[CAT_DIMS], stride[CAT_DIMS];
};

struct cat {
    size_t element, unit; /* bytes of an element, and of what one thread copies */
    unsigned room;        /* N */
    unsigned dims;
    unsigned char *out;
    const unsigned char *metadata;
    const struct shape *shape;
    uint32_t dimension, dimension_stride;
};

/* The N and the element size that the kernel was compiled for:
 * "...OpaqueTypeILj4EEEjLi1ELi128E...". */
static bool read_name(const char *name, struct cat *cat)
{
    const char *at = strstr(name, "10OpaqueTypeILj");
    if (at == NULL)
        return false;
    char *end;
    cat->element = strtoul(at + strlen("10OpaqueTypeILj"), &end, 10);
    if (strncmp(end, "EEEjLi", 6) != 0)
        return false;
    cat->dims = (unsigned)strtoul(end + 6, &end, 10);
    if (strncmp(end, "ELi", 3) != 0)
        return false;
    cat->room = (unsigned)strtoul(end + 3, &end, 10);
    return true;
}

static uint32_t word(const struct cat *cat, unsigned array, unsigned input)
{
    uint32_t value;
    memcpy(&value, cat->metadata + cat->room * (8 + 4 * array) + 4 * input, sizeof(value));
    return value;
}

/* Where element i of an input goes, in elements of the output. */
static size_t place_of(const struct cat *cat, size_t i, uint32_t size_in_dimension)
{
    size_t place = 0;
    for (unsigned dim = cat->dims; dim-- > 1;) {
        const size_t size = dim == cat->dimension ? size_in_dimension : cat->shape->size[dim];
        place += i % size * cat->shape->stride[dim];
        i /= size;
    }
    return place + i * cat->shape->stride[0];
}

static size_t place_in(const struct shape *shape, unsigned dims, size_t i)
{
    size_t place = 0;
    for (unsigned dim = dims; dim-- > 1;) {
        place += i % shape->size[dim] * shape->stride[dim];
        i /= shape->size[dim];
    }
    return place + i * shape->stride[0];
}

/* From the first element to behind the last one. */
static size_t extent_of(const struct shape *shape, unsigned dims)
{
    size_t last = 0;
    for (unsigned dim = 0; dim < dims; dim++)
        last += (size_t)(shape->size[dim] - 1) * shape->stride[dim];
    return last + 1;
}

/* The strides of an input, or NULL when it is dense. */
static const struct shape *shape_of(const struct cat *cat, unsigned input)
{
    const unsigned char *flags = cat->metadata + (size_t)cat->room * 20;
    const size_t behind = ((size_t)cat->room * 21 + 3) / 4 * 4;
    return flags[input] != 0 ? NULL : (const struct shape *)(cat->metadata + behind) + input;
}

static void copy_input(const struct simcuda_launch *launch, const struct cat *cat, unsigned input)
{
    const size_t bytes = word(cat, 2, input) * cat->element;
    if (bytes == 0)
        return;
    const struct shape *shape = shape_of(cat, input);
    const size_t reach = shape == NULL ? bytes : extent_of(shape, cat->dims) * cat->element;
    const unsigned char *from = launch->touch(launch, host_word(cat->metadata, 8 * input), reach);
    if (from == NULL)
        return;
    uint32_t size = word(cat, 1, input);
    if (cat->unit != cat->element)
        size = (uint32_t)(size * cat->dimension_stride * cat->element / cat->unit);
    const size_t begin = (size_t)word(cat, 0, input) * cat->dimension_stride * cat->element;
    for (size_t i = 0; i < bytes / cat->unit; i++) {
        const size_t source = shape == NULL ? i : place_in(shape, cat->dims, i);
        memcpy(cat->out + begin + place_of(cat, i, size) * cat->unit, from + source * cat->unit,
               cat->unit);
    }
}

static void run(const struct simcuda_launch *launch, void **args)
{
    struct cat cat = {.metadata = args[1],
                      .shape = args[2],
                      .dimension = (uint32_t)SIMCUDA_ARG(args, 3, int),
                      .dimension_stride = SIMCUDA_ARG(args, 4, uint32_t)};
    if (!read_name(launch->name, &cat))
        return;
    const bool vectorized = strstr(launch->name, "30CatArrayBatchedCopy_vectorizedI") != NULL;
    cat.unit = vectorized ? 16 : cat.element;
    cat.out = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr),
                            extent_of(cat.shape, cat.dims) * cat.unit);
    for (unsigned input = 0; cat.out != NULL && input < launch->grid[1]; input++)
        copy_input(launch, &cat, input);
}

simcuda_kernel *host_find_cat(const char *name)
{
    struct cat cat;
    return strstr(name, "CatArrayBatchedCopy") != NULL && read_name(name, &cat) ? run : NULL;
}
