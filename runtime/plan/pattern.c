/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/pattern.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns the character at *text, and moves behind it. Valid UTF-8; never moves past the zero. */
static uint32_t next_character(const char **text)
{
    const unsigned char first = (unsigned char)*(*text)++;
    if (first < 0xc0)
        return first;
    uint32_t character = first & (first < 0xe0 ? 0x1f : first < 0xf0 ? 0x0f : 0x07);
    while (((unsigned char)**text & 0xc0) == 0x80)
        character = character << 6 | ((unsigned char)*(*text)++ & 0x3f);
    return character;
}

/* Reads a member of a set, which is a character or a range, and moves *set behind it. */
static void next_member(const char **set, uint32_t *low_out, uint32_t *high_out)
{
    *low_out = *high_out = next_character(set);
    if ((*set)[0] == '-' && (*set)[1] != ']' && (*set)[1] != '\0') {
        (*set)++;
        *high_out = next_character(set);
    }
}

static const char *behind_negation(const char *set, bool *is_negated_out)
{
    *is_negated_out = *set == '!' || *set == '^';
    return set + *is_negated_out;
}

/* *set is behind its '['; a ']' that comes first is a member. Returns NULL, or what is wrong. */
static const char *check_set(const char **set)
{
    bool is_negated;
    *set = behind_negation(*set, &is_negated);
    for (bool is_first = true; is_first || **set != ']'; is_first = false) {
        if (**set == '\0')
            return "expected a ']' after the '[' of the pattern";
        uint32_t low, high;
        next_member(set, &low, &high);
        if (low > high)
            return "expected a range in [] to end after its beginning";
    }
    (*set)++;
    return NULL;
}

/* Returns NULL, or what is wrong with the pattern. */
static const char *check(const char *pattern)
{
    const char *fault = NULL;
    while (*pattern != '\0' && fault == NULL) {
        const char character = *pattern++;
        if (character == '[')
            fault = check_set(&pattern);
        else if (character == '\\' && *pattern++ == '\0')
            return "expected a character after the '\\' at the end of the pattern";
    }
    return fault;
}

bool ms_pattern_is_exact(const char *pattern)
{
    for (; *pattern != '\0'; pattern++) {
        if (*pattern == '*' || *pattern == '?' || *pattern == '[')
            return false;
        if (*pattern == '\\')
            pattern++;
    }
    return true;
}

/* Removes the escapes, in place. */
static void unescape(char *pattern)
{
    char *to = pattern;
    for (const char *from = pattern; *from != '\0'; from++) {
        if (*from == '\\')
            from++;
        *to++ = *from;
    }
    *to = '\0';
}

const char *ms_pattern_read(char *pattern, bool *is_exact_out)
{
    const char *fault = check(pattern);
    *is_exact_out = fault == NULL && ms_pattern_is_exact(pattern);
    if (*is_exact_out)
        unescape(pattern);
    return fault;
}

static bool match_set(const char **set, uint32_t character)
{
    bool is_negated, is_member = false;
    *set = behind_negation(*set, &is_negated);
    for (bool is_first = true; is_first || **set != ']'; is_first = false) {
        uint32_t low, high;
        next_member(set, &low, &high);
        is_member |= low <= character && character <= high;
    }
    (*set)++;
    return is_member != is_negated;
}

/* Matches one element of the pattern, not '*', with a character, and moves *pattern behind it. */
static bool match_one(const char **pattern, uint32_t character)
{
    switch (**pattern) {
    case '?':
        (*pattern)++;
        return true;
    case '[':
        (*pattern)++;
        return match_set(pattern, character);
    case '\\':
        (*pattern)++;
        break;
    default:
        break;
    }
    return next_character(pattern) == character;
}

/* Retries only the last '*': it can take whatever an earlier one could take. */
bool ms_pattern_match(const char *pattern, const char *text)
{
    const char *star_pattern = NULL, *star_text = NULL;
    while (*text != '\0') {
        if (*pattern == '*') {
            star_pattern = ++pattern;
            star_text = text;
            continue;
        }
        const uint32_t character = next_character(&text);
        if (*pattern != '\0' && match_one(&pattern, character))
            continue;
        if (star_pattern == NULL)
            return false;
        next_character(&star_text);
        pattern = star_pattern;
        text = star_text;
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}
