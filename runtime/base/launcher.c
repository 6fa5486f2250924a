/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/launcher.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const struct ms_launcher ms_launchers[MS_LAUNCHERS] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
    {"PMI_RANK", "PMI_SIZE"},
};

static bool read_number(const char *name, uint32_t *number_out)
{
    const char *text = secure_getenv(name);
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    char *end;
    const unsigned long number = strtoul(text, &end, 10);
    if (*end != '\0' || number >= UINT32_C(1) << 31)
        return false;
    *number_out = (uint32_t)number;
    return true;
}

static bool read_rank(uint32_t *rank_out, uint32_t *world_out)
{
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        if (!read_number(ms_launchers[i].rank, rank_out))
            continue;
        if (!read_number(ms_launchers[i].size, world_out))
            *world_out = UINT32_MAX;
        return true;
    }
    return false;
}

static const char *find_job(void)
{
    static const char *const names[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID",
                                        "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = secure_getenv(names[i]);
        /* torchrun sets "none" if its user gave no id. */
        if (text != NULL && text[0] != '\0' && strcmp(text, "none") != 0)
            return text;
    }
    return "";
}

struct ms_launched ms_launcher_read(bool wants_job)
{
    struct ms_launched launched = {.job = wants_job ? find_job() : ""};
    launched.has_rank = read_rank(&launched.rank, &launched.world);
    return launched;
}
