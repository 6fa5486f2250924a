/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/launch/concatenate.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

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
static struct ms_piece pieces[MS_MAX_PIECES];
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
    return ms_concatenation_find(&call, layout, &packed, pieces, &count);
}

MS_TEST(inputs_become_copies)
{
    start();
    CHECK(find(&good));
    CHECK_EQ(count, 2);
    CHECK_EQ(pieces[0].from, 0x20000);
    CHECK_EQ(pieces[0].to, 0x10000);
    CHECK_EQ(pieces[0].bytes, 40);
    CHECK_EQ(pieces[1].from, 0x22000);
    CHECK_EQ(pieces[1].to, 0x10000 + 40);
    CHECK_EQ(pieces[1].bytes, 120);
}

MS_TEST(rows_are_one_piece)
{
    start();
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
    CHECK_EQ(pieces[1].bytes, 120);
}

MS_TEST(columns_are_none)
{
    start();
    set_name(NAME("2"));
    struct parameters columns = good;
    columns.size[0] = 5;
    columns.size[1] = 8;
    columns.stride[0] = 8;
    columns.stride[1] = 1;
    columns.dimension = 1;
    CHECK(!find(&columns));
    columns.dimension = 0;
    columns.stride[0] = 9; /* rows with gaps */
    CHECK(!find(&columns));
}

MS_TEST(what_is_not_dense_is_left_alone)
{
    start();
    struct parameters other = good;
    other.dense[2] = 0;
    CHECK(!find(&other));
    other = good;
    other.words[1][2] = 29; /* size and count do not agree */
    CHECK(!find(&other));
}

MS_TEST(inputs_inside_of_the_output_are_left_alone)
{
    start();
    struct parameters other = good;
    other.input[2] = 0x10000 + 8;
    CHECK(!find(&other));
    other = good;
    other.words[0][2] = 5; /* two inputs to one place */
    CHECK(!find(&other));
}

MS_TEST(other_parameters_are_left_alone)
{
    start();
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
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEmLi1ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi1ELi4",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi5ELi4ELi1E",
                                        "CatArrayBatchedCopy10OpaqueTypeILj4EEEjLi1ELi4096ELi1E"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        set_name(names[i]);
        CHECK(!find(&good));
    }
}
