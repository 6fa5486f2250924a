/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of the plan in force about an allocation (shard/shard.h), and about remote reads. */
#include "runtime/config/config.h"
#include "runtime/files/trust.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/order/order.h"
#include "runtime/plan/placement.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE, HALF = BYTES / 2 };

static const struct ms_content fill = {.kind = MS_FILL};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static struct ms_allocation *allocation;

/* Rank 1 keeps the second half of each tensor. */
static void start(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    use_plan(1, BYTES);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static void judge(size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_placement_query(allocation, begin, behind);
    ms_space_release(allocation);
}

static enum ms_locality standing_at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset).content.locality;
}

#define CHECK_STANDING(begin, behind, wanted)      \
    do {                                           \
        CHECK_EQ(standing_at(begin), wanted);      \
        CHECK_EQ(standing_at((behind)-1), wanted); \
    } while (0)

static struct ms_state_plan facts;

static const struct ms_state_plan *describe(void)
{
    ms_shard_describe(&facts);
    return &facts;
}

/* --- query */

MS_TEST(a_process_without_a_plan_has_all_placements_open)
{
    char name[8];
    fake_start();
    allocation = fake_allocation(BYTES);
    judge(0, BYTES);
    CHECK_STANDING(0, BYTES, MS_UNKNOWN);
    CHECK(!ms_shard_is_active() && describe()->generation == 0);
    CHECK_EQ(ms_placement_query_read_remote(allocation, 0, BYTES), CUDA_SUCCESS);
    CHECK(!ms_placement_query_name(allocation, 0, BYTES, name, sizeof(name)));
    end();
}

MS_TEST_BETWEEN(start, end, memory_without_a_name_is_open)
{
    fake_set(allocation, 0, BYTES, &fill);
    judge(0, BYTES);
    CHECK_STANDING(0, BYTES, MS_UNKNOWN);
}

MS_TEST_BETWEEN(start, end, a_named_tensor_is_ours_and_away_to_the_byte)
{
    name_tensor(allocation->address + 5, 1001, "a");
    judge(0, BYTES);
    CHECK_EQ(standing_at(4), MS_UNKNOWN);
    CHECK_STANDING(5, 5 + 501, MS_REMOTE);
    CHECK_STANDING(5 + 501, 5 + 1001, MS_LOCAL);
    CHECK_EQ(standing_at(5 + 1001), MS_UNKNOWN);
    CHECK_EQ(ms_allocation_lineage(allocation)->remote_bytes, 501);
    CHECK_EQ(describe()->tensors, 1);
    CHECK_EQ(facts.planned_bytes, 1001);
    CHECK_EQ(facts.owned_bytes, 500);
}

MS_TEST_BETWEEN(start, end, a_placement_is_of_asked_bytes_without_memory_alone)
{
    name_tensor(allocation->address, BYTES, "w");
    fake_set(allocation, 0, FAKE_GRANULE, &fill);
    fake_set(allocation, FAKE_GRANULE, 2 * FAKE_GRANULE, &resident);
    fake_set(allocation, 2 * FAKE_GRANULE, 3 * FAKE_GRANULE, &fill);
    judge(0, 2 * FAKE_GRANULE);
    CHECK_STANDING(0, FAKE_GRANULE, MS_REMOTE);
    CHECK_STANDING(FAKE_GRANULE, BYTES, MS_UNKNOWN); /* present, and not asked */
    judge(2 * FAKE_GRANULE, 2 * FAKE_GRANULE + 1);
    CHECK_STANDING(2 * FAKE_GRANULE, 3 * FAKE_GRANULE,
                   MS_REMOTE); /* an extent is asked about whole */
    CHECK_STANDING(3 * FAKE_GRANULE, BYTES, MS_UNKNOWN);
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 3 * FAKE_GRANULE, HALF,
                         &(struct ms_content){.kind = MS_DEAD}));
    CHECK(ms_carve_add_block(allocation, 0, 3 * FAKE_GRANULE));
    CHECK(ms_carve_add_block(allocation, HALF, BYTES));
    ms_space_release(allocation);
    judge(0, BYTES);
    CHECK_STANDING(3 * FAKE_GRANULE, HALF, MS_UNKNOWN); /* dead */
    CHECK_STANDING(HALF, BYTES, MS_LOCAL);
}

MS_TEST_BETWEEN(start, end, a_placement_stays_until_its_bytes_are_written_anew)
{
    struct ms_fault fault;
    name_tensor(allocation->address, BYTES, "w");
    judge(0, BYTES);
    CHECK_STANDING(0, HALF, MS_REMOTE);
    fake_set(allocation, 0, FAKE_GRANULE, &fill);
    CHECK_STANDING(0, FAKE_GRANULE, MS_UNKNOWN);
    judge(0, BYTES);
    CHECK_STANDING(0, HALF, MS_REMOTE);
    CHECK(ms_placement_query_unname(allocation->address, BYTES, &fault));
    CHECK_STANDING(0, BYTES, MS_UNKNOWN);
    judge(0, BYTES);
    CHECK_STANDING(0, BYTES, MS_UNKNOWN);
    CHECK(!ms_placement_query_unname(allocation->address, BYTES + 1, &fault));
}

/* A checkpoint of one file with the tensors "x", of 3000 bytes, and "y", of 1000 behind it. */
static struct ms_source *make_checkpoint(uint64_t *data_out)
{
    static const char header[] =
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[3000],\"data_offsets\":[0,3000]},"
        "\"y\":{\"dtype\":\"U8\",\"shape\":[1000],\"data_offsets\":[3000,4000]}}";
    static char path[] = "/tmp/metashard-unit-XXXXXX.safetensors";
    const uint64_t length = sizeof(header) - 1;
    static const char data[4000];
    const int file = mkstemps(path, (int)strlen(".safetensors"));
    CHECK(file >= 0);
    CHECK_EQ(write(file, &length, sizeof(length)), sizeof(length));
    CHECK_EQ(write(file, header, length), (ssize_t)length);
    CHECK_EQ(write(file, data, sizeof(data)), sizeof(data));
    close(file);
    struct stat stat_;
    CHECK_EQ(stat(path, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path);
    *data_out = sizeof(length) + length;
    struct ms_source *source = ms_file_source(ms_trust_open(&mapping, *data_out + sizeof(data)));
    CHECK(source != NULL);
    /* Its headers are read now; then the file has done its work. */
    ms_shard_add_copy(source, *data_out, 1);
    unlink(path);
    return source;
}

MS_TEST_BETWEEN(start, end, a_tensor_of_a_file_is_known_by_where_it_was_copied_from)
{
    uint64_t data;
    char name[8];
    struct ms_source *source = make_checkpoint(&data);
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = source,
                                       .source_offset = data + 1000};
    fake_set(allocation, 100, 3100, &content); /* 2000 of x and all of y */
    judge(0, BYTES);
    CHECK_STANDING(100, 600, MS_REMOTE);   /* x, from 1000 to 1500 */
    CHECK_STANDING(600, 2100, MS_LOCAL);   /* x, to its end */
    CHECK_STANDING(2100, 2600, MS_REMOTE); /* y */
    CHECK_STANDING(2600, 3100, MS_LOCAL);
    CHECK_EQ(standing_at(3100), MS_UNKNOWN);
    CHECK_EQ(describe()->tensors, 2);
    CHECK_EQ(facts.planned_bytes, 4000);
    CHECK_EQ(facts.owned_bytes, 2000);
    CHECK(ms_placement_query_name(allocation, 200, 300, name, sizeof(name)) &&
          strcmp(name, "x") == 0);
    CHECK(ms_placement_query_name(allocation, 2100, 2101, name, sizeof(name)) &&
          strcmp(name, "y") == 0);
    CHECK(!ms_placement_query_name(allocation, 3100, 3200, name, sizeof(name)));
    ms_source_drop(source);
}

MS_TEST_BETWEEN(start, end, parts_of_a_tensor_may_lie_in_any_order)
{
    uint64_t data;
    struct ms_source *source = make_checkpoint(&data);
    for (size_t i = 0; i < 3; i++) {
        const struct ms_content content = {.kind = MS_SOURCE,
                                           .source = source,
                                           .source_offset = data + (2 - i) * 1000};
        fake_set(allocation, i * 1000, (i + 1) * 1000, &content);
    }
    judge(0, BYTES);
    CHECK_STANDING(0, 1000, MS_LOCAL); /* x, from 2000 on */
    CHECK_STANDING(1000, 1500, MS_REMOTE);
    CHECK_STANDING(1500, 2000, MS_LOCAL);
    CHECK_STANDING(2000, 3000, MS_REMOTE);
    ms_source_drop(source);
}

MS_TEST_BETWEEN(start, end, a_plan_that_does_not_fit_decides_nothing)
{
    open_log(MS_ERROR);
    name_tensor(allocation->address, HALF, "w"); /* which is declared with another shape */
    judge(0, BYTES);
    CHECK_STANDING(0, BYTES, MS_UNKNOWN);
    CHECK_EQ(count_log_lines("the plan is not followed"), 1);
}

/* How often somebody begins to walk the ranges of a tensor. */
static unsigned begins;

WRAPS(ms_placement_begin);
void __wrap_ms_placement_begin(struct ms_cursor *cursor, const struct ms_placement *placement,
                               size_t tensor)
{
    begins++;
    __real_ms_placement_begin(cursor, placement, tensor);
}

/* There may be very many ranges, and extents. */
MS_TEST_BETWEEN(start, end, a_tensor_in_several_extents_is_not_walked_anew_for_each)
{
    name_tensor(allocation->address, HALF, "a");
    name_tensor(allocation->address + HALF, HALF, "b");
    for (uint32_t i = 0; i < GRANULES; i++)
        fake_set(allocation, i * FAKE_GRANULE, (i + 1) * FAKE_GRANULE,
                 &(struct ms_content){.kind = MS_FILL, .pattern = i + 1});
    judge(0, BYTES);
    CHECK_EQ(begins, 2); /* it goes on where it was */
    CHECK_STANDING(0, HALF / 2, MS_REMOTE);
    CHECK_STANDING(HALF / 2, HALF, MS_LOCAL);
    CHECK_STANDING(HALF, HALF + HALF / 2, MS_REMOTE);
    CHECK_STANDING(HALF + HALF / 2, BYTES, MS_LOCAL);
}

/* --- names */

MS_TEST_BETWEEN(start, end, names_tell_what_other_ranks_keep)
{
    struct ms_ranges remote = {0};
    ms_config.receive_parts = true;
    name_tensor(allocation->address + FAKE_GRANULE, 1000, "a");
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_placement_query_list_remote(allocation, FAKE_GRANULE, 1000, NULL, &remote));
    CHECK_EQ(remote.count, 1);
    CHECK_EQ(remote.list[0].begin, FAKE_GRANULE);
    CHECK_EQ(remote.list[0].end, FAKE_GRANULE + 500);
    remote.count = 0;
    CHECK(ms_placement_query_list_remote(allocation, 0, 999, NULL, &remote));
    CHECK_EQ(remote.count, 0); /* it has no name, and no tensor has its size */
    ms_space_release(allocation);
    ms_ranges_cleanup(&remote);
    char name[2];
    CHECK(ms_placement_query_name(allocation, FAKE_GRANULE + 3, BYTES, name, sizeof(name)));
    CHECK(strcmp(name, "a") == 0);
    CHECK(!ms_placement_query_name(allocation, FAKE_GRANULE - 1, BYTES, name, sizeof(name)));
    CHECK(!ms_placement_query_name(allocation, FAKE_GRANULE, FAKE_GRANULE, name, sizeof(name)));
}

/* --- what is received, by its size */

/* Rank 1 keeps the second half of a and of b, and of each row of c; and of what has 300 bytes. */
static const char by_size[] =
    "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": 1, \"tensors\": ["
    "{\"name\": \"a\", \"dtype\": \"U8\", \"shape\": [1000], \"placements\": [{\"shard\": 0}]},"
    "{\"name\": \"b\", \"dtype\": \"U8\", \"shape\": [2000], \"placements\": [{\"shard\": 0}]},"
    "{\"name\": \"c\", \"dtype\": \"U8\", \"shape\": [2, 1000], "
    "\"placements\": [{\"shard\": 1}]},"
    "{\"name\": \"d\", \"dtype\": \"U8\", \"shape\": [77], \"placements\": [\"replicate\"]},"
    "{\"size\": 300, \"placements\": [{\"shard\": 0}]}]}";

static void start_sizes(void)
{
    start();
    use_plan_text(by_size);
    ms_config.receive_parts = true;
}

/* "BEGIN-END " of what is remote of so many bytes, one of a sequence. */
static void check_remote_in(size_t begin, const struct ms_sequence *sequence, const char *wanted)
{
    struct ms_ranges remote = {0};
    char seen[256] = "";
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_placement_query_list_remote(allocation, begin, sequence->bytes[sequence->at],
                                         sequence->count > 1 ? sequence : NULL, &remote));
    ms_space_release(allocation);
    for (size_t i = 0; i < remote.count && i < 8; i++)
        sprintf(seen + strlen(seen), "%d-%d ", (int)remote.list[i].begin, (int)remote.list[i].end);
    ms_ranges_cleanup(&remote);
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "%zu bytes at %zu: expected %s, found %s",
                     sequence->bytes[sequence->at], begin, wanted, seen);
}

static void check_remote(size_t begin, size_t bytes, const char *wanted)
{
    check_remote_in(begin, &(struct ms_sequence){&bytes, 1, 0}, wanted);
}

MS_TEST_BETWEEN(start_sizes, end, bytes_that_all_tensors_of_a_size_leave_to_others_are_remote)
{
    for (int i = 0; i < 2; i++) { /* found, and known */
        begins = 0;
        check_remote(0, 1000, "0-500 ");
        check_remote(7, 1000, "7-507 ");
        check_remote(0, 2000, "0-500 "); /* of b and c, this alone */
        check_remote(0, 77, "");
        check_remote(0, 300, "0-150 ");
        check_remote(5, 300, "5-155 ");
        check_remote(0, 301, "");
        check_remote(0, 999, "");
        CHECK_EQ(begins, i == 0 ? 6 : 2); /* those of an entry are not kept */
    }
    ms_config.receive_parts = false;
    check_remote(0, 1000, "");
    ms_config.receive_parts = true;
    use_plan(0, 1000); /* another rank, and other tensors */
    check_remote(0, 1000, "500-1000 ");
    check_remote(0, 2000, "");
    use_plan(1, 2000);
    check_remote(0, 2000, "0-1000 ");
    check_remote(0, 1000, "");
}

MS_TEST_BETWEEN(start_sizes, end, neighbours_tell_which_tensor_of_a_size_is_received)
{
    static const struct {
        size_t bytes[4], count, at;
        const char *wanted;
    } rows[] = {
        {{1000, 2000}, 2, 1, "0-1000 "},        /* b is behind a */
        {{2000, 77}, 2, 0, "0-500 1000-1500 "}, /* c is before d */
        {{2000, 2000}, 2, 0, "0-1000 "},        /* b is before c */
        {{2000, 2000}, 2, 1, "0-500 1000-1500 "},
        {{1000, 2000, 2000, 77}, 4, 1, "0-1000 "},
        {{1000, 2000, 2000, 77}, 4, 2, "0-500 1000-1500 "},
        {{1000, 2000, 77, 2000}, 4, 1, "0-500 "}, /* one neighbour each */
        {{5, 2000, 5}, 3, 1, "0-500 "},
        {{1000, 2000}, 2, 0, "0-500 "},
        {{5, 300}, 2, 1, "0-150 "},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_remote_in(0, &(struct ms_sequence){rows[i].bytes, rows[i].count, rows[i].at},
                        rows[i].wanted);
}

/* More than are kept. */
MS_TEST_BETWEEN(start_sizes, end, many_sizes_are_each_known)
{
    enum { SIZES = 70 };
    static char text[SIZES * 100];
    char *at = text + sprintf(text, "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, "
                                    "\"rank\": 1, \"tensors\": [");
    for (int i = 1; i <= SIZES; i++)
        at += sprintf(at,
                      "{\"name\": \"t%d\", \"dtype\": \"U8\", \"shape\": [%d], \"placements\": "
                      "[{\"shard\": 0}]}%s",
                      i, 2 * i, i < SIZES ? "," : "]}");
    use_plan_text(text);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 1; i <= SIZES; i++) {
            char wanted[32];
            sprintf(wanted, "0-%zu ", i);
            check_remote(0, 2 * i, wanted);
        }
    }
}

/* The bytes there may be another tensor's, unless their lineage is known. */
MS_TEST_BETWEEN(start_sizes, end, the_lineage_of_bytes_counts_before_their_size)
{
    const struct ms_content ours = {.kind = MS_FILL, .locality = MS_LOCAL},
                            away = {.kind = MS_FILL, .locality = MS_REMOTE},
                            copy = {.kind = MS_FILL, .is_remote_copy = true};
    fake_set(allocation, 0, 10, &ours);
    check_remote(0, 1000, "");
    fake_set(allocation, 10, 20, &away);
    fake_set(allocation, 990, 1010, &away);
    check_remote(0, 1000, "10-20 990-1000 ");
    check_remote(15, 1000, "15-20 990-1010 ");
    fake_set(allocation, 0, BYTES, &fill); /* says nothing */
    check_remote(0, 1000, "0-500 ");
    fake_set(allocation, 490, 600, &copy);
    check_remote(0, 1000, "490-500 "); /* by both */
    check_remote(0, 999, "490-600 ");  /* no tensor has that size */
    fake_set(allocation, 0, 10, &away);
    check_remote(0, 1000, "0-10 490-600 ");
}

MS_TEST_BETWEEN(start_sizes, end, bytes_of_a_file_that_go_on_elsewhere_have_no_placement)
{
    struct test_file file;
    make_test_file(&file, "/tmp", 3000);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    fake_set(allocation, 100, 1100, &content);
    check_remote(100, 1000, "100-600 ");
    check_remote(101, 1000, "");
    check_remote(99, 1000, "");
    fake_set(allocation, 0, BYTES, &fill);
    ms_source_drop(file.source);
}

/* --- reading what is remote */

MS_TEST_BETWEEN(start, end,
                reads_of_what_is_away_are_counted_and_told_once_for_each_call_and_tensor)
{
    open_log(MS_INFO);
    name_tensor(allocation->address, BYTES, "w");
    judge(0, BYTES);
    ms_caller = "cuA";
    CHECK_EQ(ms_placement_query_read_remote(allocation, HALF, BYTES), CUDA_SUCCESS); /* ours */
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READS), 0);
    CHECK_EQ(ms_placement_query_read_remote(allocation, HALF - 10, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_placement_query_read_remote(allocation, 0, 5), CUDA_SUCCESS);
    ms_caller = "cuB";
    CHECK_EQ(ms_placement_query_read_remote(allocation, 0, 1), CUDA_SUCCESS);
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READS), 3);
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READ_BYTES), 16);
    CHECK_EQ(count_log_lines("reads 10 bytes of tensor w, from byte 262134 on"), 1);
    CHECK_EQ(count_log_lines("cuA reads"), 1);
    CHECK_EQ(count_log_lines("cuB reads"), 1);
}

MS_TEST_BETWEEN(start, end, reads_of_a_tensor_of_a_file_are_told_by_where_in_it)
{
    uint64_t data;
    struct ms_source *source = make_checkpoint(&data);
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = source,
                                       .source_offset = data + 1000};
    open_log(MS_INFO);
    fake_set(allocation, 100, 3100, &content);
    judge(0, BYTES);
    CHECK_EQ(ms_placement_query_read_remote(allocation, 90, 600), CUDA_SUCCESS);
    CHECK_EQ(count_log_lines("a call reads 500 bytes of tensor x, from byte 1000 on, which"), 1);
    CHECK_EQ(ms_placement_query_read_remote(allocation, 2000, 2200), CUDA_SUCCESS);
    CHECK_EQ(count_log_lines("a call reads 100 bytes of tensor y, from byte 0 on, which"), 1);
    ms_caller = "cuA";
    ms_caller_kernel = "k";
    CHECK_EQ(ms_placement_query_read_remote(allocation, 2110, 2111), CUDA_SUCCESS);
    CHECK_EQ(count_log_lines("cuA of k reads 1 bytes of tensor y, from byte 10 on, which"), 1);
    ms_source_drop(source);
}

/* No more than are remembered. */
MS_TEST_BETWEEN(start, end, the_log_tells_of_the_first_of_many_tensors_that_are_read)
{
    enum { TOLD = 64 };
    open_log(MS_INFO);
    for (size_t i = 0; i <= TOLD; i++) {
        char name[16];
        sprintf(name, "t%zu", i);
        name_tensor(allocation->address + 100 * i, 100, name);
    }
    judge(0, BYTES);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i <= TOLD; i++)
            CHECK_EQ(ms_placement_query_read_remote(allocation, 100 * i, 100 * i + 50),
                     CUDA_SUCCESS);
    }
    CHECK_EQ(count_log_lines("a call reads 50 bytes of tensor t"), TOLD);
    CHECK_EQ(count_log_lines("of tensor t63,"), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READS), 2 * (TOLD + 1));
}

MS_TEST_BETWEEN(start, end, an_enforced_plan_refuses_and_tells_each_remote_read)
{
    open_log(MS_ERROR);
    ms_config.plan_mode = MS_ENFORCE;
    name_tensor(allocation->address, BYTES, "w");
    judge(0, BYTES);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ms_placement_query_read_remote(allocation, 0, BYTES), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(ms_placement_query_read_remote(allocation, HALF, BYTES), CUDA_SUCCESS);
    CHECK_EQ(count_log_lines("METASHARD_PLAN_MODE is enforce"), 3);
    CHECK_EQ(ms_counter_get(MS_COUNT_REMOTE_READ_BYTES), 3 * HALF);
}

MS_TEST_BETWEEN(start, end, another_plan_forgets_what_was_seen)
{
    name_tensor(allocation->address, BYTES, "w");
    judge(0, BYTES);
    CHECK_EQ(describe()->tensors, 1);
    const uint64_t generation = describe()->generation;
    use_plan(0, BYTES);
    CHECK(describe()->generation > generation);
    CHECK_EQ(describe()->tensors, 0);
    CHECK_EQ(facts.rank, 0);
    fake_set(allocation, 0, BYTES, &fill);
    judge(0, BYTES);
    CHECK_STANDING(0, HALF, MS_LOCAL);
    CHECK_STANDING(HALF, BYTES, MS_REMOTE);
}

/* A name that only the size in a plan told is not the next plan's. */
MS_TEST_BETWEEN(start, end, a_guess_is_forgotten_with_its_plan)
{
    open_log(MS_ERROR);
    struct ms_allocation *other = fake_allocation(HALF);
    ms_shard_match_unnamed();
    judge(0, BYTES);
    CHECK_STANDING(0, HALF, MS_REMOTE);
    use_plan(1, HALF); /* the same name, of the other block */
    ms_shard_match_unnamed();
    fake_set(allocation, 0, BYTES, &fill);
    judge(0, BYTES);
    CHECK_STANDING(0, BYTES, MS_UNKNOWN);
    char name[2];
    CHECK(ms_placement_query_name(other, 0, HALF, name, sizeof(name)) && strcmp(name, "w") == 0);
    CHECK_EQ(count_log_lines("the plan is not followed"), 0);
    use_plan_text("{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": 1, "
                  "\"tensors\": [{\"order\": 0, \"placements\": [{\"shard\": 0}]}]}");
    ms_shard_match_unnamed();
    judge(0, BYTES);
    CHECK_STANDING(0, HALF, MS_REMOTE);
    CHECK_STANDING(HALF, BYTES, MS_LOCAL);
    fake_allocation_free(other);
}
