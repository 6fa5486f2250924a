/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/fill/materialise.h"
#include "runtime/kernel/rules.h"
#include "runtime/memory/order.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/snapshot_of.h"

enum { GRANULES = 4, BYTES = GRANULES * FAKE_GRANULE, ROUNDING = 512 };

/* --- kernels: each has two parameters of 8 bytes, of which the first is where it writes */

enum kernel { PUT, TAKE, PASS, OTHER, KERNELS };
static const char *const names[KERNELS] = {"put", "take", "pass", "other"};
static unsigned launches;
static CUresult launch_result;

static CUresult func_get_name(const char **name, CUfunction function)
{
    *name = names[(uintptr_t)function - 1];
    return CUDA_SUCCESS;
}

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset,
                                    size_t *bytes)
{
    CHECK(function != NULL);
    *offset = 8 * index;
    *bytes = 8;
    return index < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult func_get_attribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    CHECK(function != NULL);
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 256 : 0;
    return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CHECK(device >= 0);
    *value = attribute >= CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X &&
                     attribute <= CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z
                 ? 256
                 : attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}

/* Writes all of the allocation. */
static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    uint64_t words[2];
    CHECK(grid_x + grid_y + grid_z == 3 && block_x * block_y * block_z == 64 && shared == 0);
    CHECK(stream != NULL && extra == NULL);
    for (size_t i = 0; i < 2; i++)
        memcpy(&words[i], params[i], 8);
    launches++;
    if (launch_result != CUDA_SUCCESS)
        return launch_result;
    const enum kernel kernel = (enum kernel)((uintptr_t)function - 1);
    CHECK(kernel != OTHER);
    if (kernel == PUT && words[0] < BYTES) /* the other way round */
        memset((void *)(uintptr_t)words[1], (int)words[0], BYTES);
    else if (kernel == PUT)
        memset((void *)(uintptr_t)words[0], (int)words[1], BYTES);
    else
        memmove((void *)(uintptr_t)words[0], (const void *)(uintptr_t)words[1], BYTES);
    return CUDA_SUCCESS;
}

/* --- two allocations, and what the program launches */

static const struct ms_content sevens = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static struct ms_allocation *one, *other;
static CUdeviceptr program;

static void read_rules(void)
{
    static const char text[] = "write-only put\nfrom-other take\nin-place pass\n";
    char path[] = "/tmp/metashard-rules-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    ms_rules_read(path);
    unlink(path);
}

static void start(void)
{
    fake_start();
    ms_driver.func_get_name = func_get_name;
    ms_driver.func_get_param_info = func_get_param_info;
    ms_driver.func_get_attribute = func_get_attribute;
    ms_driver.device_get_attribute = device_get_attribute;
    ms_driver.launch_kernel = launch_kernel;
    read_rules();
    one = fake_allocation(BYTES);
    other = fake_allocation(BYTES);
    program = fake_program_memory(BYTES);
    launches = 0;
    launch_result = CUDA_SUCCESS;
}

static void end(void)
{
    fake_check_allocation(one);
    fake_check_allocation(other);
    fake_allocation_free(one);
    fake_allocation_free(other);
    fake_program_memory_free(program);
    fake_check_empty();
}

static struct ms_call call_of(enum kernel kernel, void **params)
{
    return (struct ms_call){.function = (CUfunction)(uintptr_t)(kernel + 1),
                            .grid = {1, 1, 1},
                            .block = {64, 1, 1},
                            .stream = FAKE_STREAM,
                            .params = params};
}

/* True if it is answered. */
static bool launch(enum kernel kernel, uint64_t first, uint64_t second, CUresult *result_out)
{
    void *params[] = {&first, &second};
    const struct ms_call call = call_of(kernel, params);
    return ms_launch(&call, result_out);
}

static void check_recorded(enum kernel kernel, uint64_t first, uint64_t second)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    CHECK(launch(kernel, first, second, &result));
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(&one->lineage, 0).content.kind, MS_LAUNCHED);
    CHECK(launches == 0 && one->lineage.resident_bytes == 0 && one->lineage.cached_bytes == 0);
}

/* The driver is to make it: what it reaches is in memory. */
static void check_forwarded(enum kernel kernel, uint64_t first, uint64_t second)
{
    CUresult result;
    CHECK(!launch(kernel, first, second, &result));
    CHECK_EQ(one->lineage.resident_bytes, BYTES);
    CHECK(ms_lineage_at(&one->lineage, 0).content.kind != MS_LAUNCHED);
}

static CUresult materialise(struct ms_allocation *allocation, size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result = ms_materialise(allocation, begin, behind, MS_NEED_READ);
    ms_space_release(allocation);
    return result;
}

static void check_bytes(size_t begin, size_t behind, unsigned char value)
{
    CHECK_EQ(materialise(one, begin, behind), CUDA_SUCCESS);
    for (size_t i = begin; i < behind; i++)
        CHECK_EQ(((const unsigned char *)(uintptr_t)one->address)[i], value);
}

static void fill(struct ms_allocation *allocation, size_t begin, size_t behind)
{
    fake_set(allocation, begin, behind, &sevens);
}

/* --- a kernel that only writes */

MS_TEST_BETWEEN(start, end, what_only_writes_is_recorded_and_made_where_it_is_read)
{
    check_recorded(PUT, one->address, 5);
    check_bytes(FAKE_GRANULE, 2 * FAKE_GRANULE, 5);
    CHECK(launches == 1 && one->backing.backed_bytes == FAKE_GRANULE);
    check_bytes(0, BYTES, 5);
}

MS_TEST_BETWEEN(start, end, a_replay_that_the_driver_refuses_is_an_error_and_can_be_tried_again)
{
    check_recorded(PUT, one->address, 5);
    launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    CHECK(materialise(one, 0, BYTES) != CUDA_SUCCESS);
    CHECK_EQ(ms_lineage_at(&one->lineage, 0).content.kind, MS_LAUNCHED);
    launch_result = CUDA_SUCCESS;
    check_bytes(0, BYTES, 5);
}

/* Where a launch with one address has it, all have it: another one may be left from before. */
MS_TEST_BETWEEN(start, end, where_a_kernel_has_its_pointer_is_learnt)
{
    check_recorded(PUT, one->address, 5);
    check_recorded(PUT, one->address, 5);
    check_recorded(PUT, one->address, other->address + 8);
}

MS_TEST_BETWEEN(start, end, before_that_one_of_two_is_not_chosen)
{
    check_forwarded(PUT, one->address, other->address + 8);
}

MS_TEST_BETWEEN(start, end, a_kernel_that_has_it_in_two_places_has_it_nowhere)
{
    CUresult result;
    check_recorded(PUT, one->address, 5);
    CHECK(launch(PUT, 5, other->address, &result) && result == CUDA_SUCCESS);
    check_forwarded(PUT, one->address, other->address + 8);
}

MS_TEST_BETWEEN(start, end, what_the_driver_would_refuse_is_forwarded)
{
    CUresult result;
    uint64_t first = one->address, second = 5;
    void *params[] = {&first, &second};
    struct ms_call call = call_of(PUT, params);
    call.block[0] = 257;
    CHECK(!ms_launch(&call, &result));
    call = call_of(PUT, params);
    call.grid[1] = 0;
    CHECK(!ms_launch(&call, &result));
    call = call_of(PUT, params);
    call.shared_bytes = 1;
    CHECK(!ms_launch(&call, &result));
    CHECK_EQ(ms_lineage_at(&one->lineage, 0).content.kind, MS_RESIDENT);
}

MS_TEST_BETWEEN(start, end, what_has_other_memory_of_the_driver_is_forwarded)
{
    check_forwarded(PUT, one->address, program + 8);
}

MS_TEST_BETWEEN(start, end, what_is_for_another_context_is_forwarded)
{
    CHECK_EQ(ms_driver.ctx_push_current((CUcontext)2), CUDA_SUCCESS);
    CUresult result;
    CHECK(!launch(PUT, one->address, 5, &result));
    CUcontext popped;
    CHECK_EQ(ms_driver.ctx_pop_current(&popped), CUDA_SUCCESS);
    CHECK_EQ(one->lineage.resident_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, over_what_is_in_memory_it_runs)
{
    fake_set(one, 3 * FAKE_GRANULE, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    check_forwarded(PUT, one->address, 5);
}

MS_TEST_BETWEEN(start, end, what_reaches_nothing_of_ours_is_forwarded_and_brings_nothing_in)
{
    CUresult result;
    fill(one, 0, BYTES);
    CHECK(!launch(OTHER, program, 5, &result));
    CHECK(one->lineage.resident_bytes == 0 && one->backing.backed_bytes == 0);
}

/* --- one that reads another allocation */

MS_TEST_BETWEEN(start, end, what_reads_another_allocation_is_recorded_with_what_was_there)
{
    fill(other, 0, BYTES);
    check_recorded(TAKE, one->address, other->address);
    fake_set(other, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 0x09090909});
    check_bytes(0, BYTES, 7);
    CHECK_EQ(other->backing.backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, only_what_rounds_the_input_up_may_be_unwritten)
{
    fill(other, 0, BYTES - ROUNDING + 1);
    check_recorded(TAKE, one->address, other->address);
}

MS_TEST_BETWEEN(start, end, an_input_with_a_gap_runs)
{
    fill(other, 0, BYTES - ROUNDING);
    check_forwarded(TAKE, one->address, other->address);
}

MS_TEST_BETWEEN(start, end, an_input_that_is_in_memory_runs)
{
    fill(other, 0, BYTES);
    fake_set(other, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    check_forwarded(TAKE, one->address, other->address);
}

MS_TEST_BETWEEN(start, end, in_place_reads_what_was_there)
{
    fill(one, 0, BYTES);
    check_recorded(PASS, one->address, one->address);
    check_bytes(0, BYTES, 7);
}

MS_TEST_BETWEEN(start, end, of_another_class_one_pointer_twice_runs)
{
    fill(one, 0, BYTES);
    check_forwarded(TAKE, one->address, one->address);
}

/* --- bytes of other ranks */

/* The driver makes it, and if the kernel goes there, it meets no memory. */
MS_TEST_BETWEEN(start, end, over_what_was_received_for_others_alone_nothing_is_recorded)
{
    CUresult result;
    fake_set(one, 2 * FAKE_GRANULE, 3 * FAKE_GRANULE, &absent);
    CHECK(!launch(PUT, one->address, 5, &result));
    CHECK_EQ(ms_lineage_at(&one->lineage, 2 * FAKE_GRANULE).content.kind, MS_ABSENT);
    CHECK_EQ(one->backing.backed_bytes, 3 * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, of_what_was_received_for_others_alone_nothing_is_recorded)
{
    fill(other, 0, BYTES);
    fake_set(other, BYTES - FAKE_GRANULE, BYTES, &absent);
    check_forwarded(TAKE, one->address, other->address);
    CHECK_EQ(other->backing.backed_bytes, 3 * FAKE_GRANULE);
}

/* --- others */

MS_TEST_BETWEEN(start, end,
                a_kernel_without_a_rule_finds_in_memory_what_it_reaches_and_nothing_else)
{
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    check_forwarded(OTHER, one->address + 8, 0);
    CHECK_EQ(other->lineage.resident_bytes + other->lineage.cached_bytes, 0);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before, BYTES);
}

MS_TEST_BETWEEN(start, end, parameters_that_are_not_known_may_lead_anywhere)
{
    CUresult result;
    void *extra[] = {(void *)(uintptr_t)77, NULL, CU_LAUNCH_PARAM_END};
    struct ms_call call = call_of(OTHER, NULL);
    call.extra = extra;
    fill(one, 0, BYTES);
    fill(other, 0, BYTES);
    CHECK(!ms_launch(&call, &result));
    CHECK_EQ(one->lineage.resident_bytes, BYTES);
    CHECK_EQ(other->lineage.resident_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, too_few_bytes_of_parameters_are_not_recorded)
{
    CUresult result;
    uint64_t words[] = {one->address, 5};
    size_t bytes = sizeof(words);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    struct ms_call call = call_of(PUT, NULL);
    call.extra = extra;
    bytes = 8;
    CHECK(!ms_launch(&call, &result));
    CHECK_EQ(ms_lineage_at(&one->lineage, 0).content.kind, MS_RESIDENT);
}
