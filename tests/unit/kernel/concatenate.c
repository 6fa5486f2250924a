/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/concatenate.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/between.h"

/* Parameters as PyTorch packs them, for N = 4 inputs, elements of 4 bytes, one shape. */
enum { INPUTS = 4, METADATA = INPUTS * 21, METADATA_BYTES = (METADATA + 32 + 7) / 8 * 8 };
struct parameters {
    uint64_t out;
    uint64_t input[INPUTS];
    uint32_t words[3][INPUTS]; /* offset, size, count */
    unsigned char dense[INPUTS];
    unsigned char shape_and_padding[METADATA_BYTES - METADATA];
    uint32_t size[4], stride[4];
    int32_t dimension;
    uint32_t dimension_stride;
};

#define NAME(dims) \
    "_ZN2at6native26CatArrayBatchedCopy_contigINS1_10OpaqueTypeILj4EEEjLi" dims "ELi4ELi1EEEvPT_"

static struct parameters good;
static struct ms_param_layout *layout;
static struct ms_call call;
static struct ms_strided_copy pieces[INPUTS]; /* of inputs that are not empty */
static size_t count;

static void set_name(const char *name)
{
    layout->name = (char *)name;
}

/* Three inputs of 10, 0 and 30 elements, in one dimension. */
static void start(void)
{
    static const uint32_t lengths[] = {10, 0, 30};
    static const struct ms_param params[] = {
        {offsetof(struct parameters, out), 8},
        {offsetof(struct parameters, input), METADATA_BYTES},
        {offsetof(struct parameters, size), 32},
        {offsetof(struct parameters, dimension), 4},
        {offsetof(struct parameters, dimension_stride), 4},
    };
    if (layout == NULL)
        layout = calloc(1, sizeof(*layout) + sizeof(params));
    CHECK(layout != NULL);
    layout->known = true;
    layout->count = 5;
    layout->bytes = sizeof(good);
    memcpy(layout->params, params, sizeof(params));
    set_name(NAME("1"));
    call = (struct ms_call){.grid = {2, 3, 1}};
    good = (struct parameters){.out = 0x10000, .size = {40}, .stride = {1}, .dimension_stride = 1};
    uint32_t offset = 0;
    for (size_t i = 0; i < 3; i++) {
        good.input[i] = 0x20000 + 0x1000 * i;
        good.words[0][i] = offset;
        good.words[1][i] = good.words[2][i] = lengths[i];
        good.dense[i] = 1;
        offset += lengths[i];
    }
}

static bool find(const struct parameters *parameters)
{
    const struct ms_packed packed = {.bytes = (const unsigned char *)parameters,
                                     .count = sizeof(*parameters)};
    struct ms_concatenation found;
    if (!ms_concatenate_find(&call, layout, &packed, &found))
        return false;
    count = 0;
    for (size_t i = 0; i < found.count; i++) {
        ms_concatenate_input(&found, i, &pieces[count]);
        count += pieces[count].width > 0;
    }
    return true;
}

MS_TEST_AFTER(start, inputs_become_copies)
{
    CHECK(find(&good));
    CHECK_EQ(count, 2);
    CHECK_EQ(pieces[0].from, 0x20000);
    CHECK_EQ(pieces[0].to, 0x10000);
    CHECK_EQ(pieces[0].width, 40);
    CHECK_EQ(pieces[0].dims, 0);
    CHECK_EQ(pieces[1].from, 0x22000);
    CHECK_EQ(pieces[1].to, 0x10000 + 40);
    CHECK_EQ(pieces[1].width, 120);
}

MS_TEST_AFTER(start, rows_are_one_piece)
{
    set_name(NAME("2"));
    struct parameters rows = good;
    /* 2 and 6 rows of 5 elements */
    rows.size[0] = 8;
    rows.size[1] = 5;
    rows.stride[0] = 5;
    rows.stride[1] = 1;
    rows.dimension_stride = 5;
    rows.words[0][2] = 2;
    rows.words[1][0] = 2;
    rows.words[1][2] = 6;
    CHECK(find(&rows));
    CHECK_EQ(count, 2);
    CHECK_EQ(pieces[1].to, 0x10000 + 40);
    CHECK_EQ(pieces[1].width, 120);
}

/* 2 and 6 columns of 5 rows of 8. */
static struct parameters columns(void)
{
    struct parameters parameters = good;
    set_name(NAME("2"));
    parameters.size[0] = 5;
    parameters.size[1] = 8;
    parameters.stride[0] = 8;
    parameters.stride[1] = 1;
    parameters.dimension = 1;
    parameters.words[0][2] = 2;
    parameters.words[1][0] = 2;
    parameters.words[1][2] = 6;
    return parameters;
}

MS_TEST_AFTER(start, columns_are_rows)
{
    const struct parameters parameters = columns();
    CHECK(find(&parameters));
    CHECK_EQ(count, 2);
    CHECK_EQ(pieces[0].width, 8);
    CHECK_EQ(pieces[1].to, 0x10000 + 8);
    CHECK_EQ(pieces[1].from, 0x22000);
    CHECK_EQ(pieces[1].width, 24);
    CHECK_EQ(pieces[1].dims, 1);
    CHECK_EQ(pieces[1].dim[0].count, 5);
    CHECK_EQ(pieces[1].dim[0].to_stride, 32);
    CHECK_EQ(pieces[1].dim[0].from_stride, 24);
}

MS_TEST_AFTER(start, the_result_may_have_gaps_and_not_overlap_itself)
{
    struct parameters parameters = columns();
    parameters.stride[0] = 9;
    CHECK(find(&parameters));
    CHECK_EQ(pieces[1].dim[0].to_stride, 36);
    CHECK_EQ(pieces[1].dim[0].from_stride, 24);
    parameters.stride[0] = 7;
    CHECK(!find(&parameters));
    parameters = columns();
    parameters.stride[1] = parameters.dimension_stride = 0;
    CHECK(!find(&parameters));
    parameters = columns();
    parameters.dimension_stride = 2;
    CHECK(!find(&parameters));
    parameters = columns();
    parameters.words[0][2] = 3; /* goes over the edge */
    CHECK(!find(&parameters));
    parameters = columns();
    parameters.dimension = 2;
    CHECK(!find(&parameters));
    parameters = columns();
    parameters.size[0] = 1u << 31;
    CHECK(!find(&parameters));
}

/* 4 and 8 rows of 2 columns, in each of 3 planes: a plane is one dimension, of vectors of 4
 * elements. */
MS_TEST(vectors_are_elements)
{
    static const char name[] = "_ZN2at6native30CatArrayBatchedCopy_vectorizedINS1_10OpaqueType"
                               "ILj4EEEjLi2ELi4ELi1ELi16ELi4EEEvPc";
    start();
    set_name(name);
    struct parameters vectors = good;
    vectors.size[0] = 3;
    vectors.size[1] = 6;
    vectors.stride[0] = 6;
    vectors.stride[1] = 1;
    vectors.dimension = 1;
    vectors.dimension_stride = 2; /* columns */
    vectors.words[0][2] = 4;
    vectors.words[1][0] = 4;
    vectors.words[1][2] = 8;
    vectors.words[2][0] = 3 * 8;
    vectors.words[2][2] = 3 * 16;
    CHECK(find(&vectors));
    CHECK_EQ(count, 2);
    CHECK_EQ(pieces[1].to, 0x10000 + 32);
    CHECK_EQ(pieces[1].width, 64);
    CHECK_EQ(pieces[1].dims, 1);
    CHECK_EQ(pieces[1].dim[0].count, 3);
    CHECK_EQ(pieces[1].dim[0].to_stride, 96);
    CHECK_EQ(pieces[1].dim[0].from_stride, 64);
    struct parameters other = vectors;
    other.words[0][2] = 5; /* between vectors, and over the edge */
    CHECK(!find(&other));
    other = vectors;
    other.words[0][2] = 3;
    other.words[1][0] = 3;
    other.words[2][0] = 3 * 6;
    CHECK(!find(&other));
    other = vectors;
    other.stride[1] = 2;
    CHECK(!find(&other));
    set_name("CatArrayBatchedCopy_vectorized10OpaqueTypeILj4EEEjLi2ELi4ELi1ELi16ELi8E");
    CHECK(!find(&vectors));
    set_name("CatArrayBatchedCopy_vectorized10OpaqueTypeILj4EEEjLi3ELi4ELi1ELi16ELi4E");
    CHECK(!find(&vectors)); /* a dimension behind the one of concatenation */
}

/* Inputs with strides: 4 shapes behind the rest of the metadata. */
struct strided {
    uint64_t out;
    uint64_t input[INPUTS];
    uint32_t words[3][INPUTS];
    unsigned char dense[INPUTS];
    uint32_t shape[INPUTS][8];
    unsigned char padding[4];
    uint32_t size[4], stride[4];
    int32_t dimension;
    uint32_t dimension_stride;
};

static bool find_strided(const struct strided *parameters)
{
    const struct ms_packed packed = {.bytes = (const unsigned char *)parameters,
                                     .count = sizeof(*parameters)};
    struct ms_concatenation found;
    if (!ms_concatenate_find(&call, layout, &packed, &found))
        return false;
    ms_concatenate_input(&found, 0, &pieces[0]);
    ms_concatenate_input(&found, 1, &pieces[1]);
    return true;
}

MS_TEST(inputs_have_strides)
{
    static const struct ms_param params[] = {{offsetof(struct strided, out), 8},
                                             {offsetof(struct strided, input), 216},
                                             {offsetof(struct strided, size), 32},
                                             {offsetof(struct strided, dimension), 4},
                                             {offsetof(struct strided, dimension_stride), 4}};
    struct strided strided = {.out = 0x10000,
                              .input = {0x20000, 0x30000},
                              .words = {{0, 4}, {4, 2}, {20, 10}},
                              .shape = {{5, 4, 0, 0, 100, 1}, {5, 2, 0, 0, 2, 1}},
                              .size = {5, 6},
                              .stride = {6, 1},
                              .dimension = 1,
                              .dimension_stride = 1};
    start();
    memcpy(layout->params, params, sizeof(params));
    set_name("CatArrayBatchedCopyI10OpaqueTypeILj4EEEjLi2ELi4ELi4EEE");
    call.grid[1] = 2;
    CHECK(find_strided(&strided));
    CHECK_EQ(pieces[0].width, 16);
    CHECK_EQ(pieces[0].dim[0].from_stride, 400);
    CHECK_EQ(pieces[0].dim[0].to_stride, 24);
    CHECK_EQ(pieces[1].to, 0x10010);
    CHECK_EQ(pieces[1].dim[0].from_stride, 8);
    strided.shape[1][0] = 4; /* not the result's */
    CHECK(!find_strided(&strided));
    strided.shape[1][0] = 5;
    strided.out = 0x20000 + 300; /* between the rows of an input */
    CHECK(!find_strided(&strided));
}

MS_TEST_AFTER(start, a_tensor_that_is_not_dense_is_left_alone)
{
    struct parameters other = good;
    other.dense[2] = 0;
    CHECK(!find(&other));
    other = good;
    other.words[1][2] = 29; /* size and count do not agree */
    CHECK(!find(&other));
}

MS_TEST_AFTER(start, inputs_inside_of_the_output_are_left_alone)
{
    struct parameters other = good;
    other.input[2] = 0x10000 + 8;
    CHECK(!find(&other));
    other = good;
    other.words[0][2] = 5; /* two inputs to one place */
    CHECK(!find(&other));
}

MS_TEST_AFTER(start, other_parameters_are_left_alone)
{
    CHECK(find(&good));
    for (unsigned i = 0; i < 5; i++) {
        layout->params[i].bytes++;
        CHECK(!find(&good));
        layout->params[i].bytes--;
    }
    layout->count = 4;
    CHECK(!find(&good));
    layout->count = 5;
    call.grid[1] = INPUTS + 1;
    CHECK(!find(&good));
    call.grid[1] = 3;
    static const char *const names[] = {"CatArrayBatchedCopy",
                                        "CatArrayBatchedCopy10OpaqueTypeILj+4EEEjLi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj 4EEEjLi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjXi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj17EEEjLi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj0EEEjLi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi0ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi1ELi4ELi4096E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEmLi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi1ELi4",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi5ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi1ELi4096ELi1E"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        set_name(names[i]);
        CHECK(!find(&good));
    }
}

/* Elements have any size up to 16 bytes. */
MS_TEST_AFTER(start, elements_have_the_bytes_that_the_name_says)
{
    set_name("CatArrayBatchedCopy_contig10OpaqueTypeILj9EEEjLi1ELi4ELi1E");
    CHECK(find(&good));
    CHECK(pieces[0].width == 90 && pieces[1].width == 270);
    good.input[0] += 0x10000;
    good.input[2] += 0x10000;
    set_name("CatArrayBatchedCopy_contig10OpaqueTypeILj16EEEjLi1ELi4ELi1E");
    CHECK(find(&good));
    CHECK(pieces[0].width == 160 && pieces[1].to == 0x10000 + 160);
    set_name("CatArrayBatchedCopy_contig10OpaqueTypeILj1EEEjLi1ELi4ELi1E");
    CHECK(find(&good));
    CHECK_EQ(pieces[0].width, 10);
}
