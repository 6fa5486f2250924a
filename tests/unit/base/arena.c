/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/arena.h"

#include <stdint.h>
#include <string.h>

#include "tests/unit/between.h"

enum { CHUNK = 256 << 10 }; /* what is taken from the kernel at least */

static struct ms_arena arena;

static void start(void)
{
    arena = (struct ms_arena){0};
}

static void end(void)
{
    ms_arena_cleanup(&arena);
    CHECK(arena.chunks == NULL && arena.used == 0);
}

static void check_zero(const unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK_EQ(memory[i], 0);
}

MS_TEST_BETWEEN(start, end, a_take_gives_zeroed_aligned_and_separate_memory)
{
    unsigned char *one = ms_arena_take(&arena, 1, 3), *other = ms_arena_take(&arena, 4, 5);
    CHECK(one != NULL && other == one + 16 && (uintptr_t)one % 16 == 0);
    check_zero(one, 3);
    check_zero(other, 20);
    CHECK(ms_arena_take(&arena, 1, 1) == other + 32);
}

MS_TEST_BETWEEN(start, end, texts_lie_close_and_end_with_a_zero)
{
    char *one = ms_arena_string(&arena, "abcd", 3), *room = ms_arena_string(&arena, NULL, 5);
    CHECK_EQ(strcmp(one, "abc"), 0);
    CHECK(room == one + 4);
    check_zero((unsigned char *)room, 6);
    CHECK(ms_arena_string(&arena, "", 0) == room + 6);
}

/* To its last byte a chunk is used, and not beyond. */
MS_TEST_BETWEEN(start, end, a_take_that_does_not_fit_gets_a_chunk_of_its_own)
{
    CHECK(ms_arena_take(&arena, 1, 16) != NULL);
    const struct ms_arena_chunk *first = arena.chunks;
    size_t left = CHUNK;
    while (arena.chunks == first) {
        left = arena.used;
        CHECK(ms_arena_string(&arena, NULL, 0) != NULL);
    }
    struct ms_arena again = {0};
    CHECK(ms_arena_take(&again, 1, left) != NULL);
    const struct ms_arena_chunk *all = again.chunks;
    CHECK(ms_arena_string(&again, NULL, 0) != NULL && again.chunks != all);
    ms_arena_cleanup(&again);
    unsigned char *large = ms_arena_take(&arena, 3, CHUNK);
    CHECK(large != NULL);
    memset(large, 1, 3 * (size_t)CHUNK);
}

MS_TEST_BETWEEN(start, end, more_than_there_can_be_is_refused)
{
    CHECK(ms_arena_take(&arena, SIZE_MAX, 2) == NULL);
    CHECK(ms_arena_take(&arena, SIZE_MAX / 2, 1) == NULL);
    CHECK(ms_arena_take(&arena, SIZE_MAX, 1) == NULL);
    CHECK(arena.chunks == NULL);
}

MS_TEST_BETWEEN(start, end, memory_that_is_returned_is_taken_again_and_zeroed)
{
    CHECK(ms_arena_take(&arena, 1, 32) != NULL);
    const struct ms_arena before = arena;
    unsigned char *one = ms_arena_take(&arena, 1, 64);
    memset(one, 7, 64);
    for (int i = 0; i < 4; i++)
        memset(ms_arena_take(&arena, 1, CHUNK / 2), 7, CHUNK / 2);
    ms_arena_return(&arena, &before);
    CHECK(arena.chunks == before.chunks && arena.used == before.used);
    CHECK(ms_arena_take(&arena, 1, CHUNK / 4) == one);
    check_zero(one, CHUNK / 4);
}

MS_TEST_BETWEEN(start, end, all_may_be_returned)
{
    const struct ms_arena before = arena;
    CHECK(ms_arena_take(&arena, 1, 64) != NULL && ms_arena_take(&arena, 2, CHUNK) != NULL);
    ms_arena_return(&arena, &before);
    CHECK(arena.chunks == NULL && arena.used == 0);
}
