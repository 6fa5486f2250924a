/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the process: streams stop, and the file of statistics is written. */
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/driver/state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { DISK_BLOCK_BYTES = 512 };

static uint64_t processor_us(const struct timeval *time)
{
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

static void write_stats(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    FILE *file = fopen(sim_stats_path, "we");
    if (file == NULL) {
        sim_complain("SIMCUDA_STATS: %s cannot be opened: %s", sim_stats_path, strerror(errno));
        return;
    }
    pthread_mutex_lock(&sim_lock);
    size_t reservations = 0;
    for (size_t i = 0; i < sim_memories.count; i++)
        reservations += ((struct sim_memory *)sim_memories.rows[i])->kind == SIM_RESERVED;
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"physical_bytes_peak", sim_stats.physical_bytes_peak},
        {"physical_bytes_now", sim_stats.physical_bytes_now},
        {"h2d_bytes", sim_stats.h2d_bytes},
        {"d2h_bytes", sim_stats.d2h_bytes},
        {"d2d_bytes", sim_stats.d2d_bytes},
        {"memset_bytes", sim_stats.memset_bytes},
        {"launches", sim_stats.launches},
        {"empty_launches", sim_stats.empty_launches},
        {"unknown_reads", sim_stats.unknown_reads},
        {"allocate_calls", sim_stats.allocate_calls},
        {"create_calls", sim_stats.create_calls},
        {"map_calls", sim_stats.map_calls},
        {"illegal_accesses", sim_stats.illegal_accesses},
        {"races", sim_stats.races},
        {"live_handles", sim_handles.count},
        {"live_reservations", reservations},
        {"processor_us", processor_us(&usage.ru_utime) + processor_us(&usage.ru_stime)},
        {"disk_bytes", (uint64_t)usage.ru_inblock * DISK_BLOCK_BYTES},
    };
    pthread_mutex_unlock(&sim_lock);
    const size_t count = sizeof(rows) / sizeof(rows[0]);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s\"%s\": %llu%s", i == 0 ? "{\n  " : "  ", rows[i].name,
                (unsigned long long)rows[i].value, i + 1 == count ? "\n}\n" : ",\n");
    fclose(file);
}

__attribute__((visibility("default"))) void simcuda_write_statistics(void)
{
    if (sim_stats_path[0] != '\0')
        write_stats();
}

__attribute__((destructor)) static void finish(void)
{
    if (!sim_is_used())
        return;
    sim_streams_stop();
    sim_finish();
    if (sim_stats_path[0] != '\0')
        write_stats();
}
