/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of one file that begin, and end, in the same way. One that is steps alone, each an
 * expression, is a story: STORY_AFTER(start, name, opens(2), must_have("o"), IS(count == 1)).
 */
#pragma once

#include "tools/simcuda/harness/test.h"

/* MS_TEST_AFTER(start, name) { ... }: start() comes first. */
#define MS_TEST_AFTER(start, name)  \
    static void after_##name(void); \
    MS_TEST(name)                   \
    {                               \
        start();                    \
        after_##name();             \
    }                               \
    static void after_##name(void)

/* MS_TEST_BETWEEN(start, end, name) { ... }: and end() last. */
#define MS_TEST_BETWEEN(start, end, name) \
    static void between_##name(void);     \
    MS_TEST(name)                         \
    {                                     \
        start();                          \
        between_##name();                 \
        end();                            \
    }                                     \
    static void between_##name(void)

#define STORY_ALONE(name, ...) \
    MS_TEST(name)              \
    {                          \
        __VA_ARGS__;           \
    }
#define STORY_AFTER(start, name, ...) STORY_ALONE(name, start(), __VA_ARGS__)
#define STORY_BETWEEN(start, end, name, ...) STORY_ALONE(name, start(), __VA_ARGS__, end())

/* CHECK and CHECK_EQ as steps; what is seen comes first here, too. */
#define IS(condition) \
    ((condition) ? (void)0 : ms_test_fail(__FILE__, __LINE__, "%s is false", #condition))
#define EQUALS(seen, wanted) \
    (story_sees = (long long)(seen), story_check(__FILE__, __LINE__, #seen, (long long)(wanted)))

static long long story_sees;

static inline void story_check(const char *file, int line, const char *what, long long wanted)
{
    if (story_sees != wanted)
        ms_test_fail(file, line, "%s is %lld, expected %lld", what, story_sees, wanted);
}
