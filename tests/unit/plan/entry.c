/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of plans: the patterns of their names. */
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_internal.h"

#include <stdio.h>
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

/* --- what an entry says */

/* A plan of two by three ranks with this entry. NULL: it is good; otherwise what is wrong. */
static const char *fault_of(const char *entry)
{
    static struct ms_fault fault;
    static const char head[] = "plan: tensors[0]";
    char text[1024];
    struct ms_plan *plan = NULL;
    snprintf(text, sizeof(text),
             "{\"format\": \"metashard-plan/1\", \"mesh\": {\"p\": 2, \"d\": 3}, \"rank\": 0, "
             "\"tensors\": [%s]}",
             entry);
    if (ms_plan_parse(text, strlen(text), "plan", &plan, &fault)) {
        ms_plan_destroy(plan);
        return NULL;
    }
    return strncmp(fault.text, head, sizeof(head) - 1) == 0 ? fault.text + sizeof(head) - 1
                                                            : fault.text;
}

struct row {
    const char *text, *fault;
};

/* Each text in the place of the two stars of the entry. */
static void check_rows(const char *begin, const char *end, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char entry[512];
        snprintf(entry, sizeof(entry), "%s%s%s", begin, rows[i].text, end);
        const char *seen = fault_of(entry);
        if ((seen == NULL) != (rows[i].fault == NULL) ||
            (seen != NULL && strcmp(seen, rows[i].fault) != 0))
            ms_test_fail(__FILE__, __LINE__, "%s: expected %s, found %s", entry,
                         rows[i].fault != NULL ? rows[i].fault : "none",
                         seen != NULL ? seen : "none");
    }
}

MS_TEST(placements_are_of_one_mesh_dimension_each)
{
    static const struct row rows[] = {
        {"[]", NULL},
        {"{}", NULL},
        {"[{\"shard\": 0}, \"replicate\"]", NULL},
        {"{\"d\": {\"shard\": 7}, \"p\": {\"shard\": 0}}", NULL},
        {"5", ".placements: expected a list or an object of placements"},
        {"\"replicate\"", ".placements: expected a list or an object of placements"},
        {"[\"replicate\", \"replicate\", \"replicate\"]",
         ".placements: expected at most 2 placements, one per mesh dimension"},
        {"{\"x\": \"replicate\"}", ".placements.x: expected the name of a mesh dimension"},
        {"{\"p\": \"replicate\", \"\": {\"shard\": 0}}",
         ".placements.: expected the name of a mesh dimension"},
        {"[\"replicat\"]", ".placements[0]: expected \"replicate\", {\"shard\": dimension} or "
                           "{\"flat\": \"zero3\"}"},
        {"[{}]", ".placements[0]: expected \"replicate\", {\"shard\": dimension} or "
                 "{\"flat\": \"zero3\"}"},
        {"[\"replicate\", []]", ".placements[1]: expected \"replicate\", {\"shard\": dimension} or "
                                "{\"flat\": \"zero3\"}"},
        {"{\"d\": 5}", ".placements.d: expected \"replicate\", {\"shard\": dimension} or "
                       "{\"flat\": \"zero3\"}"},
        {"[{\"shard\": 8}]", ".placements[0].shard: expected an integer from 0 to 7, found 8"},
        {"[{\"shard\": -1}]", ".placements[0].shard: expected an integer from 0 to 7, found -1"},
        {"[{\"shard\": \"0\"}]", ".placements[0].shard: expected an integer"},
        {"[{\"shard\": 0, \"flat\": \"zero3\"}]",
         ".placements[0].flat: unknown key; expected shard and interleave"},
        {"[{\"flat\": \"zero3\"}]", NULL},
        {"[{\"flat\": \"fsdp1\", \"unit\": \"u\"}]", NULL},
        {"[{\"flat\": \"zero\"}]", ".placements[0].flat: expected \"zero3\" or \"fsdp1\""},
        {"[{\"flat\": 3}]", ".placements[0].flat: expected \"zero3\" or \"fsdp1\""},
        {"[{\"flat\": \"zero3\", \"unit\": \"u\"}]",
         ".placements[0].unit: expected no unit beside \"zero3\""},
        {"[{\"flat\": \"fsdp1\"}]", ".placements[0].unit: expected the name of a unit"},
        {"[{\"flat\": \"fsdp1\", \"unit\": \"\"}]",
         ".placements[0].unit: expected the name of a unit"},
        {"[{\"flat\": \"fsdp1\", \"unit\": 5}]",
         ".placements[0].unit: expected the name of a unit"},
        {"[{\"flat\": \"zero3\", \"x\": 5}]",
         ".placements[0].x: unknown key; expected flat and unit"},
        {"[{\"flat\": \"zero3\"}, {\"flat\": \"zero3\"}]",
         ".placements: expected at most one flat placement"},
        {"[{\"flat\": \"zero3\"}, {\"shard\": 0}]", NULL},
    };
    check_rows("{\"name\": \"a\", \"placements\": ", "}", rows, COUNT(rows));
}

MS_TEST(interleaved_parts_are_up_to_64_numbers)
{
    static const struct row rows[] = {
        {"[1]", NULL},
        {"[1, 9223372036854775806]", NULL},
        {"[]", ".placements[0].interleave: expected a list of 1 to 64 integers"},
        {"{\"a\": 1}", ".placements[0].interleave: expected a list of 1 to 64 integers"},
        {"5", ".placements[0].interleave: expected a list of 1 to 64 integers"},
        {"[1, 0]", ".placements[0].interleave[1]: expected an integer from 1 to "
                   "9223372036854775807, found 0"},
        {"[1, 9223372036854775807]", ".placements[0].interleave[1]: expected a sum below 2^63"},
        {"[9223372036854775807, 9223372036854775807, 2]",
         ".placements[0].interleave[1]: expected a sum below 2^63"},
    };
    static const struct row others[] = {
        {"[{\"shard\": 1}, {\"shard\": 0, \"interleave\": [1, 1]}]", NULL},
        {"[{\"shard\": 0, \"interleave\": [1, 1]}, {\"shard\": 0}]", NULL},
        {"[{\"shard\": 0}, {\"shard\": 0, \"interleave\": [1, 1]}]",
         ".placements: expected interleave to be the first that shards dimension 0"},
        {"[{\"flat\": \"zero3\"}, {\"shard\": 0, \"interleave\": [1, 1]}]", NULL},
    };
    check_rows("{\"name\": \"a\", \"placements\": [{\"shard\": 0, \"interleave\": ", "}]}", rows,
               COUNT(rows));
    check_rows("{\"name\": \"a\", \"placements\": ", "}", others, COUNT(others));
    for (int count = 64; count <= 65; count++) {
        char text[512] = "{\"name\": \"a\", \"placements\": [{\"shard\": 0, \"interleave\": [1";
        for (int i = 1; i < count; i++)
            strcat(text, ",1");
        strcat(text, "]}]}");
        CHECK_EQ(fault_of(text) == NULL, count == 64);
    }
}

MS_TEST(ranges_of_a_rank_ascend)
{
    static const struct row rows[] = {
        {"[]", NULL},
        {"[[0, 1]]", NULL},
        {"[[0, 1], [1, 2], [3, 9223372036854775807]]", NULL},
        {"[[1, 1]]",
         ".ranges[0][0][1]: expected an integer from 2 to 9223372036854775807, found 1"},
        {"[[2, 1]]",
         ".ranges[0][0][1]: expected an integer from 3 to 9223372036854775807, found 1"},
        {"[[0, 2], [1, 3]]",
         ".ranges[0][1][0]: expected an integer from 2 to 9223372036854775806, found 1"},
        {"[[0, 2], [2, 3], [2, 4]]",
         ".ranges[0][2][0]: expected an integer from 3 to 9223372036854775806, found 2"},
        {"[[0]]", ".ranges[0][0]: expected [begin, end]"},
        {"[[0, 1, 2]]", ".ranges[0][0]: expected [begin, end]"},
        {"[{\"a\": 0, \"b\": 1}]", ".ranges[0][0]: expected [begin, end]"},
        {"[5]", ".ranges[0][0]: expected [begin, end]"},
        {"[[0, 1], \"x\"]", ".ranges[0][1]: expected [begin, end]"},
        {"[[-1, 1]]",
         ".ranges[0][0][0]: expected an integer from 0 to 9223372036854775806, found -1"},
        {"[[\"0\", 1]]", ".ranges[0][0][0]: expected an integer"},
        {"[[0, null]]", ".ranges[0][0][1]: expected an integer"},
        {"{\"a\": [0, 1]}", ".ranges[0]: expected a list of [begin, end]"},
        {"5", ".ranges[0]: expected a list of [begin, end]"},
    };
    static const struct row ranks[] = {
        {"[[], [], [], [], [], []]", NULL},
        {"[[], [], [], [], []]", ".ranges: expected a list with one element for each of 6 ranks"},
        {"[[], [], [], [], [], [], []]",
         ".ranges: expected a list with one element for each of 6 ranks"},
        {"{\"a\": [], \"b\": [], \"c\": [], \"d\": [], \"e\": [], \"f\": []}",
         ".ranges: expected a list with one element for each of 6 ranks"},
        {"5", ".ranges: expected a list with one element for each of 6 ranks"},
        {"[[], [], [], [], [], [[1, 1]]]",
         ".ranges[5][0][1]: expected an integer from 2 to 9223372036854775807, found 1"},
    };
    check_rows("{\"name\": \"a\", \"ranges\": [", ", [], [], [], [], []]}", rows, COUNT(rows));
    check_rows("{\"name\": \"a\", \"ranges\": ", "}", ranks, COUNT(ranks));
}

MS_TEST(an_entry_selects_by_name_size_or_order)
{
    static const struct row rows[] = {
        {"{\"name\": \"a\"}", NULL},
        {"{\"size\": 0}", NULL},
        {"{\"order\": 9223372036854775807}", NULL},
        {"{}", ": expected name, size or order"},
        {"{\"placements\": []}", ": expected name, size or order"},
        {"{\"name\": \"\"}", ".name: expected a pattern of names"},
        {"{\"name\": 5}", ".name: expected a pattern of names"},
        {"{\"size\": -1}", ".size: expected an integer from 0 to 9223372036854775807, found -1"},
        {"{\"order\": \"1\"}", ".order: expected an integer"},
        {"{\"size\": 4, \"dtype\": \"F32\", \"shape\": [1]}", NULL},
        {"{\"size\": 5, \"dtype\": \"F32\", \"shape\": [1]}",
         ".size: expected the 4 bytes of dtype and shape"},
        {"{\"name\": \"a\", \"dtype\": \"F32\"}", ": expected dtype and shape together"},
        {"{\"name\": \"a\", \"shape\": [1]}", ": expected dtype and shape together"},
        {"{\"name\": \"a\", \"placements\": [], \"ranges\": [[], [], [], [], [], []]}",
         ".ranges: expected placements or ranges, found both"},
        {"{\"name\": \"a\", \"x\": 1}",
         ".x: unknown key; expected name, size, order, dtype, shape, placements or ranges"},
        {"{\"name\": \"a\"}, {\"name\": \"a?\"}, {\"name\": \"a?\"}", NULL},
        {"{\"name\": \"a\"}, {\"name\": \"b\"}, {\"name\": \"a\"}",
         "plan: tensors[2]: name a is already that of tensors[0]"},
        {"{\"name\": \"a\"}, {\"name\": \"\\\\a\"}",
         "plan: tensors[1]: name a is already that of tensors[0]"},
    };
    check_rows("", "", rows, COUNT(rows));
}

/* The cuts that the plan keeps, "MESH:KIND:DIM " each; the flat cut comes last. */
MS_TEST(the_flat_cut_is_the_last_one)
{
    static const struct row rows[] = {
        {"[{\"shard\": 2}, {\"shard\": 1}]", "0:s:2 1:s:1 "},
        {"[{\"flat\": \"zero3\"}, {\"shard\": 1}]", "1:s:1 0:f:0 "},
        {"[{\"shard\": 1}, {\"flat\": \"zero3\"}]", "0:s:1 1:f:0 "},
        {"[\"replicate\", {\"shard\": 3}]", "1:s:3 "},
        {"{\"d\": {\"shard\": 3}, \"p\": {\"shard\": 1}}", "1:s:3 0:s:1 "},
        {"{\"d\": {\"flat\": \"zero3\"}, \"p\": {\"shard\": 1}}", "0:s:1 1:f:0 "},
        {"{\"d\": \"replicate\"}", ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[512], seen[128] = "";
        struct ms_plan *plan = NULL;
        struct ms_fault fault;
        snprintf(text, sizeof(text),
                 "{\"format\": \"metashard-plan/1\", \"mesh\": {\"p\": 2, \"d\": 3}, "
                 "\"rank\": 0, \"tensors\": [{\"name\": \"a\", \"placements\": %s}]}",
                 rows[i].text);
        CHECK(ms_plan_parse(text, strlen(text), "plan", &plan, &fault));
        const struct ms_terms *terms = ms_terms_of(plan, 0);
        for (unsigned cut = 0; cut < terms->cut_count; cut++)
            sprintf(seen + strlen(seen), "%d:%c:%d ", terms->cuts[cut].mesh_dim,
                    terms->cuts[cut].kind == MS_CUT_SHARD ? 's' : 'f', terms->cuts[cut].dim);
        if (strcmp(seen, rows[i].fault) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s: found %s", rows[i].text, seen);
        ms_plan_destroy(plan);
    }
}

/* --- terms that entries have in common */

/* A plan of so many of these entries. */
static struct ms_plan *plan_of_entries(const char *const *entries, int count)
{
    char text[1024];
    struct ms_plan *plan = NULL;
    struct ms_fault fault;
    snprintf(text, sizeof(text),
             "{'format':'metashard-plan/1','mesh':{'p':2,'d':2},'rank':0,'tensors':[%s%s%s]}",
             entries[0], count > 1 ? "," : "", count > 1 ? entries[1] : "");
    for (char *at = text; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    return plan;
}

/* Entries are many, and say little. */
MS_TEST(entries_that_say_the_same_say_it_once)
{
#define PLACED(placements) "{'size':5,'placements':" placements "}"
#define CUT(more) PLACED("[{'shard':0" more "}]")
    static const struct {
        const char *entries[2];
        bool are_same;
    } rows[] = {
        {{"{'size':5}", "{'size':5}"}, true},
        {{"{'size':5}", "{'size':6}"}, false},
        {{"{'size':5}", "{'order':5}"}, false},
        {{"{'size':5}", "{'size':5,'order':0}"}, false},
        {{"{'order':5}", "{'order':5}"}, true},
        {{"{'order':5}", "{'order':6}"}, false},
        {{"{'name':'a*'}", "{'name':'b*'}"}, true},
        {{"{'name':'a*'}", "{'name':'a*','size':0}"}, false},
        {{PLACED("[]"), "{'size':5}"}, true},
        {{PLACED("['replicate']"), PLACED("{}")}, true},
        {{CUT(""), CUT("")}, true},
        {{CUT(""), PLACED("{'p':{'shard':0}}")}, true},
        {{CUT(""), PLACED("[{'shard':1}]")}, false},
        {{CUT(""), PLACED("['replicate',{'shard':0}]")}, false},
        {{CUT(""), PLACED("[{'shard':0},{'shard':0}]")}, false},
        {{PLACED("[{'shard':0},{'shard':0}]"), PLACED("[{'shard':0},{'shard':1}]")}, false},
        {{CUT(""), PLACED("[]")}, false},
        {{CUT(""), CUT(",'interleave':[1]")}, false},
        {{CUT(",'interleave':[1,2]"), CUT(",'interleave':[1,2]")}, true},
        {{CUT(",'interleave':[1,2]"), CUT(",'interleave':[2,1]")}, false},
        {{CUT(",'interleave':[1,1,1]"), CUT(",'interleave':[1,2]")}, false},
        {{PLACED("[{'flat':'zero3'}]"), PLACED("[{'flat':'zero3'}]")}, true},
        {{PLACED("[{'flat':'zero3'}]"), PLACED("[{'flat':'fsdp1','unit':'u'}]")}, false},
        {{PLACED("[{'flat':'fsdp1','unit':'u'}]"), PLACED("[{'flat':'fsdp1','unit':'u'}]")}, true},
        {{PLACED("[{'flat':'fsdp1','unit':'u'}]"), PLACED("[{'flat':'fsdp1','unit':'v'}]")}, false},
        {{"{'size':5,'ranges':[[],[],[],[]]}", "{'size':5,'ranges':[[],[],[],[]]}"}, false},
        {{"{'size':5,'ranges':[[],[],[],[]]}", "{'size':5}"}, false},
        {{"{'size':5}", "{'size':5,'ranges':[[],[],[],[]]}"}, false},
    };
#undef CUT
#undef PLACED
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ms_plan *one = plan_of_entries(rows[i].entries, 1),
                       *both = plan_of_entries(rows[i].entries, 2);
        if ((ms_terms_of(both, 0) == ms_terms_of(both, 1)) != rows[i].are_same)
            ms_test_fail(__FILE__, __LINE__, "%s and %s", rows[i].entries[0], rows[i].entries[1]);
        CHECK_EQ(both->terms_count, rows[i].are_same ? 1 : 2);
        if (rows[i].are_same && ms_entry_at(both, 0).name == NULL)
            CHECK_EQ(both->arena.used, one->arena.used); /* what was read is given back */
        ms_plan_destroy(one);
        ms_plan_destroy(both);
    }
}

MS_TEST(ranges_that_touch_are_one)
{
    static const char *const entry =
        "{'name':'a','ranges':[[[0,1],[1,2],[3,4],[4,9]],[],[[5,6]],[]]}";
    static const struct ms_range wanted[] = {{0, 2}, {3, 9}, {5, 6}};
    static const int ends[] = {0, 2, 2, 3, 3};
    struct ms_plan *plan = plan_of_entries(&entry, 1);
    struct ms_range *const *ranges = ms_terms_of(plan, 0)->ranges;
    for (int rank = 0; rank <= 4; rank++)
        CHECK_EQ(ranges[rank] - ranges[0], ends[rank]);
    for (size_t i = 0; i < COUNT(wanted); i++)
        CHECK(ranges[0][i].begin == wanted[i].begin && ranges[0][i].end == wanted[i].end);
    ms_plan_destroy(plan);
}
