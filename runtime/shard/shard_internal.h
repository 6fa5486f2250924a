/* SPDX-License-Identifier: Apache-2.0 */
/* The active plan's data, shared by shard.c and placement_query.c. */
#pragma once

#include "runtime/base/lock.h"
#include "runtime/base/sorted.h"
#include "runtime/checkpoint/tensor.h"
#include "runtime/memory/space.h"
#include "runtime/plan/placement.h"
#include "runtime/shard/shard.h"

/*
 * Named tensors: ranges of allocations that are tensors because the program named them, or because
 * no other block has the size that the plan gives. Ranges do not overlap.
 */
struct ms_named_tensor {
    CUdeviceptr address;
    size_t at;         /* its index in ms_shard.named */
    size_t begin, end; /* in the allocation */
    struct ms_tensor tensor;
    bool is_guess; /* guessed by the active plan, and forgotten with that plan */
    bool is_seen;  /* the plan was asked about the tensor */
    char name[];   /* the tensor's */
};

struct ms_named_place {
    uint64_t address;
    struct ms_named_tensor *named;
};

/* A list of tensors, and the bytes of each that this rank keeps. */
struct ms_sheet {
    struct ms_layout *layout; /* NULL: no sheet */
    struct ms_placement *placement;
    size_t *positions; /* indices in the layout, of the known tensors, then the named ones */
    uint64_t version;  /* differs each time the sheet is made */
};

/* A block that no name identifies, in a program without files. */
struct ms_unnamed_block {
    CUdeviceptr address;
    uint64_t allocation_id;
    size_t begin, end;
    struct ms_tensor tensor;
    bool is_selected, is_seen;
};

struct ms_shard {
    struct ms_lock lock;  /* guards this struct, and checkpoint_files.h */
    struct ms_plan *plan; /* NULL if none is active */
    char name[512];
    uint32_t rank;
    struct ms_plan *waiting; /* a plan that waits for a communicator to give the rank, or NULL */
    char waiting_name[512];
    /* By dimension: 1 + this rank's coordinate in the waiting plan, from groups; 0: unknown. */
    uint32_t coordinates[MS_MESH_DIMS_MAX];
    bool is_contradicted; /* a communicator gave another rank, which was logged */
    bool has_odd_group;   /* a group along no dimension was logged */
    struct ms_sheet sheet;
    size_t known_count; /* of tensors in the sheet */
    bool is_stale;      /* the sheet must be made anew */
    bool *is_seen;      /* by known tensor: found in the program's memory */

    struct ms_named_tensor **named;
    size_t named_count, named_capacity;
    struct ms_sorted named_places; /* struct ms_named_place: all of `named`, by address */

    struct ms_sheet unnamed_sheet; /* positions of the blocks */
    struct ms_unnamed_block *unnamed;
    size_t unnamed_count;
    size_t *ambiguous; /* entries of the plan */
    size_t ambiguous_count;

    /* Calls that have read remote bytes, each logged once. */
    struct ms_remote_reader {
        char call[96], tensor[128]; /* cut to fit */
    } remote_readers[64];
    size_t remote_reader_count;
};

extern struct ms_shard ms_shard;

/* The first named tensor that overlaps the range, or NULL. */
MS_HOLDS(ms_shard.lock)
static inline struct ms_named_tensor *ms_shard_named_in_locked(CUdeviceptr begin, size_t bytes)
{
    const struct ms_sorted *places = &ms_shard.named_places;
    struct ms_position at = ms_sorted_find(places, begin);
    for (const struct ms_named_place *place;
         (place = ms_sorted_item(places, at)) != NULL && place->address < begin + bytes;
         at = ms_sorted_next(places, at)) {
        if (begin < place->address + (place->named->end - place->named->begin))
            return place->named;
    }
    return NULL;
}

/* Makes a stale sheet anew. False: no plan, or a plan that does not fit the program's tensors and
 * decides nothing. */
MS_HOLDS(ms_shard.lock) bool ms_shard_has_sheet_locked(void);

/* Selects the first entry, without a name and an order, that the block's size matches, and makes a
 * sheet of the block alone, which must outlive the sheet. False: no match, or out of memory. */
MS_HOLDS(ms_shard.lock)
bool ms_shard_select_locked(struct ms_unnamed_block *block, struct ms_sheet *sheet_out);
MS_HOLDS(ms_shard.lock) void ms_shard_cleanup_sheet_locked(struct ms_sheet *sheet);
