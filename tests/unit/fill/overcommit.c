/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/overcommit.h"

#include "runtime/config/config.h"
#include "runtime/memory/allocation.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 64, TOTAL = GRANULES * FAKE_GRANULE /* of the device */ };

static bool is_tight;

static bool allows_bytes(size_t bytes)
{
    is_tight = true;
    return ms_overcommit_allows(0, bytes, &is_tight);
}

static bool allows(size_t granules)
{
    return allows_bytes(granules * FAKE_GRANULE);
}

/* Whether what fits is what is allowed, and no more. */
static bool is_computing(void)
{
    return !allows(GRANULES + 1);
}

static struct ms_allocation *allocate(size_t granules, CUdevice device)
{
    const struct ms_promise promise = {.bytes = granules * FAKE_GRANULE,
                                       .context = FAKE_CONTEXT,
                                       .device = device};
    struct ms_allocation *allocation = (struct ms_allocation *)ms_allocation_reserve(&promise);
    CHECK(allocation != NULL);
    return allocation;
}

static void start(void)
{
    fake_start();
    fake.total_bytes = GRANULES * FAKE_GRANULE;
    ms_config.overcommit = 3;
}

MS_TEST(a_program_allocates_a_few_times_the_device_at_most)
{
    start();
    CHECK(allows(3 * GRANULES));
    CHECK(!allows(3 * GRANULES + 3));
    CHECK(!allows_bytes(SIZE_MAX));
    struct ms_allocation *allocation = fake_allocation(2 * GRANULES * FAKE_GRANULE);
    CHECK(allows(GRANULES));
    CHECK(!allows(GRANULES + 3));
    fake_allocation_free(allocation);
    fake_check_empty();
}

MS_TEST(the_default_limit_is_of_unwritten_memory)
{
    const struct ms_content parts[] = {{.kind = MS_FILL}, {.kind = MS_RESIDENT}};
    start();
    ms_config.overcommit = 0;
    CHECK(allows(32 * GRANULES));
    CHECK(!allows(32 * GRANULES + 1));
    CHECK(!allows(SIZE_MAX / FAKE_GRANULE));
    struct ms_allocation *empty = fake_allocation(20 * GRANULES * FAKE_GRANULE);
    CHECK(!allows(12 * GRANULES + 1));
    struct ms_allocation *filled = fake_allocation(20 * GRANULES * FAKE_GRANULE);
    CHECK(!allows(1));
    fake_set(filled, 0, filled->bytes, &parts[0]); /* any program may do so for ever */
    CHECK(!allows(1));
    fake_set(filled, 0, GRANULES * FAKE_GRANULE, &parts[1]);
    CHECK(!allows(1));
    struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    fake_set(filled, GRANULES * FAKE_GRANULE, filled->bytes, &absent);
    CHECK(allows(12 * GRANULES));
    CHECK(allows(13 * GRANULES)); /* what was counted holds for a while */
    CHECK(!allows(20 * GRANULES));
    fake_allocation_free(empty);
    CHECK(allows(32 * GRANULES));
    CHECK(!allows(32 * GRANULES + 2 * GRANULES));
    fake_allocation_free(filled);
    fake_check_empty();
}

/* Whatever it writes. */
MS_TEST(a_program_that_allocates_until_it_fails_fails)
{
    enum { PIECE = 16 * GRANULES };
    struct ms_allocation *all[9];
    size_t count = 0;
    start();
    ms_config.overcommit = 0;
    struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    while (allows(PIECE)) {
        CHECK(count < 9);
        all[count] = fake_allocation(PIECE * FAKE_GRANULE);
        fake_set(all[count], 0, all[count]->bytes, &absent);
        count++;
    }
    CHECK_EQ(count, 8);
    while (count > 0)
        fake_allocation_free(all[--count]);
    fake_check_empty();
}

MS_TEST(a_program_that_computes_gets_what_fits)
{
    start();
    struct ms_allocation *allocation = fake_allocation(GRANULES / 2 * FAKE_GRANULE);
    CHECK(allows(GRANULES));
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0); /* it looks for what fits now */
    CHECK(!allows(GRANULES));
    CHECK(!allows(GRANULES / 2 + 1));
    CHECK(allows(GRANULES / 2));
    CHECK(ms_overcommit_take_failed() && !ms_overcommit_take_failed());
    fake_allocation_free(allocation);
    fake_check_empty();
}

static void end(void)
{
    fake_check_empty();
}

/* --- how much */

MS_TEST_BETWEEN(start, end, a_few_times_the_device_is_meant_to_the_byte)
{
    CHECK(allows_bytes(3 * TOTAL + 2) && !is_tight);
    CHECK(!allows_bytes(3 * TOTAL + 3) && !is_tight);
    struct ms_allocation *allocation = allocate(GRANULES, 0);
    CHECK(allows_bytes(2 * TOTAL + 2));
    CHECK(!allows_bytes(2 * TOTAL + 3));
    CHECK(!allows_bytes(SIZE_MAX - TOTAL) && !allows_bytes(SIZE_MAX - TOTAL + 1));
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, the_log_tells_of_a_refusal_once)
{
    open_log(MS_INFO);
    CHECK(!allows_bytes(3 * TOTAL + 3));
    CHECK_EQ(count_log_lines("12582915 bytes on device 0 is refused: with it, the program would "
                             "have more than 3 times the device's memory (METASHARD_OVERCOMMIT)"),
             1);
    CHECK(!allows(4 * GRANULES));
    CHECK_EQ(count_log_lines("is refused"), 1);
}

MS_TEST_BETWEEN(start, end, the_log_tells_how_much_is_too_much_by_default)
{
    open_log(MS_INFO);
    ms_config.overcommit = 0;
    struct ms_allocation *allocation = allocate(1, 0);
    CHECK(!allows_bytes(SIZE_MAX));
    CHECK_EQ(count_log_lines("of 18446744073709551615 bytes on device 0 is refused: with it, the "
                             "program would have more than 128 times the device's memory (METASH"),
             1);
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, the_log_tells_of_a_refusal_beyond_the_bound)
{
    open_log(MS_INFO);
    ms_config.overcommit = 0;
    CHECK(!allows_bytes(128 * (size_t)TOTAL + 5));
    CHECK_EQ(count_log_lines("of 536870917 bytes on device 0 is refused: with it, the program "
                             "would have more than 128 times the device's memory (METASHARD"),
             1);
}

/* Of a file all is asked for in earnest. */
MS_TEST_BETWEEN(start, end, the_default_limit_allows_memory_read_from_files)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", TOTAL);
    ms_config.overcommit = 0;
    struct ms_allocation *allocation = allocate(40 * GRANULES, 0);
    for (size_t at = 0; at < allocation->bytes; at += TOTAL)
        fake_set(allocation, at, at + TOTAL,
                 &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    CHECK(allows(32 * GRANULES));
    CHECK(!allows(40 * GRANULES));
    fake_allocation_free(allocation);
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(start, end, the_log_tells_of_too_much_unwritten_memory)
{
    open_log(MS_INFO);
    ms_config.overcommit = 0;
    CHECK(!allows(32 * GRANULES + 1));
    CHECK_EQ(count_log_lines("an allocation of 134283264 bytes on device 0"), 1);
    CHECK_EQ(count_log_lines("32 times the device's memory unwritten"), 1);
}

MS_TEST_BETWEEN(start, end, the_default_limit_bounds_written_memory_too)
{
    const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    struct ms_allocation *all[2];
    ms_config.overcommit = 0;
    for (int i = 0; i < 2; i++) {
        all[i] = allocate(60 * GRANULES, 0);
        fake_set(all[i], 0, all[i]->bytes, &absent);
    }
    CHECK(!allows_bytes(8 * TOTAL + 1));
    CHECK(allows_bytes(8 * TOTAL));
    for (int i = 0; i < 2; i++)
        fake_allocation_free(all[i]);
}

MS_TEST_BETWEEN(start, end, each_device_counts_its_own_unwritten_memory)
{
    ms_config.overcommit = 0;
    struct ms_allocation *other = allocate(30 * GRANULES, 1), *own = allocate(20 * GRANULES, 0);
    fake_set(own, 0, own->bytes, &(struct ms_content){.kind = MS_ABSENT, .locality = MS_REMOTE});
    CHECK(allows(32 * GRANULES));
    CHECK(!ms_overcommit_allows(1, 3 * TOTAL, &is_tight));
    CHECK(ms_overcommit_allows(1, 2 * TOTAL, &is_tight));
    fake_allocation_free(other);
    fake_allocation_free(own);
}

MS_TEST_BETWEEN(start, end, a_driver_that_does_not_tell_refuses_nothing)
{
    struct ms_allocation *allocation = allocate(1, 0);
    fake_fail(FAKE_device_total_mem, 1, CUDA_ERROR_UNKNOWN);
    CHECK(allows(4 * GRANULES) && !is_tight);
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    CHECK(is_computing());
    fake_fail(FAKE_mem_get_info, 1, CUDA_ERROR_UNKNOWN);
    CHECK(allows(2 * GRANULES) && !is_tight);
    fake_allocation_free(allocation);
}

/* --- when it computes */

MS_TEST_BETWEEN(start, end, kernels_that_used_a_quarter_of_what_has_no_memory_are_a_sign)
{
    struct ms_allocation *allocation = allocate(GRANULES / 2, 0);
    CHECK(!is_computing());
    ms_overcommit_note(MS_OVERCOMMIT_USED, 1, TOTAL);
    ms_overcommit_note(MS_OVERCOMMIT_USED, -1, TOTAL);
    ms_overcommit_note(MS_OVERCOMMIT_USED, MS_MAX_DEVICES, TOTAL);
    CHECK(!is_computing());
    ms_overcommit_note(MS_OVERCOMMIT_USED, 0, TOTAL / 8 - 1);
    CHECK(!is_computing());
    ms_overcommit_note(MS_OVERCOMMIT_USED, 0, 1);
    CHECK(is_computing());
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, a_program_computes_once_kernels_use_what_it_has)
{
    struct ms_allocation *allocation = allocate(GRANULES / 2, 0);
    fake_set(allocation, 0, allocation->bytes, &(struct ms_content){.kind = MS_RESIDENT});
    CHECK(!is_computing());
    ms_overcommit_note(MS_OVERCOMMIT_USED, 0, 1);
    CHECK(is_computing());
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, settling_is_a_sign_on_devices_that_have_something)
{
    struct ms_allocation *other = allocate(1, MS_MAX_DEVICES - 1);
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    CHECK(!is_computing());
    CHECK(!ms_overcommit_allows(MS_MAX_DEVICES - 1, 2 * TOTAL, &is_tight));
    struct ms_allocation *own = allocate(1, 0);
    CHECK(!is_computing());
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    CHECK(is_computing());
    fake_allocation_free(own);
    fake_allocation_free(other);
}

/* For good, and on the current device alone. */
MS_TEST_BETWEEN(start, end, a_call_that_failed_for_lack_of_memory_is_a_sign)
{
    fake.device = 1;
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0);
    CHECK(!is_computing());
    CHECK(!ms_overcommit_allows(1, TOTAL + 1, &is_tight));
    fake.device = 0;
    CHECK(ms_overcommit_take_failed() && !ms_overcommit_take_failed());
    fake_fail(FAKE_ctx_get_device, 1, CUDA_ERROR_INVALID_CONTEXT);
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0);
    CHECK(!is_computing());
    CHECK(ms_overcommit_take_failed());
    fake.device = MS_MAX_DEVICES;
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0);
    fake.device = 0;
    CHECK(ms_overcommit_take_failed());
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0);
    CHECK(is_computing());
}

/* It has had so many granules, has settled, and keeps so few. */
static struct ms_allocation *free_model(size_t had, size_t keeps)
{
    struct ms_allocation *model = allocate(had, 0);
    CHECK(allows(0));
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    fake_allocation_free(model);
    struct ms_allocation *kept = allocate(keeps, 0);
    allows(0);
    return kept;
}

MS_TEST(a_program_that_has_freed_nearly_everything_may_make_the_next_model)
{
    static const size_t models[][2] = {{GRANULES, 7}, {2 * GRANULES, 7}, {16, 1}};
    for (size_t i = 0; i < 3; i++) {
        start();
        struct ms_allocation *kept = free_model(models[i][0], models[i][1]);
        CHECK(!is_computing());
        fake_allocation_free(kept);
        CHECK(allows(0)); /* nothing is left of it for the next one */
        end();
    }
}

MS_TEST_BETWEEN(start, end, a_program_that_keeps_an_eighth_of_its_memory_computes)
{
    struct ms_allocation *kept = free_model(GRANULES / 2, 4);
    CHECK(is_computing());
    fake_allocation_free(kept);
}

/* Of the device, if it had more. */
MS_TEST_BETWEEN(start, end, a_program_that_keeps_an_eighth_of_the_device_computes)
{
    struct ms_allocation *kept = free_model(2 * GRANULES, 8);
    CHECK(is_computing());
    fake_allocation_free(kept);
}

MS_TEST_BETWEEN(start, end, the_end_of_a_model_forgets_what_was_had_before)
{
    struct ms_allocation *kept = free_model(GRANULES, 7);
    CHECK(!is_computing());
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    CHECK(is_computing()); /* seven granules are all it has had */
    fake_allocation_free(kept);
}

MS_TEST_BETWEEN(start, end, the_end_of_a_model_forgets_what_kernels_used)
{
    struct ms_allocation *model = allocate(GRANULES, 0);
    CHECK(allows(0));
    ms_overcommit_note(MS_OVERCOMMIT_USED, 0, TOTAL);
    fake_allocation_free(model);
    CHECK(!is_computing());
}

MS_TEST_BETWEEN(start, end, the_most_it_has_had_grows)
{
    struct ms_allocation *small = allocate(8, 0);
    CHECK(allows(0));
    struct ms_allocation *kept = free_model(GRANULES - 8, 1);
    fake_allocation_free(small);
    CHECK(!is_computing());
    fake_allocation_free(kept);
}

/* A call has failed by then. */
MS_TEST_BETWEEN(start, end, a_program_that_was_refused_counts_as_computing)
{
    struct ms_allocation *model = allocate(GRANULES, 0);
    CHECK(allows(0));
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    CHECK(!allows(1));
    fake_allocation_free(model);
    CHECK(is_computing());
}

/* As long as it keeps that. */
MS_TEST_BETWEEN(start, end, an_eighth_of_an_eighth_is_nearly_nothing)
{
    struct ms_allocation *kept = free_model(GRANULES, 8);
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    fake_allocation_free(kept);
    kept = allocate(1, 0);
    CHECK(!is_computing());
    fake_allocation_free(kept);
}

/* What was counted for the model before says nothing of the next one. */
MS_TEST_BETWEEN(start, end, the_end_of_a_model_forgets_what_was_allowed)
{
    const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    ms_config.overcommit = 0;
    struct ms_allocation *model = allocate(40 * GRANULES, 0);
    fake_set(model, 0, model->bytes, &absent);
    CHECK(allows(GRANULES));
    CHECK(allows(2 * GRANULES));
    fake_allocation_free(model);
    CHECK(allows(0));
    CHECK(!allows(33 * GRANULES));
}

/* --- what fits */

static struct ms_allocation *compute(size_t granules)
{
    struct ms_allocation *allocation = allocate(granules, 0);
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    return allocation;
}

MS_TEST_BETWEEN(start, end, allocations_of_a_computing_program_take_whole_granules)
{
    struct ms_allocation *allocation = compute(GRANULES / 2);
    CHECK(allows(GRANULES / 2));
    CHECK(!allows_bytes(TOTAL / 2 + 1));
    CHECK(allows_bytes(TOTAL / 2 - 1));
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, memory_of_others_leaves_less_for_a_computing_program)
{
    struct ms_allocation *allocation = compute(GRANULES / 2);
    fake_set(allocation, 0, allocation->bytes, &(struct ms_content){.kind = MS_RESIDENT});
    CHECK(allows(GRANULES / 2)); /* what it has itself counts once */
    const CUdeviceptr others = fake_program_memory(8 * FAKE_GRANULE);
    CHECK(allows(GRANULES / 2 - 8));
    CHECK(!allows(GRANULES / 2 - 7));
    fake_program_memory_free(others);
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, a_device_with_little_left_is_tight)
{
    struct ms_allocation *allocation = compute(GRANULES / 2);
    CHECK(allows(GRANULES / 2 - 8) && !is_tight);
    CHECK(allows(GRANULES / 2 - 7) && is_tight);
    CHECK(allows(GRANULES / 2) && is_tight);
    CHECK(!allows(GRANULES / 2 + 1) && !is_tight);
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, the_log_tells_by_how_much_an_allocation_does_not_fit)
{
    open_log(MS_INFO);
    struct ms_allocation *allocation = compute(GRANULES / 2);
    CHECK(!allows(GRANULES / 2 + 1) && !allows(GRANULES / 2 + 3));
    CHECK_EQ(count_log_lines("2162688 bytes on device 0 is refused: the program computes, and with "
                             "it the program's memory would be 65536 bytes more"),
             1);
    CHECK_EQ(count_log_lines("196608 bytes more than the device has"), 1);
    fake_allocation_free(allocation);
}

MS_TEST_BETWEEN(start, end, a_program_without_a_plan_needs_everything)
{
    struct ms_allocation *allocation = compute(GRANULES);
    fake_set(allocation, 0, TOTAL, &(struct ms_content){.kind = MS_ABSENT, .locality = MS_REMOTE});
    CHECK(!allows(1));
    fake_allocation_free(allocation);
}

/* --- what a plan leaves out */

static struct ms_allocation *tensor;

/* Of all the device has, rank 1 keeps the second half. */
static void start_with_plan(void)
{
    start();
    use_plan(1, TOTAL);
    tensor = compute(GRANULES);
    name_tensor(tensor->address, TOTAL, "w");
}

static void end_with_plan(void)
{
    fake_allocation_free(tensor);
    end();
}

MS_TEST_BETWEEN(start_with_plan, end_with_plan, bytes_other_ranks_keep_make_room)
{
    CHECK(allows(GRANULES / 2) && !is_tight);
    CHECK(!allows(GRANULES / 2 + 1));
}

MS_TEST_BETWEEN(start_with_plan, end_with_plan, memory_that_is_there_already_is_needed)
{
    fake_set(tensor, 3 * FAKE_GRANULE, 5 * FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    fake_set(tensor, 3 * FAKE_GRANULE, 5 * FAKE_GRANULE,
             &(struct ms_content){.kind = MS_UNDEFINED, .locality = MS_REMOTE});
    CHECK(allows(GRANULES / 2 - 2));
    CHECK(!allows(GRANULES / 2 - 1));
}

MS_TEST_BETWEEN(start_with_plan, end_with_plan, granules_that_are_needed_in_part_are_needed)
{
    fake_set(tensor, 3 * FAKE_GRANULE - 1, 5 * FAKE_GRANULE + 1,
             &(struct ms_content){.kind = MS_FILL, .locality = MS_LOCAL});
    CHECK(allows(GRANULES / 2 - 4));
    CHECK(!allows(GRANULES / 2 - 3));
}

MS_TEST_BETWEEN(start_with_plan, end_with_plan, the_last_granules_may_be_those_of_others)
{
    const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    fake_set(tensor, TOTAL - 2 * FAKE_GRANULE, TOTAL, &absent);
    CHECK(allows(GRANULES / 2 + 2));
    CHECK(!allows(GRANULES / 2 + 3));
}

/* Of all the device has, rank 0 keeps the first half. */
static void start_with_first_half(void)
{
    start();
    use_plan(0, TOTAL);
    tensor = compute(GRANULES);
    name_tensor(tensor->address, TOTAL, "w");
}

static const struct ms_content local = {.kind = MS_FILL, .locality = MS_LOCAL};

MS_TEST_BETWEEN(start_with_first_half, end_with_plan, a_granule_is_needed_for_its_first_byte)
{
    CHECK(allows(GRANULES / 2) && !allows(GRANULES / 2 + 1));
    fake_set(tensor, TOTAL / 2, TOTAL / 2 + 1, &local);
    CHECK(allows(GRANULES / 2 - 1));
    CHECK(!allows(GRANULES / 2));
}

MS_TEST_BETWEEN(start_with_first_half, end_with_plan, a_granule_is_needed_for_its_last_byte)
{
    CHECK(allows(GRANULES / 2));
    fake_set(tensor, TOTAL - 1, TOTAL, &local);
    CHECK(allows(GRANULES / 2 - 1));
    CHECK(!allows(GRANULES / 2));
}

MS_TEST_BETWEEN(start_with_plan, end_with_plan, bytes_not_needed_on_another_device_make_no_room)
{
    struct ms_allocation *other = allocate(GRANULES, 1);
    name_tensor(other->address, TOTAL, "v");
    CHECK(allows(GRANULES / 2));
    CHECK(!allows(GRANULES / 2 + 1));
    fake_allocation_free(other);
}
