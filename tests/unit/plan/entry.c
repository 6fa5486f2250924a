/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of plans: the patterns of their names. */
#include "runtime/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* A plan of one entry with this name, or NULL. */
static struct ms_plan *plan_of(const char *pattern)
{
    static const char head[] = "{\"format\": \"metashard-plan/1\", \"world_size\": 1, "
                               "\"tensors\": [{\"name\": \"";
    char *text = malloc(sizeof(head) + 2 * strlen(pattern) + 8), *at = text + sizeof(head) - 1;
    struct ms_plan *plan = NULL;
    struct ms_fault fault;
    CHECK(text != NULL);
    strcpy(text, head);
    for (const char *from = pattern; *from != '\0'; from++) {
        if (*from == '\\')
            *at++ = '\\';
        *at++ = *from;
    }
    strcpy(at, "\"}]}");
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
        plan = NULL;
    free(text);
    return plan;
}

static bool is_accepted(const char *pattern)
{
    struct ms_plan *plan = plan_of(pattern);
    ms_plan_destroy(plan);
    return plan != NULL;
}

static bool matches(const char *pattern, const char *text)
{
    struct ms_plan *plan = plan_of(pattern);
    const struct ms_tensor tensor = {.name = text};
    CHECK(plan != NULL);
    const bool is_match = ms_entry_meets(plan, 0, &tensor, 0);
    ms_plan_destroy(plan);
    return is_match;
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
            matches(rows[i].pattern, rows[i].text) != rows[i].is_match)
            ms_test_fail(__FILE__, __LINE__, "%s and %s: expected %s", rows[i].pattern,
                         rows[i].text, rows[i].is_match ? "a match" : "no match");
    }
}

MS_TEST(characters_are_code_points)
{
    CHECK(matches("?", "\xcf\x80"));
    CHECK(matches("?", "\xf0\x9f\x98\x80"));
    CHECK(!matches("??", "\xcf\x80"));
    CHECK(matches("[\xce\xb1-\xcf\x89]", "\xcf\x80"));
    CHECK(!matches("[!\xce\xb1-\xcf\x89]", "\xcf\x80"));
    CHECK(!matches("[\xce\xb1-\xcf\x89]", "z"));
    CHECK(matches("*\xcf\x80*", "a\xcf\x80"));
    CHECK(matches("\\\xcf\x80", "\xcf\x80"));
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
        CHECK_EQ(ms_entry_is_exact(rows[i].pattern), rows[i].name != NULL);
        struct ms_plan *plan = plan_of(rows[i].pattern);
        CHECK(plan != NULL);
        CHECK_BYTES(ms_entry_at(plan, 0).name, name, strlen(name) + 1);
        ms_plan_destroy(plan);
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
    CHECK(!matches(pattern, text));
    text[LENGTH - 1] = 'b';
    CHECK(matches(pattern, text));
    free(pattern);
    free(text);
}
