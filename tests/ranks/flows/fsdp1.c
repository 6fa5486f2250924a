/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FSDP1 with sync_module_states: a model that is on the device, with its values on rank 0 and never
 * written on the others (to_empty), is synchronised and sharded unit by unit
 * (torch/distributed/fsdp/_init_utils.py, _flat_param.py).
 *
 * _broadcast_coalesced: tensors go in buckets; of two and more a temporary is made by torch.cat,
 * broadcast and copied back; a single one is broadcast in place; at most two are on their way. Then
 * the unit's tensors are flattened into one parameter, of which each rank clones its chunk, padded
 * with zeros at the end.
 *
 * With --keep it is the constructor of DistributedDataParallel, which broadcasts all tensors the
 * same way and leaves them where they are. What FSDP1's plan gives to this rank is then read in
 * place.
 */
#include "tests/ranks/flows/flow.h"
#include "tests/ranks/flows/flow_kernels.h"
#include "tools/simcuda/kernels/torch_kernels.h"

#include <stdlib.h>
#include <string.h>

enum { ELEMENT = sizeof(float), MAX_TENSORS = 1024, IN_FLIGHT = 2 };

static CUdeviceptr wholes[MAX_TENSORS];
static CUfunction cat_kernel;

/* Some tensors, by their indices. */
struct list {
    size_t count, bytes;
    size_t members[MAX_TENSORS];
};

static void add(struct list *list, size_t index)
{
    list->members[list->count++] = index;
    list->bytes += flow.parameters[index].bytes;
}

/* --- torch.cat */

static void cat_by_kernel(CUdeviceptr to, const struct list *list, size_t first, size_t count)
{
    struct cat_inputs inputs = {0};
    struct cat_shape shape = {{(uint32_t)(list->bytes / ELEMENT), 1, 1, 1}, {1, 1, 1, 1}};
    int dimension = 0;
    uint32_t stride = 1, offset = 0;
    for (size_t i = 0; i < first; i++)
        offset += (uint32_t)(flow.parameters[list->members[i]].bytes / ELEMENT);
    for (size_t i = 0; i < count; i++) {
        const size_t index = list->members[first + i];
        const uint32_t elements = (uint32_t)(flow.parameters[index].bytes / ELEMENT);
        inputs.input[i] = wholes[index];
        inputs.offset[i] = offset;
        inputs.size[i] = inputs.elements[i] = elements;
        inputs.is_contiguous[i] = true;
        offset += elements;
    }
    void *params[] = {&to, &inputs, &shape, &dimension, &stride};
    CU(cuLaunchKernel(cat_kernel, 64, (unsigned)count, 1, 128, 1, 1, 0, flow.stream, params, NULL));
}

/* A new tensor with the list's, one behind the other. */
static CUdeviceptr cat(const struct list *list)
{
    const CUdeviceptr to = flow_allocate(list->bytes);
    size_t at = 0;
    for (size_t i = 0; i < list->count && flow.cat == NULL; i++) {
        const size_t index = list->members[i];
        flow_copy(to + at, wholes[index], flow.parameters[index].bytes);
        at += flow.parameters[index].bytes;
    }
    for (size_t i = 0; i < list->count && flow.cat != NULL; i += CAT_INPUTS)
        cat_by_kernel(to, list, i, list->count - i < CAT_INPUTS ? list->count - i : CAT_INPUTS);
    return to;
}

/* --- _broadcast_coalesced */

struct work {
    struct list bucket;
    CUdeviceptr flat;
    CUevent done;
};

static CUevent record(CUstream stream)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, stream));
    return event;
}

/* The broadcast runs beside the current stream, behind all that is there now. */
static void start_work(struct work *work)
{
    const bool is_one = work->bucket.count == 1;
    work->flat = is_one ? wholes[work->bucket.members[0]] : cat(&work->bucket);
    const CUevent ready = record(flow.stream);
    CU(cuStreamWaitEvent(flow.transfers, ready, 0));
    flow_broadcast(work->flat, work->bucket.bytes, 0, flow.world, flow.transfers);
    work->done = record(flow.transfers);
    CU(cuEventDestroy(ready));
}

static void finish_work(struct work *work)
{
    size_t at = 0;
    CU(cuStreamWaitEvent(flow.stream, work->done, 0));
    for (size_t i = 0; i < work->bucket.count; i++) {
        const size_t index = work->bucket.members[i];
        flow_copy(wholes[index], work->flat + at, flow.parameters[index].bytes);
        at += flow.parameters[index].bytes;
    }
    if (work->bucket.count > 1)
        flow_free(work->flat);
    CU(cuEventDestroy(work->done));
}

static void broadcast_coalesced(const struct list *list)
{
    static struct work works[IN_FLIGHT];
    size_t begun = 0, finished = 0;
    for (size_t i = 0; i < list->count; begun++) {
        if (begun - finished == IN_FLIGHT)
            finish_work(&works[finished++ % IN_FLIGHT]);
        struct work *work = &works[begun % IN_FLIGHT];
        work->bucket.count = work->bucket.bytes = 0;
        while (i < list->count &&
               (work->bucket.count == 0 || work->bucket.bytes < flow.bucket_bytes))
            add(&work->bucket, list->members[i++]);
        start_work(work);
    }
    while (finished < begun)
        finish_work(&works[finished++ % IN_FLIGHT]);
}

/* --- units */

/* The length of the name of a tensor's unit: up to the first number; 0 for the root. */
static size_t unit_length(const char *name)
{
    for (const char *at = strchr(name, '.'); at != NULL; at = strchr(at + 1, '.')) {
        const size_t digits = strspn(at + 1, "0123456789");
        if (digits > 0 && (at[1 + digits] == '.' || at[1 + digits] == '\0'))
            return (size_t)(at - name) + 1 + digits;
    }
    return 0;
}

static bool is_of_unit(const char *name, const char *other)
{
    const size_t length = unit_length(name);
    return length == unit_length(other) && strncmp(name, other, length) == 0;
}

/* The unit of this tensor; empty when an earlier tensor is of it too. */
static void unit_of(size_t first, struct list *unit)
{
    const char *name = flow.parameters[first].name;
    *unit = (struct list){0};
    for (size_t i = 0; i < flow.count; i++) {
        if (!is_of_unit(name, flow.parameters[i].name))
            continue;
        if (i < first)
            return;
        add(unit, i);
    }
}

static void make(const struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        wholes[list->members[i]] = flow_whole(&flow.parameters[list->members[i]]);
}

/* FlatParamHandle.shard: a clone of this rank's chunk, or a padded copy of that. */
static void keep_chunk(const char *name, CUdeviceptr flat, uint64_t numel)
{
    const struct range range = flow_chunk(numel, flow.rank, flow.ranks);
    const size_t bytes = (range.end - range.begin) * ELEMENT;
    const size_t whole_bytes = flow_chunk_length(numel, flow.ranks) * ELEMENT;
    CUdeviceptr chunk = flow_allocate(bytes);
    flow_copy(chunk, flat + range.begin * ELEMENT, bytes);
    if (bytes > 0 && bytes < whole_bytes) {
        const CUdeviceptr padded = flow_allocate(whole_bytes);
        flow_zero(padded, whole_bytes);
        flow_copy(padded, chunk, bytes);
        flow_free(chunk);
        chunk = padded;
    }
    flow_observe_bytes(name, chunk, bytes > 0 ? whole_bytes : 0);
}

static void flatten_and_shard(const struct list *unit)
{
    const char *first = flow.parameters[unit->members[0]].name;
    char *name = unit_length(first) > 0 ? strndup(first, unit_length(first)) : strdup("root");
    const CUdeviceptr flat = cat(unit);
    for (size_t i = 0; i < unit->count; i++)
        flow_free(wholes[unit->members[i]]);
    keep_chunk(name, flat, unit->bytes / ELEMENT);
    flow_free(flat);
    free(name);
}

static void wrap_unit(size_t first)
{
    static struct list unit;
    unit_of(first, &unit);
    if (unit.count == 0)
        return;
    if (flow.per_unit)
        make(&unit);
    broadcast_coalesced(&unit);
    flatten_and_shard(&unit);
}

/* Observes the part of this tensor that lies in this rank's chunk of the unit. */
static void observe_in_place(size_t index)
{
    const char *name = flow.parameters[index].name;
    uint64_t before = 0, numel = 0;
    for (size_t i = 0; i < flow.count; i++) {
        if (is_of_unit(name, flow.parameters[i].name)) {
            before += i < index ? flow.parameters[i].bytes / ELEMENT : 0;
            numel += flow.parameters[i].bytes / ELEMENT;
        }
    }
    const struct range chunk = flow_chunk(numel, flow.rank, flow.ranks);
    const uint64_t end = before + flow.parameters[index].bytes / ELEMENT;
    const uint64_t from = chunk.begin > before ? chunk.begin : before;
    const uint64_t to = chunk.end < end ? chunk.end : end;
    if (from < to)
        flow_observe_bytes(name, wholes[index] + (from - before) * ELEMENT, (to - from) * ELEMENT);
}

int main(int count, char **arguments)
{
    static struct list all;
    CUmodule module;
    flow_open(count, arguments);
    if (flow.count > MAX_TENSORS)
        return 1;
    if (flow.cat != NULL) {
        CU(cuModuleLoad(&module, flow.cat));
        CU(cuModuleGetFunction(&cat_kernel, module, TORCH_NAME(TORCH_CAT)));
    }
    for (size_t i = 0; i < flow.count; i++)
        add(&all, i);
    if (!flow.per_unit)
        make(&all);
    if (flow.keep)
        broadcast_coalesced(&all);
    for (size_t i = 0; i < flow.count; i++) {
        if (flow.keep)
            observe_in_place(i);
        else
            wrap_unit(i);
    }
    return flow_close(flow.ranks);
}
