/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/placement.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/plan/plan_internal.h"

struct ms_placement {
    const struct ms_layout *layout;
    uint32_t rank;
    uint64_t total, padding;
    struct ms_pages shares;
};

/* The rank's share of one tensor: elements of the box; unused with explicit ranges. */
static struct ms_range *share_of(const struct ms_placement *placement, size_t tensor)
{
    return (struct ms_range *)placement->shares.memory + tensor;
}

static void add_span(struct ms_axis *axis, uint64_t begin, uint64_t end)
{
    if (begin == end)
        return;
    axis->length += end - begin;
    if (axis->count > 0 && axis->spans[axis->count - 1].end == begin)
        axis->spans[axis->count - 1].end = end;
    else
        axis->spans[axis->count++] = (struct ms_range){begin, end};
}

/* Keeps the positions `kept` of the axis's indices. Overwrites only spans already read. */
static void keep(struct ms_axis *axis, struct ms_range kept)
{
    uint64_t position = 0;
    const unsigned count = axis->count;
    axis->count = 0;
    axis->length = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct ms_range span = axis->spans[i];
        const uint64_t length = span.end - span.begin;
        const uint64_t low = kept.begin > position ? kept.begin - position : 0;
        const uint64_t high = kept.end > position ? kept.end - position : 0;
        if (low < length && low < high)
            add_span(axis, span.begin + low, span.begin + (high < length ? high : length));
        position += length;
    }
}

static void interleave(struct ms_axis *axis, const struct ms_cut *cut, uint32_t ranks,
                       uint32_t rank)
{
    const uint64_t unit = axis->extent / cut->part_sum;
    uint64_t base = 0;
    axis->count = 0;
    axis->length = 0;
    for (unsigned i = 0; i < cut->part_count; i++) {
        const struct ms_range kept = ms_chunk_of(cut->parts[i] * unit, ranks, rank);
        add_span(axis, base + kept.begin, base + kept.end);
        base += cut->parts[i] * unit;
    }
}

static void box_init(struct ms_index_box *box, const struct ms_tensor *tensor)
{
    box->dims = tensor->dims;
    for (unsigned i = 0; i < tensor->dims; i++) {
        box->axis[i].extent = tensor->shape[i];
        box->axis[i].length = 0;
        box->axis[i].count = 0;
        add_span(&box->axis[i], 0, tensor->shape[i]);
    }
}

/* The box that the shard cuts leave to the rank; a flat cut does not change it. */
static void box_make(struct ms_index_box *box, const struct ms_mesh *mesh,
                     const struct ms_terms *terms, const struct ms_tensor *tensor, uint32_t rank)
{
    box_init(box, tensor);
    for (unsigned i = 0; i < terms->cut_count; i++) {
        const struct ms_cut *cut = &terms->cuts[i];
        const uint32_t ranks = mesh->size[cut->mesh_dim];
        const uint32_t at = ms_mesh_coordinate(mesh, rank, cut->mesh_dim);
        if (cut->kind == MS_CUT_SHARD && cut->part_count > 0)
            interleave(&box->axis[cut->dim], cut, ranks, at);
        else if (cut->kind == MS_CUT_SHARD)
            keep(&box->axis[cut->dim], ms_chunk_of(box->axis[cut->dim].length, ranks, at));
    }
    box->elements = 1;
    for (unsigned i = 0; i < box->dims; i++)
        box->elements *= box->axis[i].length;
}

static uint64_t element_bytes(const struct ms_tensor *tensor)
{
    return ms_dtype_bits[tensor->dtype] / 8;
}

/* The rank's chunk of the elements that a flat cut shares out; *padding_out: how many elements the
 * chunk lacks. */
static struct ms_range flat_range(const struct ms_mesh *mesh, uint32_t rank,
                                  const struct ms_cut *cut, uint64_t elements,
                                  uint64_t *padding_out)
{
    const uint32_t ranks = mesh->size[cut->mesh_dim];
    const struct ms_range kept =
        ms_chunk_of(elements, ranks, ms_mesh_coordinate(mesh, rank, cut->mesh_dim));
    *padding_out = ms_chunk(elements, ranks) - (kept.end - kept.begin);
    return kept;
}

static bool is_listed(const struct ms_terms *terms)
{
    return terms != NULL && terms->ranges != NULL;
}

/* The bytes of a rank's explicit ranges. */
static uint64_t listed_bytes(const struct ms_terms *terms, uint32_t rank)
{
    uint64_t sum = 0;
    for (const struct ms_range *range = terms->ranges[rank]; range < terms->ranges[rank + 1];
         range++)
        sum += range->end - range->begin;
    return sum;
}

/* True if the tensor is not cut at all. */
static bool is_whole(const struct ms_terms *terms)
{
    return terms == NULL || (terms->cut_count == 0 && terms->ranges == NULL);
}

/* The bytes of a tensor that explicit ranges or shard cuts leave to the rank, before a flat cut.
 * `terms` may be NULL; `box` is scratch. */
static uint64_t unflat_bytes(const struct ms_mesh *mesh, const struct ms_terms *terms,
                             const struct ms_tensor *tensor, uint32_t rank,
                             struct ms_index_box *box)
{
    if (is_whole(terms)) /* elements may be smaller than a byte */
        return tensor->bytes;
    if (terms->ranges != NULL)
        return listed_bytes(terms, rank);
    box_make(box, mesh, terms, tensor, rank);
    return box->elements * element_bytes(tensor);
}

/* Sets the rank's share; for fsdp1, at first the tensor's place in its unit. filled: elements by
 * unit. */
static void share_make(struct ms_placement *placement, size_t index, struct ms_index_box *box,
                       uint64_t *filled)
{
    const struct ms_layout *layout = placement->layout;
    const struct ms_tensor tensor = ms_layout_at(layout, index).tensor;
    const struct ms_mesh *mesh = &layout->plan->mesh;
    const struct ms_terms *terms = ms_bound_terms(layout, index);
    struct ms_range *share = share_of(placement, index);
    if (is_whole(terms)) {
        *share = (struct ms_range){0, tensor.elements};
        return;
    }
    if (terms->ranges != NULL)
        return;
    box_make(box, mesh, terms, &tensor, placement->rank);
    const struct ms_cut *last = &terms->cuts[terms->cut_count - 1];
    uint64_t padding = 0;
    *share = (struct ms_range){0, box->elements};
    if (last->kind == MS_CUT_ZERO3) {
        *share = flat_range(mesh, placement->rank, last, box->elements, &padding);
        placement->padding += padding * element_bytes(&tensor);
    } else if (last->kind == MS_CUT_FSDP1) {
        uint64_t *offset = &filled[ms_layout_bound(layout, index)->unit];
        *share = (struct ms_range){*offset, *offset + box->elements};
        *offset = share->end;
    }
}

/* Converts an fsdp1 tensor's place in its unit to the share, as the unit's size is known now. */
static void share_finish(struct ms_placement *placement, size_t index, const uint64_t *filled)
{
    const struct ms_layout *layout = placement->layout;
    const struct ms_cut *cut = ms_layout_fsdp1_cut(layout, index);
    if (cut == NULL)
        return;
    const uint32_t unit = ms_layout_bound(layout, index)->unit;
    struct ms_range *share = share_of(placement, index);
    uint64_t padding;
    const struct ms_range kept =
        flat_range(&layout->plan->mesh, placement->rank, cut, filled[unit], &padding);
    const uint64_t offset = share->begin, behind = share->end;
    const uint64_t begin = kept.begin > offset ? kept.begin : offset;
    const uint64_t end = kept.end < behind ? kept.end : behind;
    *share =
        begin < end ? (struct ms_range){begin - offset, end - offset} : (struct ms_range){0, 0};
    if (layout->units[unit].first == index) {
        const struct ms_tensor tensor = ms_layout_at(layout, index).tensor;
        placement->padding += padding * element_bytes(&tensor);
    }
}

struct ms_placement *ms_placement_create(const struct ms_layout *layout, uint32_t rank)
{
    struct ms_placement *placement = ms_heap_zalloc(sizeof(*placement));
    uint64_t *filled = ms_heap_zalloc((layout->unit_count + 1) * sizeof(*filled));
    struct ms_index_box *box = ms_heap_alloc(sizeof(*box));
    struct ms_pages shares = {0};
    if (placement == NULL || filled == NULL || box == NULL ||
        !ms_pages_grow(&shares, layout->count * sizeof(struct ms_range))) {
        ms_heap_free(placement);
        placement = NULL;
        goto out;
    }
    *placement = (struct ms_placement){.layout = layout, .rank = rank, .shares = shares};
    for (size_t i = 0; i < layout->count; i++)
        share_make(placement, i, box, filled);
    for (size_t i = 0; i < layout->count; i++) {
        share_finish(placement, i, filled);
        placement->total += ms_placement_bytes(placement, i);
    }
out:
    ms_heap_free(filled);
    ms_heap_free(box);
    return placement;
}

void ms_placement_destroy(struct ms_placement *placement)
{
    if (placement != NULL)
        ms_pages_cleanup(&placement->shares);
    ms_heap_free(placement);
}

uint64_t ms_placement_bytes(const struct ms_placement *placement, size_t tensor)
{
    const struct ms_terms *terms = ms_bound_terms(placement->layout, tensor);
    const struct ms_range *share = share_of(placement, tensor);
    if (is_listed(terms))
        return listed_bytes(terms, placement->rank);
    const struct ms_tensor of = ms_layout_at(placement->layout, tensor).tensor;
    /* A whole tensor may have elements smaller than a byte. */
    return is_whole(terms) ? of.bytes : (share->end - share->begin) * element_bytes(&of);
}

uint64_t ms_placement_total(const struct ms_placement *placement)
{
    return placement->total;
}

uint64_t ms_placement_padding(const struct ms_placement *placement)
{
    return placement->padding;
}

/* Returns the tensor's index for a position among the axis's indices. */
static uint64_t index_at(const struct ms_axis *axis, uint64_t position, uint64_t *left_out)
{
    const struct ms_range *span = axis->spans;
    while (position >= span->end - span->begin) {
        position -= span->end - span->begin;
        span++;
    }
    *left_out = span->end - span->begin - position;
    return span->begin + position;
}

/* Finds the run of elements at cursor->at. The box has dimensions, and `at` is before the end. */
static void find_run(struct ms_cursor *cursor)
{
    const struct ms_index_box *box = &cursor->box;
    const unsigned inner = cursor->inner;
    const uint64_t row = cursor->stride[inner];
    uint64_t rest = cursor->at / row, left = 0, alike = 1;
    cursor->begin = cursor->at % row;
    for (unsigned i = inner + 1; i-- > 0;) {
        const struct ms_axis *axis = &box->axis[i];
        cursor->begin += index_at(axis, rest % axis->length, &left) * cursor->stride[i];
        rest /= axis->length;
        if (i == inner && left * row - cursor->at % row < cursor->length)
            cursor->length = left * row - cursor->at % row;
        else if (i + 1 == inner)
            alike = left;
    }
    /* If a whole row is one span, the rows behind it are found without division. */
    if (cursor->length == box->axis[inner].length * row) {
        const uint64_t rows = (cursor->end - cursor->at) / cursor->length;
        cursor->repeats = (alike < rows ? alike : rows) - 1;
    }
}

/* Returns the run of bytes at element cursor->at of the box, and moves behind it. */
static struct ms_range next_run(struct ms_cursor *cursor)
{
    if (cursor->listed != NULL) {
        if (cursor->listed_left == 0)
            return (struct ms_range){0, 0};
        cursor->listed_left--;
        return *cursor->listed++;
    }
    if (cursor->at >= cursor->end)
        return (struct ms_range){0, 0};
    if (cursor->repeats > 0) {
        cursor->repeats--;
        cursor->begin += cursor->stride[cursor->inner - 1];
    } else {
        cursor->begin = cursor->at;
        cursor->length = cursor->end - cursor->at;
        if (cursor->box.dims > 0)
            find_run(cursor);
    }
    cursor->at += cursor->length;
    return (struct ms_range){cursor->begin * cursor->element_bytes,
                             (cursor->begin + cursor->length) * cursor->element_bytes};
}

static void set_strides(struct ms_cursor *cursor)
{
    uint64_t stride = 1;
    cursor->inner = 0;
    for (unsigned i = cursor->box.dims; i-- > 0;) {
        const struct ms_axis *axis = &cursor->box.axis[i];
        cursor->stride[i] = stride;
        stride *= axis->extent;
        if (axis->length != axis->extent && cursor->inner == 0)
            cursor->inner = i;
    }
}

void ms_placement_begin(struct ms_cursor *cursor, const struct ms_placement *placement,
                        size_t tensor)
{
    const struct ms_layout *layout = placement->layout;
    const struct ms_terms *terms = ms_bound_terms(layout, tensor);
    const struct ms_tensor of = ms_layout_at(layout, tensor).tensor;
    const struct ms_range *share = share_of(placement, tensor);
    cursor->listed = NULL;
    cursor->repeats = 0;
    if (is_listed(terms)) {
        cursor->listed = terms->ranges[placement->rank];
        cursor->listed_left = (size_t)(terms->ranges[placement->rank + 1] - cursor->listed);
    } else if (is_whole(terms)) {
        /* Whole; elements may be smaller than a byte. */
        cursor->box.dims = 0;
        cursor->at = 0;
        cursor->end = of.bytes;
        cursor->element_bytes = 1;
    } else {
        box_make(&cursor->box, &layout->plan->mesh, terms, &of, placement->rank);
        cursor->at = share->begin;
        cursor->end = share->end;
        cursor->element_bytes = element_bytes(&of);
        set_strides(cursor);
    }
    cursor->next = next_run(cursor);
}

bool ms_placement_next(struct ms_cursor *cursor, struct ms_range *range_out)
{
    struct ms_range range = cursor->next;
    if (range.begin == range.end)
        return false;
    cursor->next = next_run(cursor);
    while (cursor->next.begin == range.end && cursor->next.begin < cursor->next.end) {
        range.end = cursor->next.end;
        cursor->next = next_run(cursor);
    }
    *range_out = range;
    return true;
}

/* --- the census of all ranks */

/* Tensors of one unit with the same kind: one form, and equal cuts. */
struct member {
    const struct ms_terms *terms; /* NULL: no entry decides them */
    uint32_t form;
    uint32_t unit, kind;
    uint64_t times;
};

enum { NO_UNIT = UINT32_MAX };

/* A unit's tensors, which are cut flat as one, or one tensor; `times` counts equal groups. */
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
        const struct ms_tensor tensor = ms_layout_at(layout, i).tensor;
        const size_t unit = ms_layout_at(layout, i).unit;
        members[i] = (struct member){.terms = ms_bound_terms(layout, i),
                                     .form = ms_forms_add(forms, &tensor),
                                     .unit = unit != SIZE_MAX ? (uint32_t)unit : NO_UNIT,
                                     .times = 1};
        if (members[i].form == MS_NO_NUMBER)
            return false;
    }
    return true;
}

/* Sorts by unit and kind, and merges equal members. Returns their number. */
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

/* Forms groups and merges equal ones. Returns their number. */
static size_t list_groups(struct member *members, size_t count, struct group *groups)
{
    size_t found = 0, kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && members[i].unit != NO_UNIT && members[i].unit == members[i - 1].unit)
            groups[found - 1].count++;
        else
            groups[found++] = (struct group){&members[i], 1, 1};
        if (members[i].unit == NO_UNIT) { /* each tensor is cut alone */
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

/* Adds the bytes that the rank keeps of a group. */
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
        bytes += member->times * unflat_bytes(mesh, member->terms, &tensor, rank, box);
    }
    const struct ms_cut *last = cuts_of(terms) > 0 ? &terms->cuts[terms->cut_count - 1] : NULL;
    if (last != NULL && last->kind != MS_CUT_SHARD) {
        uint64_t padding;
        const struct ms_range kept =
            flat_range(mesh, rank, last, bytes / element_bytes(&tensor), &padding);
        bytes = (kept.end - kept.begin) * element_bytes(&tensor);
        census->padding[rank] += group->times * padding * element_bytes(&tensor);
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
