/* SPDX-License-Identifier: Apache-2.0 */
/* Which entry decides a tensor: the layout's way of finding it against trying one after the
 * other. */
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_internal.h"

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
MS_TEST(a_tensor_that_is_given_twice_counts_once)
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

/* --- tensors that do not fit what is said of them */

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
#define U8(name, shape, more) "{'name':'" name "','dtype':'U8','shape':[" shape "]" more "}"
#define SHARD(dim) ",'placements':[{'shard':" dim "}]"
#define UNIT(name, mesh_dim) ",'placements':{'" mesh_dim "':{'flat':'fsdp1','unit':'" name "'}}"

/* A plan of four ranks; each ' stands for ". */
static struct ms_plan *plan_of(const char *tensors)
{
    char text[2048];
    struct ms_plan *plan = NULL;
    struct ms_fault fault;
    snprintf(text, sizeof(text),
             "{'format':'metashard-plan/1','mesh':{'p':2,'d':2},'rank':0,'tensors':[%s]}", tensors);
    for (char *at = text; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s: %s", tensors, fault.text);
    return plan;
}

/* Why the layout of this source, or of the declarations alone, is refused; NULL: it is not. */
static const char *fault_of(const struct ms_plan *plan, const struct ms_layout_source *source)
{
    static struct ms_fault fault;
    size_t positions[8];
    struct ms_layout *layout;
    const bool is_good = source != NULL
                             ? ms_layout_create_of(plan, source, positions, &layout, &fault)
                             : ms_layout_create(plan, NULL, &layout, &fault);
    if (!is_good)
        return fault.text;
    ms_layout_destroy(layout);
    return NULL;
}

static void check_fault(const char *what, const char *seen, const char *wanted)
{
    if ((seen == NULL) != (wanted == NULL) || (seen != NULL && strcmp(seen, wanted) != 0))
        ms_test_fail(__FILE__, __LINE__, "%s: expected %s, found %s", what,
                     wanted != NULL ? wanted : "none", seen != NULL ? seen : "none");
}

MS_TEST(the_first_tensor_that_does_not_fit_is_told)
{
    static const char no_dim[] =
        "tensors[0]: tensor a is sharded by a dimension that it does not have";
    static const struct {
        const char *tensors, *fault;
    } rows[] = {
        {U8("a", "4", SHARD("0")), NULL},
        {U8("a", "4", SHARD("1")), no_dim},
        {U8("a", "", SHARD("0")), no_dim},
        {U8("a", "4,5", SHARD("1")), NULL},
        {U8("a", "6", ",'placements':[{'shard':0,'interleave':[2,1]}]"), NULL},
        {U8("a", "4", ",'placements':[{'shard':0,'interleave':[2,1]}]"),
         "tensors[0]: tensor a has a dimension that the sum of interleave does not divide"},
        {U8("a", "4", ",'placements':[{'flat':'zero3'},{'shard':1}]"), no_dim},
        {U8("a", "10", ",'ranges':[[[0,10]],[],[],[[3,4],[5,10]]]"), NULL},
        {U8("a", "10", ",'ranges':[[[0,11]],[],[],[]]"),
         "tensors[0]: tensor a is shorter than a range of its entry"},
        {U8("a", "10", ",'ranges':[[],[],[],[[3,4],[5,11]]]"),
         "tensors[0]: tensor a is shorter than a range of its entry"},
        {"{'name':'a','dtype':'F4','shape':[4],'placements':['replicate']}", NULL},
        {"{'name':'a','dtype':'F4','shape':[4],'ranges':[[[0,2]],[],[],[]]}", NULL},
        {"{'name':'a','dtype':'F4','shape':[4],'placements':[{'shard':0}]}",
         "tensors[0]: tensor a has elements smaller than a byte; expected replicate or ranges"},
        {"{'name':'a','dtype':'F4','shape':[4],'placements':[{'flat':'zero3'}]}",
         "tensors[0]: tensor a has elements smaller than a byte; expected replicate or ranges"},
        {U8("a", "4", SHARD("1")) "," U8("b", "4", SHARD("2")), no_dim},
        {U8("a", "4", "") "," U8("b", "4", SHARD("2")) "," U8("c", "4", ""),
         "tensors[1]: tensor b is sharded by a dimension that it does not have"},
        {U8("a", "4611686018427387904", "") "," U8("b", "4611686018427387903", ""), NULL},
        {U8("a", "4611686018427387904", "") "," U8("b", "4611686018427387904", ""),
         "tensors: expected less than 2^63 bytes in all"},
        {U8("a", "4", UNIT("u", "p")) "," U8("b", "4", UNIT("u", "p")), NULL},
        {U8("a", "4", UNIT("u", "p")) "," U8("b", "4", UNIT("v", "d")), NULL},
        {U8("a", "4", UNIT("u", "p")) "," U8("b", "4", UNIT("u", "d")),
         "tensors[1]: unit u: expected one flat mesh dimension"},
        {U8("a", "4", UNIT("u", "p")) ",{'name':'b','dtype':'I8','shape':[4]" UNIT("u", "p") "}",
         "tensors[1]: unit u: expected tensors of one dtype"},
        {U8("a", "4", UNIT("u", "p")) "," U8("b", "4", UNIT("u", "d")) "," U8(
             "c", "4", UNIT("v", "p")) "," U8("d", "4", UNIT("v", "d")),
         "tensors[1]: unit u: expected one flat mesh dimension"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ms_plan *plan = plan_of(rows[i].tensors);
        check_fault(rows[i].tensors, fault_of(plan, NULL), rows[i].fault);
        ms_plan_destroy(plan);
    }
}

/* As a checkpoint, or a program, gives them. */
MS_TEST(tensors_that_are_given_are_as_the_plan_says)
{
    static const struct {
        const char *tensors;
        bool has_declared, is_complete;
        const char *fault;
    } rows[] = {
        {U8("a", "4", ""), true, true, NULL},
        {U8("a", "4", "") "," U8("b", "4", ""), true, false, NULL},
        {U8("a", "4", "") "," U8("b", "4", ""), true, true,
         "tensors[1]: tensor b is not in the checkpoint"},
        {"{'name':'*'}," U8("a", "5", ""), true, false,
         "tensors[1]: tensor a has another dtype or shape in the checkpoint"},
        {"{'name':'a','dtype':'I8','shape':[4]}", true, false,
         "tensors[0]: tensor a has another dtype or shape in the checkpoint"},
        {U8("a", "5", ""), false, false,
         "tensors[0]: tensor a has another dtype or shape than its entry says"},
        {U8("a*", "4", ""), false, false, NULL},
        {"{'name':'b'}," U8("a*", "5", ""), false, false,
         "tensors[1]: tensor a has another dtype or shape than its entry says"},
        {"{'size':7,'placements':[{'shard':1}]}", false, false,
         "tensors[0]: tensor without a name is sharded by a dimension that it does not have"},
    };
    struct ms_tensor tensors[] = {{.name = "a", .dims = 1, .shape = {4}, .dtype = MS_DTYPE_U8},
                                  {.dims = 1, .shape = {7}, .dtype = MS_DTYPE_U8}};
    CHECK(ms_tensor_measure(&tensors[0]) == NULL && ms_tensor_measure(&tensors[1]) == NULL);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ms_plan *plan = plan_of(rows[i].tensors);
        const struct ms_layout_source source = {.at = tensor_at,
                                                .context = tensors,
                                                .count = rows[i].has_declared ? 1 : 2,
                                                .has_declared = rows[i].has_declared,
                                                .is_complete = rows[i].is_complete};
        check_fault(rows[i].tensors, fault_of(plan, &source), rows[i].fault);
        ms_plan_destroy(plan);
    }
}

MS_TEST(units_are_numbered_by_name_and_have_their_first_tensor)
{
    struct ms_plan *plan = plan_of(
        U8("a", "1", UNIT("v", "p")) "," U8("b", "2", "") "," U8("c", "3", UNIT("u", "d")) "," U8(
            "d", "4", UNIT("v", "p")) "," U8("e", "5", UNIT("u", "d")) "," U8("f", "6",
                                                                              SHARD("0")));
    static const size_t units[] = {1, SIZE_MAX, 0, 1, 0, SIZE_MAX};
    struct ms_layout *layout;
    struct ms_fault fault;
    CHECK(ms_layout_create(plan, NULL, &layout, &fault));
    CHECK_EQ(layout->count, COUNT(units));
    CHECK_EQ(layout->bytes, 21);
    for (size_t i = 0; i < COUNT(units); i++) {
        CHECK_EQ(ms_layout_at(layout, i).unit, units[i]);
        CHECK_EQ(ms_layout_at(layout, i).entry, i);
        CHECK_EQ(ms_layout_at(layout, i).tensor.bytes, i + 1);
        CHECK(ms_layout_at(layout, i).is_declaration);
    }
    CHECK_EQ(layout->unit_count, 2);
    CHECK(strcmp(layout->units[0].name, "u") == 0 && strcmp(layout->units[1].name, "v") == 0);
    CHECK(layout->units[0].first == 2 && layout->units[1].first == 0);
    CHECK(layout->units[0].mesh_dim == 1 && layout->units[1].mesh_dim == 0);
    ms_layout_destroy(layout);
    ms_layout_destroy(NULL);
    ms_plan_destroy(plan);
}
