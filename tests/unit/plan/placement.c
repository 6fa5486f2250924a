/* SPDX-License-Identifier: Apache-2.0 */
/* Placement and census at the edges; check_plan.py has what lies between. */
#include "runtime/plan/placement.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/plan/placement.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

#define MESH(mesh) "{\"format\": \"metashard-plan/1\", \"mesh\": {" mesh "}, \"tensors\": ["
#define TENSOR(shape, placements) \
    "{\"name\": \"w\", \"dtype\": \"BF16\", \"shape\": [" shape "], \"placements\": " placements "}"
#define ALONE(mesh, shape, placements) MESH(mesh) TENSOR(shape, placements) "]}"

struct used {
    struct ms_plan *plan;
    struct ms_layout *layout;
    struct ms_fault fault;
};

/* Both texts are shown. */
static void check_text(int line, const char *seen, const char *wanted)
{
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, line, "%s, expected %s", seen, wanted);
}

#define CHECK_RANGES(used, rank, tensor, wanted) \
    check_text(__LINE__, ranges_of(used, rank, tensor), wanted)

static bool use(struct used *used, const char *text)
{
    memset(used, 0, sizeof(*used));
    return ms_plan_parse(text, strlen(text), "plan", &used->plan, &used->fault) &&
           ms_layout_create(used->plan, NULL, &used->layout, &used->fault);
}

static void leave(struct used *used)
{
    ms_layout_destroy(used->layout);
    ms_plan_destroy(used->plan);
}

/* "0-4 8-10", at most 16 ranges and then "..". */
static const char *ranges_of(const struct used *used, uint32_t rank, size_t tensor)
{
    static char text[1024];
    static struct ms_cursor cursor;
    struct ms_placement *placement = ms_placement_create(used->layout, rank);
    struct ms_range range;
    size_t length = 0;
    CHECK(placement != NULL);
    text[0] = '\0';
    ms_placement_begin(&cursor, placement, tensor);
    for (int i = 0; ms_placement_next(&cursor, &range); i++) {
        if (i == 16) {
            strcpy(text + length, "..");
            break;
        }
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%" PRIu64 "-%" PRIu64,
                                   i > 0 ? " " : "", range.begin, range.end);
    }
    ms_placement_destroy(placement);
    return text;
}

/* Checks all ranks of a plan with one tensor, by rank. */
static void check_all(const char *text, const char *const *wanted, uint32_t world)
{
    struct used used;
    if (!use(&used, text))
        ms_test_fail(__FILE__, __LINE__, "%s", used.fault.text);
    CHECK_EQ(used.plan->mesh.world, world);
    struct ms_census census;
    CHECK(ms_census_init(&census, used.layout));
    for (uint32_t rank = 0; rank < world; rank++) {
        const char *seen = ranges_of(&used, rank, 0);
        if (strcmp(seen, wanted[rank]) != 0)
            ms_test_fail(__FILE__, __LINE__, "rank %u has %s, expected %s", rank, seen,
                         wanted[rank]);
        struct ms_placement *placement = ms_placement_create(used.layout, rank);
        CHECK_EQ(census.bytes[rank], ms_placement_total(placement));
        CHECK_EQ(census.padding[rank], ms_placement_padding(placement));
        ms_placement_destroy(placement);
    }
    ms_census_cleanup(&census);
    leave(&used);
}

STORY_ALONE(more_ranks_than_rows,
            check_all(ALONE("\"dp\": 4", "2, 3", "[{\"shard\": 0}]"),
                      (const char *const[]){"0-6", "6-12", "", ""}, 4),
            check_all(ALONE("\"dp\": 4", "5", "[{\"shard\": 0}]"),
                      (const char *const[]){"0-4", "4-8", "8-10", ""}, 4),
            check_all(ALONE("\"dp\": 5", "2", "[{\"flat\": \"zero3\"}]"),
                      (const char *const[]){"0-2", "2-4", "", "", ""}, 5))

MS_TEST(tensors_without_elements_have_no_ranges)
{
    static const char *const nothing[] = {"", "", "", ""};
    check_all(ALONE("\"dp\": 4", "0", "[{\"shard\": 0}]"), nothing, 4);
    check_all(ALONE("\"dp\": 4", "3, 0", "[{\"shard\": 0}]"), nothing, 4);
    check_all(ALONE("\"dp\": 4", "3, 0", "[{\"shard\": 1}]"), nothing, 4);
    check_all(ALONE("\"dp\": 4", "0, 3", "[{\"shard\": 0, \"interleave\": [7, 1]}]"), nothing, 4);
    check_all(ALONE("\"dp\": 4", "0", "[{\"flat\": \"zero3\"}]"), nothing, 4);
    check_all(ALONE("\"dp\": 4", "0", "[{\"flat\": \"fsdp1\", \"unit\": \"u\"}]"), nothing, 4);
    check_all(ALONE("\"dp\": 4", "0", "[\"replicate\"]"), nothing, 4);
}

MS_TEST(tensors_without_dimensions_are_one_element)
{
    check_all(ALONE("\"dp\": 2", "", "[\"replicate\"]"), (const char *const[]){"0-2", "0-2"}, 2);
    check_all(ALONE("\"dp\": 2", "", "[{\"flat\": \"zero3\"}]"), (const char *const[]){"0-2", ""},
              2);
    struct used used;
    CHECK(!use(&used, ALONE("\"dp\": 2", "", "[{\"shard\": 0}]")));
    CHECK(strstr(used.fault.text, "tensors[0]") != NULL);
    leave(&used);
}

STORY_ALONE(the_order_of_placements,
            check_all(ALONE("\"dp\": 2, \"tp\": 2", "8",
                            "{\"tp\": {\"shard\": 0}, \"dp\": {\"shard\": 0}}"),
                      (const char *const[]){"0-4", "8-12", "4-8", "12-16"}, 4),
            check_all(ALONE("\"dp\": 2, \"tp\": 2", "8",
                            "{\"dp\": {\"shard\": 0}, \"tp\": {\"shard\": 0}}"),
                      (const char *const[]){"0-4", "4-8", "8-12", "12-16"}, 4),
            check_all(ALONE("\"dp\": 2, \"tp\": 2", "8", "[{\"shard\": 0}, {\"shard\": 0}]"),
                      (const char *const[]){"0-4", "4-8", "8-12", "12-16"}, 4),
            check_all(ALONE("\"dp\": 2, \"tp\": 2", "2, 4",
                            "{\"dp\": {\"flat\": \"zero3\"}, \"tp\": {\"shard\": 1}}"),
                      (const char *const[]){"0-4", "4-8", "8-12", "12-16"}, 4))

STORY_ALONE(interleaved_parts_are_sharded_each_by_itself,
            check_all(ALONE("\"tp\": 2", "8", "[{\"shard\": 0, \"interleave\": [2, 1, 1]}]"),
                      (const char *const[]){"0-4 8-10 12-14", "4-8 10-12 14-16"}, 2),
            check_all(ALONE("\"tp\": 2, \"dp\": 2", "8",
                            "[{\"shard\": 0, \"interleave\": [2, 1, 1]}, {\"shard\": 0}]"),
                      (const char *const[]){"0-4", "8-10 12-14", "4-8", "10-12 14-16"}, 4),
            check_all(ALONE("\"tp\": 3", "4", "[{\"shard\": 0, \"interleave\": [1, 1]}]"),
                      (const char *const[]){"0-2 4-6", "2-4 6-8", ""}, 3),
            check_all(ALONE("\"tp\": 1", "8", "[{\"shard\": 0, \"interleave\": [2, 1, 1]}]"),
                      (const char *const[]){"0-16"}, 1))

MS_TEST(sixty_four_parts_cut_again)
{
    char text[2048] = MESH("\"tp\": 2, \"dp\": 2") "{\"name\": \"w\", \"dtype\": \"U8\", "
                                                   "\"shape\": [256], \"placements\": "
                                                   "[{\"shard\": 0, \"interleave\": [1";
    for (int i = 1; i < MS_PARTS_MAX; i++)
        strcat(text, ", 1");
    strcat(text, "]}, {\"shard\": 0}]}]}");
    struct used used;
    CHECK(use(&used, text));
    CHECK(strncmp(ranges_of(&used, 3, 0), "130-132 134-136 138-140", 23) == 0);
    leave(&used);
}

/* The sums and products of shapes near 2^63 stay in 64 bits. */
MS_TEST(the_largest_tensors_stay_in_64_bits)
{
    struct used used;
    CHECK(use(&used, ALONE("\"dp\": 1048576", "4611686018427387903", "[{\"shard\": 0}]")));
    CHECK_RANGES(&used, 1048575, 0, "9223363240761753600-9223372036854775806");
    leave(&used);
    CHECK(use(&used, ALONE("\"dp\": 3", "4611686018427387903", "[{\"flat\": \"zero3\"}]")));
    CHECK_RANGES(&used, 2, 0, "6148914691236517204-9223372036854775806");
    leave(&used);
    CHECK(use(&used, ALONE("\"dp\": 2", "3, 1537228672809129301", "[{\"shard\": 1}]")));
    CHECK_RANGES(&used, 1, 0,
                 "1537228672809129302-3074457345618258602 4611686018427387904-6148914691236517204 "
                 "7686143364045646506-9223372036854775806");
    leave(&used);
}

MS_TEST(sizes_that_overflow_are_refused)
{
    static const char *const shapes[] = {
        ALONE("\"dp\": 2", "4611686018427387904", "[]"),
        ALONE("\"dp\": 2", "4294967296, 2147483648", "[]"),
        ALONE("\"dp\": 2", "0, 4294967296, 4294967296", "[]"),
        ALONE("\"dp\": 2", "4294967296, 4294967296, 0", "[]"),
        MESH("\"dp\": 2") TENSOR("4611686018427387903", "[]") ", {\"name\": \"v\", \"dtype\": "
                                                              "\"U8\", \"shape\": [2]}]}"};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct used used;
        if (use(&used, shapes[i]))
            ms_test_fail(__FILE__, __LINE__, "was not refused: %s", shapes[i]);
        CHECK(strstr(used.fault.text, "plan: tensors") != NULL ||
              strncmp(used.fault.text, "tensors", 7) == 0);
        leave(&used);
    }
}

#define UNIT(name, shape, more)                                                            \
    "{\"name\": \"" name "\", \"dtype\": \"U8\", \"shape\": [" shape "], \"placements\": " \
    "{\"dp\": {\"flat\": \"fsdp1\", \"unit\": \"u\"}" more "}}"

MS_TEST(a_unit_is_cut_through_its_tensors)
{
    struct used used;
    CHECK(use(&used, MESH("\"dp\": 4") UNIT("a", "5", "") "," UNIT("b", "", "") "," UNIT(
                         "c", "0", "") "," UNIT("d", "3", "") "]}"));
    static const char *const wanted[4][4] = {
        {"0-3", "", "", ""}, {"3-5", "0-1", "", ""}, {"", "", "", "0-3"}, {"", "", "", ""}};
    for (uint32_t rank = 0; rank < 4; rank++) {
        for (size_t i = 0; i < 4; i++)
            CHECK_RANGES(&used, rank, i, wanted[rank][i]);
    }
    struct ms_census census;
    CHECK(ms_census_init(&census, used.layout));
    CHECK_EQ(census.padding[2], 0);
    CHECK_EQ(census.padding[3], 3);
    ms_census_cleanup(&census);
    leave(&used);
}

/* One tensor of the unit is cut by tp too, so the unit is of another length for each tp rank. */
MS_TEST(a_unit_of_pieces)
{
    struct used used;
    CHECK(use(&used, MESH("\"tp\": 2, \"dp\": 2")
                         UNIT("a", "3", ", \"tp\": {\"shard\": 0}") "," UNIT("b", "2", "") "]}"));
    static const char *const wanted[4][2] = {{"0-2", ""}, {"", "0-2"}, {"2-3", "0-1"}, {"", "1-2"}};
    for (uint32_t rank = 0; rank < 4; rank++) {
        for (size_t i = 0; i < 2; i++)
            CHECK_RANGES(&used, rank, i, wanted[rank][i]);
    }
    leave(&used);
}

MS_TEST(a_plan_over_another_mesh)
{
    struct used used;
    CHECK(use(&used, ALONE("\"dp\": 2", "8", "[{\"shard\": 0}]")));
    ms_layout_destroy(used.layout);
    CHECK(ms_plan_resize(used.plan, 0, 4));
    CHECK_EQ(used.plan->mesh.world, 4);
    CHECK(ms_layout_create(used.plan, NULL, &used.layout, &used.fault));
    CHECK_RANGES(&used, 3, 0, "12-16");
    CHECK(!ms_plan_resize(used.plan, 0, MS_WORLD_MAX + 1));
    CHECK_EQ(used.plan->mesh.world, 4);
    leave(&used);
    CHECK(use(&used, MESH("\"dp\": 2") "{\"name\": \"a\", \"ranges\": [[], []]}]}"));
    CHECK(!ms_plan_resize(used.plan, 0, 1));
    leave(&used);
}

/* Tensors of one form, of which only some are alike. */
MS_TEST(each_tensor_counts_with_its_own_list)
{
#define OCTETS(name, rest) "{\"name\": \"" name "\", \"dtype\": \"U8\", \"shape\": [8], " rest "}"
#define LISTED(name, cut) OCTETS(name, "\"ranges\": [[[0, " cut "]], [[" cut ", 8]]]")
#define HALVED(name) OCTETS(name, "\"placements\": [{\"shard\": 0}]")
    static const char text[] = MESH("\"dp\": 2")
        LISTED("a", "6") "," LISTED("b", "1") "," LISTED("c",
                                                         "6") "," HALVED("d") "," HALVED("e") "]}";
    static const uint64_t wanted[] = {6 + 1 + 6 + 4 + 4, 2 + 7 + 2 + 4 + 4};
    struct used used;
    struct ms_census census;
    CHECK(use(&used, text));
    CHECK(ms_census_init(&census, used.layout));
    for (uint32_t rank = 0; rank < 2; rank++)
        CHECK_EQ(census.bytes[rank], wanted[rank]);
    ms_census_cleanup(&census);
    leave(&used);
}

/* 8 mesh dimensions cut 8 tensor dimensions. */
MS_TEST(eight_dimensions_of_a_mesh_cut_eight_of_a_tensor)
{
    struct used used;
    CHECK(use(&used, MESH("\"a\":2,\"b\":2,\"c\":2,\"d\":2,\"e\":2,\"f\":2,\"g\":2,\"h\":2")
                         TENSOR("2,2,2,2,2,2,2,2",
                                "[{\"shard\":0},{\"shard\":1},{\"shard\":2},{\"shard\":3},"
                                "{\"shard\":4},{\"shard\":5},{\"shard\":6},{\"shard\":7}]") "]}"));
    CHECK_RANGES(&used, 0, 0, "0-2");
    CHECK_RANGES(&used, 255, 0, "510-512");
    CHECK_RANGES(&used, 129, 0, "258-260");
    leave(&used);
}
