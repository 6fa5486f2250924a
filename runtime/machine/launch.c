/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: what their parameters reach is materialised, or the launch is recorded. */
#include "runtime/launch/launch.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/diag/counters.h"
#include "runtime/machine/host.h"
#include "runtime/machine/machine.h"
#include "runtime/machine/materialise.h"
#include "runtime/machine/pressure.h"
#include "runtime/machine/query.h"
#include "runtime/machine/reach.h"
#include "runtime/machine/record.h"
#include "runtime/machine/settle.h"
#include "runtime/machine/step.h"

/* The addresses that a process can have on the architectures there are; smaller numbers are counts. */
static bool is_plausible(uint64_t word)
{
    return word >= UINT64_C(1) << 24 && word < UINT64_C(1) << 57;
}

static uint64_t word_at(const struct ms_packed *packed, size_t offset)
{
    uint64_t word;
    memcpy(&word, packed->bytes + offset, sizeof(word));
    return word;
}

static bool is_hit(const struct ms_reach *reach, size_t offset)
{
    for (size_t i = 0; i < reach->count; i++) {
        if (reach->hits[i].offset == offset)
            return true;
    }
    return false;
}

/* True when a parameter other than the hits is the address of memory that the driver knows. */
static bool has_other_memory(const struct ms_packed *packed, const struct ms_reach *reach)
{
    for (size_t at = 0; at + 8 <= packed->count; at += 4) {
        const uint64_t word = word_at(packed, at);
        unsigned type;
        if (is_plausible(word) && !is_hit(reach, at) &&
            ms_driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word) ==
                CUDA_SUCCESS)
            return true;
    }
    return false;
}

/* The pointers are as the rule has them: one, or the same one twice in a row. */
static bool pointers_fit(const struct ms_reach *reach, enum ms_rule rule)
{
    const struct ms_hit *hits = reach->hits;
    if (reach->everything || reach->count == 0)
        return false;
    const CUdeviceptr behind = hits[0].block.address + hits[0].block.bytes;
    if (hits[0].pointer < hits[0].block.address || hits[0].pointer >= behind)
        return false;
    if (rule == MS_RULE_WRITE_ONLY)
        return reach->count == 1;
    return rule == MS_RULE_IN_PLACE && reach->count == 2 && hits[1].pointer == hits[0].pointer &&
           hits[1].offset == hits[0].offset + 8;
}

static struct ms_step *create_step(const struct ms_block_facts *block, const struct ms_call *call,
                                   struct ms_layout *layout, const struct ms_packed *packed,
                                   const struct ms_reach *reach)
{
    const size_t pointers[2] = {reach->hits[0].offset, reach->hits[reach->count - 1].offset};
    struct ms_step *step = ms_heap_zalloc(sizeof(*step));
    if (step == NULL)
        return NULL;
    step->launch = ms_launch_create(call, layout, packed, pointers, reach->count);
    if (step->launch == NULL) {
        ms_heap_free(step);
        return NULL;
    }
    atomic_init(&step->references, 1);
    step->block_id = block->id;
    step->address = block->address;
    step->context = block->context;
    step->device = block->device;
    return step;
}

/* [begin, end) becomes the step's result, and what it was before is the step's. */
static bool add_step(struct ms_allocation *allocation, size_t begin, size_t end,
                     struct ms_step *step)
{
    const struct ms_content launched = {.kind = MS_LAUNCHED, .step = step};
    step->depth = ms_step_depth_over(&allocation->lineage, begin, end);
    return ms_lineage_extract(&allocation->lineage, begin, end, &step->before) &&
           ms_lineage_set(&allocation->lineage, begin, end, &launched);
}

/* What a pointer reaches may have been returned meanwhile: then it is no block any more, but still a range
 * of the allocation. */
static bool record_in(struct ms_allocation *allocation, const struct ms_call *call,
                      struct ms_layout *layout, const struct ms_packed *packed,
                      const struct ms_reach *reach)
{
    const struct ms_block_facts *block = &reach->hits[0].block;
    const size_t begin = ms_offset(allocation, block->address);
    const size_t end = begin + block->bytes;
    if (!ms_lineage_is_absent(&allocation->lineage, begin, end) ||
        ms_step_depth_over(&allocation->lineage, begin, end) > MS_MAX_STEP_DEPTH)
        return false;
    struct ms_step *step = create_step(block, call, layout, packed, reach);
    if (step == NULL)
        return false;
    const bool added = add_step(allocation, begin, end, step);
    ms_step_drop(step); /* the lineage has its own reference */
    return added;
}

static bool record(const struct ms_call *call, struct ms_layout *layout,
                   const struct ms_packed *packed, const struct ms_reach *reach)
{
    if (layout->rule == MS_RULE_RUN || !pointers_fit(reach, layout->rule) ||
        has_other_memory(packed, reach))
        return false;
    const struct ms_block_facts *facts = &reach->hits[0].block;
    CUcontext context;
    if (ms_driver.ctx_get_current(&context) != CUDA_SUCCESS || context != facts->context ||
        !ms_launch_may_wait(call, layout, facts->device) || !ms_may_record(call->stream))
        return false;
    struct ms_allocation *allocation = ms_space_claim(facts->address);
    const bool recorded = allocation != NULL && allocation->id == facts->id &&
                          record_in(allocation, call, layout, packed, reach);
    ms_space_release(allocation);
    if (recorded) {
        ms_count(MS_COUNT_RECORDED_LAUNCHES, 1);
        ms_log(MS_DEBUG, "recorded a launch of %s on 0x%llx", layout->name, facts->address);
    }
    return recorded;
}

/* Where the device can read all of the process's memory, a pointer to it may lead anywhere. */
static bool reaches_pageable_memory(const struct ms_packed *packed)
{
    CUdevice device;
    int pageable = 0;
    if (ms_driver.ctx_get_device(&device) != CUDA_SUCCESS ||
        ms_driver.device_get_attribute(&pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                                       device) != CUDA_SUCCESS ||
        pageable == 0)
        return false;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at + 8 <= packed->count; at += 4) {
        const uint64_t word = word_at(packed, at);
        unsigned char is_in_memory;
        if (is_plausible(word) && !ms_is_device_memory(word) && !ms_is_block(word) &&
            mincore((void *)(uintptr_t)(word & ~(page - 1)), 1, &is_in_memory) == 0)
            return true;
    }
    return false;
}

static CUresult touch_reached(const struct ms_layout *layout, const struct ms_packed *packed,
                              const struct ms_reach *reach)
{
    if (reach->everything || ms_reach_is_unbounded() || ms_host_has_globals() ||
        reaches_pageable_memory(packed)) {
        ms_log(MS_DEBUG, "a launch of %s may reach anything: everything deferred is materialised",
               layout->name);
        return ms_prepare_touch_all();
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < reach->count && result == CUDA_SUCCESS; i++) {
        const struct ms_block_facts *block = &reach->hits[i].block;
        ms_log(MS_DEBUG, "a launch of %s reaches 0x%llx, which is materialised", layout->name,
               block->address);
        result = ms_prepare_touch(block->address, block->bytes);
    }
    return result;
}

static bool launch_packed(const struct ms_call *call, struct ms_layout *layout,
                          const struct ms_packed *packed, CUresult *result_out)
{
    struct ms_reach reach;
    ms_reach_find(packed->bytes, packed->count, &reach);
    if (record(call, layout, packed, &reach)) {
        ms_settle_postpone();
        *result_out = CUDA_SUCCESS;
        return true;
    }
    ms_settle_consider();
    *result_out = touch_reached(layout, packed, &reach);
    return *result_out != CUDA_SUCCESS;
}

static bool launch(const struct ms_call *call, CUresult *result_out)
{
    struct ms_layout *layout = ms_layout_take(call->function);
    struct ms_packed packed;
    if (layout == NULL || !ms_pack(call, layout, &packed)) {
        ms_log(MS_DEBUG, "the parameters of a launch are not known: everything deferred is "
                         "materialised");
        ms_layout_drop(layout);
        *result_out = ms_prepare_touch_all();
        return *result_out != CUDA_SUCCESS;
    }
    const bool answered = launch_packed(call, layout, &packed, result_out);
    ms_pack_cleanup(&packed);
    ms_layout_drop(layout);
    return answered;
}

bool ms_launch(const struct ms_call *call, CUresult *result_out)
{
    const bool answered = launch(call, result_out);
    if (!answered)
        ms_note_gate();
    return answered;
}

static CUresult materialise_all_launched(void)
{
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr at = 0;
    for (struct ms_allocation *allocation;
         result == CUDA_SUCCESS && (allocation = ms_space_claim_next(at)) != NULL;) {
        at = allocation->address + allocation->bytes;
        result = ms_materialise_launched(allocation);
        ms_space_release(allocation);
    }
    return result;
}

CUresult ms_prepare_unload(CUlibrary library)
{
    int attempts = 0;
    CUresult result;
    do
        result = materialise_all_launched();
    while (ms_try_again(result, &attempts));
    if (result == CUDA_SUCCESS)
        ms_layout_forget(library);
    return result;
}
