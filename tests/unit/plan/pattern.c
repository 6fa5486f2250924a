/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool is_accepted(const char *pattern)
{
    char text[64];
    bool is_exact;
    CHECK(strlen(pattern) < sizeof(text));
    strcpy(text, pattern);
    return ms_pattern_read(text, &is_exact) == NULL;
}

MS_TEST(the_whole_name_matches)
{
    static const struct {
        const char *pattern, *text;
        bool is_match;
    } rows[] = {{"a", "a", true},
                {"a", "ab", false},
                {"a", "", false},
                {"*", "", true},
                {"*", "a.b/c", true},
                {"**", "a", true},
                {"?", "a", true},
                {"?", "", false},
                {"?", "ab", false},
                {"a*c", "abc", true},
                {"a*c", "ac", true},
                {"a*c", "abcd", false},
                {"*.w", "a.b.w", true},
                {"*a*b*", "xaxxbx", true},
                {"*a*b*", "xbxxax", false},
                {"[abc]", "b", true},
                {"[abc]", "d", false},
                {"[a-c]", "b", true},
                {"[!a-c]", "b", false},
                {"[^a-c]", "d", true},
                {"[]a]", "]", true},
                {"[!]a]", "]", false},
                {"[!]a]", "b", true},
                {"[a-]", "-", true},
                {"[-a]", "-", true},
                {"[-a]", "b", false},
                {"[a-]", "b", false},
                {"[\\]", "\\", true},
                {"[a!]", "!", true},
                {"[a^]", "^", true},
                {"\\*", "*", true},
                {"\\*", "a", false},
                {"\\a", "a", true},
                {"\\[a]", "[a]", true},
                {"a\\\\b", "a\\b", true},
                {"[*]", "*", true},
                {"[*]", "a", false},
                {"*\\?", "what?", true},
                {"]", "]", true},
                {"a-b", "a-b", true},
                {"[a][b]*[c]", "abc", true},
                {"*[0-9].w", "l.10.w", true},
                {"*[0-9].w", "l.x.w", false}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (!is_accepted(rows[i].pattern) ||
            ms_pattern_match(rows[i].pattern, rows[i].text) != rows[i].is_match)
            ms_test_fail(__FILE__, __LINE__, "%s and %s: expected %s", rows[i].pattern,
                         rows[i].text, rows[i].is_match ? "a match" : "no match");
    }
}

MS_TEST(characters_are_code_points)
{
    CHECK(ms_pattern_match("?", "\xcf\x80"));
    CHECK(ms_pattern_match("?", "\xf0\x9f\x98\x80"));
    CHECK(!ms_pattern_match("??", "\xcf\x80"));
    CHECK(ms_pattern_match("[\xce\xb1-\xcf\x89]", "\xcf\x80"));
    CHECK(!ms_pattern_match("[!\xce\xb1-\xcf\x89]", "\xcf\x80"));
    CHECK(!ms_pattern_match("[\xce\xb1-\xcf\x89]", "z"));
    CHECK(ms_pattern_match("*\xcf\x80*", "a\xcf\x80"));
    CHECK(ms_pattern_match("\\\xcf\x80", "\xcf\x80"));
}

MS_TEST(bad_patterns_are_refused)
{
    static const char *const bad[] = {"[",   "[a",    "[]",  "[!]", "[^]", "[!",  "[^",    "\\",
                                      "a\\", "[b-a]", "[a-", "[]",  "a[b", "[\\", "[a-b-", "*["};
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (is_accepted(bad[i]))
            ms_test_fail(__FILE__, __LINE__, "%s was not refused", bad[i]);
    }
}

MS_TEST(exact_patterns_lose_their_escapes)
{
    static const struct {
        const char *pattern;
        const char *name; /* NULL: not exact */
    } rows[] = {{"a.b", "a.b"}, {"\\*", "*"},    {"a\\[0]", "a[0]"},
                {"\\\\", "\\"}, {"\\\\*", NULL}, {"a?", NULL},
                {"[a]", NULL},  {"]", "]"},      {"\\\xcf\x80", "\xcf\x80"},
                {"a-b", "a-b"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *name = rows[i].name != NULL ? rows[i].name : rows[i].pattern;
        char text[32];
        bool is_exact;
        strcpy(text, rows[i].pattern);
        CHECK_EQ(ms_pattern_is_exact(text), rows[i].name != NULL);
        CHECK(ms_pattern_read(text, &is_exact) == NULL);
        CHECK_EQ(is_exact, rows[i].name != NULL);
        CHECK_BYTES(text, name, strlen(name) + 1);
    }
}

/* Exponential matchers take for ever here; the test's time is limited. */
MS_TEST(many_stars_are_not_slow)
{
    enum { STARS = 2000, LENGTH = 20000 };
    char *pattern = malloc(2 * STARS + 2), *text = malloc(LENGTH + 1);
    CHECK(pattern != NULL && text != NULL);
    for (int i = 0; i < STARS; i++)
        memcpy(pattern + 2 * i, "*a", 2);
    strcpy(pattern + 2 * STARS, "b");
    memset(text, 'a', LENGTH);
    text[LENGTH] = '\0';
    CHECK(!ms_pattern_match(pattern, text));
    text[LENGTH - 1] = 'b';
    CHECK(ms_pattern_match(pattern, text));
    free(pattern);
    free(text);
}
