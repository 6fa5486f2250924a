/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/loads.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { COUNT = 1000, MOST_PARAMS = 8 };

static struct ms_param_layout *layout;
static struct ms_packed packed;
static struct ms_loads loads;

static void set_word(size_t at, uint32_t value)
{
    memcpy(packed.local + at, &value, sizeof(value));
}

static void add_param(size_t offset, size_t bytes)
{
    layout->params[layout->count++] = (struct ms_param){(uint32_t)offset, (uint32_t)bytes};
}

static void start(const char *name)
{
    if (layout == NULL)
        layout = calloc(1, sizeof(*layout) + MOST_PARAMS * sizeof(struct ms_param));
    CHECK(layout != NULL);
    layout->name = (char *)(uintptr_t)name;
    layout->known = true;
    layout->count = 0;
    layout->rule = MS_RULE_IN_PLACE;
    memset(packed.local, 0xab, sizeof(packed.local));
    packed.bytes = packed.local;
    packed.count = 44;
}

/* --- dense loops: (numel, functor, {out, in}); casts have two calculators, loader and storer */

#define VECTORS "_ZN2at6native29vectorized_elementwise_kernelILi4E"
#define UNROLLED "_ZN2at6native27unrolled_elementwise_kernelI"
#define ARRAY "St5arrayIPcLm2EELb0EEEviT0_T1_"
#define CAST_ARRAY                                                                                \
    "St5arrayIPcLm2EELi4E23TrivialOffsetCalculatorILi1EjESA_NS0_6memory12LoadWithCastILi1EEENSB_" \
    "13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_"
#define TO_BFLOAT16 "ZNS0_27converting_copy_kernel_cudaIfN3c108BFloat16EEEvRNS_1xE"
#define SIN "ZZZNS0_15sin_kernel_cudaERNS_1xEENKUlvE_clEvEUlfE_"

static void find_dense(const char *name)
{
    start(name);
    set_word(0, COUNT);
    add_param(0, 4);
    add_param(4, 1);
    add_param(8, 16);
    ms_loads_find(layout, &packed, 8, &loads);
}

static void find_cast(const char *name)
{
    start(name);
    set_word(0, COUNT);
    add_param(0, 4);
    add_param(4, 1);
    add_param(8, 16);
    add_param(24, 1);
    add_param(25, 1);
    add_param(28, 8);
    add_param(36, 8);
    set_word(32, 2);
    set_word(40, 8);
    ms_loads_find(layout, &packed, 8, &loads);
}

static void check_rows(size_t bytes, size_t in_row, size_t in_step, size_t out_step)
{
    CHECK_EQ(loads.bytes, bytes);
    CHECK_EQ(loads.in_row, in_row);
    if (in_row == 0)
        return;
    CHECK_EQ(loads.in_step, in_step);
    CHECK_EQ(loads.out_step, out_step);
}

STORY_ALONE(a_dense_loop_loads_its_elements, find_dense(VECTORS TO_BFLOAT16 ARRAY),
            check_rows(4 * COUNT, 4, 4, 2), find_dense(UNROLLED TO_BFLOAT16 ARRAY),
            check_rows(4 * COUNT, 4, 4, 2))

STORY_ALONE(an_element_that_is_stored_and_not_known_may_depend_on_all,
            find_dense(VECTORS SIN ARRAY), check_rows(4 * COUNT, 0, 0, 0))

STORY_ALONE(elements_that_are_not_known_are_as_large_as_the_largest,
            find_dense(VECTORS "NS0_11AnyFunctorIfEE" ARRAY), check_rows(16 * COUNT, 0, 0, 0))

STORY_ALONE(a_cast_has_the_sizes_in_its_parameters, find_cast(UNROLLED SIN CAST_ARRAY),
            check_rows(2 * COUNT, 2, 2, 8))

MS_TEST(a_cast_whose_parameters_are_others_loads_as_much_as_it_can)
{
    find_cast(UNROLLED SIN CAST_ARRAY);
    layout->count = 6;
    ms_loads_find(layout, &packed, 8, &loads);
    check_rows(16 * COUNT, 0, 0, 0);

    find_cast(UNROLLED SIN CAST_ARRAY);
    layout->params[5].bytes = 12;
    ms_loads_find(layout, &packed, 8, &loads);
    check_rows(16 * COUNT, 0, 0, 0);

    find_cast(UNROLLED SIN CAST_ARRAY);
    set_word(32, 17); /* no element has so many bytes */
    ms_loads_find(layout, &packed, 8, &loads);
    check_rows(16 * COUNT, 0, 0, 0);

    find_cast(UNROLLED SIN CAST_ARRAY);
    packed.count = 35;
    ms_loads_find(layout, &packed, 8, &loads);
    check_rows(16 * COUNT, 0, 0, 0);
}

MS_TEST(loads_of_other_kernels_are_not_known)
{
    find_dense("_ZN2at6native29another_elementwise_kernelILi4E" TO_BFLOAT16 ARRAY);
    CHECK_EQ(loads.bytes, 0);
    find_dense("_ZN2at6native29vectorized_elementwise_kernelILi4_" TO_BFLOAT16 ARRAY);
    CHECK_EQ(loads.bytes, 0);

    find_dense(VECTORS TO_BFLOAT16 ARRAY);
    ms_loads_find(layout, &packed, 16, &loads); /* the pointers lie elsewhere */
    CHECK_EQ(loads.bytes, 0);

    find_dense(VECTORS TO_BFLOAT16 ARRAY);
    layout->known = false;
    ms_loads_find(layout, &packed, 8, &loads);
    CHECK_EQ(loads.bytes, 0);

    find_dense(VECTORS TO_BFLOAT16 ARRAY);
    layout->params[0].bytes = 8;
    ms_loads_find(layout, &packed, 8, &loads);
    CHECK_EQ(loads.bytes, 0);

    find_dense(VECTORS TO_BFLOAT16 ARRAY);
    layout->count = 2;
    ms_loads_find(layout, &packed, 8, &loads);
    CHECK_EQ(loads.bytes, 0);
}

/* --- types */

#define COPY "ZNS0_27converting_copy_kernel_cudaI"
#define BEHIND_COPY "EEvRNS_18TensorIteratorBaseEEUlfE_" ARRAY

static void find_functor(const char *functor)
{
    char name[400];
    snprintf(name, sizeof(name), VECTORS "%s", functor);
    find_dense(name);
    layout->name = NULL;
}

MS_TEST(types_have_the_sizes_that_pytorch_gives_them)
{
    static const struct {
        const char *name;
        size_t bytes;
    } rows[] = {{"a", 1},
                {"b", 1},
                {"h", 1},
                {"s", 2},
                {"t", 2},
                {"f", 4},
                {"i", 4},
                {"j", 4},
                {"d", 8},
                {"l", 8},
                {"m", 8},
                {"x", 8},
                {"y", 8},
                {"N3c104HalfE", 2},
                {"N3c108BFloat16E", 2},
                {"NS4_4HalfE", 2},
                {"NS10_8BFloat16E", 2},
                {"N3c1011Float8_e5m2E", 1},
                {"N3c1013Float8_e4m3fnE", 1},
                {"N3c1014Float8_e8m0fnuE", 1},
                {"N3c1015Float8_e4m3fnuzE", 1},
                {"N3c1015Float8_e5m2fnuzE", 1},
                {"N3c105qint8E", 1},
                {"N3c106quint8E", 1},
                {"N3c106qint32E", 4},
                {"N3c107complexIfEE", 8},
                {"N3c107complexIdEE", 16},
                {"NS5_7complexIfEE", 8},
                {"N3c107complexINS6_4HalfEEE", 4}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char functor[200];
        snprintf(functor, sizeof(functor), "NS0_10AbsFunctorI%sEE" ARRAY, rows[i].name);
        find_functor(functor);
        check_rows(rows[i].bytes * COUNT, 0, 0, 0);
    }
}

MS_TEST(types_that_nobody_knows_may_be_the_largest)
{
    static const char *const names[] = {"",
                                        "v",
                                        "Pf",
                                        "S4_",
                                        "N3c104Hal",
                                        "N2at4HalfE",
                                        "NS4-4HalfE",
                                        "N3c105HalfE",
                                        "N3c107complexIfE_",
                                        "N3c107complexIS_EE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char functor[200];
        snprintf(functor, sizeof(functor), "NS0_10AbsFunctorI%sEE" ARRAY, names[i]);
        find_functor(functor);
        check_rows(16 * COUNT, 0, 0, 0);
    }
}

/* Names as the wheel of PyTorch 2.15 has them; casts of 2.14 and before. */
MS_TEST(functors_have_the_types_of_what_they_load_and_store)
{
    static const struct {
        const char *functor;
        size_t loaded, stored;
    } rows[] = {
        /* the first type is that of a number, or the second */
        {"NS0_13AUnaryFunctorIfdhZNS0_1xE" ARRAY, 8, 1},
        {"NS0_13BUnaryFunctorIfdhZNS0_1xE" ARRAY, 4, 1},
        {"NS0_13AUnaryFunctorIffbZZZNS0_23logical_" ARRAY, 4, 1},
        {"NS0_13BUnaryFunctorIN3c108BFloat16ES4_S4_NS0_" ARRAY, 2, 2},
        {"NS0_13AUnaryFunctorIN3c104HalfES4_bZZZNS" ARRAY, 2, 1},
        {"NS0_13AUnaryFunctorIfN3c104HalfES4_ZZZNS" ARRAY, 2, 2},
        {"NS0_21CUDAFunctorOnSelf_addIiE" ARRAY, 4, 4},
        {"NS0_22CUDAFunctorOnOther_addIdE" ARRAY, 8, 8},
        {"NS0_10AbsFunctorIfE" ARRAY, 4, 0},
        {COPY "N3c104HalfEf" BEHIND_COPY, 2, 4},
        {COPY "fN3c108BFloat16E" BEHIND_COPY, 4, 2},
        {COPY "N3c104HalfENS3_11Float8_e5m2E" BEHIND_COPY, 2, 1},
        {COPY "bl" BEHIND_COPY, 1, 8},
        {"ZZZNS0_15sin_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE0_clEvENKUlvE_clEvEUldE_" ARRAY,
         8, 0},
        {"ZZZNS0_15sin_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE0_clEvENKUlvE0_"
         "clEvEUlfE0_" ARRAY,
         4, 0},
        {"ZZZNS0_15neg_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE_clEvEUlN3c104HalfEE_EEvS4_", 2,
         0},
        {"ZNS0_25bfloat16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE_" ARRAY, 4, 2},
        {"ZNS0_24float16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE_NS_6detail5ArrayIPcLi2EE",
         4, 2},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        find_functor(rows[i].functor);
        check_rows(rows[i].loaded * COUNT, rows[i].stored > 0 ? rows[i].loaded : 0, rows[i].loaded,
                   rows[i].stored);
    }
}

MS_TEST(functors_whose_types_are_not_certain_load_as_much_as_they_can)
{
    static const char *const functors[] = {
        "NS0_11AnyFunctorIfEE" ARRAY,
        /* a reference to a type with parts, to one of two, or to none */
        "NS0_13AUnaryFunctorIN3c107complexIfEES5_S5_Z" ARRAY,
        "NS0_13AUnaryFunctorIN3c104HalfENS3_8BFloat16ES4_Z" ARRAY,
        "NS0_13AUnaryFunctorIfS4_S4_Z" ARRAY,
        "NS0_13AUnaryFunctorIfPfS4_Z" ARRAY,
        /* a lambda of two operands, of none that is known, and one around another */
        "ZNS0_1xERNS_18TensorIteratorBaseEEUlffE_" ARRAY,
        "ZNS0_1xERNS_18TensorIteratorBaseEEUlS5_E_" ARRAY,
        "ZNS0_1xERNS_18TensorIteratorBaseEEUlfE_clEfEUlfE_" ARRAY,
        "ZNS0_1xERNS_18TensorIteratorBaseEE" ARRAY,
        "NS0_1xIZNS0_1yEvEUlfE_EE" ARRAY,
    };
    for (size_t i = 0; i < sizeof(functors) / sizeof(functors[0]); i++) {
        find_functor(functors[i]);
        check_rows(16 * COUNT, 0, 0, 0);
    }
}

/* --- strided loops: (numel, {{out, in}, calculator}) */

struct closure {
    uint64_t pointers[2];
    int32_t dims;
    uint32_t sizes[25][3], strides[25][2];
};

struct dimension {
    uint32_t size, out, in;
};

#define LOOP "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastI"
#define TO_HALF                                                                                    \
    LOOP "ZNS0_27converting_copy_kernel_cudaIfN3c104HalfEEEvRNS_18TensorIteratorBaseEEUlfE_EEvS7_" \
         "RKT_EUliE_EEviT1_"

static void find_strided(const char *name, const struct dimension *dimensions, size_t dims)
{
    struct closure closure;
    uint32_t count = 1;
    memset(&closure, 0xcd, sizeof(closure));
    closure.dims = (int32_t)dims;
    for (size_t i = 0; i < dims; i++) {
        count *= dimensions[i].size;
        closure.sizes[i][0] = dimensions[i].size;
        closure.strides[i][0] = dimensions[i].out;
        closure.strides[i][1] = dimensions[i].in;
    }
    start(name);
    layout->rule = MS_RULE_FROM_OTHER;
    add_param(0, 4);
    add_param(8, sizeof(closure));
    set_word(0, count);
    memcpy(packed.local + 8, &closure, sizeof(closure));
    packed.count = 8 + sizeof(closure);
    ms_loads_find(layout, &packed, 8, &loads);
}

STORY_ALONE(rows_that_lie_apart_are_loaded_from_the_first_to_the_last,
            find_strided(TO_HALF, (const struct dimension[]){{10, 2, 4}, {7, 20, 400}}, 2),
            check_rows(6 * 400 + 10 * 4, 10 * 4, 400, 20),
            find_strided(TO_HALF, (const struct dimension[]){{10, 2, 8}}, 1),
            check_rows(9 * 8 + 4, 4, 8, 2),
            find_strided(TO_HALF,
                         (const struct dimension[]){{10, 2, 4}, {3, 20, 40}, {5, 60, 1000}}, 3),
            check_rows(4 * 1000 + 3 * 40, 3 * 40, 1000, 60))

/* A row needs a column of a transposed tensor. */
STORY_ALONE(a_row_may_need_bytes_of_nearly_all_rows,
            find_strided(TO_HALF, (const struct dimension[]){{10, 2, 400}, {7, 20, 4}}, 2),
            check_rows(9 * 400 + 6 * 4 + 4, 9 * 400 + 4, 4, 20))

STORY_ALONE(elements_of_a_strided_loop_may_be_large,
            find_strided(LOOP "NS0_11AnyFunctorIfEEEEvS7_RKT_EUliE_EEviT1_",
                         (const struct dimension[]){{10, 2, 4}, {7, 20, 400}}, 2),
            check_rows(6 * 400 + 9 * 4 + 16, 9 * 4 + 16, 400, 20))

MS_TEST(rows_of_the_output_that_lie_in_each_other_may_need_all)
{
    find_strided(TO_HALF, (const struct dimension[]){{10, 14, 4}, {7, 2, 400}}, 2);
    check_rows(6 * 400 + 40, 0, 0, 0);
    find_strided(TO_HALF, NULL, 0); /* one element */
    check_rows(4, 0, 0, 0);
}

MS_TEST(strides_that_lead_backwards_are_not_known)
{
    find_strided(TO_HALF, (const struct dimension[]){{10, 2, (uint32_t)-4}}, 1);
    CHECK_EQ(loads.bytes, 0);
    find_strided(TO_HALF, (const struct dimension[]){{10, (uint32_t)-2, 4}}, 1);
    CHECK_EQ(loads.bytes, 0);
    find_strided(TO_HALF, (const struct dimension[]){{10, 2, 4}}, 1);
    set_word(0, 11); /* elements that no dimension has */
    ms_loads_find(layout, &packed, 8, &loads);
    CHECK_EQ(loads.bytes, 0);
}
