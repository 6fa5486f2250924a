/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/strided_loop.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

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

static void set_word(size_t at, int value)
{
    memcpy(packed.local + at, &value, sizeof(value));
}

/* A calculator of two dimensions, and the launch has as many elements. */
static void set_calculator(size_t at)
{
    static char name[] = "_ZN2at6native18elementwise_kernelILi128E";
    layout->name = name;
    layout->rule = MS_RULE_FROM_OTHER;
    set_word(0, 6000);
    set_word(at, 2);
    set_word(at + 4, 60);
    set_word(at + 16, 100);
}

static bool finds_numbers(size_t at)
{
    struct ms_range numbers = {0, 0};
    if (!ms_strided_loop_find_numbers(layout, &packed, &numbers))
        return false;
    CHECK_EQ(numbers.begin, at);
    CHECK_EQ(numbers.end, at + sizeof(struct calculator));
    return true;
}

MS_TEST(sizes_and_strides_are_numbers_wherever_they_lie)
{
    start(sizeof(struct behind));
    set_calculator(offsetof(struct behind, calculator));
    CHECK(finds_numbers(offsetof(struct behind, calculator)));
    start((sizeof(struct before) + 7) / 8 * 8);
    set_calculator(offsetof(struct before, calculator));
    CHECK(finds_numbers(offsetof(struct before, calculator)));
}

MS_TEST(a_single_element_has_no_dimensions)
{
    const size_t at = offsetof(struct behind, calculator);
    start(sizeof(struct behind));
    set_calculator(at);
    set_word(at, 0);
    CHECK(!finds_numbers(at));
    set_word(0, 1);
    CHECK(finds_numbers(at));
}

MS_TEST(what_may_be_something_else_holds_pointers)
{
    static char other[] = "_ZN2at6native18selementwise_kernelILi128E";
    const size_t at = offsetof(struct behind, calculator);
    start(sizeof(struct behind));
    set_calculator(at);
    set_word(at, 26);
    CHECK(!finds_numbers(at));
    set_word(at, -1);
    CHECK(!finds_numbers(at));
    set_word(at, 2);
    set_word(0, 6001);
    CHECK(!finds_numbers(at));
    set_word(0, 6000);
    layout->count = 3;
    CHECK(!finds_numbers(at));
    layout->count = 2;
    layout->params[1].bytes -= 16;
    CHECK(!finds_numbers(at));
    layout->params[1].bytes += 16;
    layout->rule = MS_RULE_RUN;
    CHECK(!finds_numbers(at));
    set_calculator(at);
    layout->name = other;
    CHECK(!finds_numbers(at));
    set_calculator(at);
    packed.count -= 32; /* the program has packed less */
    CHECK(!finds_numbers(at));
    packed.count += 32;
    set_word(at, 1);
    set_word(at + 4, 6000);
    CHECK(finds_numbers(at));
    set_calculator(offsetof(struct before, calculator)); /* either may be it */
    CHECK(!finds_numbers(at));
}

/* A fill has OffsetCalculator<1>: 404 bytes. */
MS_TEST(numbers_of_one_operand)
{
    struct ms_range numbers = {0, 0};
    enum { ONE = 408, AT = 8 };
    start(AT + ONE + 16);
    set_calculator(AT);
    layout->rule = MS_RULE_WRITE_ONLY;
    CHECK(ms_strided_loop_find_numbers(layout, &packed, &numbers));
    CHECK_EQ(numbers.begin, AT);
    CHECK_EQ(numbers.end, AT + ONE);
    layout->params[1].bytes = ONE + 7;
    CHECK(!ms_strided_loop_find_numbers(layout, &packed, &numbers));
    start(AT + 8 + ONE + 8);
    set_calculator(AT + 8);
    layout->rule = MS_RULE_WRITE_ONLY;
    CHECK(ms_strided_loop_find_numbers(layout, &packed, &numbers));
    CHECK_EQ(numbers.begin, AT + 8);
}

/* --- loops over one tensor */

static void set_strides(size_t at, unsigned dim, int to, int from)
{
    set_word(at + offsetof(struct calculator, strides) + (size_t)dim * 8, to);
    set_word(at + offsetof(struct calculator, strides) + (size_t)dim * 8 + 4, from);
}

MS_TEST(a_loop_over_one_tensor_keeps_each_element_in_its_place)
{
    static char dense[] = "_ZN2at6native29vectorized_elementwise_kernelILi4E";
    const size_t at = offsetof(struct behind, calculator);
    const size_t pointers = offsetof(struct behind, pointers);
    start(sizeof(struct behind));
    set_calculator(at);
    layout->rule = MS_RULE_IN_PLACE;
    CHECK(finds_numbers(at));
    set_strides(at, 0, 4, 4);
    set_strides(at, 1, 400, 400);
    set_strides(at, 2, 1, 2); /* of a dimension that is not there */
    CHECK(!ms_strided_loop_moves(layout, &packed, pointers));
    set_strides(at, 1, 400, 800);
    CHECK(ms_strided_loop_moves(layout, &packed, pointers));
    set_strides(at, 1, 400, 400);
    set_strides(at, 2, 1, 1);
    set_word(at, 26);
    CHECK(ms_strided_loop_moves(layout, &packed, pointers));
    set_word(at, 2);
    CHECK(ms_strided_loop_moves(layout, &packed, pointers + 8));
    layout->count = 3;
    CHECK(ms_strided_loop_moves(layout, &packed, pointers));
    layout->name = dense;
    CHECK(!ms_strided_loop_moves(layout, &packed, pointers));
}

/* --- copies */

static char copy_name[] = "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_"
                          "nocastIZZZNS0_23direct_copy_kernel_cuda"
                          "ERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE10_"
                          "clEvEUlN3c108BFloat16EE_EEvS4_RKT_EUliE_EEviT1_";
static struct ms_call call;
static struct behind copy;
static struct ms_strided_copy rows;

/* 24 columns of 3 planes of 100 rows of 200 elements, two bytes each. */
static void start_copy(void)
{
    start(sizeof(copy));
    layout->name = copy_name;
    copy = (struct behind){.count = 24 * 100 * 3, .pointers = {0x10000, 0x20000}};
    copy.calculator = (struct calculator){.dims = 3,
                                          .sizes = {{24}, {100}, {3}},
                                          .strides = {{2, 2}, {48, 400}, {4800, 40000}}};
    call = (struct ms_call){.grid = {15, 1, 1}, .block = {128, 1, 1}};
}

static bool finds(void)
{
    memcpy(packed.local, &copy, sizeof(copy));
    return ms_strided_loop_find(&call, layout, &packed, offsetof(struct behind, pointers), &rows);
}

MS_TEST(a_copy_of_columns_is_rows)
{
    start_copy();
    CHECK(finds());
    CHECK_EQ(rows.to, 0x10000);
    CHECK_EQ(rows.from, 0x20000);
    CHECK_EQ(rows.width, 48);
    CHECK_EQ(rows.dims, 2);
    CHECK_EQ(rows.dim[0].count, 100);
    CHECK_EQ(rows.dim[0].to_stride, 48);
    CHECK_EQ(rows.dim[0].from_stride, 400);
    CHECK_EQ(rows.dim[1].count, 3);
    CHECK_EQ(rows.dim[1].to_stride, 4800);
    CHECK_EQ(rows.dim[1].from_stride, 40000);
}

MS_TEST(a_launch_may_have_just_as_many_elements_as_its_threads)
{
    start_copy();
    copy.count = 14 * 128 * 4;
    copy.calculator.sizes[0][0] = 32;
    copy.calculator.sizes[1][0] = 112;
    copy.calculator.sizes[2][0] = 2;
    call.grid[0] = 14;
    CHECK(finds());
    CHECK_EQ(rows.width, 64);
    call.grid[0] = 13;
    CHECK(!finds());
}

MS_TEST(only_dense_rows_of_a_whole_launch_are_taken)
{
    start_copy();
    copy.calculator.strides[0][1] = 4; /* every second element */
    CHECK(!finds());
    start_copy();
    copy.calculator.sizes[1][0] = 101; /* not the count */
    CHECK(!finds());
    start_copy();
    copy.calculator.sizes[2][0] = 0;
    CHECK(!finds());
    start_copy();
    copy.calculator.dims = 8;
    CHECK(!finds());
    start_copy();
    copy.calculator.dims = 0;
    CHECK(!finds());
    start_copy();
    call.grid[0] = 14; /* the last elements stay out */
    CHECK(!finds());
    start_copy();
    call.block[0] = 64;
    CHECK(!finds());
    start_copy();
    layout->params[1].bytes -= 16;
    CHECK(!finds());
    start_copy();
    CHECK(finds());
}

MS_TEST(other_names_and_types_are_left_alone)
{
    static const struct {
        const char *from, *to;
    } changes[] = {{"_nocastI", "_castedI"}, /* may change the type */
                   {"direct_copy", "other__copy"},
                   {"EUlN3c108BFloat16E", "EUlN3c108NewFloatE"},
                   {"18elementwise", "18selementwis"}};
    char *original = copy_name;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        char changed[sizeof(copy_name)];
        start_copy();
        memcpy(changed, original, sizeof(changed));
        char *at = strstr(changed, changes[i].from);
        CHECK(at != NULL);
        memcpy(at, changes[i].to, strlen(changes[i].to));
        layout->name = changed;
        CHECK(!finds());
    }
}
