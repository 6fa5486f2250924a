/* SPDX-License-Identifier: Apache-2.0 */
/* The rank and the number of ranks that common launchers put into a process's environment. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The launchers' variables, in the order in which they are read. */
enum { MS_LAUNCHERS = 4 };
extern const struct ms_launcher {
    const char *rank, *size;
} ms_launchers[MS_LAUNCHERS];

struct ms_launched {
    /* The first of RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID and PMI_RANK that is a number, and the
     * size that belongs to it (UINT32_MAX if unknown). */
    bool has_rank;
    uint32_t rank, world;
    /* The id of the job: SLURM_JOB_ID, PBS_JOBID, LSB_JOBID, or TORCHELASTIC_RUN_ID, by which
     * torchrun tells its jobs apart; "" if there is none, or wants_job is false. */
    const char *job;
};
struct ms_launched ms_launcher_read(bool wants_job);
