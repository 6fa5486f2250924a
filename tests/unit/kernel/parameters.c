/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/parameters.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/kernel/call.h"
#include "tests/unit/between.h"

/* A driver with two functions, `three` (int, pointer, int) and `unknown`, and a kernel of one
 * int. */
enum { THREE = 16, UNKNOWN = 32, KERNEL = 48 };
static int questions, names;
static int refused; /* the number of the question that fails, from 1; 0: none */

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    static const size_t offsets[] = {0, 8, 16};
    static const size_t sizes[] = {4, 8, 4};
    if (++questions == refused)
        return CUDA_ERROR_OUT_OF_MEMORY;
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
    return CUDA_SUCCESS;
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

MS_TEST_AFTER(start, not_to_know_is_remembered_too)
{
    CHECK(!look(UNKNOWN)->known);
    const int asked = questions;
    CHECK(!look(UNKNOWN)->known);
    CHECK_EQ(questions, asked);
}

MS_TEST_AFTER(start, unloading_forgets)
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
