/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/scratch.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/allocation.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { BLOCK = 20 * FAKE_GRANULE, PART = FAKE_GRANULE };

static struct ms_scratch own, *scratch;
static CUdeviceptr block;

static CUresult take(size_t block_bytes, size_t begin, size_t end)
{
    return ms_scratch_take(0, block_bytes, begin, end, &own, &scratch, &block);
}

static void use(size_t block_bytes, size_t begin, size_t end)
{
    CHECK_EQ(take(block_bytes, begin, end), CUDA_SUCCESS);
}

/* All of the block can be written, and the part lies in memory of its own. */
static void check_block(size_t bytes, size_t begin, size_t end)
{
    const int memory = fake_memory_at(block + begin);
    for (size_t at = 0; at < bytes; at += 4096) {
        const int here = fake_memory_at(block + at);
        CHECK(here > 0);
        CHECK(here == memory || at < begin || at >= end);
        CHECK(here != memory || at + FAKE_GRANULE >= begin);
    }
    CHECK(fake_memory_at(block + bytes - 1) > 0);
    CHECK_EQ(fake_memory_at(block + end - 1), memory);
}

MS_TEST_BETWEEN(fake_start, fake_check_empty, the_part_has_memory_and_the_rest_the_sink)
{
    use(BLOCK, 0, PART);
    check_block(BLOCK, 0, PART);
    CHECK_EQ(fake.mappings, BLOCK / FAKE_GRANULE); /* and nothing behind it */
    CHECK(fake_memory_at(block + BLOCK - 1) != fake_memory_at(block));
    ms_scratch_give_back(scratch);
    use(BLOCK, 5 * FAKE_GRANULE + 1234, 6 * FAKE_GRANULE + 77);
    check_block(BLOCK, 5 * FAKE_GRANULE + 1234, 6 * FAKE_GRANULE + 77);
    CHECK(fake_memory_at(block) != fake_memory_at(block + 6 * FAKE_GRANULE));
    CHECK_EQ(fake_memory_at(block), fake_memory_at(block + BLOCK - 1));
    ms_scratch_give_back(scratch);
    use(BLOCK, BLOCK - 16, BLOCK);
    check_block(BLOCK, BLOCK - 16, BLOCK);
    ms_scratch_give_back(scratch);
}

/* The alignment that a kernel may see in its addresses stays as it was. */
MS_TEST_BETWEEN(fake_start, fake_check_empty, a_block_is_as_aligned_as_it_was)
{
    for (size_t begin = 0; begin < 3 * PART; begin += PART / 8 + 16) {
        use(BLOCK, begin, begin + 16);
        CHECK_EQ(block % (64 << 10), 0);
        check_block(BLOCK, begin, begin + 16);
        ms_scratch_give_back(scratch);
    }
}

MS_TEST_BETWEEN(fake_start, fake_check_empty, the_sink_is_mapped_once_and_not_once_a_part)
{
    use(BLOCK, 0, PART);
    ms_scratch_give_back(scratch);
    use(BLOCK, BLOCK - PART, BLOCK);
    ms_scratch_give_back(scratch);
    const unsigned maps = fake.calls[FAKE_mem_map], unmaps = fake.calls[FAKE_mem_unmap];
    const unsigned access = fake.calls[FAKE_mem_set_access];
    CHECK(access <= 4); /* the memory's, one a side, and one more where the memory grew */
    for (size_t begin = 0; begin < BLOCK; begin += PART / 2) {
        use(BLOCK, begin, begin + PART / 2);
        check_block(BLOCK, begin, begin + PART / 2);
        ms_scratch_give_back(scratch);
        use(BLOCK / 2, begin / 2, begin / 2 + 64);
        ms_scratch_give_back(scratch);
    }
    CHECK_EQ(fake.calls[FAKE_mem_map], maps);
    CHECK_EQ(fake.calls[FAKE_mem_unmap], unmaps);
    CHECK_EQ(fake.calls[FAKE_mem_set_access], access);
}

STORY_BETWEEN(fake_start, fake_check_empty, a_larger_part_and_a_larger_block_get_room,
              use(4 * PART, PART, 2 * PART), ms_scratch_give_back(scratch),
              use(4 * PART, PART, 4 * PART), check_block(4 * PART, PART, 4 * PART),
              ms_scratch_give_back(scratch), use(4 * PART, 2 * PART, 4 * PART),
              check_block(4 * PART, 2 * PART, 4 * PART), ms_scratch_give_back(scratch),
              use(BLOCK, 2 * PART, 12 * PART), check_block(BLOCK, 2 * PART, 12 * PART),
              ms_scratch_give_back(scratch))

static struct ms_scratch *take_beside(struct ms_scratch *unkept, CUdeviceptr *block_out)
{
    struct ms_scratch *taken;
    memset(unkept, 0xff, sizeof(*unkept)); /* nobody has set it */
    CHECK_EQ(ms_scratch_take(0, BLOCK, PART, 2 * PART, unkept, &taken, block_out), CUDA_SUCCESS);
    CHECK(*block_out != block);
    CHECK(fake_memory_at(*block_out + PART) != fake_memory_at(block + PART));
    return taken;
}

MS_TEST_BETWEEN(fake_start, fake_check_empty, the_scratch_memory_of_an_input_is_kept_too)
{
    struct ms_scratch unkept;
    CUdeviceptr inputs, again;
    use(BLOCK, PART, 2 * PART);
    ms_scratch_give_back(take_beside(&unkept, &inputs));
    const unsigned maps = fake.calls[FAKE_mem_map], creates = fake.calls[FAKE_mem_create];
    ms_scratch_give_back(take_beside(&unkept, &again));
    CHECK(again == inputs && fake.calls[FAKE_mem_map] == maps);
    CHECK_EQ(fake.calls[FAKE_mem_create], creates);
    ms_scratch_give_back(scratch);
    CHECK(ms_scratch_drop() && !ms_scratch_drop());
    CHECK(fake.mappings == 0 && fake.reservations == 0);
}

MS_TEST_BETWEEN(fake_start, fake_check_empty,
                a_third_user_of_scratch_memory_gets_a_block_of_its_own)
{
    struct ms_scratch unkept, others_own;
    CUdeviceptr inputs, others_block;
    use(BLOCK, PART, 2 * PART);
    struct ms_scratch *second = take_beside(&unkept, &inputs);
    struct ms_scratch *others = take_beside(&others_own, &others_block);
    CHECK(second != &unkept && others == &others_own && others_block != inputs);
    CHECK(!ms_scratch_drop());
    check_block(BLOCK, PART, 2 * PART);
    ms_scratch_give_back(others);
    CHECK_EQ(fake_memory_at(others_block + PART), 0);
    ms_scratch_give_back(second);
    CHECK(fake_memory_at(inputs + PART) != 0);
    ms_scratch_give_back(scratch);
    CHECK(ms_scratch_drop() && !ms_scratch_drop());
    CHECK_EQ(fake.mappings, 0);
    CHECK_EQ(fake.reservations, 0);
}

STORY_BETWEEN(fake_start, fake_check_empty, scratch_memory_stays_while_a_stream_is_captured,
              use(BLOCK, PART, 2 * PART), ms_scratch_give_back(scratch),
              atomic_store(&ms_hot.captures, 1), IS(!ms_scratch_drop()),
              atomic_store(&ms_hot.captures, 0), IS(ms_scratch_drop()))

/* Takes more memory, more of the block on both sides, or the first at all; the nth call fails. */
static bool fail_at(unsigned nth, bool has_taken, size_t bytes, size_t begin, size_t end)
{
    fake_start();
    if (has_taken) {
        use(4 * PART, PART, 2 * PART);
        ms_scratch_give_back(scratch);
    }
    fake_fail(FAKE_ANY, nth, CUDA_ERROR_OUT_OF_MEMORY);
    const CUresult result = take(bytes, begin, end);
    const bool has_failed = fake_has_failed();
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    if (result == CUDA_SUCCESS) {
        check_block(bytes, begin, end);
        ms_scratch_give_back(scratch);
    } else {
        CHECK(has_failed && !ms_scratch_drop());
    }
    use(4 * PART, 0, 2 * PART);
    check_block(4 * PART, 0, 2 * PART);
    ms_scratch_give_back(scratch);
    fake_check_empty();
    return has_failed;
}

/* Some calls are made again. */
MS_TEST(nothing_is_left_of_scratch_memory_when_a_call_fails)
{
    for (unsigned nth = 1; fail_at(nth, true, 6 * PART, 3 * PART, 6 * PART); nth++)
        ;
    for (unsigned nth = 1; fail_at(nth, true, BLOCK, 8 * PART, 9 * PART); nth++)
        ;
    for (unsigned nth = 1; fail_at(nth, false, BLOCK, 8 * PART, 9 * PART); nth++)
        ;
}

/* --- the bound: what the program would have had at most */

static struct ms_allocation *had;

/* The program has so many granules, of which the first ones are in memory. */
static void start_with(size_t granules, size_t backed)
{
    fake_start();
    had = fake_allocation(granules * FAKE_GRANULE);
    if (backed > 0)
        fake_set(had, 0, backed * FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    CHECK_EQ(ms_space_sums(0).most_reserved, granules * FAKE_GRANULE);
}

static void end(void)
{
    fake_allocation_free(had);
    ms_scratch_drop();
    fake_check_empty();
}

STORY_ALONE(all_of_the_shims_memory_counts, start_with(20, 12),
            IS(ms_scratch_fits(0, 8 * FAKE_GRANULE)), IS(!ms_scratch_fits(0, 8 * FAKE_GRANULE + 1)),
            ms_config.mode = MS_VERIFY, IS(ms_scratch_fits(0, 8 * FAKE_GRANULE + 1)),
            ms_config.mode = MS_ON, end())

/* Else the granules of a small program would come and go with each replay. */
MS_TEST(a_small_program_has_a_granule_and_the_sink_beside_it)
{
    for (size_t granules = 1; granules <= 8; granules++) {
        const size_t beside = granules < 8 ? 2 * FAKE_GRANULE : 0;
        start_with(granules, granules);
        CHECK_EQ(ms_scratch_fits(0, beside), true);
        CHECK_EQ(ms_scratch_fits(0, beside + 1), false);
        end();
    }
}

/* The program has freed it. */
MS_TEST_BETWEEN(fake_start, fake_check_empty, memory_the_program_had_before_bounds_scratch_memory)
{
    fake_allocation_free(fake_allocation(20 * FAKE_GRANULE));
    CHECK_EQ(ms_space_sums(0).reserved, 0);
    CHECK(ms_scratch_fits(0, 20 * FAKE_GRANULE));
    CHECK(!ms_scratch_fits(0, 20 * FAKE_GRANULE + 1));
}

/* One granule more than is asked for: the sink. */
MS_TEST(beyond_the_bound_it_is_refused_once_if_the_thread_allows_that)
{
    start_with(20, 12);
    CHECK_EQ(ms_scratch_ask(0, 8 * FAKE_GRANULE), CUDA_SUCCESS);
    ms_scratch_may_refuse(true);
    CHECK_EQ(ms_scratch_ask(0, 7 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK(!ms_scratch_has_refused());
    CHECK_EQ(ms_scratch_ask(0, 10 * FAKE_GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(ms_scratch_has_refused());
    CHECK_EQ(ms_scratch_ask(0, 10 * FAKE_GRANULE), CUDA_SUCCESS);
    const struct ms_scratch_refusal refusal = ms_scratch_take_refusal();
    CHECK_EQ(refusal.device, 0);
    CHECK_EQ(refusal.bytes, 3 * FAKE_GRANULE);
    CHECK(!ms_scratch_has_refused());
    CHECK_EQ(ms_scratch_take_refusal().bytes, 0);
    ms_scratch_may_refuse(true);
    ms_scratch_may_refuse(false);
    CHECK_EQ(ms_scratch_ask(0, 10 * FAKE_GRANULE), CUDA_SUCCESS);
    end();
}

/* It is refused where it is taken, and not if it is there already. */
STORY_ALONE(memory_that_is_taken_is_asked_for, start_with(20, 20), ms_scratch_may_refuse(true),
            EQUALS(take(BLOCK, 0, PART), CUDA_ERROR_OUT_OF_MEMORY), IS(ms_scratch_has_refused()),
            ms_scratch_take_refusal(), use(BLOCK, 0, PART), ms_scratch_give_back(scratch),
            ms_scratch_may_refuse(true), use(BLOCK, 0, PART), ms_scratch_give_back(scratch),
            ms_scratch_may_refuse(false), end())

/* Three granules: the memory, and the sink beside it. */
STORY_ALONE(kept_scratch_memory_goes_before_more_is_refused, start_with(20, 12),
            use(BLOCK, 0, 2 * PART), ms_scratch_give_back(scratch),
            EQUALS(ms_backing_device_bytes(0), (12 + 3) * FAKE_GRANULE),
            ms_scratch_may_refuse(true), EQUALS(ms_scratch_ask(0, 4 * FAKE_GRANULE), CUDA_SUCCESS),
            EQUALS(ms_backing_device_bytes(0), (12 + 3) * FAKE_GRANULE),
            EQUALS(ms_scratch_ask(0, 6 * FAKE_GRANULE), CUDA_SUCCESS),
            EQUALS(ms_backing_device_bytes(0), (12 + 1) * FAKE_GRANULE),
            ms_scratch_may_refuse(false), end())

STORY_ALONE(kept_scratch_memory_makes_way_for_the_program, start_with(20, 12),
            use(BLOCK, 0, 2 * PART), ms_scratch_give_back(scratch),
            ms_scratch_make_way(0, 5 * FAKE_GRANULE),
            EQUALS(ms_backing_device_bytes(0), (12 + 3) * FAKE_GRANULE),
            ms_scratch_make_way(0, 6 * FAKE_GRANULE),
            EQUALS(ms_backing_device_bytes(0), 12 * FAKE_GRANULE), end())
