/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of plans and layouts, for runtime/plan/ only. */
#pragma once

#include "runtime/document/json.h"
#include "runtime/plan/placement.h"

enum ms_cut_kind { MS_CUT_SHARD, MS_CUT_ZERO3, MS_CUT_FSDP1 };

/* A placement that is not "replicate". */
struct ms_cut {
    uint8_t kind; /* enum ms_cut_kind */
    uint8_t mesh_dim;
    uint8_t dim; /* shard: the tensor's dimension */
    uint8_t part_count;
    const uint64_t *parts; /* interleave: proportions */
    uint64_t part_sum;
    const char *unit; /* fsdp1 */
};

/* The content of an entry beside name, dtype and shape. Entries with equal terms share them. */
struct ms_terms {
    bool has_size, has_order;
    uint64_t size, order;
    unsigned cut_count; /* in the order they are applied; flat is the last */
    struct ms_cut *cuts;
    struct ms_range **ranges; /* by rank: the first range; at [world] the end. NULL: none */
};

/* 16 bytes for each tensor that a plan declares, and its name. */
struct ms_plan_entry {
    const char *name;      /* NULL: not selected by name */
    uint32_t form;         /* number of the dtype and shape in `forms`; MS_NO_NUMBER: none */
    uint32_t is_exact : 1; /* the name is not a pattern */
    uint32_t terms : 31;
};

static inline struct ms_plan_entry *ms_plan_entries(const struct ms_plan *plan)
{
    return plan->entries.memory;
}

static inline const struct ms_terms *ms_terms_of(const struct ms_plan *plan, size_t entry)
{
    return (const struct ms_terms *)plan->terms.memory + ms_plan_entries(plan)[entry].terms;
}

struct ms_unit {
    const char *name;
    unsigned mesh_dim;
    size_t first; /* the unit's first tensor in the layout */
};

/* A tensor of a layout: 12 bytes. */
struct ms_bound {
    uint32_t is_given : 1; /* 0: the tensor is declared by an entry */
    uint32_t tensor : 31;  /* its index among the given tensors, or the entry's index */
    uint32_t entry;        /* that decides the tensor; MS_NO_NUMBER: none */
    uint32_t unit;         /* fsdp1 */
};

static inline struct ms_bound *ms_layout_bound(const struct ms_layout *layout, size_t tensor)
{
    return (struct ms_bound *)layout->bound.memory + tensor;
}

/* The terms of the entry that decides the tensor; NULL: no entry does. */
static inline const struct ms_terms *ms_bound_terms(const struct ms_layout *layout, size_t tensor)
{
    const uint32_t entry = ms_layout_bound(layout, tensor)->entry;
    return entry != MS_NO_NUMBER ? ms_terms_of(layout->plan, entry) : NULL;
}

/* The cut that makes the tensor a member of a unit, or NULL. */
static inline const struct ms_cut *ms_layout_fsdp1_cut(const struct ms_layout *layout,
                                                       size_t tensor)
{
    const struct ms_terms *terms = ms_bound_terms(layout, tensor);
    if (terms == NULL || terms->cut_count == 0)
        return NULL;
    const struct ms_cut *last = &terms->cuts[terms->cut_count - 1];
    return last->kind == MS_CUT_FSDP1 ? last : NULL;
}

/* A plan while it is read. */
struct ms_plan_parser {
    const struct ms_fault_context *reading;
    struct ms_plan *plan;
    struct ms_hash_set known_terms;
};
/* Reads the list of all entries into the plan. Entries with equal terms share them. */
bool ms_entry_parse_all(struct ms_plan_parser *parser, const char *list);

/* The entry that decides the tensor, whose index in the layout is `order`; MS_NO_NUMBER: none. */
uint32_t ms_entry_find(const struct ms_plan *plan, const struct ms_tensor *tensor, size_t order);

/* The chunk rule: each rank's chunk when `ranks` share `count` elements. */
static inline uint64_t ms_chunk(uint64_t count, uint64_t ranks)
{
    return count / ranks + (count % ranks != 0);
}

static inline struct ms_range ms_chunk_of(uint64_t count, uint64_t ranks, uint64_t rank)
{
    const uint64_t chunk = ms_chunk(count, ranks), begin = chunk * rank;
    if (begin >= count)
        return (struct ms_range){count, count};
    return (struct ms_range){begin, count - begin < chunk ? count : begin + chunk};
}

static inline uint32_t ms_mesh_coordinate(const struct ms_mesh *mesh, uint32_t rank, unsigned dim)
{
    return rank / mesh->stride[dim] % mesh->size[dim];
}
