/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/parameters.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/kernel/call.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"

/* A driver with three functions, `three` (int, pointer, int), `unknown` and `many`, and a kernel of
 * one int. */
enum { THREE = 16, UNKNOWN = 32, KERNEL = 48, MANY = 64 };
static size_t many;                       /* parameters of `many` */
static const char *name_of_many = "many"; /* or NULL */
static CUresult name_result;
static void (*on_question)(void);
static int questions, names;
static int refused; /* the number of the question that fails, from 1; 0: none */

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    static const size_t offsets[] = {0, 8, 16};
    static const size_t sizes[] = {4, 8, 4};
    if (on_question != NULL)
        on_question();
    if (++questions == refused)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if ((uintptr_t)function == MANY && index < many) {
        *offset = 16 * (many - index); /* backwards */
        *size = index == 0 ? 1 : 4 + index;
        return CUDA_SUCCESS;
    }
    if ((uintptr_t)function == MANY)
        return CUDA_ERROR_INVALID_VALUE;
    if ((uintptr_t)function != THREE)
        return CUDA_ERROR_INVALID_HANDLE;
    if (index >= 3)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = offsets[index];
    *size = sizes[index];
    return CUDA_SUCCESS;
}

static CUresult kernel_get_param_info(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    questions++;
    CHECK_EQ((uintptr_t)kernel, KERNEL);
    if (index >= 1)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    *size = 4;
    return CUDA_SUCCESS;
}

static CUresult func_get_name(const char **name, CUfunction function)
{
    names++;
    *name = (uintptr_t)function == THREE ? "three" : "unknown";
    if ((uintptr_t)function == MANY)
        *name = name_of_many;
    return name_result;
}

static CUresult kernel_get_name(const char **name, CUkernel kernel)
{
    CHECK_EQ((uintptr_t)kernel, KERNEL);
    *name = "kernel";
    return CUDA_SUCCESS;
}

static void start(void)
{
    ms_driver.func_get_param_info = func_get_param_info;
    ms_driver.kernel_get_param_info = kernel_get_param_info;
    ms_driver.func_get_name = func_get_name;
    ms_driver.kernel_get_name = kernel_get_name;
    ms_rules_read("");
}

/* A layout that the table alone holds from here on. */
static struct ms_param_layout *look(uintptr_t function)
{
    struct ms_param_layout *layout = ms_parameters_take((CUfunction)function);
    ms_counted_drop(&layout->counted);
    return layout;
}

MS_TEST_AFTER(start, a_layout_is_asked_for_once)
{
    struct ms_param_layout *layout = look(THREE);
    CHECK(layout->known);
    CHECK_EQ(layout->count, 3);
    CHECK_EQ(layout->bytes, 20);
    CHECK_EQ(layout->params[1].offset, 8);
    CHECK_EQ(layout->params[1].bytes, 8);
    CHECK_EQ(strcmp(layout->name, "three"), 0);
    const int asked = questions;
    CHECK(look(THREE) == layout);
    CHECK_EQ(questions, asked);
}

/* A parameter of which the driver does not tell where it is may be a pointer. */
MS_TEST(a_question_that_fails_leaves_no_list)
{
    for (refused = 1; refused <= 7; refused++) {
        start();
        questions = 0;
        CHECK(!look(THREE)->known);
        CHECK(questions >= refused);
        ms_parameters_forget(NULL);
    }
    refused = 0;
    CHECK(look(THREE)->known);
}

MS_TEST_AFTER(start, a_function_that_tells_no_layout_is_asked_once)
{
    CHECK(!look(UNKNOWN)->known);
    const int asked = questions;
    CHECK(!look(UNKNOWN)->known);
    CHECK_EQ(questions, asked);
}

MS_TEST_AFTER(start, an_unload_forgets_layouts)
{
    struct ms_param_layout *before = ms_parameters_take((CUfunction)THREE);
    ms_parameters_forget(NULL);
    const int asked = questions;
    struct ms_param_layout *after = ms_parameters_take((CUfunction)THREE);
    CHECK(questions > asked);
    CHECK_EQ(before->count, after->count); /* who held it still may */
    ms_counted_drop(&before->counted);
    ms_counted_drop(&after->counted);
}

MS_TEST_AFTER(start, a_kernel_handle_is_asked_as_a_kernel)
{
    ms_parameters_add_kernel((CUkernel)KERNEL, (CUlibrary)1);
    struct ms_param_layout *layout = look(KERNEL);
    CHECK(layout->is_kernel);
    CHECK_EQ(layout->count, 1);
    ms_parameters_forget((CUlibrary)2);
    CHECK(look(KERNEL)->is_kernel);
    /* The handle may mean a function once its library is gone. */
    ms_parameters_forget((CUlibrary)1);
    CHECK(!look(KERNEL)->is_kernel);
}

MS_TEST_AFTER(start, many_handles_are_kept_apart)
{
    for (uintptr_t i = 1; i < 3000; i++)
        ms_parameters_add_kernel((CUkernel)(i * 64 + 1), (CUlibrary)i);
    CHECK_EQ(look(THREE)->count, 3);
    for (uintptr_t i = 1; i < 3000; i++)
        ms_parameters_forget((CUlibrary)i);
    CHECK_EQ(look(THREE)->count, 3);
}

MS_TEST_AFTER(start, a_layout_has_as_many_bytes_as_its_last_parameter_needs)
{
    many = 3;
    struct ms_param_layout *layout = look(MANY);
    CHECK(layout->known && layout->count == 3);
    CHECK_EQ(layout->bytes, 49);
    CHECK(layout->params[2].offset == 16 && layout->params[2].bytes == 6);
    CHECK_EQ(strcmp(layout->name, "many"), 0);
}

STORY_AFTER(start, a_driver_that_tells_no_end_is_not_known, many = 4095,
            IS(look(MANY)->known &&look(MANY)->count == 4095), ms_parameters_forget(NULL),
            many = 4096, questions = 0, IS(!look(MANY)->known && look(MANY)->count == 0),
            EQUALS(questions, 4096), EQUALS(look(MANY)->bytes, 0))

STORY_AFTER(start, the_name_tells_the_rule, name_of_many = "erfinv_kernel_vectorized4_kernel",
            EQUALS(look(MANY)->rule, MS_RULE_IN_PLACE), EQUALS(look(THREE)->rule, MS_RULE_RUN),
            ms_parameters_forget(NULL), name_result = CUDA_ERROR_INVALID_HANDLE,
            EQUALS(strcmp(look(MANY)->name, "?"), 0), EQUALS(look(MANY)->rule, MS_RULE_RUN),
            ms_parameters_forget(NULL), name_result = CUDA_SUCCESS, name_of_many = NULL,
            EQUALS(strcmp(look(MANY)->name, "?"), 0),
            ms_parameters_add_kernel((CUkernel)KERNEL, (CUlibrary)1),
            EQUALS(strcmp(look(KERNEL)->name, "kernel"), 0))

MS_TEST_AFTER(start, a_pointer_lies_within_one_parameter)
{
    struct ms_param_layout *three = look(THREE), *unknown = look(UNKNOWN);
    for (size_t offset = 0; offset < 40; offset++) {
        CHECK_EQ(ms_parameters_has_word(three, offset), offset == 8);
        CHECK_EQ(ms_parameters_has_word(unknown, offset), offset % 8 == 0);
    }
    three->params[0] = (struct ms_param){4, 12};
    three->params[1] = (struct ms_param){16, 15};
    three->params[2] = (struct ms_param){31, 17};
    for (size_t offset = 0; offset < 80; offset++)
        CHECK_EQ(ms_parameters_has_word(three, offset),
                 offset == 8 || offset == 16 || offset == 32 || offset == 40);
}

MS_TEST_AFTER(start, a_forgotten_layout_goes_with_its_last_reference)
{
    const int before = live;
    struct ms_param_layout *held = ms_parameters_take((CUfunction)THREE);
    look(UNKNOWN);
    CHECK_EQ(live, before + 5); /* the table, and of each a layout and a name */
    CHECK(!held->is_forgotten);
    ms_parameters_forget((CUlibrary)5);
    CHECK(held->is_forgotten && live == before + 3);
    ms_parameters_forget((CUlibrary)5);
    CHECK_EQ(live, before + 3);
    ms_counted_drop(&held->counted);
    CHECK_EQ(live, before + 1);
}

static struct ms_param_layout *others;

static void ask_too(void)
{
    on_question = NULL;
    others = ms_parameters_take((CUfunction)THREE);
}

/* Nothing is held while the driver is asked. */
MS_TEST_AFTER(start, a_second_thread_that_asks_gets_a_layout_too)
{
    const int before = live;
    on_question = ask_too;
    struct ms_param_layout *own = ms_parameters_take((CUfunction)THREE);
    CHECK(own != others && own->known && others->known);
    CHECK(look(THREE) == others);
    ms_counted_drop(&own->counted);
    CHECK_EQ(live, before + 3);
    ms_counted_drop(&others->counted);
    ms_parameters_forget(NULL);
    CHECK_EQ(live, before + 1);
}

/* --- host memory that fails */

MS_TEST_AFTER(start, a_layout_without_host_memory_is_none_or_not_kept)
{
    const int before = live;
    for (int left = 0; left < 2; left++) {
        may_make = left;
        CHECK(ms_parameters_take((CUfunction)THREE) == NULL);
        CHECK_EQ(live, before);
    }
    may_make = 2;
    struct ms_param_layout *layout = ms_parameters_take((CUfunction)THREE);
    CHECK(layout != NULL && layout->known);
    ms_counted_drop(&layout->counted);
    CHECK_EQ(live, before);
    ms_parameters_add_kernel((CUkernel)KERNEL, (CUlibrary)1);
    CHECK_EQ(live, before);
    may_make = 3;
    CHECK(look(THREE) == look(THREE));
    CHECK_EQ(live, before + 3);
}

/* Probing goes past others, and ends at a free slot: at least half are. */
MS_TEST_AFTER(start, half_of_the_slots_are_taken_before_there_are_more)
{
    const int before = live, could_make = may_make;
    for (uintptr_t i = 1; i <= 127; i++)
        ms_parameters_add_kernel((CUkernel)(i * 4096), (CUlibrary)i);
    CHECK_EQ(may_make, could_make - 1);
    may_make = 0;
    ms_parameters_add_kernel((CUkernel)KERNEL, (CUlibrary)1); /* the 128th */
    ms_parameters_add_kernel((CUkernel)KERNEL, (CUlibrary)2); /* it is there */
    ms_parameters_add_kernel((CUkernel)THREE, (CUlibrary)1);  /* there is no room */
    may_make = 1000;
    CHECK(look(KERNEL)->is_kernel && !look(THREE)->is_kernel);
    CHECK_EQ(live, before + 5); /* the table is one piece again */
    ms_parameters_forget((CUlibrary)1);
    CHECK(look(KERNEL)->is_kernel);
    ms_parameters_forget((CUlibrary)2);
    CHECK(!look(KERNEL)->is_kernel);
}

MS_TEST_AFTER(start, parameters_are_packed_as_the_device_sees_them)
{
    struct ms_param_layout *layout = look(THREE);
    uint32_t first = 0x11111111;
    uint64_t second = UINT64_C(0x2222222222222222);
    uint32_t third = 0x33333333;
    void *params[] = {&first, &second, &third};
    const struct ms_call call = {.function = (CUfunction)THREE, .params = params};
    struct ms_packed packed;
    CHECK(ms_call_pack(&call, layout, &packed));
    const unsigned char wanted[20] = {0x11, 0x11, 0x11, 0x11, 0,    0,    0,    0,    0x22, 0x22,
                                      0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x33, 0x33, 0x33, 0x33};
    CHECK_EQ(packed.count, sizeof(wanted));
    CHECK_BYTES(packed.bytes, wanted, sizeof(wanted));
    ms_call_unpack(&packed);
}

MS_TEST_AFTER(start, a_packed_buffer_needs_no_layout)
{
    struct ms_param_layout *layout = look(UNKNOWN);
    unsigned char buffer[24] = {1, 2, 3};
    size_t size = sizeof(buffer);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    struct ms_call call = {.function = (CUfunction)UNKNOWN, .extra = extra};
    struct ms_packed packed;
    CHECK(ms_call_pack(&call, layout, &packed));
    CHECK_EQ(packed.count, size);
    CHECK(packed.bytes == buffer);
    call.extra = NULL;
    CHECK(!ms_call_pack(&call, layout, &packed));
    void *strange[] = {(void *)7, buffer, CU_LAUNCH_PARAM_END};
    call.extra = strange;
    CHECK(!ms_call_pack(&call, layout, &packed));
}
