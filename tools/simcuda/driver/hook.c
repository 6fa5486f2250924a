/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/hook.h"

#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct hook_work {
    struct sim_work work;
    struct simcuda_work hook;
    struct sim_range touches[];
};

static void run(struct sim_work *work)
{
    const struct hook_work *job = (struct hook_work *)work;
    job->hook.run(job->hook.data);
}

static void destroy(struct sim_work *work)
{
    struct hook_work *job = (struct hook_work *)work;
    if (job->hook.destroy != NULL)
        job->hook.destroy(job->hook.data);
    free(job);
}

EXPORT CUresult simcuda_submit(CUstream stream, const struct simcuda_work *work)
{
    const size_t count = work->touches_count;
    struct hook_work *job = sim_zalloc(sizeof(*job) + count * sizeof(job->touches[0]));
    job->work = (struct sim_work){.run = run, .destroy = destroy, .name = work->name};
    job->work.may_wait = true;
    job->work.more_touches = job->touches;
    job->work.more_touches_count = count;
    job->hook = *work;
    for (size_t i = 0; i < count; i++)
        job->touches[i] = (struct sim_range){work->touches[i].begin, work->touches[i].bytes};
    return sim_stream_submit(stream, false, &job->work);
}

EXPORT bool simcuda_can_touch(CUdeviceptr address, size_t bytes, bool write)
{
    pthread_mutex_lock(&sim_lock);
    const struct CUctx_st *context =
        sim_thread.is_worker ? sim_thread.running_context : sim_context_current();
    const bool can =
        sim_can_touch_locked(context == NULL ? -1 : context->device, address, bytes, write);
    pthread_mutex_unlock(&sim_lock);
    return can;
}

EXPORT void simcuda_fault(CUdeviceptr address, size_t bytes, const char *what)
{
    sim_fault(address, bytes, what);
}

EXPORT bool simcuda_is_over(void)
{
    return sim_sticky_error() != CUDA_SUCCESS || sim_streams_are_stopping();
}

/* The statistics of the whole process keep their peak. */
EXPORT void simcuda_take_counts(struct simcuda_counts *counts_out)
{
    pthread_mutex_lock(&sim_lock);
    *counts_out = (struct simcuda_counts){sim_stats.h2d_bytes, sim_stats.recent_bytes_peak};
    sim_stats.recent_bytes_peak = sim_stats.physical_bytes_now;
    pthread_mutex_unlock(&sim_lock);
}

EXPORT bool simcuda_find_piece(CUdeviceptr address, struct simcuda_piece *piece_out)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(address);
    const struct sim_mapping *mapping =
        (struct sim_mapping *)sim_table_find(&sim_mappings, address);
    bool is_found = true;
    if (mapping != NULL)
        *piece_out = (struct simcuda_piece){mapping->region.begin, mapping->region.bytes,
                                            mapping->physical->region.begin};
    else if (memory != NULL && memory->kind != SIM_RESERVED)
        *piece_out =
            (struct simcuda_piece){memory->region.begin, memory->region.bytes, memory->buffer_id};
    else
        is_found = false;
    pthread_mutex_unlock(&sim_lock);
    return is_found;
}
