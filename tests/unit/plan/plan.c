/* SPDX-License-Identifier: Apache-2.0 */
/* The document of a plan: its mesh, and the rank of this process. */
#include "runtime/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/launcher.h"
#include "runtime/plan/placement.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/between.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
#define PLAN "'format':'metashard-plan/1','tensors':[]"

static struct ms_fault fault;

/* The text with " for each ', read as a plan; NULL: there is a fault. */
static struct ms_plan *parse(const char *text)
{
    char quoted[2048];
    struct ms_plan *plan = NULL;
    const int pieces = live;
    CHECK(strlen(text) < sizeof(quoted));
    strcpy(quoted, text);
    for (char *at = quoted; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    fault.text[0] = '\0';
    const bool is_good = ms_plan_parse(quoted, strlen(quoted), "plan", &plan, &fault);
    CHECK_EQ(is_good, plan != NULL);
    CHECK_EQ(is_good, fault.text[0] == '\0');
    if (!is_good)
        CHECK_EQ(live, pieces);
    return plan;
}

static struct ms_plan *parse_good(const char *text)
{
    struct ms_plan *plan = parse(text);
    if (plan == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    return plan;
}

struct row {
    const char *text, *why; /* NULL: it is a plan */
};

static void check_rows(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct ms_plan *plan = parse(rows[i].text);
        if ((plan == NULL) != (rows[i].why != NULL) ||
            (plan == NULL && strstr(fault.text, rows[i].why) == NULL))
            ms_test_fail(__FILE__, __LINE__, "%s: expected %s, found %s", rows[i].text,
                         rows[i].why != NULL ? rows[i].why : "no fault", fault.text);
        ms_plan_destroy(plan);
        CHECK_EQ(live, 0);
    }
}

/* --- the document */

MS_TEST(a_plan_says_its_format_and_what_is_known)
{
    static const struct row rows[] = {
        {"{" PLAN ",'world_size':1}", NULL},
        {"{'format':'metashard-plan/2','tensors':[],'world_size':1}", "plan: format: expected \""},
        {"{'tensors':[],'world_size':1}", "plan: format: expected \"metashard-plan/1\""},
        {"{" PLAN ",'world_size':1,'mash':1}", "format, mesh, world_size, rank, coordinates and"},
        {"{'format':'metashard-plan/1','world_size':1}", "plan: tensors: "},
        {"[]", "plan: "},
        {"{" PLAN ",", "plan:1:"},
    };
    check_rows(rows, COUNT(rows));
    ms_plan_destroy(NULL);
}

MS_TEST(a_mesh_has_sizes_or_a_world)
{
    static const struct row rows[] = {
        {"{" PLAN "}", "plan: expected mesh or world_size"},
        {"{" PLAN ",'mesh':{}}", "plan: mesh: expected an object of 1 to 8 named sizes"},
        {"{" PLAN ",'mesh':[2]}", "plan: mesh: expected an object of 1 to 8 named sizes"},
        {"{" PLAN ",'mesh':{'a':1,'b':1,'c':1,'d':1,'e':1,'f':1,'g':1,'h':1}}", NULL},
        {"{" PLAN ",'mesh':{'a':1,'b':1,'c':1,'d':1,'e':1,'f':1,'g':1,'h':1,'i':1}}",
         "plan: mesh: expected an object of 1 to 8 named sizes"},
        {"{" PLAN ",'mesh':{'':2}}", "expected a name for the dimension"},
        {"{" PLAN ",'mesh':{'a':0}}",
         "plan: mesh.a: expected an integer from 1 to 1048576, found 0"},
        {"{" PLAN ",'mesh':{'a':1048577}}", "plan: mesh.a: expected an integer from 1 to 1048576"},
        {"{" PLAN ",'mesh':{'a':1048576}}", NULL},
        {"{" PLAN ",'mesh':{'a':1024,'b':1024}}", NULL},
        {"{" PLAN ",'mesh':{'a':1024,'b':1025}}",
         "plan: mesh: expected a world of at most 1048576"},
        {"{" PLAN ",'mesh':{'a':1048576,'b':1048576,'c':1048576,'d':1048576}}",
         "plan: mesh: expected a world of at most 1048576"},
        {"{" PLAN ",'mesh':{'a':2,'b':3},'world_size':6}", NULL},
        {"{" PLAN ",'mesh':{'a':2,'b':3},'world_size':5}",
         "plan: world_size: expected the product of the mesh, 6"},
        {"{" PLAN ",'world_size':0}", "plan: world_size: expected an integer from 1 to 1048576"},
        {"{" PLAN ",'world_size':1048577}", "plan: world_size: expected an integer from 1 to 10"},
        {"{" PLAN ",'world_size':1048576}", NULL},
    };
    check_rows(rows, COUNT(rows));
}

MS_TEST(ranks_are_numbered_row_major)
{
    static const char *const names[] = {"a", "b", "c"};
    static const uint32_t sizes[] = {2, 3, 4}, strides[] = {12, 4, 1};
    struct ms_plan *plan = parse_good("{" PLAN ",'mesh':{'a':2,'b':3,'c':4}}");
    CHECK_EQ(plan->mesh.dims, 3);
    CHECK_EQ(plan->mesh.world, 24);
    for (int i = 0; i < 3; i++) {
        CHECK(strcmp(plan->mesh.name[i], names[i]) == 0);
        CHECK_EQ(plan->mesh.size[i], sizes[i]);
        CHECK_EQ(plan->mesh.stride[i], strides[i]);
    }
    ms_plan_destroy(plan);
    plan = parse_good("{" PLAN ",'world_size':5}");
    CHECK(plan->mesh.dims == 1 && plan->mesh.world == 5 && plan->mesh.size[0] == 5);
    CHECK(plan->mesh.stride[0] == 1 && strcmp(plan->mesh.name[0], "world") == 0);
    CHECK(!plan->has_rank && plan->count == 0);
    ms_plan_destroy(plan);
    CHECK_EQ(live, 0);
}

#define MESH "{" PLAN ",'mesh':{'a':2,'b':3},"

MS_TEST(a_rank_is_one_of_the_world)
{
    static const struct row rows[] = {
        {MESH "'rank':5}", NULL},
        {MESH "'rank':6}", "plan: rank: expected an integer from 0 to 5, found 6"},
        {MESH "'rank':1,'coordinates':[0,0]}", "plan: rank: expected rank or coordinates, found"},
        {MESH "'coordinates':[1]}",
         "coordinates: expected one index for each of 2 mesh dimensions"},
        {MESH "'coordinates':[1,1,1]}", "coordinates: expected one index for each of 2 mesh"},
        {MESH "'coordinates':'ab'}", "coordinates: expected one index for each of 2 mesh"},
        {MESH "'coordinates':[1,3]}", "plan: coordinates[1]: expected an integer from 0 to 2"},
        {MESH "'coordinates':[2,2]}", "plan: coordinates[0]: expected an integer from 0 to 1"},
        {MESH "'coordinates':{'b':3,'a':1}}", "plan: coordinates.b: expected an integer from 0"},
        {MESH "'coordinates':{'b':2,'c':1}}", "plan: coordinates.a: expected an integer"},
    };
    check_rows(rows, COUNT(rows));
}

MS_TEST(coordinates_are_a_rank)
{
    static const struct {
        const char *text;
        uint32_t rank;
    } rows[] = {{MESH "'rank':4}", 4},
                {MESH "'coordinates':[1,0]}", 3},
                {MESH "'coordinates':[0,2]}", 2},
                {MESH "'coordinates':[1,2]}", 5},
                {MESH "'coordinates':{'b':2,'a':1}}", 5},
                {MESH "'coordinates':{'a':1,'b':0}}", 3}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint32_t rank = 99;
        bool is_given = false;
        struct ms_plan *plan = parse_good(rows[i].text);
        CHECK(plan->has_rank);
        CHECK_EQ(plan->rank, rows[i].rank);
        setenv("RANK", "1", 1);
        CHECK(ms_plan_find_rank(plan, &rank, &is_given, &fault));
        CHECK(is_given);
        CHECK_EQ(rank, rows[i].rank);
        ms_plan_destroy(plan);
    }
}

/* --- the rank that a launcher gives */

/* The rank, of 6, that these in the environment give; -1: it is wrong; -2: none is given. */
static int find_rank(const char *rank_name, const char *rank, const char *size_name,
                     const char *size)
{
    struct ms_plan *plan = parse_good("{" PLAN ",'world_size':6}");
    uint32_t found = 99;
    bool is_given = true;
    fault.text[0] = '\0';
    if (rank != NULL)
        setenv(rank_name, rank, 1);
    if (size != NULL)
        setenv(size_name, size, 1);
    const bool is_found = ms_plan_find_rank(plan, &found, &is_given, &fault);
    unsetenv(rank_name);
    unsetenv(size_name);
    ms_plan_destroy(plan);
    CHECK_EQ(is_found, fault.text[0] == '\0');
    CHECK(is_given || !is_found);
    return is_found ? (int)found : is_given ? -1 : -2;
}

static void clear_environment(void)
{
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        unsetenv(ms_launchers[i].rank);
        unsetenv(ms_launchers[i].size);
    }
}

MS_TEST(each_launcher_gives_a_rank)
{
    clear_environment();
    CHECK_EQ(find_rank("RANK", NULL, "WORLD_SIZE", "6"), -2);
    CHECK(strstr(fault.text, "rank: expected rank or coordinates in the plan, or RANK") != NULL);
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        const char *rank = ms_launchers[i].rank, *size = ms_launchers[i].size;
        char text[128];
        CHECK_EQ(find_rank(rank, "0", size, NULL), 0);
        CHECK_EQ(find_rank(rank, "5", size, "6"), 5);
        CHECK_EQ(find_rank(rank, "6", size, "6"), -1);
        snprintf(text, sizeof(text), "%s: expected a rank below 6, found 6", rank);
        CHECK(strcmp(fault.text, text) == 0);
        CHECK_EQ(find_rank(rank, "5", size, "7"), -1);
        snprintf(text, sizeof(text), "%s: expected the plan's 6, found 7", size);
        CHECK(strcmp(fault.text, text) == 0);
        CHECK_EQ(find_rank(rank, "5", size, "x"), -1);
        snprintf(text, sizeof(text), "%s: expected a number, found x", size);
        CHECK(strcmp(fault.text, text) == 0);
    }
}

STORY_ALONE(the_first_launcher_s_rank_counts, clear_environment(),
            setenv(ms_launchers[1].rank, "1", 1), setenv(ms_launchers[2].rank, "2", 1),
            EQUALS(find_rank("RANK", NULL, "WORLD_SIZE", NULL), 1),
            EQUALS(find_rank("RANK", "3", "WORLD_SIZE", NULL), 3))

MS_TEST(a_launcher_s_number_has_digits_alone)
{
    static const char *const wrong[] = {"", " 1", "1 ", "-1", "+1", "1x", "/", ":", "1234567890"};
    clear_environment();
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char text[64];
        CHECK_EQ(find_rank("RANK", wrong[i], "WORLD_SIZE", NULL), -1);
        snprintf(text, sizeof(text), "RANK: expected a number, found %s", wrong[i]);
        CHECK(strcmp(fault.text, text) == 0);
    }
    CHECK_EQ(find_rank("RANK", "004", "WORLD_SIZE", "00000000000006"), 4);
    CHECK_EQ(find_rank("RANK", "999999999", "WORLD_SIZE", NULL), -1);
    CHECK(strcmp(fault.text, "RANK: expected a rank below 6, found 999999999") == 0);
    CHECK_EQ(find_rank("RANK", "100000000", "WORLD_SIZE", NULL), -1);
    CHECK(strcmp(fault.text, "RANK: expected a rank below 6, found 100000000") == 0);
    CHECK_EQ(find_rank("RANK", "1000000000", "WORLD_SIZE", NULL), -1);
    CHECK(strcmp(fault.text, "RANK: expected a number, found 1000000000") == 0);
}

/* --- another world */

MS_TEST(a_mesh_can_have_another_size)
{
    struct ms_plan *plan = parse_good(MESH "'rank':5}");
    CHECK(!ms_plan_resize(plan, 0, 1 << 20)); /* too large; nothing has changed */
    CHECK(plan->has_rank && plan->mesh.world == 6 && plan->mesh.size[0] == 2);
    CHECK(ms_plan_resize(plan, 1, 5));
    CHECK(!plan->has_rank);
    CHECK(plan->mesh.world == 10 && plan->mesh.size[1] == 5 && plan->mesh.stride[0] == 5);
    CHECK(ms_plan_resize(plan, 0, 7));
    CHECK(plan->mesh.world == 35 && plan->mesh.size[0] == 7 && plan->mesh.stride[0] == 5);
    ms_plan_destroy(plan);
    plan = parse_good("{'format':'metashard-plan/1','world_size':2,'tensors':["
                      "{'name':'a','placements':[{'shard':0}]}]}");
    CHECK(ms_plan_resize(plan, 0, 3) && plan->mesh.world == 3);
    ms_plan_destroy(plan);
}

MS_TEST(ranges_fit_only_one_world)
{
    struct ms_plan *plan =
        parse_good("{'format':'metashard-plan/1','world_size':2,'rank':1,'tensors':["
                   "{'name':'a','placements':[{'shard':0}]},"
                   "{'name':'b','ranges':[[[0,1]],[[1,2]]]}]}");
    CHECK(!ms_plan_resize(plan, 0, 3));
    CHECK(plan->has_rank && plan->mesh.world == 2);
    ms_plan_destroy(plan);
    CHECK_EQ(live, 0);
}

/* --- memory and files */

static const char declared[] =
    "{'format':'metashard-plan/1','mesh':{'a':2,'b':3},'tensors':["
    "{'name':'w','dtype':'U8','shape':[6],'placements':[{'shard':0},'replicate']},"
    "{'name':'v','dtype':'U8','shape':[6],'ranges':[[[0,1]],[],[],[],[],[]]},"
    "{'name':'x*','placements':['replicate',{'shard':0}]}]}";

static bool parse_declared(void)
{
    struct ms_plan *plan = parse(declared);
    CHECK(plan != NULL || strstr(fault.text, "out of memory") != NULL);
    ms_plan_destroy(plan);
    return plan != NULL;
}

MS_TEST(a_plan_without_memory_is_refused_and_leaks_nothing)
{
    without_each_piece(parse_declared, 9);
    struct ms_plan *plan = parse_good(declared);
    CHECK_EQ(live, 7); /* itself, names, entries, terms, forms, exact names, other entries */
    ms_plan_destroy(plan);
    CHECK_EQ(live, 0);
}

/* Over what a plan declares: a layout, what a rank gets, and what all get. */
static struct ms_plan *laid;

static bool lay_out(void)
{
    struct ms_layout *layout = NULL;
    struct ms_census census;
    bool is_good = ms_layout_create(laid, NULL, &layout, &fault);
    if (!is_good) {
        CHECK(strcmp(fault.text, "out of memory") == 0);
        return false;
    }
    struct ms_placement *placement = ms_placement_create(layout, 1);
    is_good = placement != NULL;
    if (ms_census_init(&census, layout))
        CHECK(!is_good || census.bytes[1] == ms_placement_total(placement));
    else
        is_good = false;
    ms_census_cleanup(&census);
    ms_placement_destroy(placement);
    ms_layout_destroy(layout);
    return is_good;
}

STORY_ALONE(a_layout_without_memory_fails_and_leaks_nothing,
            laid = parse_good("{'format':'metashard-plan/1','mesh':{'a':2,'b':3},'tensors':["
                              "{'name':'w','dtype':'U8','shape':[6],'placements':[{'shard':0}]},"
                              "{'name':'u','dtype':'U8','shape':[6],'placements':["
                              "{'flat':'fsdp1','unit':'x'}]}]}"),
            without_each_piece(lay_out, 10), ms_plan_destroy(laid), EQUALS(live, 0))

MS_TEST(a_plan_is_read_from_a_file)
{
    char path[] = "/tmp/metashard-unit-XXXXXX";
    static const char text[] = "{\"format\":\"metashard-plan/1\",\"tensors\":[],\"world_size\":3}";
    struct ms_plan *plan;
    const int file = mkstemp(path);
    CHECK_EQ(write(file, text, sizeof(text) - 1), sizeof(text) - 1);
    CHECK(ms_plan_read(path, &plan, &fault));
    CHECK_EQ(plan->mesh.world, 3);
    ms_plan_destroy(plan);
    CHECK_EQ(live, 0);
    CHECK_EQ(ftruncate(file, sizeof(text) - 2), 0);
    close(file);
    CHECK(!ms_plan_read(path, &plan, &fault));
    CHECK(strncmp(fault.text, path, strlen(path)) == 0);
    unlink(path);
    CHECK(!ms_plan_read(path, &plan, &fault));
    CHECK(strstr(fault.text, "cannot be opened") != NULL);
    CHECK_EQ(live, 0);
}
