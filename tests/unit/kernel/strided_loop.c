/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/strided_loop.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

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

/* The two pointers, at this place, may lead to different places though they are the same. */
static bool moves(size_t pointers)
{
    struct ms_strides strides;
    const enum ms_strided found = ms_strided_loop_find_strides(layout, &packed, pointers, &strides);
    return found == MS_STRIDED_UNCLEAR || (found == MS_STRIDED_FOUND && !strides.is_parallel);
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

STORY_ALONE(sizes_and_strides_are_numbers_wherever_they_lie, start(sizeof(struct behind)),
            set_calculator(offsetof(struct behind, calculator)),
            IS(finds_numbers(offsetof(struct behind, calculator))),
            start((sizeof(struct before) + 7) / 8 * 8),
            set_calculator(offsetof(struct before, calculator)),
            IS(finds_numbers(offsetof(struct before, calculator))))

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

MS_TEST(parameters_of_another_layout_may_hold_pointers)
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

MS_TEST(numbers_are_of_loops_over_one_tensor_or_two)
{
    const size_t at = offsetof(struct behind, calculator);
    start(sizeof(struct behind));
    set_calculator(at);
    for (int rule = 0; rule < MS_RULE_COUNT; rule++) {
        layout->rule = (enum ms_rule)rule;
        if (rule != MS_RULE_WRITE_ONLY)
            CHECK_EQ(finds_numbers(at), rule == MS_RULE_IN_PLACE || rule == MS_RULE_FROM_OTHER);
    }
    layout->rule = MS_RULE_IN_PLACE;
    layout->params[0].bytes = 8; /* no int */
    CHECK(!finds_numbers(at));
    CHECK(moves(offsetof(struct behind, pointers)));
}

/* Sizes are multiplied without a wrap, and up to the last dimension. */
MS_TEST(sizes_have_the_elements_of_the_launch)
{
    static const struct {
        int count, dims, sizes[4];
        bool is_found;
    } cases[] = {{INT32_MAX, 1, {INT32_MAX}, true},
                 {INT32_MAX, 2, {INT32_MAX, 2}, false},
                 {-2, 2, {INT32_MAX, 2}, true}, /* as the word that it is */
                 {0, 3, {INT32_MIN, INT32_MIN, 4}, false},
                 {6, 25, {2, 3, 1, 1}, true},
                 {6, 26, {2, 3, 1, 1}, false},
                 {7, 25, {2, 3, 1, 1}, false}};
    const size_t at = offsetof(struct behind, calculator);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start(sizeof(struct behind));
        set_calculator(at);
        set_word(0, cases[i].count);
        set_word(at, cases[i].dims);
        for (int dim = 0; dim < 26; dim++)
            set_word(at + 4 + (size_t)dim * 12, dim < 4 ? cases[i].sizes[dim] : 1);
        CHECK_EQ(finds_numbers(at), cases[i].is_found);
    }
}

/* The number of elements may lie behind all that the program has packed. */
MS_TEST(parameters_that_were_not_packed_are_not_read)
{
    const size_t at = offsetof(struct behind, calculator);
    start(sizeof(struct behind));
    set_calculator(at);
    packed.count = at + sizeof(struct calculator);
    CHECK(finds_numbers(at));
    packed.count--;
    CHECK(!finds_numbers(at));
    packed.count = sizeof(struct behind);
    layout->params[0].offset = (uint32_t)packed.count - 4;
    set_word(packed.count - 4, 6000);
    CHECK(finds_numbers(at));
    layout->params[0].offset++;
    set_word(packed.count - 3, 6000);
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

/* --- reductions */

/* As IntDivider has them: divisor, factor, shift. */
static const uint32_t dividers[][3] = {{1, 1, 0},           {2, 1, 1},           {5, 2576980378, 3},
                                       {7, 613566757, 3},   {12, 1431655766, 4}, {64, 1, 6},
                                       {65, 4162814457, 7}, {INT32_MAX, 3, 31}};

static void set_size(size_t at, uint32_t divisor)
{
    size_t i = 0;
    while (dividers[i][0] != divisor)
        i++;
    memcpy(packed.local + at, dividers[i], sizeof(dividers[i]));
}

/* The structure of a reduction, of 24 inputs for each of 35 outputs. Its alignment says where the
 * numbers of elements lie. */
static void set_reduction(size_t numbers_at, size_t bytes)
{
    static char name[] = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIf";
    const size_t inputs = numbers_at + 64, outputs = inputs + 404;
    start(bytes);
    layout->name = name;
    layout->rule = MS_RULE_RUN;
    layout->count = 1;
    layout->params[0] = (struct ms_param){0, (uint32_t)bytes};
    set_word(numbers_at + 4, 24);
    set_word(numbers_at + 8, 35);
    set_word(inputs, 2);
    set_size(inputs + 4, 2);
    set_size(inputs + 16, 12);
    set_word(outputs, 2);
    set_size(outputs + 4, 7);
    set_size(outputs + 16, 5);
}

static bool finds_both(size_t begin)
{
    struct ms_range numbers = {1, 2};
    const bool is_found = ms_strided_loop_find_numbers(layout, &packed, &numbers);
    CHECK_EQ(numbers.begin, is_found ? begin : 1);
    CHECK_EQ(numbers.end, is_found ? begin + 404 + 504 : 2);
    return is_found;
}

/* With results of 2, 4 and 16 bytes: the pointers begin at 976 or 984. */
MS_TEST(numbers_of_a_reduction)
{
    static const struct {
        size_t numbers_at, bytes;
    } places[] = {{4, 1040}, {8, 1048}, {12, 1056}, {8, 1056}, {(size_t)-4, 1032}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        set_reduction(places[i].numbers_at, places[i].bytes);
        CHECK(finds_both(places[i].numbers_at + 64));
    }
    layout->params[0].bytes -= 4; /* no room for all that is read */
    CHECK(!finds_both(60));
    set_reduction(4, 1056); /* more than an alignment needs */
    CHECK(!finds_both(68));
    set_reduction(8, 1040); /* less than the pointers need */
    CHECK(!finds_both(72));
    set_reduction(4, 1040);
    layout->params[0].offset = 8;
    CHECK(!finds_both(68));
    memmove(packed.local + 8, packed.local, 1040);
    packed.count += 8;
    CHECK(finds_both(76));
}

/* Two inputs for each of two outputs, and unused sizes that look like the end of calculators
 * 8 bytes further on, which would reach into the pointers. */
MS_TEST(numbers_of_a_reduction_end_before_its_pointers)
{
    set_reduction(8, 1056);
    for (int i = 0; i < 2; i++) {
        const size_t at = i == 0 ? 72 : 476;
        set_word((size_t)(12 + 4 * i), 2);
        set_word((size_t)(20 + 4 * i), 1);
        set_word(at, 1);
        set_size(at + 4, 2);
        set_word(at + 16, 1);
        set_word(at + 20, 0);
    }
    CHECK(finds_both(72));
    set_word(12, 3);
    CHECK(finds_both(80));
}

/* The page before the parameters cannot be read. */
MS_TEST(a_small_structure_is_no_reduction)
{
    enum { PAGE = 4096 };
    unsigned char *pages =
        mmap(NULL, (size_t)2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK_EQ(mprotect(pages, PAGE, PROT_NONE), 0);
    set_reduction(8, 1048);
    packed.bytes = pages + PAGE;
    for (uint32_t bytes = 0; bytes <= 1048; bytes += 4) {
        layout->params[0].bytes = bytes;
        CHECK(!finds_both(0));
    }
    munmap(pages, (size_t)2 * PAGE);
}

MS_TEST(sizes_of_a_reduction_divide)
{
    for (size_t i = 0; i < sizeof(dividers) / sizeof(dividers[0]); i++) {
        const uint32_t *divider = dividers[i];
        set_reduction(8, 1048);
        set_word(8 + 8, (int)divider[0]);
        set_word(476, 1);
        set_size(480, divider[0]);
        CHECK(finds_both(72));
        set_word(484, (int)divider[1] + 1);
        CHECK(!finds_both(72));
        set_size(480, divider[0]);
        set_word(488, (int)divider[2] + 1);
        CHECK(!finds_both(72));
    }
    set_reduction(8, 1048);
    set_word(8 + 8, 1); /* one result has no dimensions */
    set_word(476, 0);
    CHECK(finds_both(72));
    set_word(8 + 8, 0);
    set_word(476, 1);
    set_word(480, 0);
    CHECK(!finds_both(72));
    set_word(8 + 8, INT32_MIN);
    set_word(480, INT32_MIN);
    set_word(484, 1);
    set_word(488, 31);
    CHECK(!finds_both(72));
}

MS_TEST(other_structures_than_a_reduction_may_hold_pointers)
{
    static char other[] = "_ZN2at6native14reduce_kernelsILi512E";
    static const struct {
        size_t at;
        int value;
    } changes[] = {{12, 25}, {16, 36}, {72, 1}, {72, 26}, {476, 3}, {476, -1}, {480, 8}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        set_reduction(8, 1048);
        set_word(changes[i].at, changes[i].value);
        CHECK(!finds_both(72));
    }
    set_reduction(8, 1048); /* no size in which a divider shows */
    set_word(12, 1);
    set_word(16, 1);
    set_word(72, 0);
    set_word(476, 0);
    CHECK(!finds_both(72));
    set_reduction(8, 1048);
    layout->count = 2;
    CHECK(!finds_both(72));
    set_reduction(8, 1048);
    packed.count--; /* the program has packed less */
    CHECK(!finds_both(72));
    set_reduction(8, 1048);
    layout->name = other;
    CHECK(!finds_both(72));
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
    CHECK(!moves(pointers));
    set_strides(at, 1, 400, 800);
    CHECK(moves(pointers));
    set_strides(at, 1, 400, 400);
    set_strides(at, 2, 1, 1);
    set_word(at, 26);
    CHECK(moves(pointers));
    set_word(at, 2);
    CHECK(moves(pointers + 8));
    layout->count = 3;
    CHECK(moves(pointers));
    layout->name = dense;
    CHECK(!moves(pointers));
}

MS_TEST(all_of_25_dimensions_are_looked_at)
{
    static const struct {
        int dims;
        unsigned moved; /* the dimension that does */
        bool moves;
    } cases[] = {{25, 25, false}, {25, 24, true}, {25, 0, true}, {24, 24, false},
                 {0, 0, false},   {-1, 25, true}, {26, 25, true}};
    const size_t at = offsetof(struct before, calculator);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start((sizeof(struct before) + 7) / 8 * 8);
        set_calculator(at);
        set_word(at, cases[i].dims);
        for (unsigned dim = 0; dim < 25; dim++)
            set_strides(at, dim, 8, dim == cases[i].moved ? 4 : 8);
        CHECK_EQ(moves(offsetof(struct before, pointers)), cases[i].moves);
    }
}

/* The calculator ends where the pointers begin, or begins where they end. */
MS_TEST(a_loop_whose_calculator_is_not_whole_may_move)
{
    const size_t pointers = offsetof(struct before, pointers);
    const size_t at = offsetof(struct before, calculator);
    start(sizeof(struct before));
    set_calculator(at);
    set_word(at, 0);
    CHECK(!moves(pointers));
    packed.count--; /* the program has packed less */
    CHECK(moves(pointers));
    packed.count++;
    layout->params[1].bytes--;
    CHECK(moves(pointers));
    layout->params[1].bytes++;
    layout->params[0].bytes = 8;
    CHECK(moves(pointers));
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

STORY_ALONE(a_launch_may_have_just_as_many_elements_as_its_threads, start_copy(),
            copy.count = 14 * 128 * 4, copy.calculator.sizes[0][0] = 32,
            copy.calculator.sizes[1][0] = 112, copy.calculator.sizes[2][0] = 2, call.grid[0] = 14,
            IS(finds()), EQUALS(rows.width, 64), call.grid[0] = 13, IS(!finds()))

MS_TEST(a_copy_may_be_of_one_row_or_of_six_dimensions_of_rows)
{
    start_copy();
    copy.calculator.dims = 1;
    copy.count = 24;
    CHECK(finds());
    CHECK(rows.dims == 0 && rows.width == 48);
    copy.calculator.dims = 0; /* a single element is no row */
    copy.count = 1;
    CHECK(!finds());
    start_copy();
    copy.calculator.dims = 7;
    for (int i = 3; i < 7; i++)
        copy.calculator.sizes[i][0] = 1;
    copy.calculator.strides[6][1] = 77;
    CHECK(finds());
    CHECK(rows.dims == 6 && rows.dim[5].count == 1 && rows.dim[5].from_stride == 77);
}

/* By what one thing makes it another one than the copy of start_copy(). */
MS_TEST(only_dense_rows_of_a_whole_launch_are_taken)
{
    start_copy();
    const struct {
        unsigned *what, value;
    } changes[] = {{&copy.calculator.strides[0][1], 4}, /* every second element */
                   {&copy.calculator.strides[0][0], 4},
                   {&copy.calculator.sizes[1][0], 101}, /* not the count */
                   {&copy.calculator.sizes[2][0], 0},
                   {(unsigned *)&copy.calculator.dims, 8},
                   {(unsigned *)&copy.calculator.dims, 0},
                   {(unsigned *)&copy.calculator.dims, 2},
                   {&call.grid[0], 14}, /* the last elements stay out */
                   {&call.block[0], 64},
                   {&call.block[0], 256},
                   {&call.block[1], 2},
                   {&call.block[2], 2},
                   {&layout->params[1].bytes, sizeof(copy) - 8 - 1},
                   {&layout->count, 3}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        start_copy();
        *changes[i].what = changes[i].value;
        CHECK(!finds());
    }
    start_copy();
    CHECK(finds());
}

/* Rows of as many elements as an int holds, and more, whose product would be the count again. */
MS_TEST(a_launch_has_no_more_elements_than_an_int_holds)
{
    start_copy();
    copy.calculator = (struct calculator){.dims = 2,
                                          .sizes = {{INT32_MAX / 2}, {2}},
                                          .strides = {{2, 2}, {48, 400}}};
    copy.count = INT32_MAX - 1;
    call.grid[0] = INT32_MAX / 512 + 1;
    CHECK(finds());
    CHECK_EQ(rows.width, (size_t)INT32_MAX / 2 * 2);
    copy.calculator.sizes[0][0] = INT32_MAX / 2 + 1;
    copy.count = INT32_MIN;
    CHECK(!finds());
    copy.calculator.sizes[0][0] = INT32_MAX;
    copy.calculator.sizes[1][0] = 1;
    copy.count = INT32_MAX;
    CHECK(finds());
}

/* The copy's name with something else in place of the part of it that begins so. */
static char *renamed(const char *from, size_t length, const char *to)
{
    static char changed[sizeof(copy_name) + 64];
    const char *at = strstr(copy_name, from);
    CHECK(at != NULL);
    const size_t before = (size_t)(at - copy_name);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)before, copy_name, to, at + length);
    return changed;
}

MS_TEST(other_names_and_types_are_left_alone)
{
    static const struct {
        const char *from, *to;
    } changes[] = {{"_nocastI", "_castedI"}, /* may change the type */
                   {"direct_copy", "other__copy"},
                   {"EUlN3c108BFloat16E", "EUlN3c108NewFloatE"},
                   {"EUlN3c108BFloat16E", "EUmN3c108BFloat16E"},
                   {"18elementwise", "18selementwis"},
                   {"_ZN2at6native18", "_ZN3at6native18"},
                   {"ILi128ELi4E", "ILi128ELj4E"},
                   {"ILi128ELi4E", "ILi128ELi3E"}, /* the last elements stay out */
                   {"ILi128ELi4E", "ILi64ELi8E"}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        start_copy();
        layout->name = renamed(changes[i].from, strlen(changes[i].from), changes[i].to);
        CHECK(!finds());
    }
    start_copy();
    layout->name = renamed("ILi128ELi4E", strlen("ILi128ELi4E"), "ILi128ELi8E");
    call.grid[0] = 8;
    CHECK(finds());
}

MS_TEST(the_name_tells_the_size_of_an_element)
{
    static const struct {
        const char *type;
        unsigned bytes;
    } types[] = {{"aE_", 1}, {"hE_", 1}, {"sE_", 2},           {"tE_", 2},
                 {"iE_", 4}, {"jE_", 4}, {"fE_", 4},           {"lE_", 8},
                 {"mE_", 8}, {"dE_", 8}, {"N3c104HalfEE_", 2}, {"N3c108BFloat16EE_", 2},
                 {"bE_", 0}, {"fEj", 0}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (unsigned bytes = 1; bytes <= 8; bytes *= 2) {
            start_copy();
            layout->name = renamed("N3c108BFloat16EE_", strlen("N3c108BFloat16EE_"), types[i].type);
            copy.calculator.strides[0][0] = copy.calculator.strides[0][1] = bytes;
            CHECK_EQ(finds(), bytes == types[i].bytes);
            CHECK(bytes != types[i].bytes || rows.width == 24 * bytes);
        }
    }
}
