/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name patterns of plans (docs/plan-format.md). Matching takes at most as many steps as the product
 * of both lengths, and no recursion. Text is valid UTF-8.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Returns NULL, or what is wrong with the pattern. */
const char *ms_pattern_check(const char *pattern);

/* True if the pattern has no unescaped *, ? or [. */
bool ms_pattern_is_exact(const char *pattern);

/* Removes the escapes of an exact pattern, in place. */
void ms_pattern_unescape(char *pattern);

/* The pattern has passed ms_pattern_check. */
bool ms_pattern_match(const char *pattern, const char *text);
