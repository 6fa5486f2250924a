/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/control/arrive.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/fill/prefetch.h"
#include "runtime/plan/plan.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"

static bool put_in_force(struct ms_plan *plan, const char *name, struct ms_fault *fault)
{
    const bool is_first = !ms_shard_is_active();
    if (!ms_shard_set(plan, name, fault))
        return false;
    ms_prefetch_arrive(is_first);
    return true;
}

bool ms_arrive_text(const char *text, size_t bytes, const char *name, struct ms_fault *fault)
{
    struct ms_plan *plan;
    return ms_plan_parse(text, bytes, name, &plan, fault) && put_in_force(plan, name, fault);
}

bool ms_arrive_file(const char *path, struct ms_fault *fault)
{
    struct ms_plan *plan;
    return ms_plan_read(path, &plan, fault) && put_in_force(plan, path, fault);
}

size_t ms_arrive_status(char *text, size_t bytes)
{
    struct ms_state_plan facts;
    ms_shard_describe(&facts);
    const int length = snprintf(
        text, bytes,
        "{\"pid\": %d, \"plans\": %" PRIu64 ", \"mode\": \"%s\", \"rank\": %" PRIu32
        ", \"world_size\": %" PRIu32 ", \"tensors\": %" PRIu64 ", \"planned_bytes\": %" PRIu64
        ", \"owned_bytes\": %" PRIu64 ", \"remote_reads\": %" PRIu64
        ", \"remote_read_bytes\": %" PRIu64 ", \"requested_bytes\": %" PRIu64
        ", \"backed_bytes\": %" PRIu64 ", \"plan_freed_bytes\": %" PRIu64 "}",
        (int)getpid(), facts.generation, ms_config.plan_mode == MS_ENFORCE ? "enforce" : "advise",
        facts.rank, facts.world, facts.tensors, facts.planned_bytes, facts.owned_bytes,
        ms_counter_get(MS_COUNT_REMOTE_READS), ms_counter_get(MS_COUNT_REMOTE_READ_BYTES),
        ms_counter_get(MS_COUNT_REQUESTED_BYTES), ms_counter_get(MS_GAUGE_BACKED),
        ms_counter_get(MS_COUNT_PLAN_FREED_BYTES));
    return length > 0 ? (size_t)length : 0;
}
