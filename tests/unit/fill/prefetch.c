/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan gives to this rank, and a plan that comes when everything is in memory, in mode
 * enforce. */
#include "runtime/fill/prefetch.h"

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/fill/materialise.h"
#include "runtime/source/source_close.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/source/files.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE, HALF = BYTES / 2 };

static struct test_file file;
static struct stat stat_of_file;
static struct ms_allocation *allocation;

/* All of a tensor came from a file, which is let go. Rank 1 keeps its second half. */
static void start(void)
{
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    CHECK_EQ(fstat(file.descriptor, &stat_of_file), 0);
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise(allocation, 0, BYTES, MS_NEED_KEEP), CUDA_SUCCESS);
    ms_space_release(allocation);
    ms_source_drop(file.source);
    ms_config.plan_mode = MS_ENFORCE;
    use_plan(1, BYTES);
    name_tensor(allocation->address, BYTES, "w");
    open_log(MS_ERROR);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
    CHECK_EQ(count_log_lines(file.path), 0);
}

static void check_all_is_resident(void)
{
    CHECK_EQ(allocation->backing.backed_bytes, BYTES);
    CHECK_EQ(allocation->lineage.resident_bytes, BYTES);
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, BYTES);
}

MS_TEST_BETWEEN(start, end, what_is_equal_to_its_file_and_other_ranks_keep_goes)
{
    ms_prefetch_arrive(true, true);
    CHECK_EQ(allocation->backing.backed_bytes, HALF);
    CHECK_EQ(allocation->lineage.resident_bytes, HALF);
}

MS_TEST_BETWEEN(start, end, a_file_that_has_become_shorter_is_no_failure)
{
    CHECK_EQ(truncate(file.path, 100), 0);
    ms_prefetch_arrive(true, true);
    check_all_is_resident();
}

/* As when another process is about to write to it. */
static void close_file(void)
{
    char path[MS_PATH_BYTES];
    ms_source_close(stat_of_file.st_dev, stat_of_file.st_ino, false, path);
}

MS_TEST_BETWEEN(start, end, nothing_comes_to_depend_on_a_file_that_is_about_to_change)
{
    fake.on_wait = close_file;
    ms_prefetch_arrive(true, true);
    fake.on_wait = NULL;
    check_all_is_resident();
}

/* --- several tensors, of which this rank keeps the first half each */

enum { TENSORS = 3, BROKEN = 1 };

static struct test_file other;
static struct ms_allocation *tensors[TENSORS];

static void start_tensors(void)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    fake_start();
    make_test_file(&file, "/tmp", BYTES);
    make_test_file(&other, "/tmp", BYTES);
    use_plan(0, BYTES);
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = fake_allocation(BYTES);
        fake_set(tensors[i], 0, BYTES,
                 &(struct ms_content){.kind = MS_SOURCE,
                                      .source = i == BROKEN ? other.source : file.source});
        name_tensor(tensors[i]->address, BYTES, names[i]);
    }
    open_log(MS_ERROR);
}

static void end_tensors(void)
{
    for (int i = 0; i < TENSORS; i++) {
        fake_check_allocation(tensors[i]);
        fake_allocation_free(tensors[i]);
    }
    fake_check_empty();
    ms_source_drop(file.source);
    ms_source_drop(other.source);
}

static void check_filled(int tensor, bool is_filled)
{
    const struct ms_lineage *lineage = &tensors[tensor]->lineage;
    CHECK_EQ(ms_lineage_at(lineage, 0).content.cached, is_filled);
    CHECK(!ms_lineage_at(lineage, HALF).content.cached);
    if (!is_filled)
        return;
    CHECK_EQ(tensors[tensor]->backing.backed_bytes, HALF);
    CHECK_BYTES((void *)(uintptr_t)tensors[tensor]->address,
                tensor == BROKEN ? other.data : file.data, HALF);
}

MS_TEST_BETWEEN(start_tensors, end_tensors, what_the_plan_gives_to_this_rank_is_filled_once)
{
    const uint64_t read = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK(ms_prefetch_run("a test"));
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - read, TENSORS * HALF);
    CHECK_EQ(ms_counter_get(MS_COUNT_MATERIALISED_BYTES), TENSORS * HALF);
    CHECK(ms_prefetch_run("a test"));
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - read, TENSORS * HALF);
    CHECK_EQ(ms_counter_get(MS_COUNT_PREFETCHES), 2);
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_tensor_that_cannot_be_read_keeps_no_other_deferred)
{
    CHECK_EQ(truncate(other.path, 100), 0);
    CHECK(!ms_prefetch_run("a test"));
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, i != BROKEN);
    CHECK(ms_prefetch_run("a test") == false); /* and is tried again */
}

MS_TEST_BETWEEN(start_tensors, end_tensors, memory_that_is_short_once_is_asked_for_again)
{
    fake_fail(FAKE_mem_create, 2, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(ms_prefetch_run("a test"));
    CHECK(fake_has_failed());
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
}

MS_TEST_BETWEEN(start_tensors, end_tensors, a_call_that_fails_once_is_made_again)
{
    fake_fail(FAKE_mem_map, 2, CUDA_ERROR_UNKNOWN);
    CHECK(ms_prefetch_run("a test"));
    CHECK(fake_has_failed());
    for (int i = 0; i < TENSORS; i++)
        check_filled(i, true);
}
