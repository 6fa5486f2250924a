/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name patterns of plans (docs/plan-format.md). Matching takes at most as many steps as the product
 * of both lengths, and no recursion. Text is valid UTF-8.
 */
#ifndef METASHARD_RUNTIME_PLAN_PATTERN_H
#define METASHARD_RUNTIME_PLAN_PATTERN_H

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

/*
 * The sequences of three bytes in a text as bits: a Bloom filter. A text that matches a pattern has
 * all that the pattern spells out, so a comparison of a few words rejects most texts; the others
 * must still be matched. This makes thousands of patterns over many names cheap.
 */
struct ms_trigrams {
    uint64_t bits[4];
};

struct ms_trigrams ms_trigrams_of_text(const char *text);
struct ms_trigrams ms_trigrams_of_pattern(const char *pattern); /* it has passed ms_pattern_check */

static inline bool ms_trigrams_has(const struct ms_trigrams *all, const struct ms_trigrams *some)
{
    return ((some->bits[0] & ~all->bits[0]) | (some->bits[1] & ~all->bits[1]) |
            (some->bits[2] & ~all->bits[2]) | (some->bits[3] & ~all->bits[3])) == 0;
}

#endif
