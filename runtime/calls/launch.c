/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/launch.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/move.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/pointer_scan.h"
#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/reuse.h"
#include "runtime/fill/settle.h"
#include "runtime/fill/shadow.h"
#include "runtime/fill/suspend.h"
#include "runtime/kernel/concatenate.h"
#include "runtime/kernel/strided_loop.h"
#include "runtime/kernel/tensor_list.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"

/* True for addresses possible on the supported architectures; smaller numbers are counts. */
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

static bool is_hit(const struct ms_pointer_scan *reach, size_t offset)
{
    for (size_t i = 0; i < reach->count; i++) {
        if (reach->hits[i].offset == offset)
            return true;
    }
    return false;
}

/* True if a parameter other than the hits is the address of memory that the driver knows. */
static bool has_other_memory(const struct ms_arguments *arguments,
                             const struct ms_pointer_scan *reach)
{
    for (size_t at = 0; at + 8 <= arguments->packed->count; at += 4) {
        const uint64_t word = word_at(arguments->packed, at);
        unsigned type;
        if (is_plausible(word) && ms_pointer_scan_is_possible(arguments, at, word) &&
            !is_hit(reach, at) &&
            ms_driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word) ==
                CUDA_SUCCESS)
            return true;
    }
    return false;
}

/* Where a kernel with a rule writes, and what else it reads. */
struct operands {
    const struct ms_pointed *out;
    const struct ms_pointed *in; /* NULL: nothing */
    size_t offsets[2], count;    /* of the operands' pointers in the parameters */
};

static bool is_inside(const struct ms_pointed *hit)
{
    return hit->pointer >= hit->block.address &&
           hit->pointer < hit->block.address + hit->block.bytes;
}

static bool is_same_block(const struct ms_allocation_facts *a, const struct ms_allocation_facts *b)
{
    return a->id == b->id && a->address < b->address + b->bytes &&
           b->address < a->address + a->bytes;
}

/* Learns where a kernel that stores through one pointer has this pointer, which is at the same
 * place in each launch. The padding of parameters is full of stale addresses, so only a launch with
 * no other address shows the place. */
static void learn_place(struct ms_param_layout *layout, const struct ms_pointer_scan *reach)
{
    uint32_t none = 0;
    const uint32_t place = (uint32_t)reach->hits[0].offset + 1;
    if (layout->rule != MS_RULE_WRITE_ONLY || reach->count != 1 ||
        atomic_compare_exchange_strong(&layout->written_place, &none, place) || none == place)
        return;
    atomic_store(&layout->written_place, UINT32_MAX);
}

static const struct ms_pointed *find_written(const struct ms_pointer_scan *reach,
                                             const struct ms_param_layout *layout)
{
    const uint32_t place = atomic_load(&layout->written_place);
    for (size_t i = 0; i < reach->count; i++) {
        if (reach->count == 1 || reach->hits[i].offset + 1 == place)
            return &reach->hits[i];
    }
    return NULL;
}

/* Finds the operands of a launch over one tensor: a pointer of the only list, or {in, out}, a
 * pointer of each of two lists. */
static bool find_listed(const struct ms_call *call, const struct ms_pointer_scan *reach,
                        const struct ms_arguments *arguments, struct operands *operands_out)
{
    struct ms_tensor_list list;
    const struct ms_pointed *hits = reach->hits;
    if (ms_tensor_list_find(call, arguments, &list) == 0 || reach->count != list.lists ||
        hits[0].offset < list.at || !is_inside(&hits[0]))
        return false;
    const size_t number = (hits[0].offset - list.at) / 8;
    const struct ms_pointed *out = &hits[list.lists - 1];
    *operands_out = (struct operands){out, NULL, {out->offset, hits[0].offset}, list.lists};
    if (number >= list.tensors || list.lists == 1 || hits[1].pointer == hits[0].pointer)
        return number < list.tensors;
    operands_out->in = &hits[0];
    return hits[1].offset == hits[0].offset + (size_t)list.tensors * 8 && is_inside(&hits[1]) &&
           !is_same_block(&hits[0].block, &hits[1].block) &&
           hits[0].block.context == hits[1].block.context;
}

/* True if a loop may lead its two pointers, which are equal, to different places: an element of the
 * result is then not made of the same element of the source. */
static bool moves(const struct ms_arguments *arguments, size_t pointers)
{
    struct ms_strides strides;
    const enum ms_strided found =
        ms_strided_loop_find_strides(arguments->layout, arguments->packed, pointers, &strides);
    return found == MS_STRIDED_UNCLEAR || (found == MS_STRIDED_FOUND && !strides.is_parallel);
}

/* True if the pointers fit the rule: one pointer; {out, in}, equal or of two blocks; or {in, out}
 * of two blocks. */
static bool find_operands(const struct ms_call *call, const struct ms_pointer_scan *reach,
                          const struct ms_arguments *arguments, struct operands *operands_out)
{
    const struct ms_param_layout *layout = arguments->layout;
    const struct ms_pointed *hits = reach->hits;
    if (reach->everything || reach->count == 0)
        return false;
    if (layout->rule == MS_RULE_WRITE_ONLY) {
        const struct ms_pointed *out = find_written(reach, layout);
        *operands_out = (struct operands){out, NULL, {out != NULL ? out->offset : 0}, 1};
        return out != NULL && is_inside(out);
    }
    if (layout->rule == MS_RULE_EACH)
        return find_listed(call, reach, arguments, operands_out);
    if (reach->count != 2 || !is_inside(&hits[0]) || hits[1].offset != hits[0].offset + 8)
        return false;
    const size_t out = layout->rule == MS_RULE_FROM_FIRST, in = 1 - out;
    *operands_out = (struct operands){&hits[out], NULL, {hits[out].offset, hits[in].offset}, 2};
    if (hits[1].pointer == hits[0].pointer)
        return layout->rule == MS_RULE_IN_PLACE && !moves(arguments, hits[0].offset);
    operands_out->in = &hits[in];
    return is_inside(&hits[1]) && !is_same_block(&hits[0].block, &hits[1].block) &&
           hits[0].block.context == hits[1].block.context;
}

/* The operand's block, cut to the bytes around the pointer that the program may use: a kernel that
 * writes beyond them fails. Empty if the program may not use the byte where the pointer leads. */
static struct ms_part part_of(struct ms_allocation *allocation, const struct ms_pointed *operand)
{
    const size_t at = ms_offset(allocation, operand->pointer);
    const size_t begin = ms_offset(allocation, operand->block.address);
    struct ms_part part = {allocation, begin, begin + operand->block.bytes};
    struct ms_walk walk = {ms_allocation_lineage(allocation), part.begin, part.end};
    for (const struct ms_extent *extent;
         allocation->is_programs && (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (extent->content.kind != MS_UNMAPPED)
            continue;
        if (extent->end > at) {
            part.end = extent->begin > at ? extent->begin : part.begin;
            break;
        }
        part.begin = extent->end;
    }
    return part;
}

/* A launch's input, and how the output depends on the input. */
struct input {
    struct ms_part part;
    struct ms_loads loads;
    size_t written_at;
};

/* True if the part's content forbids recording the launch: a replay may read remote bytes when no
 * placement query follows, and absent bytes can never be read. */
static bool is_forbidden(const struct ms_part *part)
{
    if (ms_lineage_any(ms_allocation_lineage(part->allocation), part->begin, part->end,
                       MS_OF_KIND(MS_ABSENT)))
        return true;
    if (!ms_shard_enforces())
        return false;
    ms_placement_query(part->allocation, part->begin, part->end);
    return ms_lineage_any(ms_allocation_lineage(part->allocation), part->begin, part->end,
                          MS_OF_OTHERS);
}

/* False if out of memory. */
static bool add_call(struct ms_recorded_launch *recorded, const struct input *in,
                     const struct operands *operands, const struct ms_call *call,
                     const struct ms_arguments *arguments)
{
    if (in != NULL) {
        recorded->input->loads = in->loads;
        recorded->input->written_at = in->written_at;
    }
    recorded->only_writes = arguments->layout->rule == MS_RULE_WRITE_ONLY;
    recorded->launch = ms_call_record(call, arguments->layout, arguments->packed, operands->offsets,
                                      operands->count);
    return recorded->launch != NULL;
}

/* Makes the block the result of the recorded launch, which has the block's old lineage. */
static bool set_launched(const struct ms_part *out, const struct ms_part *in,
                         struct ms_recorded_launch *recorded, CUstream stream)
{
    struct ms_content launched = {.kind = MS_LAUNCHED, .recorded = recorded};
    if (ms_verifies())
        ms_shadow_launch(out, in, &launched, stream);
    if (ms_bytes_set(out->allocation, out->begin, out->end, &launched) != CUDA_SUCCESS)
        return false;
    if (in != NULL)
        ms_reuse_note(&(struct ms_copied){.content = &launched,
                                          .copy = out->allocation,
                                          .to = out->begin,
                                          .bytes = out->end - out->begin});
    return true;
}

static bool record_in(const struct ms_part *out, const struct input *in,
                      const struct operands *operands, const struct ms_call *call,
                      const struct ms_arguments *arguments)
{
    const struct ms_part *part = in != NULL ? &in->part : NULL;
    if (ms_parameters_is_unloading() || out->begin >= out->end ||
        (part != NULL && part->begin >= part->end) ||
        ms_lineage_any(ms_allocation_lineage(out->allocation), out->begin, out->end,
                       MS_PRESENT | MS_OF_KIND(MS_PARKED)) ||
        is_forbidden(out) || (part != NULL && is_forbidden(part)))
        return false;
    struct ms_recorded_launch *recorded = ms_recorded_launch_of(out, part);
    if (recorded == NULL)
        return false;
    const bool is_recorded = add_call(recorded, in, operands, call, arguments) &&
                             set_launched(out, part, recorded, call->stream);
    ms_recorded_launch_drop(recorded); /* the lineage has its own reference */
    return is_recorded;
}

/* The input: the part of its block that the launch loads; all of the block, if the loads are not
 * known. */
static struct input input_of(struct ms_allocation *allocation, const struct operands *operands,
                             const struct ms_part *out, const struct ms_loads *loads)
{
    struct input input = {.part = part_of(allocation, operands->in)};
    const size_t begin = ms_offset(allocation, operands->in->pointer);
    if (loads->bytes == 0 || begin < input.part.begin || begin >= input.part.end)
        return input;
    input.loads = *loads;
    if (loads->bytes > input.part.end - begin)
        input.loads.bytes = input.part.end - begin;
    input.part.begin = begin;
    input.part.end = begin + input.loads.bytes;
    input.written_at = ms_offset(out->allocation, operands->out->pointer) - out->begin;
    return input;
}

/* Claims the allocations of the operands, and records the launch if these allocations are still the
 * same. */
static bool claim_and_record(const struct operands *operands, const struct ms_loads *loads,
                             const struct ms_call *call, const struct ms_arguments *arguments)
{
    const struct ms_pointed *second = operands->in != NULL ? operands->in : operands->out;
    MS_CLAIMED_BOTH const struct ms_claims claims =
        ms_claims_begin(operands->out->block.address, second->block.address);
    struct ms_allocation *const out = claims.first, *const in = claims.second;
    if (out == NULL || in == NULL || out->id != operands->out->block.id ||
        in->id != second->block.id)
        return false;
    const struct ms_part out_part = part_of(out, operands->out);
    if (operands->in == NULL)
        return record_in(&out_part, NULL, operands, call, arguments);
    const struct input input = input_of(in, operands, &out_part, loads);
    return record_in(&out_part, &input, operands, call, arguments);
}

static bool record(const struct ms_call *call, const struct ms_arguments *arguments,
                   const struct ms_pointer_scan *reach)
{
    struct ms_param_layout *layout = arguments->layout;
    struct operands operands;
    CUcontext context;
    const struct ms_packed *packed = arguments->packed;
    if (layout->rule == MS_RULE_RUN || layout->rule == MS_RULE_CONCATENATE ||
        !find_operands(call, reach, arguments, &operands) || has_other_memory(arguments, reach) ||
        !ms_fact_holds(operands.out->block.device, MS_FACT_ALIAS)) /* a replay needs the sink */
        return false;
    const struct ms_allocation_facts *block = &operands.out->block;
    if (ms_driver.ctx_get_current(&context) != CUDA_SUCCESS || context != block->context ||
        !ms_call_may_wait(call, layout, block->device) || !ms_order_may_record(call->stream))
        return false;
    struct ms_loads loads = {0};
    if (operands.in != NULL && layout->rule != MS_RULE_EACH)
        ms_loads_find(layout, packed, operands.offsets[0], &loads);
    const bool is_recorded = claim_and_record(&operands, &loads, call, arguments);
    if (is_recorded) {
        learn_place(layout, reach);
        if (!block->is_recurring)
            ms_window_extend();
        ms_counter_add(MS_COUNT_RECORDED_LAUNCHES, 1);
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD,
                                          .block = block->id,
                                          .address = block->address,
                                          .bytes = block->bytes,
                                          .text = layout->name,
                                          .loads = true});
        ms_log(MS_DEBUG, "recorded a launch of %s on 0x%llx", layout->name, block->address);
    }
    return is_recorded;
}

static void find_input(const void *concatenation, size_t i, struct ms_strided_copy *rows_out)
{
    ms_concatenate_input(concatenation, i, rows_out);
}

/* True if the launch only copies, and the shim has made the copies: the launch returns
 * *result_out. */
static bool concatenate(const struct ms_call *call, const struct ms_arguments *arguments,
                        const struct ms_pointer_scan *reach, CUresult *result_out)
{
    const struct ms_param_layout *layout = arguments->layout;
    const struct ms_packed *packed = arguments->packed;
    struct ms_concatenation cat;
    if (layout->rule != MS_RULE_CONCATENATE || reach->count == 0 ||
        !ms_concatenate_find(call, layout, packed, &cat) ||
        !ms_call_may_wait(call, layout, ms_driver_device()))
        return false;
    const struct ms_parts inputs = {cat.count, find_input, &cat};
    if (!ms_move_try_parts(&inputs, call->stream, result_out))
        return false;
    ms_log(MS_DEBUG, "a launch of %s is %zu copies", layout->name, cat.count);
    return true;
}

/* Finds the rows that a loop copies. Either of its two pointers may be the one to a block. */
static bool find_rows(const struct ms_call *call, const struct ms_param_layout *layout,
                      const struct ms_packed *packed, const struct ms_pointer_scan *reach,
                      struct ms_strided_copy *rows)
{
    for (size_t i = 0; i < reach->count; i++) {
        const size_t at = reach->hits[i].offset;
        if (ms_strided_loop_find(call, layout, packed, at, rows) ||
            (at >= 8 && ms_strided_loop_find(call, layout, packed, at - 8, rows)))
            return true;
    }
    return false;
}

/* True if the launch only copies rows, and the shim has copied them. Such a kernel reads no
 * parameters but the copy's. */
static bool copy_rows(const struct ms_call *call, const struct ms_arguments *arguments,
                      const struct ms_pointer_scan *reach, CUresult *result_out)
{
    const struct ms_param_layout *layout = arguments->layout;
    const struct ms_packed *packed = arguments->packed;
    struct ms_strided_copy rows;
    if (layout->rule != MS_RULE_FROM_OTHER || !find_rows(call, layout, packed, reach, &rows) ||
        !ms_call_may_wait(call, layout, ms_driver_device()))
        return false;
    if (rows.dims == 0)
        rows.dim[rows.dims++].count = 1; /* one row: copied only where rows would be */
    if (!ms_move_try(&rows, 0, call->stream, result_out))
        return false;
    ms_log(MS_DEBUG, "a launch of %s is a copy of rows", layout->name);
    return true;
}

/* True if a parameter may point to pageable memory that the device can read: that pointer may lead
 * anywhere. */
static bool reaches_pageable_memory(const struct ms_arguments *arguments)
{
    if (!ms_driver_any_is_pageable() ||
        !ms_driver_has(ms_driver_device(), CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS))
        return false;
    for (size_t at = 0; at + 8 <= arguments->packed->count; at += 4) {
        const uint64_t word = word_at(arguments->packed, at);
        if (is_plausible(word) && ms_pointer_scan_is_possible(arguments, at, word) &&
            !ms_pointer_is_owned(word) && ms_host_memory_is_readable(word) &&
            !ms_pointer_is_device(word)) {
            ms_log(MS_DEBUG, "the parameter at byte %zu, 0x%llx, may be an address of the host", at,
                   (unsigned long long)word);
            return true;
        }
    }
    return false;
}

/* Why a launch may reach every block; MS_REASON_CALL: it reaches only blocks that its parameters
 * point to. */
static enum ms_reason why_unbounded(const struct ms_arguments *arguments,
                                    const struct ms_pointer_scan *reach)
{
    if (reach->everything)
        return MS_REASON_HOST_REACH;
    const enum ms_reason reach_of_host = ms_host_memory_reach();
    if (reach_of_host != MS_REASON_CALL)
        return reach_of_host;
    return reaches_pageable_memory(arguments) ? MS_REASON_PAGEABLE_REACH : MS_REASON_CALL;
}

/* Counts bytes that were materialised since `before` as used by a kernel. */
static void add_used(CUdevice device, uint64_t before)
{
    ms_overcommit_note(MS_OVERCOMMIT_USED, device,
                       ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before);
}

static CUresult touch_all(enum ms_reason reason)
{
    CUdevice device;
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    const CUresult result = ms_access_all(reason);
    if (ms_driver.ctx_get_device(&device) == CUDA_SUCCESS)
        add_used(device, before);
    return result;
}

static CUresult touch_reached(const struct ms_arguments *arguments,
                              const struct ms_pointer_scan *reach)
{
    const struct ms_param_layout *layout = arguments->layout;
    const enum ms_reason unbounded = why_unbounded(arguments, reach);
    if (unbounded != MS_REASON_CALL) {
        ms_log(MS_DEBUG, "a launch of %s may reach anything: everything deferred is materialised",
               layout->name);
        return touch_all(unbounded);
    }
    if (reach->count == 0)
        return CUDA_SUCCESS;
    struct ms_use uses[MS_MAX_HITS];
    for (size_t i = 0; i < reach->count; i++) {
        const struct ms_allocation_facts *block = &reach->hits[i].block;
        uses[i] = (struct ms_use){.need = MS_NEED_REACH,
                                  .begin = block->address,
                                  .bytes = block->bytes,
                                  .why = layout->rule == MS_RULE_RUN ? MS_REASON_NO_RULE
                                                                     : MS_REASON_RULE_MISSED};
        ms_log(MS_DEBUG, "a launch of %s reaches 0x%llx, which is materialised", layout->name,
               block->address);
    }
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    const CUresult result = ms_access_uses(uses, reach->count);
    add_used(reach->hits[0].block.device, before); /* mostly all blocks are on one device */
    return result;
}

/* The launch will be forwarded: all that it reaches is in memory. */
static void will_run(void)
{
    ms_examining_launched();
    ms_materialise_unfilled();
}

/* --- lists of tensors */

enum { MOST_PARAMS = 16 };

/* A launch over lists of tensors, which is recorded tensor by tensor as far as possible. */
struct listed {
    const struct ms_call *call;
    const struct ms_arguments *arguments;
    struct ms_tensor_list list;
    bool is_left[MS_MAX_LISTED]; /* tensors still to be launched */
    unsigned char *bytes;        /* room for parameters */
};

/* Makes a call for the wanted tensors alone. False if no block of threads works on them. */
static bool select_tensors(const struct listed *listed, const bool *is_wanted,
                           struct ms_call *call_out, struct ms_packed *packed_out)
{
    const struct ms_packed *packed = listed->arguments->packed;
    *call_out = *listed->call;
    packed_out->bytes = listed->bytes;
    packed_out->count = packed->count;
    return ms_tensor_list_select(&listed->list, packed, is_wanted, listed->bytes, call_out);
}

enum listed_state { NOT_LISTED, RECORDED, LEFT };

static enum listed_state record_tensor(const struct listed *listed, unsigned tensor,
                                       struct ms_packed *packed)
{
    bool is_wanted[MS_MAX_LISTED] = {false};
    struct ms_pointer_scan reach;
    struct ms_call call;
    is_wanted[tensor] = true;
    if (!select_tensors(listed, is_wanted, &call, packed))
        return NOT_LISTED;
    const struct ms_arguments arguments = {listed->arguments->layout, packed, {0, 0}};
    ms_pointer_scan_find(&arguments, &reach);
    return record(&call, &arguments, &reach) ? RECORDED : LEFT;
}

/* Copies a tensor as lineage, like an input of torch.cat, if the launch only copies. Leaves out
 * results of launches: a launch is recorded with them as its input. */
static bool copy_tensor(const struct listed *listed, unsigned tensor, CUresult *result_out)
{
    const struct ms_call *call = listed->call;
    const struct ms_arguments *arguments = listed->arguments;
    struct ms_strided_copy piece;
    return ms_tensor_list_copy(call, arguments, &listed->list, tensor, &piece) &&
           ms_call_may_wait(call, arguments->layout, ms_driver_device()) &&
           ms_move_try(&piece, MS_OF_KIND(MS_LAUNCHED), call->stream, result_out);
}

/* Launches the tensors that could not be recorded. */
static CUresult launch_left(const struct listed *listed, struct ms_packed *packed)
{
    struct ms_param_layout *layout = listed->arguments->layout;
    struct ms_pointer_scan reach;
    struct ms_call call;
    void *params[MOST_PARAMS];
    if (!select_tensors(listed, listed->is_left, &call, packed))
        return CUDA_SUCCESS;
    const struct ms_arguments arguments = {layout, packed, {0, 0}};
    ms_pointer_scan_find(&arguments, &reach);
    const CUresult result = touch_reached(&arguments, &reach);
    if (result != CUDA_SUCCESS)
        return result;
    for (uint32_t i = 0; i < layout->count && i < MOST_PARAMS; i++)
        params[i] = listed->bytes + layout->params[i].offset;
    will_run();
    ms_order_add_gate();
    return ms_driver.launch_kernel(call.function, call.grid[0], 1, 1, call.block[0], call.block[1],
                                   call.block[2], call.shared_bytes, call.stream, params, NULL);
}

static CUdeviceptr tensor_at(const struct listed *listed, unsigned which, unsigned tensor)
{
    const struct ms_tensor_list *list = &listed->list;
    return word_at(listed->arguments->packed,
                   list->at + ((size_t)list->tensors * which + tensor) * sizeof(CUdeviceptr));
}

/* True as well if the address lies in no allocation. */
static bool is_in_memory(CUdeviceptr address)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL || !ms_fits(allocation, address, 1))
        return true;
    const size_t at = ms_offset(allocation, address);
    return ms_lineage_any(ms_allocation_lineage(allocation), at, at + 1, MS_PRESENT);
}

static bool is_beside_left(const struct listed *listed, unsigned count, unsigned tensor)
{
    struct ms_allocation_facts block;
    if (!ms_space_find_pointed(tensor_at(listed, 1, tensor), &block))
        return false;
    unsigned i = 0;
    while (i < count &&
           !(listed->is_left[i] && tensor_at(listed, 1, i) - block.address < block.bytes))
        i++;
    return i < count;
}

/*
 * A tensor that is made of bytes in memory is not recorded, and its block comes into memory. Other
 * tensors in this block, as in the buffer of an all-gather, are then launched with it. Made from a
 * record, their bytes would be sent to the block, and sent again where their source is used next.
 */
static void leave_blocks(struct listed *listed, unsigned count)
{
    bool is_any_left = false;
    for (unsigned i = 0; i < count; i++) {
        listed->is_left[i] = is_in_memory(tensor_at(listed, 0, i));
        is_any_left |= listed->is_left[i];
    }
    for (unsigned i = 0; is_any_left && i < count; i++)
        listed->is_left[i] |= is_beside_left(listed, count, i);
}

static enum listed_state record_or_copy(const struct listed *listed, unsigned tensor,
                                        struct ms_packed *packed, CUresult *result_out)
{
    if (listed->is_left[tensor])
        return LEFT;
    return copy_tensor(listed, tensor, result_out) ? RECORDED
                                                   : record_tensor(listed, tensor, packed);
}

static bool launch_listed(const struct ms_call *call, const struct ms_arguments *arguments,
                          CUresult *result_out)
{
    struct listed listed = {.call = call, .arguments = arguments};
    struct ms_packed packed = {.heap = NULL};
    bool is_any_recorded = false;
    const unsigned count = ms_tensor_list_find(call, arguments, &listed.list);
    listed.bytes = count > 0 ? ms_heap_alloc(arguments->packed->count) : NULL;
    if (listed.bytes == NULL)
        return false;
    *result_out = CUDA_SUCCESS;
    if (listed.list.lists == 2)
        leave_blocks(&listed, count);
    for (unsigned i = 0; i < count && *result_out == CUDA_SUCCESS; i++) {
        const enum listed_state state = record_or_copy(&listed, i, &packed, result_out);
        listed.is_left[i] = state == LEFT;
        is_any_recorded |= state == RECORDED;
    }
    if (is_any_recorded && *result_out == CUDA_SUCCESS)
        *result_out = launch_left(&listed, &packed);
    ms_heap_free(listed.bytes);
    return is_any_recorded;
}

/* True if any tensor is recorded, and the others are launched. */
static bool launch_each(const struct ms_call *call, const struct ms_arguments *arguments,
                        const struct ms_pointer_scan *reach, CUresult *result_out)
{
    const struct ms_param_layout *layout = arguments->layout;
    return layout->rule == MS_RULE_EACH && (reach->count > 0 || reach->everything) &&
           call->attribute_count == 0 && !call->cooperative && layout->count <= MOST_PARAMS &&
           launch_listed(call, arguments, result_out);
}

/* False for a buffer that does not have the size of the kernel's parameters: the driver refuses a
 * larger buffer, and behind the end of a smaller one the kernel reads unknown bytes. */
static bool has_its_bytes(const struct ms_arguments *arguments)
{
    return !arguments->layout->known || arguments->packed->count == arguments->layout->bytes;
}

static bool is_answered(const struct ms_call *call, const struct ms_arguments *arguments,
                        const struct ms_pointer_scan *reach, CUresult *result_out)
{
    if (!has_its_bytes(arguments) || ms_is_capturing())
        return false;
    if (concatenate(call, arguments, reach, result_out) ||
        copy_rows(call, arguments, reach, result_out) ||
        launch_each(call, arguments, reach, result_out))
        return true;
    *result_out = CUDA_SUCCESS;
    return record(call, arguments, reach);
}

static bool launch_packed(const struct ms_call *call, const struct ms_arguments *arguments,
                          CUresult *result_out)
{
    struct ms_pointer_scan reach;
    ms_pointer_scan_find(arguments, &reach);
    if (is_answered(call, arguments, &reach, result_out))
        return true;
    if (ms_window_is_due())
        ms_settle_now("the program launches work and allocates and loads nothing");
    *result_out = touch_reached(arguments, &reach);
    return *result_out != CUDA_SUCCESS;
}

static bool launch(const struct ms_call *call, CUresult *result_out)
{
    struct ms_arguments arguments;
    struct ms_packed room;
    if (!ms_call_begin(call, &room, &arguments)) {
        ms_log(MS_DEBUG, "the parameters of a launch are not known: everything deferred is "
                         "materialised");
        *result_out = touch_all(MS_REASON_PARAMETERS);
        return *result_out != CUDA_SUCCESS;
    }
    ms_caller_kernel = arguments.layout->name; /* while the layout is held */
    const bool answered = launch_packed(call, &arguments, result_out);
    ms_caller_kernel = NULL;
    ms_call_end(&arguments);
    return answered;
}

bool ms_launch(const struct ms_call *call, CUresult *result_out)
{
    if (ms_defers_any()) {
        *result_out = ms_suspend_take_back();
        if (*result_out != CUDA_SUCCESS || (!call->is_prepared && launch(call, result_out)))
            return true;
        if (!call->is_prepared)
            will_run();
    }
    ms_order_add_gate();
    return false;
}
