/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name patterns of plans (docs/plan-format.md). Matching takes at most as many steps as the product
 * of both lengths, and no recursion. Text is valid UTF-8.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* True if the pattern has no unescaped *, ? or [. */
bool ms_pattern_is_exact(const char *pattern);

/* Returns NULL, or what is wrong with the pattern. An exact one loses its escapes, in place. */
const char *ms_pattern_read(char *pattern, bool *is_exact_out);

/* The pattern is one that ms_pattern_read accepts, as it was before. */
bool ms_pattern_match(const char *pattern, const char *text);
