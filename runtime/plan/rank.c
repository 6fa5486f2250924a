/* SPDX-License-Identifier: Apache-2.0 */
/* This process's rank in a plan. */
#include <stdlib.h>

#include "runtime/base/launcher.h"
#include "runtime/plan/plan.h"

/* Reads digits only, at most nine. */
static bool read_number(const char *name, const char *text, uint32_t *number_out,
                        struct ms_fault *fault)
{
    uint32_t number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && number < 100000000; at++)
        number = number * 10 + (uint32_t)(*at - '0');
    if (*at != '\0' || at == text)
        return ms_fault_set(fault, "%s: expected a number, found %s", name, text);
    *number_out = number;
    return true;
}

bool ms_rank_is_given(const struct ms_plan *plan)
{
    uint32_t rank;
    bool is_given = ms_plan_has_rank(plan, &rank);
    for (size_t i = 0; i < MS_LAUNCHERS; i++)
        is_given |= secure_getenv(ms_launchers[i].rank) != NULL;
    return is_given;
}

bool ms_rank_find(const struct ms_plan *plan, uint32_t *rank_out, struct ms_fault *fault)
{
    const uint32_t world = ms_plan_mesh(plan)->world;
    if (ms_plan_has_rank(plan, rank_out))
        return true;
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        const char *rank = secure_getenv(ms_launchers[i].rank),
                   *size = secure_getenv(ms_launchers[i].size);
        uint32_t ranks = world, number = 0;
        if (rank == NULL)
            continue;
        if (!read_number(ms_launchers[i].rank, rank, &number, fault) ||
            (size != NULL && !read_number(ms_launchers[i].size, size, &ranks, fault)))
            return false;
        if (ranks != world)
            return ms_fault_set(fault, "%s: expected the plan's %u, found %u", ms_launchers[i].size,
                                world, ranks);
        if (number >= world)
            return ms_fault_set(fault, "%s: expected a rank below %u, found %u",
                                ms_launchers[i].rank, world, number);
        *rank_out = number;
        return true;
    }
    return ms_fault_set(fault, "rank: expected rank or coordinates in the plan, or RANK, "
                               "OMPI_COMM_WORLD_RANK, SLURM_PROCID or PMI_RANK in the environment");
}
