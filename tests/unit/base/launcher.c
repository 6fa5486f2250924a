/* SPDX-License-Identifier: Apache-2.0 */
/* Variables that launchers set, and which launcher is believed. */
#include "runtime/base/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/between.h"
#include "tools/simcuda/harness/test.h"

/* As where no launcher is. */
static void clear(void)
{
    static const char *const jobs[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID",
                                       "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        unsetenv(ms_launchers[i].rank);
        unsetenv(ms_launchers[i].size);
    }
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++)
        unsetenv(jobs[i]);
}

static void check_rank(bool has_rank, uint32_t rank, uint32_t world)
{
    const struct ms_launched seen = ms_launcher_read(true);
    CHECK_EQ(seen.has_rank, has_rank);
    if (has_rank) {
        CHECK_EQ(seen.rank, rank);
        CHECK_EQ(seen.world, world);
    }
}

STORY_AFTER(clear, a_process_without_a_launcher_has_no_rank_and_no_job, check_rank(false, 0, 0),
            IS(strcmp(ms_launcher_read(true).job, "") == 0))

MS_TEST_AFTER(clear, each_launcher_has_variables_of_its_own)
{
    static const char *const names[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"},
                                           {"PMI_RANK", "PMI_SIZE"}};
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        setenv(names[i][0], "3", 1);
        check_rank(true, 3, UINT32_MAX);
        setenv(names[i][1], "many", 1);
        check_rank(true, 3, UINT32_MAX);
        setenv(names[i][1], "8", 1);
        check_rank(true, 3, 8);
        unsetenv(names[i][0]);
        check_rank(false, 0, 0);
        unsetenv(names[i][1]);
    }
}

/* The size is of the launcher whose rank it is. */
STORY_AFTER(clear, the_first_rank_that_is_a_number_counts, setenv("PMI_RANK", "4", 1),
            setenv("PMI_SIZE", "16", 1), setenv("RANK", "", 1), setenv("WORLD_SIZE", "2", 1),
            check_rank(true, 4, 16), setenv("SLURM_PROCID", "1", 1),
            check_rank(true, 1, UINT32_MAX), setenv("RANK", "0", 1), check_rank(true, 0, 2))

MS_TEST_AFTER(clear, a_rank_is_a_number_of_31_bits_and_nothing_else)
{
    static const struct {
        const char *text;
        bool is_rank;
        uint32_t rank;
    } rows[] = {
        {"0", true, 0},
        {"9", true, 9},
        {"007", true, 7},
        {"2147483647", true, INT32_MAX},
        {"2147483648", false, 0},
        {"4294967296", false, 0},
        {"99999999999999999999999", false, 0},
        {"1x", false, 0},
        {"1 ", false, 0},
        {" 1", false, 0},
        {"-1", false, 0},
        {"+1", false, 0},
        {"/", false, 0},
        {":", false, 0},
        {"", false, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        setenv("RANK", rows[i].text, 1);
        const struct ms_launched seen = ms_launcher_read(true);
        if (seen.has_rank != rows[i].is_rank || (seen.has_rank && seen.rank != rows[i].rank))
            ms_test_fail(__FILE__, __LINE__, "rank %s", rows[i].text);
    }
}

static void check_job(const char *wanted)
{
    const char *seen = ms_launcher_read(true).job;
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected job %s, found %s", wanted, seen);
}

MS_TEST_AFTER(clear, the_first_job_that_has_an_id_counts)
{
    setenv("TORCHELASTIC_RUN_ID", "none", 1); /* torchrun was given none */
    check_job("");
    setenv("TORCHELASTIC_RUN_ID", "nonesuch", 1);
    check_job("nonesuch");
    setenv("LSB_JOBID", "33", 1);
    check_job("33");
    setenv("PBS_JOBID", "22", 1);
    check_job("22");
    setenv("SLURM_JOB_ID", "", 1);
    check_job("22");
    setenv("SLURM_JOB_ID", "11", 1);
    check_job("11");
    CHECK(strcmp(ms_launcher_read(false).job, "") == 0);
}
