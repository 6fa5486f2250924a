/* SPDX-License-Identifier: Apache-2.0 */
/* The calls in their order, a letter each. For one file of a test. */
#pragma once

#include <string.h>

#include "tools/simcuda/harness/test.h"

static char order[64];

static void note(char letter)
{
    CHECK(strlen(order) + 1 < sizeof(order));
    order[strlen(order)] = letter;
}

static void must_have(const char *expected)
{
    if (strcmp(order, expected) != 0)
        ms_test_fail(__FILE__, __LINE__, "called: %s, expected %s", order, expected);
    memset(order, 0, sizeof(order));
}
