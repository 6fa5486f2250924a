/* SPDX-License-Identifier: Apache-2.0 */
/* The plan in force as active_plan.c and placement_query.c share it. */
#ifndef METASHARD_RUNTIME_SHARD_SHARD_INTERNAL_H
#define METASHARD_RUNTIME_SHARD_SHARD_INTERNAL_H

#include <pthread.h>

#include "runtime/plan/placement.h"
#include "runtime/shard/active_plan.h"

/* A list of tensors with what this rank keeps of each. */
struct ms_sheet {
    struct ms_layout *layout; /* NULL: there is none */
    struct ms_placement *placement;
    size_t *positions; /* in the layout: of the known tensors, then of the named ones */
    uint64_t version;  /* another one each time it is made */
};

/* A block that no file and no name tells, in programs without files. */
struct ms_unnamed_block {
    uint64_t allocation_id;
    size_t begin, end;
    struct ms_tensor tensor;
    bool is_selected, is_seen;
};

struct ms_shard {
    pthread_mutex_t lock; /* guards all of it, checkpoint_files.h and named_tensors.h */
    struct ms_plan *plan; /* NULL: none */
    char name[512];
    uint32_t rank;
    struct ms_plan *waiting; /* for a communicator that tells the rank; NULL: none */
    char waiting_name[512];
    uint32_t told
        [MS_MESH_DIMS_MAX]; /* coordinates of the waiting plan, by groups; 1 more; 0: not known */
    bool is_contradicted;   /* as was said */
    bool has_odd_group;     /* as was said */
    struct ms_sheet sheet;
    size_t known_count; /* that the sheet is made of */
    bool is_stale;      /* the sheet must be made anew */
    bool *is_seen;      /* by known tensor: it was found in the program's memory */

    struct ms_sheet unnamed_sheet; /* positions: of the blocks */
    struct ms_unnamed_block *unnamed;
    size_t unnamed_count;
    size_t *ambiguous; /* entries */
    size_t ambiguous_count;

    /* Calls that have read outside, each told once. */
    struct {
        char call[96], tensor[128];
    } remote_readers[64];
    size_t remote_reader_count;
};

extern struct ms_shard ms_shard;

/* False: there is no plan, or it does not fit the program's tensors and decides nothing about them. */
bool ms_shard_has_sheet_locked(void);

/* A layout of these tensors alone, which must outlive the sheet, over the plan in force, and its end. */
bool ms_sheet_init_locked(struct ms_sheet *sheet, const struct ms_layout_source *source,
                          struct ms_fault *fault);
void ms_sheet_cleanup_locked(struct ms_sheet *sheet);

/* As unnamed.h's blocks are selected: the first entry without a name that meets the block, the order-th of its
 * kind, gives it a dtype and shape. False: none does. */
bool ms_unnamed_block_select_locked(struct ms_unnamed_block *block, size_t order);

/* Of ms_shard.unnamed. */
void ms_shard_make_unnamed_sheet_locked(void);

bool ms_shard_name_locked(uint64_t allocation_id, size_t begin, size_t end, const char *name,
                          const struct ms_tensor *like);

#endif
