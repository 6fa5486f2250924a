/* SPDX-License-Identifier: Apache-2.0 */
/* A plan over a list of tensors: finds the entry that decides each tensor, and checks it. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/plan/pattern.h"
#include "runtime/plan/plan_internal.h"

static bool is_match(const struct ms_plan_entry *entry, const struct ms_tensor *tensor,
                     size_t order)
{
    if ((entry->has_size && entry->size != tensor->bytes) ||
        (entry->has_order && entry->order != order))
        return false;
    if (entry->name == NULL)
        return true;
    return tensor->name != NULL && (entry->is_exact ? strcmp(entry->name, tensor->name) == 0
                                                    : ms_pattern_match(entry->name, tensor->name));
}

bool ms_plan_entry_meets(const struct ms_plan *plan, size_t entry, const struct ms_tensor *tensor,
                         size_t order)
{
    return is_match(&plan->entries[entry], tensor, order);
}

static int compare_name(const void *tensor, const void *entry)
{
    return strcmp(((const struct ms_tensor *)tensor)->name,
                  (*(const struct ms_plan_entry *const *)entry)->name);
}

static const struct ms_plan_entry *first_match(const struct ms_plan *plan,
                                               const struct ms_tensor *tensor, size_t order)
{
    const struct ms_plan_entry *const *named =
        tensor->name != NULL ? bsearch(tensor, plan->exact, plan->exact_count,
                                       sizeof(struct ms_plan_entry *), compare_name)
                             : NULL;
    const struct ms_plan_entry *best =
        named != NULL && is_match(*named, tensor, order) ? *named : NULL;
    for (size_t i = 0; i < plan->other_count && (best == NULL || plan->others[i] < best); i++) {
        if (is_match(plan->others[i], tensor, order))
            best = plan->others[i];
    }
    return best;
}

/* A given tensor, to be sorted by name, and its index in the source. */
struct given {
    const struct ms_tensor *tensor;
    size_t index;
};

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const struct given *)a)->tensor->name, ((const struct given *)b)->tensor->name);
}

/* By name, then in the order of the source. */
static int by_name_and_index(const void *a, const void *b)
{
    const struct given *left = a, *right = b;
    const int order = by_tensor_name(a, b);
    return order != 0 ? order : left->index < right->index ? -1 : left->index > right->index;
}

static const struct given *find_given(const struct given *sorted, size_t count,
                                      const struct ms_tensor *like)
{
    const struct given wanted = {like, 0};
    const struct given *found =
        count > 0 ? bsearch(&wanted, sorted, count, sizeof(*sorted), by_tensor_name) : NULL;
    while (found != NULL && found > sorted && by_tensor_name(found - 1, found) == 0)
        found--;
    return found;
}

static struct given *sort_given(const struct ms_tensor *const *tensors, size_t count)
{
    struct given *sorted = ms_heap_alloc((count + 1) * sizeof(*sorted));
    for (size_t i = 0; i < count && sorted != NULL; i++)
        sorted[i] = (struct given){tensors[i], i};
    if (sorted != NULL && count > 0)
        qsort(sorted, count, sizeof(*sorted), by_name_and_index);
    return sorted;
}

/* The position of a tensor that has none yet. */
#define NOWHERE SIZE_MAX

/* Lists the declared tensors; a given tensor replaces its declaration. */
static bool list_declared(struct ms_layout *layout, const struct ms_layout_source *source,
                          const struct given *sorted, size_t *positions, struct ms_fault *fault)
{
    const struct ms_plan *plan = layout->plan;
    for (size_t i = 0; i < plan->count; i++) {
        const struct ms_tensor *tensor = &plan->entries[i].like;
        if (!ms_plan_entry_declares(plan, i))
            continue;
        const struct given *found = find_given(sorted, source->count, tensor);
        if (found == NULL && source->is_complete)
            return ms_fault_set(fault, "tensors[%zu]: tensor %s is not in the checkpoint", i,
                                tensor->name);
        if (found != NULL && !ms_tensor_is_alike(found->tensor, tensor))
            return ms_fault_set(
                fault, "tensors[%zu]: tensor %s has another dtype or shape in the checkpoint", i,
                tensor->name);
        if (found != NULL) {
            tensor = found->tensor;
            positions[found->index] = layout->count;
        }
        layout->tensors[layout->count++] = tensor;
    }
    return true;
}

/* Another given tensor of the same name, dtype and shape is the same tensor, and counts once. */
static size_t first_like(const struct ms_layout_source *source, const struct given *sorted,
                         size_t index)
{
    const struct given *first = find_given(sorted, source->count, source->tensors[index]);
    return ms_tensor_is_alike(first->tensor, source->tensors[index]) ? first->index : index;
}

static void list_given(struct ms_layout *layout, const struct ms_layout_source *source,
                       const struct given *sorted, size_t *positions)
{
    for (size_t i = 0; i < source->count; i++) {
        const size_t first = sorted != NULL ? first_like(source, sorted, i) : i;
        if (positions[first] == NOWHERE) {
            positions[first] = layout->count;
            layout->tensors[layout->count++] = source->tensors[first];
        }
        positions[i] = positions[first];
    }
}

static bool list_tensors(struct ms_layout *layout, const struct ms_layout_source *source,
                         size_t *positions, struct ms_fault *fault)
{
    struct given *sorted = source->has_declared ? sort_given(source->tensors, source->count) : NULL;
    layout->tensors =
        ms_arena_take(&layout->arena, layout->plan->count + source->count, sizeof(void *));
    if (layout->tensors == NULL || (source->has_declared && sorted == NULL)) {
        ms_heap_free(sorted);
        return ms_fault_set(fault, "out of memory");
    }
    for (size_t i = 0; i < source->count; i++)
        positions[i] = NOWHERE;
    const bool is_good =
        !source->has_declared || list_declared(layout, source, sorted, positions, fault);
    if (is_good)
        list_given(layout, source, sorted, positions);
    ms_heap_free(sorted);
    return is_good;
}

static const char *check_cut(const struct ms_cut *cut, const struct ms_tensor *tensor)
{
    if (ms_dtype_bits[tensor->dtype] < 8)
        return "has elements smaller than a byte; expected replicate or ranges";
    if (cut->kind != MS_CUT_SHARD)
        return NULL;
    if (cut->dim >= tensor->dims)
        return "is sharded by a dimension that it does not have";
    if (cut->part_count > 0 && tensor->shape[cut->dim] % cut->part_sum != 0)
        return "has a dimension that the sum of interleave does not divide";
    return NULL;
}

static const char *check_ranges(const struct ms_plan_entry *entry, uint32_t world, uint64_t bytes)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        if (entry->ranges[rank] < entry->ranges[rank + 1] &&
            entry->ranges[rank + 1][-1].end > bytes)
            return "is shorter than a range of its entry";
    }
    return NULL;
}

/* Returns NULL, or what is wrong with the tensor. */
static const char *check_bound(const struct ms_plan_entry *entry, const struct ms_tensor *tensor,
                               uint32_t world)
{
    if (entry->has_shape && !ms_tensor_is_alike(&entry->like, tensor))
        return "has another dtype or shape than its entry says";
    if (entry->ranges != NULL)
        return check_ranges(entry, world, tensor->bytes);
    const char *fault = NULL;
    for (unsigned i = 0; i < entry->cut_count && fault == NULL; i++)
        fault = check_cut(&entry->cuts[i], tensor);
    return fault;
}

static const struct ms_cut *fsdp1_cut(const struct ms_layout *layout, size_t tensor)
{
    const struct ms_plan_entry *entry = layout->bound[tensor].entry;
    if (entry == NULL || entry->cut_count == 0)
        return NULL;
    const struct ms_cut *last = &entry->cuts[entry->cut_count - 1];
    return last->kind == MS_CUT_FSDP1 ? last : NULL;
}

/* A member of a unit, for sorting. */
struct member {
    const char *unit;
    size_t tensor;
};

static int by_unit(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    const int order = strcmp(left->unit, right->unit);
    return order != 0 ? order : left->tensor < right->tensor ? -1 : left->tensor > right->tensor;
}

static bool add_member(struct ms_layout *layout, const struct member *member, bool is_first,
                       struct ms_fault *fault)
{
    const struct ms_cut *cut = fsdp1_cut(layout, member->tensor);
    if (is_first)
        layout->units[layout->unit_count++] =
            (struct ms_unit){member->unit, cut->mesh_dim, member->tensor};
    const struct ms_unit *unit = &layout->units[layout->unit_count - 1];
    layout->bound[member->tensor].unit = (uint32_t)(layout->unit_count - 1);
    const size_t entry = (size_t)(layout->bound[member->tensor].entry - layout->plan->entries);
    if (unit->mesh_dim != cut->mesh_dim)
        return ms_fault_set(fault, "tensors[%zu]: unit %s: expected one flat mesh dimension", entry,
                            unit->name);
    if (layout->tensors[unit->first]->dtype != layout->tensors[member->tensor]->dtype)
        return ms_fault_set(fault, "tensors[%zu]: unit %s: expected tensors of one dtype", entry,
                            unit->name);
    return true;
}

static bool make_units(struct ms_layout *layout, struct ms_fault *fault)
{
    struct member *members = ms_heap_alloc((layout->count + 1) * sizeof(*members));
    if (members == NULL)
        return ms_fault_set(fault, "out of memory");
    size_t count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_cut *cut = fsdp1_cut(layout, i);
        if (cut != NULL)
            members[count++] = (struct member){cut->unit, i};
    }
    qsort(members, count, sizeof(*members), by_unit);
    layout->units = ms_arena_take(&layout->arena, count, sizeof(*layout->units));
    bool is_good = layout->units != NULL || ms_fault_set(fault, "out of memory");
    for (size_t i = 0; i < count && is_good; i++)
        is_good = add_member(layout, &members[i],
                             i == 0 || strcmp(members[i - 1].unit, members[i].unit) != 0, fault);
    ms_heap_free(members);
    return is_good;
}

static bool bind_tensors(struct ms_layout *layout, struct ms_fault *fault)
{
    const struct ms_plan *plan = layout->plan;
    layout->bound = ms_arena_take(&layout->arena, layout->count, sizeof(*layout->bound));
    if (layout->bound == NULL)
        return ms_fault_set(fault, "out of memory");
    bool is_good = true;
    for (size_t i = 0; i < layout->count && is_good; i++) {
        const struct ms_tensor *tensor = layout->tensors[i];
        const struct ms_plan_entry *entry = first_match(plan, tensor, i);
        const char *wrong = entry != NULL ? check_bound(entry, tensor, plan->mesh.world) : NULL;
        layout->bound[i].entry = entry;
        if (wrong != NULL)
            is_good =
                ms_fault_set(fault, "tensors[%zu]: tensor %s %s", (size_t)(entry - plan->entries),
                             tensor->name != NULL ? tensor->name : "without a name", wrong);
        layout->bytes += tensor->bytes;
        if (layout->bytes > INT64_MAX)
            is_good = ms_fault_set(fault, "tensors: expected less than 2^63 bytes in all");
    }
    return is_good;
}

bool ms_layout_create_of(const struct ms_plan *plan, const struct ms_layout_source *source,
                         size_t *positions_out, struct ms_layout **layout_out,
                         struct ms_fault *fault)
{
    struct ms_layout *layout = ms_heap_zalloc(sizeof(*layout));
    if (layout == NULL)
        return ms_fault_set(fault, "out of memory");
    layout->plan = plan;
    if (!list_tensors(layout, source, positions_out, fault) || !bind_tensors(layout, fault) ||
        !make_units(layout, fault)) {
        ms_layout_destroy(layout);
        return false;
    }
    *layout_out = layout;
    return true;
}

bool ms_layout_create(const struct ms_plan *plan, const struct ms_checkpoint *checkpoint,
                      struct ms_layout **layout_out, struct ms_fault *fault)
{
    const size_t count = checkpoint != NULL ? ms_checkpoint_count(checkpoint) : 0;
    const struct ms_tensor *base = checkpoint != NULL ? ms_checkpoint_tensors(checkpoint) : NULL;
    const struct ms_tensor **tensors = ms_heap_alloc((count + 1) * sizeof(*tensors));
    size_t *positions = ms_heap_alloc((count + 1) * sizeof(*positions));
    bool is_good = tensors != NULL && positions != NULL;
    for (size_t i = 0; i < count && is_good; i++)
        tensors[i] = &base[i];
    const struct ms_layout_source source = {.tensors = tensors,
                                            .count = count,
                                            .has_declared = true,
                                            .is_complete = checkpoint != NULL};
    is_good = is_good ? ms_layout_create_of(plan, &source, positions, layout_out, fault)
                      : ms_fault_set(fault, "out of memory");
    ms_heap_free(tensors);
    ms_heap_free(positions);
    return is_good;
}

void ms_layout_destroy(struct ms_layout *layout)
{
    if (layout != NULL)
        ms_arena_cleanup(&layout->arena);
    ms_heap_free(layout);
}

size_t ms_layout_count(const struct ms_layout *layout)
{
    return layout->count;
}

const struct ms_tensor *ms_layout_tensor(const struct ms_layout *layout, size_t tensor)
{
    return layout->tensors[tensor];
}

size_t ms_layout_entry(const struct ms_layout *layout, size_t tensor)
{
    const struct ms_plan_entry *entry = layout->bound[tensor].entry;
    return entry != NULL ? (size_t)(entry - layout->plan->entries) : SIZE_MAX;
}

size_t ms_layout_unit(const struct ms_layout *layout, size_t tensor)
{
    return fsdp1_cut(layout, tensor) != NULL ? layout->bound[tensor].unit : SIZE_MAX;
}

bool ms_layout_is_placed(const struct ms_layout *layout, size_t tensor)
{
    return layout->bound[tensor].entry != NULL;
}

uint64_t ms_layout_bytes(const struct ms_layout *layout)
{
    return layout->bytes;
}

const struct ms_plan *ms_layout_plan(const struct ms_layout *layout)
{
    return layout->plan;
}
