/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name patterns of plans (docs/plan-format.md). Matching takes at most the product of both lengths, for
 * any pattern, and no recursion. Text is valid UTF-8.
 */
#ifndef METASHARD_RUNTIME_PLAN_PATTERN_H
#define METASHARD_RUNTIME_PLAN_PATTERN_H

#include <stdbool.h>

/* NULL, or what is wrong with the pattern. */
const char *ms_pattern_check(const char *pattern);

/* Without *, ? and [ that are not escaped. */
bool ms_pattern_is_exact(const char *pattern);

/* Takes the escapes out of an exact pattern, in place. */
void ms_pattern_unescape(char *pattern);

/* The pattern has passed ms_pattern_check. */
bool ms_pattern_match(const char *pattern, const char *text);

#endif
