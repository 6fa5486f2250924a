/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/scratch.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/driver/flags.h"
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

/* What a kernel may see of its addresses stays as it was. */
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

MS_TEST_BETWEEN(fake_start, fake_check_empty, a_larger_part_and_a_larger_block_get_room)
{
    use(4 * PART, PART, 2 * PART);
    ms_scratch_give_back(scratch);
    use(4 * PART, PART, 4 * PART);
    check_block(4 * PART, PART, 4 * PART);
    ms_scratch_give_back(scratch);
    use(4 * PART, 2 * PART, 4 * PART);
    check_block(4 * PART, 2 * PART, 4 * PART);
    ms_scratch_give_back(scratch);
    use(BLOCK, 2 * PART, 12 * PART);
    check_block(BLOCK, 2 * PART, 12 * PART);
    ms_scratch_give_back(scratch);
}

MS_TEST_BETWEEN(fake_start, fake_check_empty, who_comes_while_it_is_in_use_gets_another)
{
    struct ms_scratch others_own, *others;
    CUdeviceptr others_block;
    memset(&others_own, 0xff, sizeof(others_own)); /* nobody has set it */
    use(BLOCK, PART, 2 * PART);
    CHECK_EQ(ms_scratch_take(0, BLOCK, PART, 2 * PART, &others_own, &others, &others_block),
             CUDA_SUCCESS);
    CHECK(others_block != block && others == &others_own);
    CHECK(fake_memory_at(others_block + PART) != fake_memory_at(block + PART));
    CHECK(!ms_scratch_drop());
    check_block(BLOCK, PART, 2 * PART);
    ms_scratch_give_back(others);
    CHECK_EQ(fake_memory_at(others_block + PART), 0);
    ms_scratch_give_back(scratch);
    CHECK(ms_scratch_drop() && !ms_scratch_drop());
    CHECK_EQ(fake.mappings, 0);
    CHECK_EQ(fake.reservations, 0);
}

MS_TEST_BETWEEN(fake_start, fake_check_empty, it_stays_while_a_stream_is_captured)
{
    use(BLOCK, PART, 2 * PART);
    ms_scratch_give_back(scratch);
    atomic_store(&ms_hot.captures, 1);
    CHECK(!ms_scratch_drop());
    atomic_store(&ms_hot.captures, 0);
    CHECK(ms_scratch_drop());
}

/* What is taken then: more memory, more of the block on both sides, or the first at all. */
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
