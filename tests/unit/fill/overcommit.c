/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/overcommit.h"

#include "runtime/config/config.h"
#include "tests/unit/story.h"
#include "tests/unit/use_plan.h"

#define T (64 * G) /* all that the device has */

static const struct ms_content local = {.kind = MS_FILL, .locality = MS_LOCAL};

static void begin(void)
{
    fake_start();
    fake.total_bytes = T;
    ms_config.overcommit = 3;
    open_log(MS_INFO);
}

static void by_default(void)
{
    ms_config.overcommit = 0;
}

static void uses_on(CUdevice device, size_t bytes)
{
    ms_overcommit_note(MS_OVERCOMMIT_USED, device, bytes);
}

static void uses(size_t bytes)
{
    uses_on(0, bytes);
}

static void settles(void)
{
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
}

static void fails(void)
{
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0);
}

static void is_told_that_it_failed(void)
{
    CHECK(ms_overcommit_take_failed() && !ms_overcommit_take_failed());
}

/* --- what it may have */

enum answer { REFUSED, ALLOWED, TIGHT };

static void check_answer(CUdevice device, size_t bytes, enum answer wanted)
{
    bool is_tight = true;
    const bool is_allowed = ms_overcommit_allows(device, bytes, &is_tight);
    const enum answer answer = is_allowed ? (is_tight ? TIGHT : ALLOWED) : REFUSED;
    if (answer != wanted || (!is_allowed && is_tight))
        ms_test_fail(__FILE__, __LINE__, "%zu bytes on device %d: %d, expected %d", bytes, device,
                     (int)answer, (int)wanted);
}

static void allowed_on(CUdevice device, size_t bytes)
{
    check_answer(device, bytes, ALLOWED);
}

static void allowed(size_t bytes)
{
    allowed_on(0, bytes);
}

static void tight(size_t bytes)
{
    check_answer(0, bytes, TIGHT);
}

static void refused_on(CUdevice device, size_t bytes)
{
    check_answer(device, bytes, REFUSED);
}

static void refused(size_t bytes)
{
    refused_on(0, bytes);
}

/* No more is allowed than fits. */
static void computes(void)
{
    refused(T + G);
}

static void loads(void)
{
    allowed(T + G);
}

/* --- how much */

STORY(a_program_allocates_a_few_times_the_device_at_most, allowed(3 * T), refused(3 * T + 3 * G),
      has(2 * T), allowed(T), refused(T + 3 * G))
STORY(a_few_times_the_device_is_meant_to_the_byte, allowed(3 * T + 2), refused(3 * T + 3),
      refused(SIZE_MAX), has(T), allowed(2 * T + 2), refused(2 * T + 3), refused(SIZE_MAX - T),
      refused(SIZE_MAX - T + 1))
STORY(the_log_tells_of_a_refusal_once, refused(3 * T + 3),
      said(1, "12582915 bytes on device 0 is refused: with it, the program would have more than 3 "
              "times the device's memory (METASHARD_OVERCOMMIT)"),
      refused(4 * T), said(1, "is refused"))
STORY(the_log_tells_how_much_is_too_much_by_default, by_default(), has(G), refused(SIZE_MAX),
      said(1, "of 18446744073709551615 bytes on device 0 is refused: with it, the program would "
              "have more than 128 times the device's memory (METASH"))
STORY(the_log_tells_of_a_refusal_beyond_the_bound, by_default(), refused(128 * T + 5),
      said(1, "of 536870917 bytes on device 0 is refused: with it, the program would have more "
              "than 128 times the device's memory (METASHARD"))
STORY(the_log_tells_of_too_much_unwritten_memory, by_default(), refused(32 * T + G),
      said(1, "an allocation of 134283264 bytes on device 0"),
      said(1, "32 times the device's memory unwritten"))
/* Any program may set its memory for ever. A count holds for a while. */
STORY(the_default_limit_is_of_unwritten_memory, by_default(), allowed(32 * T), refused(32 * T + G),
      refused(SIZE_MAX / G * G), has(20 * T), refused(12 * T + G), has(20 * T), refused(G),
      writes(1, 0, 20 * T, sevens), refused(G), writes(1, 0, T, resident), refused(G),
      writes(1, T, 20 * T, absent), allowed(12 * T), allowed(13 * T), refused(20 * T), frees(0),
      allowed(32 * T), refused(34 * T))
STORY(the_default_limit_allows_memory_read_from_files, by_default(), has(40 * T),
      reads_file(0, 0, 40 * T, T), allowed(32 * T), refused(40 * T))
STORY(the_default_limit_bounds_written_memory_too, by_default(), has(60 * T),
      writes(0, 0, 60 * T, absent), has(60 * T), writes(1, 0, 60 * T, absent), refused(8 * T + 1),
      allowed(8 * T))
STORY(each_device_counts_its_own_unwritten_memory, by_default(), has_on(1, 30 * T), has(20 * T),
      writes(1, 0, 20 * T, absent), allowed(32 * T), refused_on(1, 3 * T), allowed_on(1, 2 * T))
STORY(a_driver_that_does_not_tell_refuses_nothing, has(G), driver_fails(FAKE_device_total_mem),
      allowed(SIZE_MAX), settles(), computes(), driver_fails(FAKE_mem_get_info), allowed(2 * T))

/* --- when it computes */

STORY(kernels_that_used_a_quarter_of_what_has_no_memory_are_a_sign, has(T / 2), loads(),
      uses_on(1, T), uses_on(-1, T), uses_on(MS_MAX_DEVICES, T), loads(), uses(T / 8 - 1), loads(),
      uses(1), computes())
STORY(a_program_computes_once_kernels_use_what_it_has, has(T / 2), writes(0, 0, T / 2, resident),
      loads(), uses(1), computes())
STORY(settling_is_a_sign_on_devices_that_have_something, has_on(MS_MAX_DEVICES - 1, G), settles(),
      loads(), refused_on(MS_MAX_DEVICES - 1, 2 * T), has(G), loads(), settles(), computes())
/* For good, and on the current device alone. */
STORY(a_call_that_failed_for_lack_of_memory_is_a_sign, fake.device = 1, fails(), loads(),
      refused_on(1, T + 1), fake.device = 0, is_told_that_it_failed(),
      driver_fails(FAKE_ctx_get_device), fails(), loads(), is_told_that_it_failed(),
      fake.device = MS_MAX_DEVICES, fails(), fake.device = 0, is_told_that_it_failed(), fails(),
      computes())

/* It has had so much, has settled, and keeps so little. */
static void had_model(size_t bytes, size_t kept)
{
    has(bytes), allowed(0), settles();
    frees(all_count - 1);
    has(kept);
}

/* From then on the program has had no more than the memory that it keeps. */
STORY(a_program_that_has_freed_nearly_everything_may_make_the_next_model, had_model(T, 7 * G),
      loads(), settles(), computes())
STORY(an_eighth_of_the_device_is_nearly_nothing_of_more, had_model(2 * T, 7 * G), loads())
STORY(a_little_less_than_an_eighth_of_little_is_nearly_nothing, had_model(16 * G, G), loads())
STORY(the_end_of_a_model_leaves_nothing_for_the_next, had_model(T, 7 * G), loads(), frees(1),
      allowed(0))
STORY(a_program_that_keeps_an_eighth_of_its_memory_computes, had_model(T / 2, 4 * G), computes())
STORY(a_program_that_keeps_an_eighth_of_the_device_computes, had_model(2 * T, 8 * G), computes())
STORY(an_eighth_of_an_eighth_is_nearly_nothing, had_model(T, 8 * G), allowed(0), settles(),
      frees(1), has(G), loads())
STORY(the_end_of_a_model_forgets_what_kernels_used, has(T), allowed(0), uses(T), frees(0), loads())
STORY(the_most_it_has_had_grows, has(8 * G), allowed(0), had_model(T - 8 * G, G), allowed(0),
      frees(0), loads())
/* A call has failed by then. */
STORY(a_program_that_was_refused_counts_as_computing, has(T), allowed(0), settles(), refused(G),
      frees(0), computes())
STORY(the_end_of_a_model_forgets_what_was_allowed, by_default(), has(40 * T),
      writes(0, 0, 40 * T, absent), allowed(T), allowed(2 * T), frees(0), allowed(0),
      refused(33 * T))

/* Whatever it writes. */
MS_TEST(a_program_that_allocates_until_it_fails_fails)
{
    begin();
    by_default();
    for (size_t i = 0; i < 8; i++) {
        allowed(16 * T), has(16 * T);
        writes(i, 0, 16 * T, absent);
    }
    refused(16 * T);
    end_story();
}

/* --- what fits, of a program that computes */

static void computes_with(size_t bytes)
{
    has(bytes), settles();
}

STORY(allocations_of_a_computing_program_take_whole_granules, computes_with(T / 2), tight(T / 2),
      refused(T / 2 + 1), tight(T / 2 - 1))
/* The program's own memory counts once. */
STORY(memory_of_others_leaves_less_for_a_computing_program, computes_with(T / 2),
      writes(0, 0, T / 2, resident), tight(T / 2), others_have(8 * G), tight(T / 2 - 8 * G),
      refused(T / 2 - 7 * G))
STORY(a_device_with_little_left_is_tight, computes_with(T / 2), allowed(T / 2 - 8 * G),
      tight(T / 2 - 7 * G), tight(T / 2), refused(T / 2 + G))
STORY(the_log_tells_by_how_much_an_allocation_does_not_fit, computes_with(T / 2),
      refused(T / 2 + G), refused(T / 2 + 3 * G),
      said(1, "2162688 bytes on device 0 is refused: the program computes, and with it the "
              "program's memory would be 65536 bytes more"),
      said(1, "196608 bytes more than the device has"))
STORY(a_program_without_a_plan_needs_everything, computes_with(T), writes(0, 0, T, absent),
      refused(G))
STORY(a_program_that_computes_gets_what_fits, has(T / 2), allowed(T), fails(), refused(T),
      refused(T / 2 + G), tight(T / 2), is_told_that_it_failed())

/* --- what a plan leaves out. Rank 0 keeps the first half of the device's memory, and rank 1 the
 * second. */

static void computes_as(unsigned rank)
{
    use_plan(rank, T), computes_with(T);
    name_tensor(all[0]->address, T, "w");
}

STORY(bytes_other_ranks_keep_make_room, computes_as(1), allowed(T / 2), refused(T / 2 + G))
STORY(memory_that_is_there_already_is_needed, computes_as(1), writes(0, 3 * G, 5 * G, resident),
      writes(0, 3 * G, 5 * G, (struct ms_content){.locality = MS_REMOTE}), allowed(T / 2 - 2 * G),
      refused(T / 2 - G))
STORY(granules_that_are_needed_in_part_are_needed, computes_as(1),
      writes(0, 3 * G - 1, 5 * G + 1, local), allowed(T / 2 - 4 * G), refused(T / 2 - 3 * G))
STORY(the_last_granules_may_be_those_of_others, computes_as(1), writes(0, T - 2 * G, T, absent),
      allowed(T / 2 + 2 * G), refused(T / 2 + 3 * G))
STORY(a_granule_is_needed_for_its_first_byte, computes_as(0), allowed(T / 2), refused(T / 2 + G))
STORY(a_granule_is_needed_for_a_single_byte, computes_as(0), writes(0, T / 2, T / 2 + 1, local),
      allowed(T / 2 - G), refused(T / 2))
STORY(a_granule_is_needed_for_its_last_byte, computes_as(0), writes(0, T - 1, T, local),
      allowed(T / 2 - G), refused(T / 2))
STORY(bytes_not_needed_on_another_device_make_no_room, computes_as(1), has_on(1, T),
      name_tensor(all[1]->address, T, "v"), allowed(T / 2), refused(T / 2 + G))
