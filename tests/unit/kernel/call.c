/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/call.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"

enum { WIDE = 5000, STREAM = 7 }; /* more bytes than a call has room for */

/* --- functions: of two parameters with a gap between, of one wide one, of none, and one of which
 * nothing is known */

enum function { TWO = 1, ONE_WIDE, NO_PARAMS, UNKNOWN };
static const struct ms_param of_two[] = {{0, 4}, {8, 16}};

static unsigned launches, launches_ex;
static unsigned char given[WIDE]; /* parameters of the last launch */
static size_t given_extra;        /* bytes of its buffer; 0: by parameter */
static int most_threads, most_shared;

static CUresult func_get_name(const char **name, CUfunction function)
{
    *name = "f";
    return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset,
                                    size_t *bytes)
{
    const enum function which = (enum function)(uintptr_t)function;
    if (which == UNKNOWN)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (which == TWO && index < 2) {
        *offset = of_two[index].offset;
        *bytes = of_two[index].bytes;
        return CUDA_SUCCESS;
    }
    *offset = 0;
    *bytes = WIDE;
    return which == ONE_WIDE && index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult func_get_attribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    CHECK(function != NULL);
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? most_threads : most_shared;
    return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CHECK_EQ(device, 3);
    *value = attribute >= CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X ? 100 : 10;
    return CUDA_SUCCESS;
}

static void take_params(CUfunction function, void **params, void **extra)
{
    given_extra = 0;
    if (extra != NULL) {
        CHECK(extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER && extra[4] == CU_LAUNCH_PARAM_END);
        given_extra = *(const size_t *)extra[3];
        memcpy(given, extra[1], given_extra);
    } else if (function == (CUfunction)TWO) {
        for (size_t i = 0; i < 2; i++)
            memcpy(given + of_two[i].offset, params[i], of_two[i].bytes);
    }
}

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    CHECK(grid_x == 1 && grid_y == 2 && grid_z == 3);
    CHECK(block_x == 4 && block_y == 5 && block_z == 6 && shared == 9);
    CHECK(stream == (CUstream)STREAM);
    launches++;
    take_params(function, params, extra);
    return CUDA_SUCCESS;
}

static CUresult launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, void **params,
                                 void **extra)
{
    CHECK(config->gridDimX == 1 && config->gridDimY == 2 && config->gridDimZ == 3);
    CHECK(config->blockDimX == 4 && config->blockDimY == 5 && config->blockDimZ == 6);
    CHECK(config->sharedMemBytes == 9 && config->hStream == (CUstream)STREAM);
    CHECK(config->numAttrs == 1 && config->attrs[0].id == CU_LAUNCH_ATTRIBUTE_PRIORITY);
    CHECK_EQ(config->attrs[0].value.priority, -4);
    launches_ex++;
    take_params(function, params, extra);
    return CUDA_SUCCESS;
}

/* --- a call of TWO */

static uint32_t first;
static uint64_t second[2];
static void *params[] = {&first, second};
static struct ms_call call;
static struct ms_packed room;
static struct ms_arguments arguments;

static void start(void)
{
    ms_driver = (struct ms_driver){.func_get_name = func_get_name,
                                   .func_get_param_info = func_get_param_info,
                                   .func_get_attribute = func_get_attribute,
                                   .device_get_attribute = device_get_attribute,
                                   .launch_kernel = launch_kernel,
                                   .launch_kernel_ex = launch_kernel_ex};
    first = 0x11223344;
    second[0] = 0x5a5b00000000;
    second[1] = 0;
    most_threads = 4 * 5 * 6;
    most_shared = 9;
    launches = launches_ex = 0;
    call = (struct ms_call){.function = (CUfunction)TWO,
                            .grid = {1, 2, 3},
                            .block = {4, 5, 6},
                            .shared_bytes = 9,
                            .stream = (CUstream)STREAM,
                            .params = params};
    CHECK(ms_call_begin(&call, &room, &arguments));
}

static void end(void)
{
    ms_call_end(&arguments);
    ms_parameters_forget(NULL);
}

static bool may_wait(void)
{
    return ms_call_may_wait(&call, arguments.layout, 3);
}

static struct ms_launch *record(void)
{
    struct ms_launch *launch = ms_call_record(&call, arguments.layout, &room, (size_t[]){8}, 1);
    CHECK(launch != NULL);
    return launch;
}

/* --- parameters */

MS_TEST_BETWEEN(start, end, parameters_are_packed_with_zeros_between)
{
    static const unsigned char gap[4];
    CHECK_EQ(room.count, 24);
    CHECK(memcmp(room.bytes, &first, 4) == 0 && memcmp(room.bytes + 4, gap, 4) == 0);
    CHECK_BYTES(room.bytes + 8, second, 16);
}

MS_TEST_BETWEEN(start, end, wide_parameters_are_on_the_heap_until_the_end)
{
    static unsigned char wide[WIDE];
    void *one[] = {wide};
    struct ms_packed other_room;
    struct ms_arguments other;
    wide[WIDE - 1] = 8;
    const struct ms_call wide_call = {.function = (CUfunction)ONE_WIDE, .params = one};
    CHECK(ms_call_begin(&wide_call, &other_room, &other));
    CHECK(other_room.count == WIDE && other_room.bytes[WIDE - 1] == 8 && other_room.heap != NULL);
    ms_call_end(&other);
}

MS_TEST_BETWEEN(start, end, a_buffer_of_the_program_is_used_as_it_is)
{
    size_t bytes = 24;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, second, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    struct ms_packed other;
    call.extra = extra;
    CHECK(ms_call_pack(&call, arguments.layout, &other));
    CHECK(other.bytes == (const unsigned char *)second && other.count == 24);
    extra[1] = NULL; /* a size without a buffer */
    CHECK(!ms_call_pack(&call, arguments.layout, &other));
    bytes = 0;
    CHECK(ms_call_pack(&call, arguments.layout, &other));
    extra[0] = (void *)99;
    CHECK(!ms_call_pack(&call, arguments.layout, &other));
    call.extra = NULL;
}

MS_TEST_BETWEEN(start, end, a_call_without_the_array_has_no_arguments)
{
    struct ms_packed other;
    call.params = NULL;
    CHECK(ms_call_pack(&call, arguments.layout, &other));
    CHECK_EQ(other.count, 0);
    const struct ms_call none = {.function = (CUfunction)NO_PARAMS};
    struct ms_arguments of_none;
    CHECK(ms_call_begin(&none, &other, &of_none));
    CHECK_EQ(other.count, 0);
    ms_call_end(&of_none);
}

MS_TEST_BETWEEN(start, end, a_function_that_tells_nothing_has_no_known_arguments)
{
    struct ms_packed other;
    struct ms_arguments of_it;
    const struct ms_call unknown = {.function = (CUfunction)UNKNOWN, .params = params};
    CHECK(!ms_call_begin(&unknown, &other, &of_it));
    const int before = live;
    CHECK(!ms_call_begin(&unknown, &other, &of_it));
    CHECK_EQ(live, before);
}

/* --- what may wait */

MS_TEST_BETWEEN(start, end, a_call_the_driver_would_accept_may_wait)
{
    CHECK(may_wait());
    most_threads--;
    CHECK(!may_wait());
    most_threads++;
    most_shared--;
    CHECK(!may_wait());
    call.shared_bytes = 0;
    CHECK(may_wait());
}

MS_TEST_BETWEEN(start, end, a_grid_beyond_the_device_may_not_wait)
{
    most_threads = 1000000;
    for (size_t i = 0; i < 3; i++) {
        call.grid[i] = 101;
        CHECK(!may_wait());
        call.grid[i] = 100;
        CHECK(may_wait());
        call.grid[i] = 0;
        CHECK(!may_wait());
        call.grid[i] = 1;
        call.block[i] = 11;
        CHECK(!may_wait());
        call.block[i] = 10;
        CHECK(may_wait());
        call.block[i] = 0;
        CHECK(!may_wait());
        call.block[i] = 1;
    }
}

MS_TEST_BETWEEN(start, end, a_call_that_is_tied_to_other_work_may_not_wait)
{
    const CUlaunchAttribute attributes[] = {{.id = CU_LAUNCH_ATTRIBUTE_PRIORITY},
                                            {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE}};
    call.attributes = attributes;
    call.attribute_count = 1;
    CHECK(may_wait());
    call.attribute_count = 2;
    CHECK(!may_wait());
    call.attribute_count = 0;
    call.cooperative = true;
    CHECK(!may_wait());
}

/* --- what is recorded */

MS_TEST_BETWEEN(start, end, a_recorded_call_runs_with_its_pointers_moved)
{
    struct ms_launch *launch = record();
    const uint64_t word = second[0];
    first = 0; /* the program's own may change */
    second[0] = 1;
    CHECK_EQ(ms_call_run(launch, (uint64_t[]){0x100, 0}, (CUstream)STREAM), CUDA_SUCCESS);
    CHECK(launches == 1 && launches_ex == 0 && given_extra == 0);
    uint64_t got[2];
    memcpy(got, given + 8, 16);
    CHECK(got[0] == word + 0x100 && got[1] == 0);
    CHECK(memcmp(given, "\x44\x33\x22\x11", 4) == 0);
    CHECK_EQ(strcmp(ms_call_name(launch), "f"), 0);
    ms_call_forget(launch);
}

MS_TEST_BETWEEN(start, end, a_recorded_call_keeps_its_attributes)
{
    CUlaunchAttribute priority = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value = {.priority = -4}};
    call.attributes = &priority;
    call.attribute_count = 1;
    struct ms_launch *launch = record();
    priority.value.priority = 0;
    CHECK_EQ(ms_call_run(launch, (uint64_t[]){0, 0}, (CUstream)STREAM), CUDA_SUCCESS);
    CHECK(launches == 0 && launches_ex == 1);
    ms_call_forget(launch);
}

MS_TEST_BETWEEN(start, end, a_buffer_stays_a_buffer)
{
    unsigned char bytes[100] = {[0] = 1, [30] = 2, [99] = 3}; /* more than one piece, and a part */
    struct ms_packed packed = {.bytes = bytes, .count = sizeof(bytes)};
    void *extra[] = {CU_LAUNCH_PARAM_END};
    call.extra = extra;
    struct ms_launch *launch = ms_call_record(&call, arguments.layout, &packed, NULL, 0);
    CHECK_EQ(ms_call_run(launch, (uint64_t[]){5, 5}, (CUstream)STREAM), CUDA_SUCCESS);
    CHECK_EQ(given_extra, sizeof(bytes));
    CHECK_BYTES(given, bytes, sizeof(bytes));
    ms_call_forget(launch);
    call.extra = NULL;
}

MS_TEST_BETWEEN(start, end, a_recorded_call_whose_code_is_unloaded_does_not_run)
{
    struct ms_launch *launch = record();
    CHECK(ms_call_take(launch) == launch);
    ms_call_forget(launch);
    ms_parameters_forget(NULL);
    CHECK(ms_call_take(launch) == NULL);
    ms_call_forget(launch);
}

MS_TEST_BETWEEN(start, end, the_last_reference_gives_all_memory_back)
{
    const CUlaunchAttribute priority = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
    const int before = live;
    call.attributes = &priority;
    call.attribute_count = 1;
    struct ms_launch *launch = record();
    CHECK_EQ(ms_call_take(launch), launch);
    ms_call_forget(launch);
    CHECK(live > before);
    ms_call_forget(launch);
    CHECK_EQ(live, before);
}

MS_TEST_BETWEEN(start, end, a_call_without_memory_is_not_recorded_and_leaks_nothing)
{
    const CUlaunchAttribute priority = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
    const int before = live;
    call.attributes = &priority;
    call.attribute_count = 1;
    for (int i = 0; i < 2; i++) {
        may_make = i;
        CHECK(ms_call_record(&call, arguments.layout, &room, NULL, 0) == NULL);
        CHECK_EQ(live, before);
    }
    may_make = 2;
    struct ms_launch *launch = ms_call_record(&call, arguments.layout, &room, NULL, 0);
    may_make = 0;
    CHECK_EQ(ms_call_run(launch, (uint64_t[]){0, 0}, (CUstream)STREAM), CUDA_ERROR_OUT_OF_MEMORY);
    may_make = 1000000;
    CHECK_EQ(launches + launches_ex, 0);
    ms_call_forget(launch);
    CHECK_EQ(live, before);
}
