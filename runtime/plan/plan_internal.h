/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of plans and layouts, for runtime/plan/ only. */
#pragma once

#include "runtime/base/arena.h"
#include "runtime/document/json.h"
#include "runtime/plan/placement.h"

enum ms_cut_kind { MS_CUT_SHARD, MS_CUT_ZERO3, MS_CUT_FSDP1 };

/* A placement that is not "replicate". */
struct ms_cut {
    enum ms_cut_kind kind;
    unsigned mesh_dim;
    unsigned dim; /* shard: the tensor's dimension */
    unsigned part_count;
    const uint64_t *parts; /* interleave: proportions */
    uint64_t part_sum;
    const char *unit; /* fsdp1 */
};

struct ms_plan_entry {
    const char *name; /* NULL: not selected by name */
    bool is_exact, has_size, has_order, has_shape;
    uint64_t size, order;
    struct ms_tensor like; /* has_shape: dtype, shape, elements, bytes */
    unsigned cut_count;    /* in the order they are applied; flat is the last */
    struct ms_cut *cuts;
    struct ms_range **ranges; /* by rank, and the end; NULL: none */
};

struct ms_plan {
    struct ms_arena arena;
    struct ms_mesh mesh;
    bool has_rank;
    uint32_t rank;
    size_t count;
    struct ms_plan_entry *entries;
    size_t exact_count, other_count;
    const struct ms_plan_entry **exact;  /* with an exact name, sorted by it */
    const struct ms_plan_entry **others; /* in their order */
};

struct ms_unit {
    const char *name;
    unsigned mesh_dim;
    size_t first; /* its first tensor in the list */
};

struct ms_bound {
    const struct ms_plan_entry *entry; /* NULL: none matches */
    uint32_t unit;                     /* fsdp1 */
};

struct ms_layout {
    struct ms_arena arena;
    const struct ms_plan *plan;
    size_t count;
    const struct ms_tensor **tensors;
    struct ms_bound *bound;
    struct ms_unit *units;
    size_t unit_count;
    uint64_t bytes;
};

bool ms_mesh_parse(const struct ms_fault_context *reading, json_t *document, struct ms_plan *plan);
bool ms_mesh_number(struct ms_mesh *mesh); /* world and strides from sizes; false: too large */
bool ms_placements_parse(const struct ms_fault_context *reading, const struct ms_place *place,
                         json_t *value, struct ms_plan *plan, struct ms_plan_entry *entry);
bool ms_ranges_parse(const struct ms_fault_context *reading, const struct ms_place *place,
                     json_t *value, struct ms_plan *plan, struct ms_plan_entry *entry);

/* The box that the entry's shard cuts leave to the rank; a flat cut does not change it. */
void ms_index_box_make(struct ms_index_box *box, const struct ms_mesh *mesh,
                       const struct ms_plan_entry *entry, const struct ms_tensor *tensor,
                       uint32_t rank);

/* The bytes of a rank's explicit ranges. */
uint64_t ms_listed_bytes(const struct ms_plan_entry *entry, uint32_t rank);

/* The chunk rule: `count` elements over `ranks`. */
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
