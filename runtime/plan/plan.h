/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharding plans: which bytes of every tensor each rank keeps. The format is docs/plan-format.md.
 *
 *   plan        the parsed document; knows entries, but only those tensors that it declares
 *   layout      a plan over a list of tensors: each tensor with the entry that decides it
 *   placement   what one rank gets of the tensors of a layout (placement.h)
 *   census      the bytes that each rank gets (census.h)
 *
 * Everything is immutable once created (but see ms_plan_resize) and owned by the caller; any thread
 * may use it. These functions do not recurse, and trust no input.
 */
#pragma once

#include <stddef.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/tensor.h"
#include "runtime/document/fault.h"

/* An entry of a few bytes takes 150 in memory. */
enum { MS_MESH_DIMS_MAX = 8, MS_WORLD_MAX = 1 << 20, MS_PLAN_MAX_ENTRIES = 4 << 20 };

/* Ranks are numbered row-major: rank = sum of coordinate[i] * stride[i]; the last stride is 1. */
struct ms_mesh {
    unsigned dims;
    uint32_t world;
    const char *name[MS_MESH_DIMS_MAX];
    uint32_t size[MS_MESH_DIMS_MAX], stride[MS_MESH_DIMS_MAX];
};

struct ms_plan;
struct ms_layout;

/* `file` is the name for faults. */
bool ms_plan_parse(const char *text, size_t bytes, const char *file, struct ms_plan **plan_out,
                   struct ms_fault *fault);
bool ms_plan_read(const char *path, struct ms_plan **plan_out, struct ms_fault *fault);
void ms_plan_destroy(struct ms_plan *plan); /* may be NULL */

/* Changes one size of the mesh. Returns false if the plan has ranges, which fit only one world, or
 * the new world is too large. */
bool ms_plan_resize(struct ms_plan *plan, unsigned mesh_dim, uint32_t size);

const struct ms_mesh *ms_plan_mesh(const struct ms_plan *plan);
size_t ms_plan_count(const struct ms_plan *plan); /* of entries */

/* This process's rank: from the plan (`rank`, `coordinates`), or from the launcher's environment,
 * where it may be wrong. */
bool ms_plan_find_rank(const struct ms_plan *plan, uint32_t *rank_out, bool *is_given_out,
                       struct ms_fault *fault);

/* An entry's name or pattern; NULL if it selects only by size and order. */
const char *ms_plan_entry_name(const struct ms_plan *plan, size_t entry);
/* The name, dtype and shape that an entry gives. Returns false if it gives no dtype and shape. */
bool ms_plan_entry_tensor(const struct ms_plan *plan, size_t entry, struct ms_tensor *tensor_out);
/* True if the entry selects the tensor at this place of the list. An earlier one may decide it. */
bool ms_layout_entry_meets(const struct ms_plan *plan, size_t entry, const struct ms_tensor *tensor,
                           size_t order);
/* True if the entry declares a tensor: has an exact name, dtype and shape. */
bool ms_plan_entry_declares(const struct ms_plan *plan, size_t entry);

/* Tensors to lay a plan over. Those without a name (NULL) match only entries without a name. */
struct ms_layout_source {
    struct ms_tensor (*at)(const void *context, size_t index);
    const void *context;
    size_t count;      /* below 2^31 */
    bool has_declared; /* the plan's declarations come first; each tensor must have a name */
    bool is_complete;  /* a declared tensor that is not among them is a fault */
};

/* positions_out: each given tensor's index in the layout, which plan and tensors must outlive: it
 * asks the source for them again. */
bool ms_layout_create_of(const struct ms_plan *plan, const struct ms_layout_source *source,
                         size_t *positions_out, struct ms_layout **layout_out,
                         struct ms_fault *fault);

/* Lays the plan over its declarations, then the checkpoint's other tensors. checkpoint may be NULL.
 * Plan and checkpoint must outlive the layout. */
bool ms_layout_create(const struct ms_plan *plan, const struct ms_checkpoint *checkpoint,
                      struct ms_layout **layout_out, struct ms_fault *fault);
void ms_layout_destroy(struct ms_layout *layout); /* may be NULL */

size_t ms_layout_count(const struct ms_layout *layout);
struct ms_tensor ms_layout_tensor(const struct ms_layout *layout, size_t tensor);
/* True if none of the given tensors is this one: it is known from its declaration alone. */
bool ms_layout_is_declaration(const struct ms_layout *layout, size_t tensor);
/* The entry that decides a tensor, or SIZE_MAX. */
size_t ms_layout_entry(const struct ms_layout *layout, size_t tensor);
/* The number of the tensor's flat unit, from 0, or SIZE_MAX. */
size_t ms_layout_unit(const struct ms_layout *layout, size_t tensor);
/* False: no entry matches; the tensor is replicated. */
bool ms_layout_is_placed(const struct ms_layout *layout, size_t tensor);
uint64_t ms_layout_bytes(const struct ms_layout *layout); /* of all tensors, whole */
const struct ms_plan *ms_layout_plan(const struct ms_layout *layout);
