/* SPDX-License-Identifier: Apache-2.0 */
/* A build without jansson: there is never a plan. */
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/control/arrive.h"
#include "runtime/control/control.h"
#include "runtime/document/fault.h"
#include "runtime/fill/prefetch.h"
#include "runtime/shard/active_plan.h"
#include "runtime/shard/tensors_by_size.h"
#include "runtime/state/state.h"

static bool refuse(struct ms_fault *fault)
{
    return ms_fault_set(fault,
                        "this build of MetaShard has no plans (it was made without jansson)");
}

bool ms_arrive_text(__attribute__((unused)) const char *text, __attribute__((unused)) size_t bytes,
                    __attribute__((unused)) const char *name, struct ms_fault *fault)
{
    return refuse(fault);
}

bool ms_arrive_file(__attribute__((unused)) const char *path, struct ms_fault *fault)
{
    return refuse(fault);
}

size_t ms_arrive_status(char *text, size_t bytes)
{
    if (bytes > 0)
        text[0] = '\0';
    return 0;
}

void ms_control_start(void)
{
    struct ms_fault fault;
    if (ms_config.plan_path[0] != '\0' || ms_config.control_path[0] != '\0') {
        refuse(&fault);
        ms_log(MS_ERROR, "%s", fault.text);
    }
}

bool ms_prefetch_run(__attribute__((unused)) const char *why)
{
    return true;
}

void ms_prefetch_begin(__attribute__((unused)) bool is_first)
{
}

bool ms_shard_set_rank(uint32_t ranks, uint32_t rank)
{
    ms_state_set_default_rank(rank, ranks);
    return false;
}

bool ms_shard_is_active(void)
{
    return false;
}

bool ms_shard_enforces(void)
{
    return false;
}

bool ms_shard_receives_parts(__attribute__((unused)) int ranks)
{
    return false;
}

bool ms_sized_remote_parts(__attribute__((unused)) const struct ms_sequence *sequence,
                           __attribute__((unused)) struct ms_ranges *remote)
{
    return false;
}

bool ms_shard_add_group(__attribute__((unused)) uint32_t ranks,
                        __attribute__((unused)) uint32_t rank)
{
    return false;
}

size_t ms_shard_least_copy(void)
{
    return (size_t)64 << 10;
}

bool ms_shard_add_copy(__attribute__((unused)) const struct ms_source *source,
                       __attribute__((unused)) uint64_t offset,
                       __attribute__((unused)) uint64_t bytes)
{
    return false;
}

void ms_shard_query_placement(__attribute__((unused)) struct ms_allocation *allocation,
                              __attribute__((unused)) size_t begin,
                              __attribute__((unused)) size_t end)
{
}

CUresult ms_shard_read_remote(__attribute__((unused)) const struct ms_allocation *allocation,
                              __attribute__((unused)) size_t begin,
                              __attribute__((unused)) size_t end)
{
    return CUDA_SUCCESS;
}

bool ms_shard_name(__attribute__((unused)) CUdeviceptr address,
                   __attribute__((unused)) size_t bytes, __attribute__((unused)) const char *name,
                   __attribute__((unused)) const struct ms_tensor *like, struct ms_fault *fault)
{
    return refuse(fault);
}

bool ms_shard_unname(__attribute__((unused)) CUdeviceptr address,
                     __attribute__((unused)) size_t bytes, struct ms_fault *fault)
{
    return refuse(fault);
}

bool ms_shard_named_remote_parts(__attribute__((unused)) const struct ms_allocation *allocation,
                                 __attribute__((unused)) size_t begin,
                                 __attribute__((unused)) size_t end,
                                 __attribute__((unused)) struct ms_ranges *remote)
{
    return false;
}

void ms_shard_forget(__attribute__((unused)) const struct ms_allocation *allocation,
                     __attribute__((unused)) size_t begin, __attribute__((unused)) size_t end)
{
}

void ms_shard_describe(struct ms_shard_facts *facts_out)
{
    *facts_out = (struct ms_shard_facts){0};
}

void ms_shard_visit_unmatched(__attribute__((unused)) ms_shard_visitor *visit,
                              __attribute__((unused)) void *context)
{
}

void ms_shard_visit_ambiguous(__attribute__((unused)) ms_shard_visitor *visit,
                              __attribute__((unused)) void *context)
{
}

bool ms_shard_name_of(__attribute__((unused)) const struct ms_allocation *allocation,
                      __attribute__((unused)) size_t begin, __attribute__((unused)) size_t end,
                      __attribute__((unused)) char *name_out, __attribute__((unused)) size_t bytes)
{
    return false;
}
