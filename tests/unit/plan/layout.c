/* SPDX-License-Identifier: Apache-2.0 */
/* Which entry decides a tensor: the layout's way of finding it against trying one after the
 * other. */
#include "runtime/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

enum { ENTRIES_MAX = 60, TENSORS_MAX = 40, NAME_BYTES = 256 };

/* The same numbers everywhere; rand() is not. */
static unsigned below(uint64_t *seed, unsigned limit)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*seed >> 33) % limit;
}

/* Few parts, so that names share most of their runs of three bytes. */
static void random_name(uint64_t *seed, char *name)
{
    static const char *const parts[] = {"model",  ".layers.", ".mlp.",        "experts.", "1",
                                        "12",     "21",       "\xcf\x80",     "[0]",      "*",
                                        "back\\", "weight",   "\xf0\x9f\x98", "aaaa",     "b?"};
    static const char *const ends[] = {"", "", ".weight", ".bias", "1"};
    name[0] = '\0';
    for (unsigned i = 1 + below(seed, 6); i > 0; i--) {
        const unsigned part = below(seed, sizeof(parts) / sizeof(parts[0]));
        strcat(name, parts[part]);
        if (part == 12) /* a character of four bytes; its last one varies */
            strcat(name, below(seed, 2) == 0 ? "\x80" : "\x81");
    }
    strcat(name, ends[below(seed, sizeof(ends) / sizeof(ends[0]))]);
}

/* A pattern of a name: some characters are exchanged for wildcards, the others spelled or
 * escaped. */
static void random_pattern(uint64_t *seed, const char *name, char *pattern)
{
    static const char *const sets[] = {"[!~]", "[]a-z]", "[0-9]", "[^1]", "[.[]"};
    while (*name != '\0') {
        const unsigned kind = below(seed, 24);
        const char *behind = name + 1;
        while ((*behind & 0xc0) == 0x80)
            behind++;
        if (kind == 0)
            pattern += sprintf(pattern, "*%s", below(seed, 2) == 0 ? "" : "?");
        else if (kind == 1)
            *pattern++ = '?';
        else if (kind == 2)
            pattern += sprintf(pattern, "%s", sets[below(seed, sizeof(sets) / sizeof(sets[0]))]);
        for (; kind == 0 && *behind != '\0' && (below(seed, 3) > 0 || (*behind & 0xc0) == 0x80);)
            behind++;
        if (kind > 2 && (kind == 3 || strchr("*?[\\", *name) != NULL))
            *pattern++ = '\\';
        for (; kind > 2 && name < behind; name++)
            *pattern++ = *name;
        name = behind;
    }
    *pattern = '\0';
}

static void print_string(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        fprintf(out, strchr("\\\"", *text) != NULL ? "\\%c" : "%c", *text);
}

/* Entries by pattern, by size, by order and by several of these. */
static struct ms_plan *random_plan(uint64_t *seed, const struct ms_tensor *tensors, unsigned count)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out != NULL);
    fputs("{\"format\": \"metashard-plan/1\", \"world_size\": 1, \"tensors\": [", out);
    for (unsigned i = 1 + below(seed, ENTRIES_MAX); i > 0; i--) {
        const struct ms_tensor *like = &tensors[below(seed, count)];
        char pattern[4 * NAME_BYTES] = "*";
        /* Names are not unique here, exact ones must be: there is a '*' before or behind. */
        const bool is_before = below(seed, 2) == 0;
        random_pattern(seed, like->name, pattern + is_before);
        strcat(pattern, is_before ? "" : "*");
        const unsigned kind = below(seed, 8);
        fputs("{", out);
        if (kind != 0) {
            fputs("\"name\": \"", out);
            print_string(out, pattern);
            fputs("\"", out);
        }
        if (kind < 2)
            fprintf(out, "%s\"size\": %u", kind != 0 ? ", " : "", (unsigned)like->bytes);
        if (kind == 2)
            fprintf(out, ", \"order\": %u", (unsigned)(like - tensors));
        fprintf(out, "}%s", i > 1 ? ",\n" : "");
    }
    fputs("]}", out);
    fclose(out);
    struct ms_plan *plan = NULL;
    struct ms_fault fault;
    if (!ms_plan_parse(text, bytes, "plan", &plan, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s\n%s", fault.text, text);
    free(text);
    return plan;
}

static size_t first_that_meets(const struct ms_plan *plan, const struct ms_tensor *tensor,
                               size_t order)
{
    size_t i = 0;
    while (i < plan->count && !ms_entry_meets(plan, i, tensor, order))
        i++;
    return i < plan->count ? i : SIZE_MAX;
}

static struct ms_tensor tensor_at(const void *tensors, size_t index)
{
    return ((const struct ms_tensor *)tensors)[index];
}

/* Returns how many tensors an entry decides that is not the plan's first. */
static unsigned check_seed(uint64_t seed)
{
    static char names[TENSORS_MAX][NAME_BYTES];
    struct ms_tensor tensors[TENSORS_MAX];
    size_t positions[TENSORS_MAX];
    const uint64_t first_seed = seed;
    unsigned late = 0;
    const unsigned count = 1 + below(&seed, TENSORS_MAX);
    for (unsigned i = 0; i < count; i++) {
        random_name(&seed, names[i]);
        tensors[i] = (struct ms_tensor){
            .name = names[i], .dims = 1, .shape = {below(&seed, 4)}, .dtype = MS_DTYPE_U8};
        CHECK(ms_tensor_measure(&tensors[i]) == NULL);
    }
    struct ms_plan *plan = random_plan(&seed, tensors, count);
    if (below(&seed, 4) == 0)
        tensors[below(&seed, count)].name = NULL;
    const struct ms_layout_source source = {.at = tensor_at, .context = tensors, .count = count};
    struct ms_layout *layout = NULL;
    struct ms_fault fault;
    CHECK(ms_layout_create_of(plan, &source, positions, &layout, &fault));
    for (unsigned i = 0; i < count; i++) {
        const size_t seen = ms_layout_at(layout, i).entry;
        const size_t wanted = first_that_meets(plan, &tensors[i], i);
        if (seen != wanted)
            ms_test_fail(__FILE__, __LINE__,
                         "seed %llu, tensor %u (%s): entry %zd (%s), expected %zd (%s)",
                         (unsigned long long)first_seed, i,
                         tensors[i].name != NULL ? tensors[i].name : "no name", (ssize_t)seen,
                         seen != SIZE_MAX ? ms_entry_at(plan, seen).name : "none", (ssize_t)wanted,
                         wanted != SIZE_MAX ? ms_entry_at(plan, wanted).name : "none");
        late += wanted != 0 && wanted != SIZE_MAX;
    }
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
    return late;
}

MS_TEST(the_first_entry_that_matches_decides)
{
    unsigned late = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++)
        late += check_seed(seed);
    CHECK(late > 3000); /* else nothing was compared */
}

/* A program may have a tensor several times; one of another shape is another tensor. */
MS_TEST(what_has_one_name_counts_once)
{
    static const char text[] =
        "{\"format\": \"metashard-plan/1\", \"world_size\": 1, \"tensors\": ["
        "{\"name\": \"a\", \"dtype\": \"U8\", \"shape\": [10]},"
        "{\"name\": \"b\", \"dtype\": \"U8\", \"shape\": [20]}, {\"name\": \"*\"}]}";
    static const struct {
        const char *name;
        uint64_t bytes;
        size_t position;
    } given[] = {{"c", 5, 2},  {"b", 20, 1}, {"c", 5, 2}, {"a", 10, 0},
                 {"b", 20, 1}, {"c", 6, 3},  {"a", 10, 0}};
    enum { GIVEN = sizeof(given) / sizeof(given[0]) };
    struct ms_tensor tensors[GIVEN];
    size_t positions[GIVEN];
    struct ms_plan *plan = NULL;
    struct ms_layout *layout = NULL;
    struct ms_fault fault;
    CHECK(ms_plan_parse(text, sizeof(text) - 1, "plan", &plan, &fault));
    for (size_t i = 0; i < GIVEN; i++) {
        tensors[i] = (struct ms_tensor){
            .name = given[i].name, .dims = 1, .shape = {given[i].bytes}, .dtype = MS_DTYPE_U8};
        CHECK(ms_tensor_measure(&tensors[i]) == NULL);
    }
    const struct ms_layout_source source = {
        .at = tensor_at, .context = tensors, .count = GIVEN, .has_declared = true};
    CHECK(ms_layout_create_of(plan, &source, positions, &layout, &fault));
    CHECK_EQ(layout->count, 4);
    for (size_t i = 0; i < GIVEN; i++)
        CHECK_EQ(positions[i], given[i].position);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
}
