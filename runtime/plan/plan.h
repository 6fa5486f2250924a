/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharding plans: which bytes of every tensor each rank keeps. The format is docs/plan-format.md.
 *
 *   plan        the parsed document: its entries, and the tensors that they declare
 *   layout      a plan over a list of tensors: each tensor with the entry that decides it
 *   placement   the bytes of each tensor of a layout that one rank keeps (placement.h)
 *   census      the number of bytes that each rank keeps (placement.h)
 *
 * The caller owns all objects. They are immutable once created (but see ms_plan_resize), so any
 * thread may use them. The functions do not recurse, and trust no input.
 */
#pragma once

#include <stddef.h>

#include "runtime/base/arena.h"
#include "runtime/base/hash_set.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/forms.h"
#include "runtime/checkpoint/tensor.h"
#include "runtime/document/fault.h"

/* An entry of a few bytes of text takes 150 bytes of memory. */
enum { MS_MESH_DIMS_MAX = 8, MS_WORLD_MAX = 1 << 20, MS_PLAN_MAX_ENTRIES = 4 << 20 };

/* Ranks are numbered row-major: rank = sum of coordinate[i] * stride[i]; the last stride is 1. */
struct ms_mesh {
    unsigned dims;
    uint32_t world;
    const char *name[MS_MESH_DIMS_MAX];
    uint32_t size[MS_MESH_DIMS_MAX], stride[MS_MESH_DIMS_MAX];
};

/* Other folders read `mesh` and `count` only. */
struct ms_plan {
    struct ms_arena arena; /* names, and the memory that terms point to */
    struct ms_mesh mesh;
    bool has_rank;
    uint32_t rank;
    uint32_t count; /* of entries */
    struct ms_pages entries;
    struct ms_pages terms; /* by number */
    uint32_t terms_count;
    struct ms_forms forms;
    struct ms_hash_set exact; /* entries with an exact name, by name */
    struct ms_pages others;   /* the other entries, in their order */
    uint32_t other_count;
};

/* `file` is the name that faults show. */
bool ms_plan_parse(const char *text, size_t bytes, const char *file, struct ms_plan **plan_out,
                   struct ms_fault *fault);
bool ms_plan_read(const char *path, struct ms_plan **plan_out, struct ms_fault *fault);
void ms_plan_destroy(struct ms_plan *plan); /* may be NULL */

/* Changes one size of the mesh, and forgets the rank. Returns false if the plan has ranges, which
 * fit only one world, or the new world is too large. */
bool ms_plan_resize(struct ms_plan *plan, unsigned mesh_dim, uint32_t size);

/* Finds this process's rank in the plan (`rank`, `coordinates`), else in the launcher's
 * environment, where it may be wrong. *is_given_out: a rank was found, right or wrong. */
bool ms_plan_find_rank(const struct ms_plan *plan, uint32_t *rank_out, bool *is_given_out,
                       struct ms_fault *fault);

struct ms_entry_says {
    const char *name;        /* or a pattern; NULL if the entry selects only by size and order */
    bool has_form;           /* the entry gives dtype and shape */
    bool declares;           /* the entry declares a tensor: by exact name, dtype and shape */
    struct ms_tensor tensor; /* the name, and with has_form dtype and shape */
};
struct ms_entry_says ms_entry_at(const struct ms_plan *plan, size_t index);

/* True if the entry selects the tensor, whose index in the layout is `order`. An earlier entry may
 * decide it. */
bool ms_entry_meets(const struct ms_plan *plan, size_t index, const struct ms_tensor *tensor,
                    size_t order);

/* True if the pattern has no unescaped *, ? or [. */
bool ms_entry_is_exact(const char *pattern);

/* Tensors to lay a plan over. Tensors without a name (NULL) match only entries without a name. */
struct ms_layout_source {
    struct ms_tensor (*at)(const void *context, size_t index);
    const void *context;
    size_t count;      /* below 2^31 */
    bool has_declared; /* the plan's declarations come first; each tensor must have a name */
    bool is_complete;  /* a declared tensor that is not among the tensors is a fault */
};

/* Other folders read `plan`, `count` and `bytes` only. */
struct ms_layout {
    struct ms_arena arena;
    const struct ms_plan *plan;
    struct ms_layout_source source;
    size_t count;
    uint64_t bytes; /* of all tensors, whole */
    struct ms_pages bound;
    struct ms_unit *units;
    size_t unit_count;
};

/* positions_out: each given tensor's index in the layout. The plan and the source's tensors must
 * outlive the layout, which asks the source again. */
bool ms_layout_create_of(const struct ms_plan *plan, const struct ms_layout_source *source,
                         size_t *positions_out, struct ms_layout **layout_out,
                         struct ms_fault *fault);

/* Lays the plan over its declarations, then the checkpoint's other tensors. checkpoint may be NULL.
 * Plan and checkpoint must outlive the layout. */
bool ms_layout_create(const struct ms_plan *plan, const struct ms_checkpoint *checkpoint,
                      struct ms_layout **layout_out, struct ms_fault *fault);
void ms_layout_destroy(struct ms_layout *layout); /* may be NULL */

/* A tensor of a layout. */
struct ms_laid {
    struct ms_tensor tensor;
    size_t entry;        /* that decides the tensor; SIZE_MAX: none, the tensor is replicated */
    size_t unit;         /* the number of its flat unit, from 0; SIZE_MAX: none */
    bool is_declaration; /* the tensor is not given, only declared in the plan */
};
struct ms_laid ms_layout_at(const struct ms_layout *layout, size_t index);
