/* SPDX-License-Identifier: Apache-2.0 */
/* A plan that comes when everything is in memory, in mode enforce. */
#include "runtime/fill/prefetch.h"

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/fill/materialise.h"
#include "runtime/source/source_close.h"
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
