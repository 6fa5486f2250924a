/* SPDX-License-Identifier: Apache-2.0 */
/* What the common launchers tell of a process in its environment. */
#ifndef METASHARD_RUNTIME_BASE_LAUNCHER_H
#define METASHARD_RUNTIME_BASE_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

/* Their variables, in the order in which they are asked. */
enum { MS_LAUNCHERS = 4 };
extern const struct ms_launcher {
    const char *rank, *size;
} ms_launchers[MS_LAUNCHERS];

/* The first of RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID and PMI_RANK that is set to a number, and the size
 * that belongs to it (UINT32_MAX: not told). False: none is. */
bool ms_launcher_rank(uint32_t *rank_out, uint32_t *world_out);

#endif
