/* SPDX-License-Identifier: Apache-2.0 */
/* What shard.c and placement_query.c share about the active plan. */
#pragma once

#include "runtime/base/lock.h"
#include "runtime/checkpoint/tensor.h"
#include "runtime/memory/space.h"
#include "runtime/plan/placement.h"
#include "runtime/shard/shard.h"

/*
 * Named tensors: ranges of allocations that are tensors because the program said so, or because
 * nothing else has the size and place that the plan gives. Ranges do not overlap.
 */
struct ms_named_tensor {
    uint64_t allocation_id;
    size_t begin, end; /* in the allocation */
    struct ms_tensor tensor;
    bool is_guess; /* by the plan in force, and forgotten with it */
    bool is_seen;  /* the plan was asked about it */
    char name[];   /* the tensor's */
};

size_t ms_shard_named_count(void);
struct ms_named_tensor *ms_shard_named_at(size_t index); /* valid until it is forgotten */

/* Replaces what overlaps it. Returns it; NULL if out of memory. */
struct ms_named_tensor *ms_shard_named_add(uint64_t allocation_id, size_t begin, size_t end,
                                           const char *name, const struct ms_tensor *like);

/* Returns true if there was one in that range. */
bool ms_shard_named_forget(uint64_t allocation_id, size_t begin, size_t end);

void ms_shard_named_forget_guesses(void);

bool ms_shard_named_hold(uint64_t allocation_id, size_t begin, size_t end);

/* A list of tensors with what this rank keeps of each. */
struct ms_sheet {
    struct ms_layout *layout; /* NULL if there is none */
    struct ms_placement *placement;
    size_t *positions; /* in the layout: of the known tensors, then of the named ones */
    uint64_t version;  /* differs each time the sheet is made */
};

/* A block that no file and no name identifies, in programs without files. */
struct ms_unnamed_block {
    uint64_t allocation_id;
    size_t begin, end;
    struct ms_tensor tensor;
    bool is_selected, is_seen;
};

struct ms_shard {
    struct ms_lock lock;  /* guards all of it, and checkpoint_files.h */
    struct ms_plan *plan; /* NULL if none is active */
    char name[512];
    uint32_t rank;
    struct ms_plan *waiting; /* for a communicator that gives the rank; NULL: none */
    char waiting_name[512];
    /* 1 + the coordinates of the waiting plan, by groups; 0: unknown */
    uint32_t coordinates[MS_MESH_DIMS_MAX];
    bool is_contradicted; /* a communicator gave another rank, which was logged */
    bool has_odd_group;   /* a group along no dimension was logged */
    struct ms_sheet sheet;
    size_t known_count; /* of tensors in the sheet */
    bool is_stale;      /* the sheet must be made anew */
    bool *is_seen;      /* by known tensor: it was found in the program's memory */

    struct ms_sheet unnamed_sheet; /* positions: of the blocks */
    struct ms_unnamed_block *unnamed;
    size_t unnamed_count;
    size_t *ambiguous; /* entries */
    size_t ambiguous_count;

    /* Calls that have read remote bytes, each logged once. */
    struct ms_remote_reader {
        char call[96], tensor[128]; /* cut */
    } remote_readers[64];
    size_t remote_reader_count;
};

extern struct ms_shard ms_shard;

/* False if there is no plan, or it does not fit the program's tensors and so decides nothing. */
MS_HOLDS(ms_shard.lock) bool ms_shard_has_sheet_locked(void);

/* Makes a layout of these tensors alone, which must outlive the sheet, over the active plan. */
MS_HOLDS(ms_shard.lock)
bool ms_shard_init_sheet_locked(struct ms_sheet *sheet, const struct ms_layout_source *source,
                                struct ms_fault *fault);
MS_HOLDS(ms_shard.lock) void ms_shard_cleanup_sheet_locked(struct ms_sheet *sheet);

/* Selects the block's entry: the first one without a name that matches the block as the order-th of
 * its kind, and gives it a dtype and shape. Returns false if none does. */
MS_HOLDS(ms_shard.lock)
bool ms_shard_select_unnamed_locked(struct ms_unnamed_block *block, size_t order);

/* For a struct ms_layout_source over an array of blocks. */
struct ms_tensor ms_shard_unnamed_tensor(const void *blocks, size_t index);

/* Makes the sheet of ms_shard.unnamed. */
MS_HOLDS(ms_shard.lock) void ms_shard_make_unnamed_sheet_locked(void);

/* is_guess: the plan in force says so, and not the program. */
MS_HOLDS(ms_shard.lock)
bool ms_shard_name_locked(uint64_t allocation_id, size_t begin, size_t end, const char *name,
                          const struct ms_tensor *like, bool is_guess);
