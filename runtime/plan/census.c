/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/census.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/plan/plan_internal.h"

/* Tensors of one kind in one place: of one form, and cut alike. */
struct member {
    const struct ms_terms *terms; /* NULL: no entry decides it */
    uint32_t form;
    uint32_t unit, kind;
    uint64_t times;
};

enum { NO_UNIT = UINT32_MAX };

/* What is cut flat as one: the tensors of a unit, or one tensor; and units that are alike. */
struct group {
    const struct member *members;
    size_t count;
    uint64_t times;
};

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_cuts(const struct ms_cut *a, const struct ms_cut *b)
{
    const uint64_t left[] = {a->kind, a->mesh_dim, a->dim, a->part_count};
    const uint64_t right[] = {b->kind, b->mesh_dim, b->dim, b->part_count};
    const int order = memcmp(left, right, sizeof(left));
    return order != 0 || a->part_count == 0
               ? order
               : memcmp(a->parts, b->parts, a->part_count * sizeof(*a->parts));
}

static bool is_listed(const struct ms_terms *terms)
{
    return terms != NULL && terms->ranges != NULL;
}

static unsigned cuts_of(const struct ms_terms *terms)
{
    return terms != NULL ? terms->cut_count : 0;
}

static int by_kind(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    int order = compare(left->form, right->form);
    if (order == 0 && (is_listed(left->terms) || is_listed(right->terms)))
        return compare((uintptr_t)left->terms, (uintptr_t)right->terms);
    if (order == 0)
        order = compare(cuts_of(left->terms), cuts_of(right->terms));
    for (unsigned i = 0; order == 0 && i < cuts_of(left->terms); i++)
        order = compare_cuts(&left->terms->cuts[i], &right->terms->cuts[i]);
    return order;
}

static int by_unit(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    const int order = compare(left->unit, right->unit);
    return order != 0 ? order : compare(left->kind, right->kind);
}

static int by_members(const void *a, const void *b)
{
    const struct group *left = a, *right = b;
    int order = compare(left->count, right->count);
    for (size_t i = 0; order == 0 && i < left->count; i++) {
        order = compare(left->members[i].kind, right->members[i].kind);
        if (order == 0)
            order = compare(left->members[i].times, right->members[i].times);
    }
    return order;
}

/* False: out of memory. */
static bool take_members(const struct ms_layout *layout, struct ms_forms *forms,
                         struct member *members)
{
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_tensor tensor = ms_layout_tensor(layout, i);
        const size_t unit = ms_layout_unit(layout, i);
        members[i] = (struct member){.terms = ms_bound_terms(layout, i),
                                     .form = ms_forms_add(forms, &tensor),
                                     .unit = unit != SIZE_MAX ? (uint32_t)unit : NO_UNIT,
                                     .times = 1};
        if (members[i].form == MS_NO_NUMBER)
            return false;
    }
    return true;
}

/* Lists the tensors by unit and kind; returns the number of members. */
static size_t list_members(struct member *members, size_t count)
{
    size_t kept = 0;
    qsort(members, count, sizeof(*members), by_kind);
    for (size_t i = 1; i < count; i++)
        members[i].kind = members[i - 1].kind + (by_kind(&members[i - 1], &members[i]) != 0);
    qsort(members, count, sizeof(*members), by_unit);
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && by_unit(&members[kept - 1], &members[i]) == 0)
            members[kept - 1].times++;
        else
            members[kept++] = members[i];
    }
    return kept;
}

/* Returns the number of groups. */
static size_t list_groups(struct member *members, size_t count, struct group *groups)
{
    size_t found = 0, kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && members[i].unit != NO_UNIT && members[i].unit == members[i - 1].unit)
            groups[found - 1].count++;
        else
            groups[found++] = (struct group){&members[i], 1, 1};
        if (members[i].unit == NO_UNIT) { /* each is cut alone */
            groups[found - 1].times = members[i].times;
            members[i].times = 1;
        }
    }
    qsort(groups, found, sizeof(*groups), by_members);
    for (size_t i = 0; i < found; i++) {
        if (kept > 0 && by_members(&groups[kept - 1], &groups[i]) == 0)
            groups[kept - 1].times += groups[i].times;
        else
            groups[kept++] = groups[i];
    }
    return kept;
}

/* Adds what the rank gets of a group. */
static void add_group(struct ms_census *census, const struct ms_mesh *mesh, uint32_t rank,
                      const struct group *group, const struct ms_forms *forms,
                      struct ms_index_box *box)
{
    const struct ms_terms *terms = group->members->terms;
    struct ms_tensor tensor = {0};
    uint64_t bytes = 0;
    for (const struct member *member = group->members; member < group->members + group->count;
         member++) {
        ms_forms_get(forms, member->form, &tensor);
        bytes += member->times * ms_placement_unflat_bytes(mesh, member->terms, &tensor, rank, box);
    }
    const struct ms_cut *last = cuts_of(terms) > 0 ? &terms->cuts[terms->cut_count - 1] : NULL;
    if (last != NULL && last->kind != MS_CUT_SHARD) {
        const uint64_t element_bytes = ms_dtype_bits[tensor.dtype] / 8;
        const uint64_t elements = bytes / element_bytes;
        const uint32_t ranks = mesh->size[last->mesh_dim];
        const struct ms_range kept =
            ms_chunk_of(elements, ranks, ms_mesh_coordinate(mesh, rank, last->mesh_dim));
        const uint64_t most = ms_chunk(elements, ranks) * element_bytes;
        bytes = (kept.end - kept.begin) * element_bytes;
        census->padding[rank] += group->times * (most - bytes);
    }
    census->bytes[rank] += group->times * bytes;
}

bool ms_census_init(struct ms_census *census, const struct ms_layout *layout)
{
    const struct ms_mesh *mesh = &layout->plan->mesh;
    *census = (struct ms_census){.world = mesh->world,
                                 .bytes = ms_heap_zalloc(mesh->world * sizeof(uint64_t)),
                                 .padding = ms_heap_zalloc(mesh->world * sizeof(uint64_t))};
    struct member *members = ms_heap_alloc((layout->count + 1) * sizeof(*members));
    struct group *groups = ms_heap_alloc((layout->count + 1) * sizeof(*groups));
    struct ms_index_box *box = ms_heap_alloc(sizeof(*box));
    struct ms_forms forms = {0};
    const bool is_good = census->bytes != NULL && census->padding != NULL && members != NULL &&
                         groups != NULL && box != NULL && take_members(layout, &forms, members);
    if (is_good) {
        const size_t count = list_groups(members, list_members(members, layout->count), groups);
        for (uint32_t rank = 0; rank < mesh->world; rank++) {
            for (size_t i = 0; i < count; i++)
                add_group(census, mesh, rank, &groups[i], &forms, box);
        }
    } else {
        ms_census_cleanup(census);
    }
    ms_forms_cleanup(&forms);
    ms_heap_free(members);
    ms_heap_free(groups);
    ms_heap_free(box);
    return is_good;
}

void ms_census_cleanup(struct ms_census *census)
{
    ms_heap_free(census->bytes);
    ms_heap_free(census->padding);
    census->bytes = census->padding = NULL;
}
