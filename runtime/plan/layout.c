/* SPDX-License-Identifier: Apache-2.0 */
/* A plan over a list of tensors: finds the entry that decides each tensor, and checks it. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/plan/plan_internal.h"

/* --- the list */

static struct ms_tensor given_at(const struct ms_layout *layout, size_t index)
{
    return layout->source.at(layout->source.context, index);
}

/* The first given tensor of each name. */
struct given {
    const struct ms_layout *layout;
    struct ms_hash_set first;
};

struct wanted {
    const struct ms_layout *layout;
    const char *name;
};

static bool has_name(const void *context, uint32_t number)
{
    const struct wanted *wanted = context;
    return strcmp(given_at(wanted->layout, number).name, wanted->name) == 0;
}

static uint32_t find_given(const struct given *given, const char *name)
{
    const struct wanted wanted = {given->layout, name};
    return ms_hash_set_find(&given->first, ms_hash_set_text(name), has_name, &wanted);
}

static bool list_names(struct given *given)
{
    const struct ms_layout *layout = given->layout;
    for (uint32_t i = 0; i < layout->source.count; i++) {
        const struct ms_tensor tensor = given_at(layout, i);
        if (find_given(given, tensor.name) == MS_NO_NUMBER &&
            !ms_hash_set_add(&given->first, ms_hash_set_text(tensor.name), i))
            return false;
    }
    return true;
}

/* The position of a tensor that has none yet. */
#define NOWHERE SIZE_MAX

static bool add_tensor(struct ms_layout *layout, bool is_given, uint32_t tensor,
                       struct ms_fault *fault)
{
    if (!ms_pages_grow(&layout->bound, (layout->count + 1) * sizeof(struct ms_bound)))
        return ms_fault_set(fault, "out of memory");
    *ms_layout_bound(layout, layout->count++) = (struct ms_bound){.is_given = is_given,
                                                                  .tensor = tensor & INT32_MAX,
                                                                  .entry = MS_NO_NUMBER};
    return true;
}

/* Lists the declared tensors; a given tensor replaces its declaration. */
static bool list_declared(struct ms_layout *layout, const struct given *given, size_t *positions,
                          struct ms_fault *fault)
{
    const struct ms_plan *plan = layout->plan;
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct ms_entry_says entry = ms_entry_at(plan, i);
        const struct ms_tensor declared = entry.tensor;
        if (!entry.declares)
            continue;
        const uint32_t found = find_given(given, declared.name);
        if (found == MS_NO_NUMBER) {
            if (layout->source.is_complete)
                return ms_fault_set(fault, "tensors[%u]: tensor %s is not in the checkpoint", i,
                                    declared.name);
            if (!add_tensor(layout, false, i, fault))
                return false;
            continue;
        }
        const struct ms_tensor tensor = given_at(layout, found);
        if (!ms_tensor_is_alike(&tensor, &declared))
            return ms_fault_set(
                fault, "tensors[%u]: tensor %s has another dtype or shape in the checkpoint", i,
                declared.name);
        positions[found] = layout->count;
        if (!add_tensor(layout, true, found, fault))
            return false;
    }
    return true;
}

/* The first given tensor with this name, dtype and shape: both are one tensor. */
static uint32_t first_like(const struct given *given, uint32_t index)
{
    const struct ms_tensor tensor = given_at(given->layout, index);
    const uint32_t found = find_given(given, tensor.name);
    const struct ms_tensor first = given_at(given->layout, found);
    return ms_tensor_is_alike(&first, &tensor) ? found : index;
}

static bool list_given(struct ms_layout *layout, const struct given *given, size_t *positions,
                       struct ms_fault *fault)
{
    for (uint32_t i = 0; i < layout->source.count; i++) {
        const uint32_t first = layout->source.has_declared ? first_like(given, i) : i;
        if (positions[first] == NOWHERE) {
            positions[first] = layout->count;
            if (!add_tensor(layout, true, first, fault))
                return false;
        }
        positions[i] = positions[first];
    }
    return true;
}

static bool list_tensors(struct ms_layout *layout, size_t *positions, struct ms_fault *fault)
{
    struct given given = {.layout = layout};
    for (size_t i = 0; i < layout->source.count; i++)
        positions[i] = NOWHERE;
    bool is_good = true;
    if (layout->source.has_declared)
        is_good = (list_names(&given) || ms_fault_set(fault, "out of memory")) &&
                  list_declared(layout, &given, positions, fault);
    is_good = is_good && list_given(layout, &given, positions, fault);
    ms_hash_set_cleanup(&given.first);
    return is_good;
}

/* --- the entry of each tensor */

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

static const char *check_ranges(const struct ms_terms *terms, uint32_t world, uint64_t bytes)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        if (terms->ranges[rank] < terms->ranges[rank + 1] &&
            terms->ranges[rank + 1][-1].end > bytes)
            return "is shorter than a range of its entry";
    }
    return NULL;
}

/* Returns NULL, or what is wrong with the tensor. */
static const char *check_bound(const struct ms_plan *plan, uint32_t entry,
                               const struct ms_tensor *tensor)
{
    const struct ms_terms *terms = ms_terms_of(plan, entry);
    const struct ms_entry_says says = ms_entry_at(plan, entry);
    if (says.has_form && !ms_tensor_is_alike(&says.tensor, tensor))
        return "has another dtype or shape than its entry says";
    if (terms->ranges != NULL)
        return check_ranges(terms, plan->mesh.world, tensor->bytes);
    const char *fault = NULL;
    for (unsigned i = 0; i < terms->cut_count && fault == NULL; i++)
        fault = check_cut(&terms->cuts[i], tensor);
    return fault;
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
    const struct ms_cut *cut = ms_layout_fsdp1_cut(layout, member->tensor);
    if (is_first)
        layout->units[layout->unit_count++] =
            (struct ms_unit){member->unit, cut->mesh_dim, member->tensor};
    const struct ms_unit *unit = &layout->units[layout->unit_count - 1];
    struct ms_bound *bound = ms_layout_bound(layout, member->tensor);
    bound->unit = (uint32_t)(layout->unit_count - 1);
    if (unit->mesh_dim != cut->mesh_dim)
        return ms_fault_set(fault, "tensors[%u]: unit %s: expected one flat mesh dimension",
                            bound->entry, unit->name);
    if (ms_layout_at(layout, unit->first).tensor.dtype !=
        ms_layout_at(layout, member->tensor).tensor.dtype)
        return ms_fault_set(fault, "tensors[%u]: unit %s: expected tensors of one dtype",
                            bound->entry, unit->name);
    return true;
}

static bool make_units(struct ms_layout *layout, struct ms_fault *fault)
{
    struct ms_pages pages = {0};
    size_t count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_cut *cut = ms_layout_fsdp1_cut(layout, i);
        if (cut == NULL)
            continue;
        if (!ms_pages_grow(&pages, (count + 1) * sizeof(struct member))) {
            ms_pages_cleanup(&pages);
            return ms_fault_set(fault, "out of memory");
        }
        ((struct member *)pages.memory)[count++] = (struct member){cut->unit, i};
    }
    struct member *members = pages.memory;
    if (count > 0)
        qsort(members, count, sizeof(*members), by_unit);
    size_t units = 0;
    for (size_t i = 0; i < count; i++)
        units += i == 0 || strcmp(members[i - 1].unit, members[i].unit) != 0;
    layout->units = ms_arena_take(&layout->arena, units, sizeof(*layout->units));
    bool is_good = layout->units != NULL || ms_fault_set(fault, "out of memory");
    for (size_t i = 0; i < count && is_good; i++)
        is_good = add_member(layout, &members[i],
                             i == 0 || strcmp(members[i - 1].unit, members[i].unit) != 0, fault);
    ms_pages_cleanup(&pages);
    return is_good;
}

static bool bind_tensors(struct ms_layout *layout, struct ms_fault *fault)
{
    const struct ms_plan *plan = layout->plan;
    bool is_good = true;
    for (size_t i = 0; i < layout->count && is_good; i++) {
        const struct ms_tensor tensor = ms_layout_at(layout, i).tensor;
        const uint32_t entry = ms_entry_find(plan, &tensor, i);
        const char *wrong = entry != MS_NO_NUMBER ? check_bound(plan, entry, &tensor) : NULL;
        ms_layout_bound(layout, i)->entry = entry;
        if (wrong != NULL)
            is_good = ms_fault_set(fault, "tensors[%u]: tensor %s %s", entry,
                                   tensor.name != NULL ? tensor.name : "without a name", wrong);
        layout->bytes += tensor.bytes;
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
    layout->source = *source;
    if (!list_tensors(layout, positions_out, fault) || !bind_tensors(layout, fault) ||
        !make_units(layout, fault)) {
        ms_layout_destroy(layout);
        return false;
    }
    *layout_out = layout;
    return true;
}

static struct ms_tensor checkpoint_at(const void *context, size_t index)
{
    return ms_checkpoint_tensor(context, index);
}

bool ms_layout_create(const struct ms_plan *plan, const struct ms_checkpoint *checkpoint,
                      struct ms_layout **layout_out, struct ms_fault *fault)
{
    const size_t count = checkpoint != NULL ? ms_checkpoint_count(checkpoint) : 0;
    struct ms_pages positions = {0};
    const struct ms_layout_source source = {.at = checkpoint_at,
                                            .context = checkpoint,
                                            .count = count,
                                            .has_declared = true,
                                            .is_complete = checkpoint != NULL};
    const bool is_good =
        ms_pages_grow(&positions, count * sizeof(size_t))
            ? ms_layout_create_of(plan, &source, positions.memory, layout_out, fault)
            : ms_fault_set(fault, "out of memory");
    ms_pages_cleanup(&positions);
    return is_good;
}

void ms_layout_destroy(struct ms_layout *layout)
{
    if (layout != NULL) {
        ms_arena_cleanup(&layout->arena);
        ms_pages_cleanup(&layout->bound);
    }
    ms_heap_free(layout);
}

struct ms_laid ms_layout_at(const struct ms_layout *layout, size_t index)
{
    const struct ms_bound *bound = ms_layout_bound(layout, index);
    const bool is_decided = bound->entry != MS_NO_NUMBER;
    return (
        struct ms_laid){.tensor = bound->is_given ? given_at(layout, bound->tensor)
                                                  : ms_entry_at(layout->plan, bound->tensor).tensor,
                        .entry = is_decided ? bound->entry : SIZE_MAX,
                        .unit = ms_layout_fsdp1_cut(layout, index) != NULL ? bound->unit : SIZE_MAX,
                        .is_declaration = !bound->is_given};
}
