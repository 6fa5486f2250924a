/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/launch/strided.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/test.h"

/* As OffsetCalculator<2> has them. */
struct calculator {
    int dims;
    unsigned sizes[25][3], strides[25][2];
};

struct behind { /* (int, {calculator, pointers}) */
    int count, padding;
    struct calculator calculator;
    uint64_t pointers[2];
};

struct before { /* (int, {pointers, calculator}) */
    int count, padding;
    uint64_t pointers[2];
    struct calculator calculator;
};

static struct ms_param_layout *layout;
static struct ms_packed packed;

static void start(size_t bytes)
{
    static const struct ms_param count = {0, 4};
    if (layout == NULL)
        layout = calloc(1, sizeof(*layout) + 2 * sizeof(struct ms_param));
    CHECK(layout != NULL);
    layout->known = true;
    layout->count = 2;
    layout->bytes = bytes;
    layout->params[0] = count;
    layout->params[1] = (struct ms_param){8, (uint32_t)bytes - 8};
    packed.count = bytes;
    packed.bytes = packed.local;
    memset(packed.local, 0xab, sizeof(packed.local));
}

/* What is in use is as it was, the rest is zero. */
static void check_calculator(size_t at, int dims)
{
    struct calculator calculator;
    memcpy(&calculator, packed.local + at, sizeof(calculator));
    for (int dim = 0; dim < 25; dim++) {
        const unsigned wanted = dim < dims ? 0xababababu : 0;
        CHECK_EQ(calculator.sizes[dim][0], wanted);
        CHECK_EQ(calculator.sizes[dim][2], wanted);
        CHECK_EQ(calculator.strides[dim][0], wanted);
        CHECK_EQ(calculator.strides[dim][1], wanted);
    }
}

static void set_dims(size_t at, int dims)
{
    memcpy(packed.local + at, &dims, sizeof(dims));
}

MS_TEST(what_lies_behind_the_dimensions_becomes_zero)
{
    static const int dims[] = {0, 1, 2, 24, 25};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        start(sizeof(struct behind));
        set_dims(offsetof(struct behind, calculator), dims[i]);
        CHECK(ms_strided_clean(layout, &packed, offsetof(struct behind, pointers)));
        check_calculator(offsetof(struct behind, calculator), dims[i]);
        start(sizeof(struct before) / 8 * 8);
        set_dims(offsetof(struct before, calculator), dims[i]);
        CHECK(ms_strided_clean(layout, &packed, offsetof(struct before, pointers)));
        check_calculator(offsetof(struct before, calculator), dims[i]);
        CHECK_EQ(packed.local[offsetof(struct before, pointers)], 0xab);
    }
}

MS_TEST(other_parameters_stay)
{
    static const unsigned char other[4096];
    const size_t pointers = offsetof(struct behind, pointers);
    const size_t calculator = offsetof(struct behind, calculator);
    start(sizeof(struct behind));
    set_dims(calculator, 26);
    CHECK(!ms_strided_clean(layout, &packed, pointers));
    set_dims(calculator, -1);
    CHECK(!ms_strided_clean(layout, &packed, pointers));
    set_dims(calculator, 2);
    CHECK(!ms_strided_clean(layout, &packed, pointers - 8));
    layout->count = 3;
    CHECK(!ms_strided_clean(layout, &packed, pointers));
    layout->count = 2;
    layout->params[1].bytes -= 16;
    CHECK(!ms_strided_clean(layout, &packed, pointers));
    layout->params[1].bytes += 16;
    packed.bytes = other; /* the program's own */
    CHECK(!ms_strided_clean(layout, &packed, pointers));
    packed.bytes = packed.local;
    CHECK_EQ(packed.local[calculator + 4 + 12 * 2], 0xab);
    CHECK(ms_strided_clean(layout, &packed, pointers));
    CHECK_EQ(packed.local[calculator + 4 + 12 * 2], 0);
}
