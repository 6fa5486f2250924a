/* SPDX-License-Identifier: Apache-2.0 */
/* torch.cat in any dimension, as transformers makes a mixture of experts of a checkpoint that has
 * each expert by itself. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/differential/cat_kernels.h"
#include "tests/driver/differential/scenario.h"

enum { DIMS = 3, MOST = 64, VECTOR = 4 };

/* Of 4-byte elements. */
struct tensor {
    CUdeviceptr at;
    uint32_t size[DIMS], stride[DIMS];
};

static size_t count_of(const struct tensor *tensor)
{
    return (size_t)tensor->size[0] * tensor->size[1] * tensor->size[2];
}

static size_t bytes_of(const struct tensor *tensor)
{
    return count_of(tensor) * 4;
}

static struct tensor dense(CUdeviceptr at, uint32_t planes, uint32_t rows, uint32_t columns)
{
    return (struct tensor){at, {planes, rows, columns}, {rows * columns, columns, 1}};
}

/* Bytes of a file, each tensor others. */
static struct tensor loaded(uint32_t planes, uint32_t rows, uint32_t columns)
{
    static CUdeviceptr file;
    static size_t used;
    const struct tensor shape = dense(0, planes, rows, columns);
    const struct tensor tensor = dense(allocate(bytes_of(&shape)), planes, rows, columns);
    if (file == 0)
        file = load_file(40 * MIB);
    OK(cuMemcpyDtoD(tensor.at, file + used, bytes_of(&tensor)));
    used += bytes_of(&tensor);
    return tensor;
}

/* The tensor that the inputs make when they are one behind the other in a dimension. */
static struct tensor result_of(const struct tensor *inputs, size_t count, unsigned dimension)
{
    struct tensor out = inputs[0];
    for (size_t i = 1; i < count; i++)
        out.size[dimension] += inputs[i].size[dimension];
    return dense(allocate(bytes_of(&out)), out.size[0], out.size[1], out.size[2]);
}

/* --- launches as PyTorch makes them */

/* CatArrInputTensorMetadata, behind one another. */
struct metadata {
    unsigned char bytes[CAT_STRIDED_BYTES];
    size_t room;
};

static void set_word(struct metadata *metadata, unsigned array, size_t input, uint32_t value)
{
    memcpy(metadata->bytes + metadata->room * (8 + 4 * (size_t)array) + 4 * input, &value, 4);
}

static void add_inputs(struct metadata *metadata, const struct tensor *inputs, size_t count,
                       unsigned dimension, bool is_dense)
{
    uint32_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(metadata->bytes + 8 * i, &inputs[i].at, 8);
        set_word(metadata, 0, i, offset);
        set_word(metadata, 1, i, inputs[i].size[dimension]);
        set_word(metadata, 2, i, (uint32_t)count_of(&inputs[i]));
        metadata->bytes[metadata->room * 20 + i] = is_dense;
        if (!is_dense) {
            unsigned char *shape =
                metadata->bytes + (metadata->room * 21 + 3) / 4 * 4 + i * CAT_SHAPE_BYTES;
            memcpy(shape, inputs[i].size, sizeof(inputs[i].size));
            memcpy(shape + 16, inputs[i].stride, sizeof(inputs[i].stride));
        }
        offset += inputs[i].size[dimension];
    }
}

static void launch(const char *name, size_t count, const struct tensor *out,
                   struct metadata *metadata, const uint32_t shape[8], int dimension, uint32_t last)
{
    CUdeviceptr at = out->at;
    void *params[] = {&at, metadata->bytes, (void *)shape, &dimension, &last};
    OK(cuLaunchKernel(function(name), 16, (unsigned)count, 1, 128, 1, 1, 0, NULL, params, NULL));
}

static void cat_elements(const char *name, const struct tensor *inputs, size_t count,
                         unsigned dimension, const struct tensor *out)
{
    const bool is_dense = strcmp(name, CAT_NAME(CAT_STRIDED)) != 0;
    struct metadata metadata = {.room = is_dense ? 128 : 64};
    uint32_t shape[8] = {0};
    add_inputs(&metadata, inputs, count, dimension, is_dense);
    memcpy(shape, out->size, sizeof(out->size));
    memcpy(shape + 4, out->stride, sizeof(out->stride));
    launch(name, count, out, &metadata, shape, (int)dimension, out->stride[dimension]);
}

/* The dimensions behind the one of concatenation are folded into it. */
static void cat_vectors(const struct tensor *inputs, size_t count, unsigned dimension,
                        const struct tensor *out)
{
    struct metadata metadata = {.room = 128};
    uint32_t shape[8] = {0};
    add_inputs(&metadata, inputs, count, dimension, true);
    memcpy(shape, out->size, sizeof(out->size));
    for (unsigned i = 0; i < dimension; i++)
        shape[4 + i] = out->stride[i] / VECTOR;
    shape[dimension] =
        (uint32_t)(dimension == 0 ? count_of(out) : out->stride[dimension - 1]) / VECTOR;
    shape[4 + dimension] = 1;
    launch(dimension == 0 ? CAT_NAME(CAT_VECTORIZED_1) : CAT_NAME(CAT_VECTORIZED_2), count, out,
           &metadata, shape, (int)dimension, out->stride[dimension]);
}

/* --- what must come of it */

static uint32_t *read_words(const struct tensor *tensor)
{
    size_t extent = 1;
    for (unsigned dim = 0; dim < DIMS; dim++)
        extent += (size_t)(tensor->size[dim] - 1) * tensor->stride[dim];
    uint32_t *words = malloc(extent * 4);
    OK(cuMemcpyDtoH(words, tensor->at, extent * 4));
    return words;
}

static size_t place(const struct tensor *tensor, uint32_t plane, uint32_t row, uint32_t column)
{
    return (size_t)plane * tensor->stride[0] + (size_t)row * tensor->stride[1] +
           (size_t)column * tensor->stride[2];
}

static size_t count_wrong(const uint32_t *words, const struct tensor *out,
                          const struct tensor *input, const uint32_t at[DIMS])
{
    uint32_t *wanted = read_words(input);
    size_t wrong = 0;
    for (uint32_t plane = 0; plane < input->size[0]; plane++)
        for (uint32_t row = 0; row < input->size[1]; row++)
            for (uint32_t column = 0; column < input->size[2]; column++)
                wrong += words[place(out, at[0] + plane, at[1] + row, at[2] + column)] !=
                         wanted[place(input, plane, row, column)];
    free(wanted);
    return wrong;
}

static void check_values(const char *name, const struct tensor *inputs, size_t count,
                         unsigned dimension, const struct tensor *out)
{
    uint32_t *words = read_words(out), at[DIMS] = {0};
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += count_wrong(words, out, &inputs[i], at);
        at[dimension] += inputs[i].size[dimension];
    }
    printf("%s: %zu elements are wrong\n", name, wrong);
    free(words);
    print_bytes(name, out->at, bytes_of(out));
}

/* --- scenarios */

/* Every kernel, in every dimension: the values. */
SCENARIO(values)
{
    const struct tensor inputs[] = {loaded(6, 40, 64), loaded(6, 24, 64), loaded(6, 8, 64)};
    const struct tensor planes[] = {inputs[0], loaded(2, 40, 64)};
    const struct tensor columns[] = {loaded(6, 40, 20), loaded(6, 40, 4)};
    struct tensor out = result_of(inputs, 3, 1);
    cat_elements(CAT_NAME(CAT_CONTIG), inputs, 3, 1, &out);
    check_values("dense, dimension 1", inputs, 3, 1, &out);
    cat_vectors(inputs, 3, 1, &out);
    check_values("vectors, dimension 1", inputs, 3, 1, &out);
    out = result_of(planes, 2, 0);
    cat_elements(CAT_NAME(CAT_CONTIG), planes, 2, 0, &out);
    check_values("dense, dimension 0", planes, 2, 0, &out);
    cat_vectors(planes, 2, 0, &out);
    check_values("vectors, dimension 0", planes, 2, 0, &out);
    out = result_of(columns, 2, 2);
    cat_elements(CAT_NAME(CAT_CONTIG), columns, 2, 2, &out);
    check_values("dense, dimension 2", columns, 2, 2, &out);
}

static struct tensor drawn(uint32_t planes, uint32_t rows, uint32_t columns)
{
    static uint64_t seed;
    const struct tensor shape = dense(0, planes, rows, columns);
    const struct tensor tensor = dense(allocate(bytes_of(&shape)), planes, rows, columns);
    uniform(tensor.at, count_of(&tensor), ++seed);
    return tensor;
}

/* gate and up of each of 8 experts are made by themselves, stacked, and concatenated in dimension
 * 1; then the rank takes its experts. */
static void take_experts(struct tensor make(uint32_t, uint32_t, uint32_t))
{
    enum { EXPERTS = 8, ROWS = 512, COLUMNS = 1024 };
    struct tensor stacks[2];
    for (int half = 0; half < 2; half++) {
        struct tensor parts[EXPERTS];
        for (int i = 0; i < EXPERTS; i++)
            parts[i] = make(1, ROWS, COLUMNS);
        stacks[half] = result_of(parts, EXPERTS, 0);
        cat_vectors(parts, EXPERTS, 0, &stacks[half]);
        for (int i = 0; i < EXPERTS; i++)
            OK(cuMemFree(parts[i].at));
    }
    const struct tensor both = result_of(stacks, 2, 1);
    cat_vectors(stacks, 2, 1, &both);
    OK(cuMemFree(stacks[0].at));
    OK(cuMemFree(stacks[1].at));
    const size_t shard = bytes_of(&both) / 4;
    const CUdeviceptr mine = allocate(shard);
    OK(cuMemcpyDtoD(mine, both.at + 2 * shard, shard));
    OK(cuMemFree(both.at));
    print_bytes("this rank's experts", mine, shard);
}

SCENARIO(experts)
{
    take_experts(loaded);
}

/* A row is one launch then. */
SCENARIO(drawn_experts)
{
    take_experts(drawn);
}

/* Rows that are parts of a launch, which would run for each of them. */
SCENARIO(drawn_whole)
{
    const struct tensor inputs[] = {drawn(16, 256, 64), drawn(16, 256, 64)};
    const struct tensor out = result_of(inputs, 2, 1);
    cat_vectors(inputs, 2, 1, &out);
    OK(cuMemFree(inputs[0].at));
    print_bytes("parts of launches", out.at, bytes_of(&out));
}

/* 128 experts in 48 layers, three tensors each: transformers has them all in one piece of memory,
 * larger than the device. */
SCENARIO(many_pieces)
{
    enum { PIECES = 128 * 48 * 3, PIECE = 4096 };
    const size_t step = MIB + MIB / 8;
    const CUdeviceptr file = load_file(8 * MIB);
    const CUdeviceptr all = allocate(PIECES * step);
    for (size_t i = 0; i < PIECES; i++)
        OK(cuMemcpyDtoD(all + i * step, file + i % 2048 * PIECE, PIECE));
    print_bytes("one of them", all + 10000 * step, PIECE);
    print_bytes("one of them", file + 10000 % 2048 * PIECE, PIECE);
}

/* Columns of tensors, which are no longer there when the result is needed. */
SCENARIO(strided)
{
    struct tensor inputs[] = {loaded(4, 64, 256), loaded(4, 32, 256)};
    const struct tensor whole[] = {inputs[0], inputs[1]};
    inputs[0].at += 32 * 4;
    inputs[0].size[2] = inputs[1].size[2] = 64;
    const struct tensor out = result_of(inputs, 2, 1);
    cat_elements(CAT_NAME(CAT_STRIDED), inputs, 2, 1, &out);
    OK(cuMemFree(whole[0].at));
    OK(cuMemFree(whole[1].at));
    print_bytes("columns of freed tensors", out.at, bytes_of(&out));
}

SCENARIO(strided_values)
{
    struct tensor inputs[] = {loaded(4, 64, 256), loaded(4, 32, 256)};
    inputs[0].at += 32 * 4;
    inputs[0].size[2] = inputs[1].size[2] = 64;
    const struct tensor out = result_of(inputs, 2, 1);
    cat_elements(CAT_NAME(CAT_STRIDED), inputs, 2, 1, &out);
    check_values("columns", inputs, 2, 1, &out);
}

/* Where rows are not what is copied: too short, */
SCENARIO(short_rows)
{
    const struct tensor inputs[] = {loaded(64, 64, 8), loaded(64, 64, 4)};
    const struct tensor out = result_of(inputs, 2, 2);
    cat_elements(CAT_NAME(CAT_CONTIG), inputs, 2, 2, &out);
    print_bytes("short rows", out.at, bytes_of(&out));
}

/* too many, of both inputs together, */
SCENARIO(many_rows)
{
    const struct tensor inputs[] = {loaded(4096, 2, 32), loaded(4096, 1, 32)};
    const struct tensor out = result_of(inputs, 2, 1);
    cat_elements(CAT_NAME(CAT_CONTIG), inputs, 2, 1, &out);
    print_bytes("many rows", out.at, bytes_of(&out));
}

/* and one of the inputs, or the result, in memory. */
SCENARIO(in_memory)
{
    const struct tensor inputs[] = {loaded(8, 64, 64), loaded(8, 64, 64)};
    const struct tensor out = result_of(inputs, 2, 1);
    print_bytes("an input is read before", inputs[1].at, bytes_of(&inputs[1]));
    cat_vectors(inputs, 2, 1, &out);
    print_bytes("its result", out.at, bytes_of(&out));
    OK(cuMemsetD8(inputs[0].at, 5, 4096));
    cat_vectors(inputs, 2, 1, &out);
    print_bytes("into memory", out.at, bytes_of(&out));
}

/* Bytes around the part, and later bytes of the inputs, are another matter. */
SCENARIO(into_a_part)
{
    const struct tensor inputs[] = {loaded(8, 64, 64), loaded(8, 64, 64)};
    const struct tensor shape = result_of(inputs, 2, 1);
    const CUdeviceptr larger = allocate(4 * bytes_of(&shape));
    const struct tensor out = dense(larger + 4096, 8, 128, 64);
    OK(cuMemsetD8(larger, 0x5a, 4 * bytes_of(&shape)));
    cat_vectors(inputs, 2, 1, &out);
    OK(cuMemsetD8(inputs[0].at, 0, bytes_of(&inputs[0]))); /* what was copied stays */
    print_bytes("a part of a tensor", larger, 4 * bytes_of(&shape));
}
