/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of one file that begin, and end, in the same way. */
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
