/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/shard.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/checkpoint_files.h"
#include "runtime/shard/shard_internal.h"
#include "runtime/state/state.h"

struct ms_shard ms_shard = {.lock = MS_LOCK_INIT(shard),
                            .named_places = {.item_bytes = sizeof(struct ms_named_place)}};

static _Atomic uint64_t generation; /* of plans; changes under the lock */
static _Atomic uint32_t world;      /* of the active plan */
static _Atomic uint32_t names;      /* ms_shard.named_count, for reads without the lock */

bool ms_shard_is_active(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed) != 0;
}

bool ms_shard_receives_parts(int ranks)
{
    return ms_config.receive_parts && ms_shard_is_active() &&
           (uint32_t)ranks == atomic_load_explicit(&world, memory_order_relaxed);
}

/* --- sheets */

void ms_shard_cleanup_sheet_locked(struct ms_sheet *sheet)
{
    ms_placement_destroy(sheet->placement);
    ms_layout_destroy(sheet->layout);
    ms_heap_free(sheet->positions);
    *sheet = (struct ms_sheet){0};
}

/* Makes a sheet of the source's tensors, which must outlive the sheet, by the active plan. */
MS_HOLDS(ms_shard.lock)
static bool init_sheet_locked(struct ms_sheet *sheet, const struct ms_layout_source *source,
                              struct ms_fault *fault)
{
    static uint64_t versions; /* guarded by the lock */
    ms_shard_cleanup_sheet_locked(sheet);
    sheet->version = ++versions;
    sheet->positions = ms_heap_alloc((source->count + 1) * sizeof(*sheet->positions));
    bool is_good = sheet->positions != NULL || ms_fault_set(fault, "out of memory");
    is_good = is_good &&
              ms_layout_create_of(ms_shard.plan, source, sheet->positions, &sheet->layout, fault);
    if (is_good) {
        sheet->placement = ms_placement_create(sheet->layout, ms_shard.rank);
        is_good = sheet->placement != NULL || ms_fault_set(fault, "out of memory");
    }
    if (!is_good)
        ms_shard_cleanup_sheet_locked(sheet);
    return is_good;
}

/* Grows is_seen to the known tensors, with false for new ones. Then the sheet is stale. */
MS_HOLDS(ms_shard.lock) static bool grow_seen_locked(void)
{
    const size_t count = ms_checkpoint_files_count();
    if (ms_shard.is_seen != NULL && count == ms_shard.known_count)
        return true;
    bool *grown = ms_heap_realloc(ms_shard.is_seen, count + 1);
    if (grown == NULL)
        return false;
    memset(grown + ms_shard.known_count, 0, count - ms_shard.known_count);
    ms_shard.is_seen = grown;
    ms_shard.known_count = count;
    ms_shard.is_stale = true;
    return true;
}

/* The known tensors, then the named ones. These lists change only with the lock held, and a change
 * makes the sheet stale: it is made anew before use. */
static struct ms_tensor tensor_at(__attribute__((unused)) const void *context, size_t index)
{
    return index < ms_shard.known_count ? ms_checkpoint_files_at(index)
                                        : ms_shard.named[index - ms_shard.known_count]->tensor;
}

bool ms_shard_has_sheet_locked(void)
{
    struct ms_fault fault;
    if (ms_shard.plan == NULL)
        return false;
    const bool has_room = grow_seen_locked() || ms_fault_set(&fault, "out of memory");
    if (ms_shard.is_stale || !has_room) {
        const size_t count = ms_shard.known_count + ms_shard.named_count;
        const struct ms_layout_source source = {.at = tensor_at,
                                                .count = count,
                                                .has_declared = true};
        ms_shard.is_stale = false;
        ms_shard_cleanup_sheet_locked(&ms_shard.sheet);
        if (!has_room || !init_sheet_locked(&ms_shard.sheet, &source, &fault))
            ms_log(MS_ERROR, "%s: %s; the plan is not followed", ms_shard.name, fault.text);
    }
    return ms_shard.sheet.layout != NULL;
}

/* --- named tensors */

/* Moves the last element of `named` into the gap. */
MS_HOLDS(ms_shard.lock) static void forget_name_locked(struct ms_named_tensor *one)
{
    struct ms_named_tensor *last = ms_shard.named[--ms_shard.named_count];
    ms_shard.named[one->at] = last;
    last->at = one->at;
    ms_sorted_remove(&ms_shard.named_places, ms_sorted_find(&ms_shard.named_places, one->address),
                     1);
    ms_heap_free(one);
    ms_shard.is_stale = true;
    atomic_store(&names, (uint32_t)ms_shard.named_count);
}

MS_HOLDS(ms_shard.lock) static void forget_names_locked(CUdeviceptr address, size_t bytes)
{
    for (struct ms_named_tensor *one; (one = ms_shard_named_in_locked(address, bytes)) != NULL;)
        forget_name_locked(one);
}

MS_HOLDS(ms_shard.lock) static bool add_place_locked(struct ms_named_tensor *one)
{
    struct ms_sorted *places = &ms_shard.named_places;
    const struct ms_named_place place = {one->address, one};
    const struct ms_position at = ms_sorted_find(places, one->address);
    const struct ms_named_place *before = ms_sorted_item(places, at);
    const bool is_behind = before != NULL && before->address < one->address;
    return ms_sorted_insert(places, is_behind ? ms_sorted_next(places, at) : at, &place, 1);
}

/* Adds a name, and forgets names that overlap its range. is_guess: named by the active plan, not by
 * the program. */
MS_HOLDS(ms_shard.lock)
static bool add_name_locked(CUdeviceptr allocation, struct ms_range range, const char *name,
                            const struct ms_tensor *like, bool is_guess)
{
    forget_names_locked(allocation + range.begin, range.end - range.begin);
    if (!MS_ARRAY_GROW(ms_shard.named, ms_shard.named_count, ms_shard.named_capacity))
        return false;
    struct ms_named_tensor *one = ms_heap_zalloc(sizeof(*one) + strlen(name) + 1);
    if (one == NULL)
        return false;
    one->address = allocation + range.begin;
    one->at = ms_shard.named_count;
    one->begin = range.begin;
    one->end = range.end;
    one->is_guess = is_guess;
    one->tensor = *like;
    one->tensor.name = strcpy(one->name, name);
    one->tensor.file = NULL;
    if (!add_place_locked(one)) {
        ms_heap_free(one);
        return false;
    }
    ms_shard.named[ms_shard.named_count++] = one;
    ms_shard.is_stale = true;
    atomic_store(&names, (uint32_t)ms_shard.named_count);
    return true;
}

/* --- the active plan */

MS_HOLDS(ms_shard.lock) static void forget_locked(void)
{
    ms_shard_cleanup_sheet_locked(&ms_shard.sheet);
    ms_shard_cleanup_sheet_locked(&ms_shard.unnamed_sheet);
    ms_heap_free(ms_shard.unnamed);
    ms_shard.unnamed = NULL;
    ms_shard.unnamed_count = 0;
    ms_heap_free(ms_shard.ambiguous);
    ms_shard.ambiguous = NULL;
    ms_shard.ambiguous_count = 0;
    if (ms_shard.is_seen != NULL)
        memset(ms_shard.is_seen, 0, ms_shard.known_count);
    /* Forgetting a name moves the last one into the gap. */
    for (size_t i = ms_shard.named_count; i-- > 0;) {
        ms_shard.named[i]->is_seen = false;
        if (ms_shard.named[i]->is_guess)
            forget_name_locked(ms_shard.named[i]);
    }
    ms_shard.is_stale = true;
}

MS_HOLDS(ms_shard.lock) static void drop_waiting_locked(void)
{
    ms_plan_destroy(ms_shard.waiting);
    ms_shard.waiting = NULL;
}

MS_HOLDS(ms_shard.lock)
static void put_in_force_locked(struct ms_plan *plan, const char *name, uint32_t rank)
{
    forget_locked();
    ms_plan_destroy(ms_shard.plan);
    ms_shard.plan = plan;
    ms_shard.rank = rank;
    atomic_store(&world, plan->mesh.world);
    snprintf(ms_shard.name, sizeof(ms_shard.name), "%s", name);
    const uint64_t number = atomic_fetch_add(&generation, 1) + 1;
    ms_log(MS_INFO, "%s: plan %" PRIu64 ", of rank %" PRIu32 " of %" PRIu32, name, number, rank,
           plan->mesh.world);
}

/* Launchers have no rank either, and need none: the warning is left to ms_shard_warn_if_waiting. */
static void let_wait(struct ms_plan *plan, const char *name)
{
    ms_log(MS_INFO,
           "%s: the rank of this process is not known (rank or coordinates in the plan, or a "
           "launcher's RANK): the plan waits for a communicator of %" PRIu32 " ranks",
           name, plan->mesh.world);
    ms_lock_take(&ms_shard.lock);
    drop_waiting_locked();
    ms_shard.waiting = plan;
    memset(ms_shard.coordinates, 0, sizeof(ms_shard.coordinates));
    snprintf(ms_shard.waiting_name, sizeof(ms_shard.waiting_name), "%s", name);
    ms_lock_drop(&ms_shard.lock);
}

bool ms_shard_set(struct ms_plan *plan, const char *name, struct ms_fault *fault)
{
    uint32_t rank;
    bool is_given;
    struct ms_fault why;
    const bool is_found = ms_plan_find_rank(plan, &rank, &is_given, &why);
    if (!is_given) {
        let_wait(plan, name);
        return true;
    }
    if (!is_found) {
        ms_plan_destroy(plan);
        return ms_fault_set(fault, "%s: %s", name, why.text);
    }
    ms_lock_take(&ms_shard.lock);
    drop_waiting_locked();
    put_in_force_locked(plan, name, rank);
    ms_lock_drop(&ms_shard.lock);
    return true;
}

void ms_shard_warn_if_waiting(void)
{
    ms_lock_take(&ms_shard.lock);
    if (ms_shard.waiting != NULL)
        ms_log(MS_WARN,
               "%s: the rank of this process is not known (rank or coordinates in the plan, or a "
               "launcher's RANK), and no communicator of %" PRIu32
               " ranks told it: the plan was not followed",
               ms_shard.waiting_name, ms_shard.waiting->mesh.world);
    ms_lock_drop(&ms_shard.lock);
}

/* Logs once: other communicators may number the same processes differently for good reasons. */
MS_HOLDS(ms_shard.lock) static void compare_rank_locked(uint32_t ranks, uint32_t rank)
{
    if (ms_shard.plan == NULL || ms_shard.plan->mesh.world != ranks || ms_shard.rank == rank ||
        ms_shard.is_contradicted)
        return;
    ms_shard.is_contradicted = true;
    ms_log(MS_WARN,
           "%s: the plan treats this process as rank %" PRIu32 ", but it is rank %" PRIu32
           " in a communicator of %" PRIu32 " ranks",
           ms_shard.name, ms_shard.rank, rank, ranks);
}

/* Handles a communicator that was not split off. True: the waiting plan's rank is known now. */
MS_HOLDS(ms_shard.lock)
static bool add_world_locked(uint32_t ranks, uint32_t rank, uint32_t *rank_out)
{
    *rank_out = rank;
    if (ms_shard.waiting != NULL && ms_shard.waiting->mesh.world == ranks)
        return true;
    compare_rank_locked(ranks, rank);
    return false;
}

/* The only dimension of that size, or mesh->dims if no or several dimensions have it. */
static unsigned find_dimension(const struct ms_mesh *mesh, uint32_t ranks)
{
    unsigned found = mesh->dims;
    for (unsigned i = 0; i < mesh->dims; i++) {
        if (mesh->size[i] != ranks)
            continue;
        if (found != mesh->dims)
            return mesh->dims;
        found = i;
    }
    return found;
}

MS_HOLDS(ms_shard.lock)
static bool is_complete_locked(const struct ms_mesh *mesh, uint32_t *rank_out)
{
    *rank_out = 0;
    for (unsigned i = 0; i < mesh->dims; i++) {
        if (mesh->size[i] > 1 && ms_shard.coordinates[i] == 0)
            return false;
        if (mesh->size[i] > 1)
            *rank_out += (ms_shard.coordinates[i] - 1) * mesh->stride[i];
    }
    return true;
}

/* Only logs, because programs may have groups that do not concern the plan. */
MS_HOLDS(ms_shard.lock) static void compare_group_locked(uint32_t ranks, uint32_t rank)
{
    const struct ms_mesh *mesh = &ms_shard.plan->mesh;
    bool is_of_size = false, is_along = false;
    for (unsigned i = 0; i < mesh->dims; i++) {
        is_of_size |= mesh->size[i] == ranks;
        is_along |=
            mesh->size[i] == ranks && ms_shard.rank / mesh->stride[i] % mesh->size[i] == rank;
    }
    if (!is_of_size || is_along || ms_shard.has_odd_group)
        return;
    ms_shard.has_odd_group = true;
    ms_log(MS_INFO,
           "%s: rank %" PRIu32 " of the plan is rank %" PRIu32 " in a group of %" PRIu32
           ", which is its coordinate in no mesh dimension of that size",
           ms_shard.name, ms_shard.rank, rank, ranks);
}

/* Handles a communicator that was split off: of all ranks, or along a mesh dimension. */
MS_HOLDS(ms_shard.lock)
static bool add_group_locked(uint32_t ranks, uint32_t rank, uint32_t *rank_out)
{
    if (ranks <= 1)
        return false;
    if (ms_shard.waiting == NULL) {
        if (ms_shard.plan != NULL)
            compare_group_locked(ranks, rank);
        return false;
    }
    const struct ms_mesh *mesh = &ms_shard.waiting->mesh;
    const unsigned dim = find_dimension(mesh, ranks);
    if (dim < mesh->dims && rank < ranks)
        ms_shard.coordinates[dim] = rank + 1;
    const bool is_complete = is_complete_locked(mesh, rank_out);
    if (mesh->world != ranks || rank >= ranks)
        return is_complete;
    *rank_out = rank;
    return true;
}

bool ms_shard_add_communicator(uint32_t ranks, uint32_t rank, bool is_split_off)
{
    uint32_t found = 0;
    if (!is_split_off)
        ms_state_set_rank(rank, ranks);
    ms_lock_take(&ms_shard.lock);
    const bool is_known = is_split_off ? add_group_locked(ranks, rank, &found)
                                       : add_world_locked(ranks, rank, &found);
    if (is_known) {
        struct ms_plan *plan = ms_shard.waiting;
        ms_shard.waiting = NULL;
        put_in_force_locked(plan, ms_shard.waiting_name, found);
    }
    ms_lock_drop(&ms_shard.lock);
    return is_known;
}

/* The visit may have read new headers. */
MS_HOLDS(ms_shard.lock)
static bool set_seen(void *context, size_t index, const struct ms_tensor *tensor)
{
    (void)context, (void)tensor;
    const bool has_room = grow_seen_locked();
    if (has_room)
        ms_shard.is_seen[index] = true;
    return has_room;
}

void ms_shard_add_copy(const struct ms_source *source, uint64_t offset, uint64_t bytes)
{
    const struct ms_file *file = ms_source_file(source);
    if (file == NULL)
        return;
    ms_lock_take(&ms_shard.lock);
    ms_checkpoint_files_visit(file, offset, offset + bytes, set_seen, NULL);
    ms_lock_drop(&ms_shard.lock);
}

void ms_shard_catch_up(void)
{
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL) {
        struct ms_walk walk = {ms_allocation_lineage(allocation), 0, allocation->bytes};
        for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
            if (extent->content.kind == MS_SOURCE)
                ms_shard_add_copy(extent->content.source, extent->content.source_offset,
                                  extent->end - extent->begin);
        }
    }
}

/* --- names */

bool ms_shard_name(CUdeviceptr address, size_t bytes, const char *name,
                   const struct ms_tensor *like, struct ms_fault *fault)
{
    struct ms_allocation_facts facts;
    if (!ms_space_look_up(address, &facts) || bytes > facts.bytes - (address - facts.address))
        return ms_fault_set(
            fault, "tensor %s: no allocation that the shim defers holds %zu bytes at 0x%llx", name,
            bytes, address);
    if (like->bytes != bytes)
        return ms_fault_set(fault,
                            "tensor %s: expected the %" PRIu64
                            " bytes of dtype and shape, found %zu",
                            name, like->bytes, bytes);
    const size_t begin = (size_t)(address - facts.address);
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim_same(address, facts.id);
    if (allocation == NULL)
        return ms_fault_set(fault, "tensor %s: the memory at 0x%llx is freed meanwhile", name,
                            address);
    /* Makes ready blocks ordinary, so that the name is forgotten when the block is taken back. */
    ms_carve_settle(allocation, begin, begin + bytes);
    const struct ms_range range = {begin, begin + bytes};
    ms_lock_take(&ms_shard.lock);
    const bool is_good = bytes == 0 || add_name_locked(facts.address, range, name, like, false);
    ms_lock_drop(&ms_shard.lock);
    return is_good || ms_fault_set(fault, "out of memory");
}

void ms_shard_forget(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    if (atomic_load_explicit(&names, memory_order_relaxed) == 0)
        return;
    ms_lock_take(&ms_shard.lock);
    forget_names_locked(allocation->address + begin, end - begin);
    ms_lock_drop(&ms_shard.lock);
}

/*
 * --- unnamed blocks that are tensors of the plan, in programs that copy from no checkpoint. A
 * block is a declared tensor if no other block and no other declared tensor has its size. If the
 * program names nothing, entries without a name identify blocks by size and order.
 */

struct list {
    struct ms_unnamed_block *blocks;
    size_t count, capacity;
};

static bool add_block(struct list *list, const struct ms_allocation *allocation, size_t begin,
                      size_t end)
{
    if (!MS_ARRAY_GROW(list->blocks, list->count, list->capacity))
        return false;
    list->blocks[list->count++] = (struct ms_unnamed_block){.address = allocation->address,
                                                            .allocation_id = allocation->id,
                                                            .begin = begin,
                                                            .end = end};
    return true;
}

/* True if bytes of the range come from a file: then the range is not a candidate. */
static bool is_given(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    bool found = false;
    struct ms_extent extent;
    while (!found && ms_lineage_next(ms_allocation_lineage(allocation), &begin, end, &extent))
        found = ms_content_file(&extent.content) != NULL;
    return found;
}

static bool add_blocks(struct list *list, struct ms_allocation *allocation)
{
    bool is_good = true;
    struct ms_range block;
    ms_carve_settle(allocation, 0, allocation->bytes);
    for (size_t at = 0; is_good && ms_carve_next_block(allocation, at, &block); at = block.end)
        is_good = is_given(allocation, block.begin, block.end) ||
                  add_block(list, allocation, block.begin, block.end);
    return is_good;
}

/* Orders allocations by age, and blocks of one allocation by address. */
static int by_age(const void *a, const void *b)
{
    const struct ms_unnamed_block *left = a, *right = b;
    if (left->allocation_id != right->allocation_id)
        return left->allocation_id < right->allocation_id ? -1 : 1;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static bool collect(struct list *list)
{
    bool is_good = true;
    MS_CLAIMED struct ms_allocation *allocation = NULL;
    while (is_good && (allocation = ms_space_walk(allocation)) != NULL)
        is_good = add_blocks(list, allocation);
    if (list->count > 0)
        qsort(list->blocks, list->count, sizeof(*list->blocks), by_age);
    return is_good;
}

/* Declared tensors, found by size alone. */

/* Counts the unnamed blocks of the size; *block_out is the last. */
MS_HOLDS(ms_shard.lock)
static size_t count_blocks_locked(const struct list *list, uint64_t bytes,
                                  const struct ms_unnamed_block **block_out)
{
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct ms_unnamed_block *block = &list->blocks[i];
        if (block->end - block->begin != bytes ||
            ms_shard_named_in_locked(block->address + block->begin, block->end - block->begin) !=
                NULL)
            continue;
        count++;
        *block_out = block;
    }
    return count;
}

MS_HOLDS(ms_shard.lock)
static size_t count_declared_locked(const size_t *unplaced, size_t count, uint64_t bytes)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += ms_entry_at(ms_shard.plan, unplaced[i]).tensor.bytes == bytes;
    return found;
}

MS_HOLDS(ms_shard.lock)
static void match_declared_locked(const struct list *list, const size_t *unplaced, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct ms_tensor tensor = ms_entry_at(ms_shard.plan, unplaced[i]).tensor;
        const struct ms_unnamed_block *block = NULL;
        const size_t blocks = count_blocks_locked(list, tensor.bytes, &block);
        if (blocks == 1 && count_declared_locked(unplaced, count, tensor.bytes) == 1)
            add_name_locked(block->address, (struct ms_range){block->begin, block->end},
                            tensor.name, &tensor, true);
        else if (blocks > 0)
            ms_shard.ambiguous[ms_shard.ambiguous_count++] = unplaced[i];
    }
}

/* Lists the entries whose declared tensor has no place: the layout has only its declaration. */
MS_HOLDS(ms_shard.lock) static size_t list_unplaced_locked(size_t *unplaced)
{
    size_t count = 0, declared = 0;
    for (size_t i = 0; i < ms_shard.plan->count; i++) {
        const struct ms_entry_says entry = ms_entry_at(ms_shard.plan, i);
        if (entry.declares && ms_layout_at(ms_shard.sheet.layout, declared++).is_declaration &&
            entry.tensor.bytes > 0)
            unplaced[count++] = i;
    }
    return count;
}

/* Entries without a name. */

/* Finds the first entry without a name that matches the block, and takes its dtype and shape. */
MS_HOLDS(ms_shard.lock)
static bool select_entry_locked(struct ms_unnamed_block *block, size_t order)
{
    const uint64_t bytes = block->end - block->begin;
    block->tensor = (struct ms_tensor){.dtype = MS_DTYPE_U8, .dims = 1, .shape = {bytes}};
    ms_tensor_measure(&block->tensor);
    for (size_t i = 0; i < ms_shard.plan->count; i++) {
        if (!ms_entry_meets(ms_shard.plan, i, &block->tensor, order))
            continue;
        const struct ms_entry_says entry = ms_entry_at(ms_shard.plan, i);
        if (entry.has_form && entry.tensor.bytes == bytes)
            block->tensor = entry.tensor;
        block->tensor.name = NULL; /* the entry has no name either */
        return true;
    }
    return false;
}

static struct ms_tensor unnamed_at(const void *blocks, size_t index)
{
    return ((const struct ms_unnamed_block *)blocks)[index].tensor;
}

bool ms_shard_select_locked(struct ms_unnamed_block *block, struct ms_sheet *sheet_out)
{
    struct ms_fault fault;
    const struct ms_layout_source source = {.at = unnamed_at, .context = block, .count = 1};
    *sheet_out = (struct ms_sheet){0};
    return select_entry_locked(block, SIZE_MAX) && init_sheet_locked(sheet_out, &source, &fault);
}

MS_HOLDS(ms_shard.lock) static bool has_unnamed_locked(void)
{
    for (size_t i = 0; i < ms_shard.plan->count; i++) {
        if (ms_entry_at(ms_shard.plan, i).name == NULL)
            return true;
    }
    return false;
}

/* Takes over the list. */
MS_HOLDS(ms_shard.lock) static void match_unnamed_locked(struct list *list)
{
    ms_heap_free(ms_shard.unnamed);
    ms_shard.unnamed = list->blocks;
    ms_shard.unnamed_count = list->count;
    *list = (struct list){0};
    for (size_t i = 0; i < ms_shard.unnamed_count; i++) {
        struct ms_unnamed_block *block = &ms_shard.unnamed[i];
        block->is_selected = select_entry_locked(block, i);
    }
    struct ms_fault fault;
    const struct ms_layout_source source = {.at = unnamed_at,
                                            .context = ms_shard.unnamed,
                                            .count = ms_shard.unnamed_count};
    if (!init_sheet_locked(&ms_shard.unnamed_sheet, &source, &fault))
        ms_log(MS_ERROR, "%s: %s; entries without a name are not followed", ms_shard.name,
               fault.text);
}

MS_HOLDS(ms_shard.lock) static void match_locked(struct list *list)
{
    size_t *unplaced = ms_heap_alloc((ms_shard.plan->count + 1) * sizeof(*unplaced));
    ms_heap_free(ms_shard.ambiguous);
    ms_shard.ambiguous_count = 0;
    ms_shard.ambiguous = ms_heap_alloc((ms_shard.plan->count + 1) * sizeof(*unplaced));
    if (unplaced != NULL && ms_shard.ambiguous != NULL && ms_checkpoint_files_count() == 0)
        match_declared_locked(list, unplaced, list_unplaced_locked(unplaced));
    ms_heap_free(unplaced);
    if (ms_checkpoint_files_count() == 0 && ms_shard.named_count == 0 && has_unnamed_locked())
        match_unnamed_locked(list);
}

void ms_shard_match_unnamed(void)
{
    struct list list = {0};
    const bool is_good = collect(&list);
    ms_lock_take(&ms_shard.lock);
    if (is_good && ms_shard.plan != NULL && ms_shard_has_sheet_locked())
        match_locked(&list);
    ms_lock_drop(&ms_shard.lock);
    ms_heap_free(list.blocks);
}

/* --- facts about the active plan: the tensors found, and the entries that decide nothing */

static void add_tensor(struct ms_state_plan *facts, const struct ms_sheet *sheet, size_t given)
{
    const size_t position = sheet->positions[given];
    facts->tensors++;
    facts->planned_bytes += ms_layout_at(sheet->layout, position).tensor.bytes;
    facts->owned_bytes += ms_placement_bytes(sheet->placement, position);
}

/* Counts each tensor that was found in the program's memory. */
MS_HOLDS(ms_shard.lock) static void add_seen_locked(struct ms_state_plan *facts)
{
    for (size_t i = 0; ms_shard_has_sheet_locked() && i < ms_shard.known_count; i++) {
        if (ms_shard.is_seen[i])
            add_tensor(facts, &ms_shard.sheet, i);
    }
    for (size_t i = 0; ms_shard_has_sheet_locked() && i < ms_shard.named_count; i++) {
        if (ms_shard.named[i]->is_seen)
            add_tensor(facts, &ms_shard.sheet, ms_shard.known_count + i);
    }
    for (size_t i = 0; ms_shard.unnamed_sheet.layout != NULL && i < ms_shard.unnamed_count; i++) {
        if (ms_shard.unnamed[i].is_seen)
            add_tensor(facts, &ms_shard.unnamed_sheet, i);
    }
}

void ms_shard_describe(struct ms_state_plan *facts_out)
{
    *facts_out = (struct ms_state_plan){.generation = atomic_load(&generation),
                                        .enforced = ms_config.plan_mode == MS_ENFORCE};
    if (facts_out->generation == 0) /* no plan has been active */
        return;
    ms_lock_take(&ms_shard.lock);
    if (ms_shard.plan != NULL) {
        snprintf(facts_out->name, sizeof(facts_out->name), "%s", ms_shard.name);
        facts_out->rank = ms_shard.rank;
        facts_out->world = ms_shard.plan->mesh.world;
        add_seen_locked(facts_out);
    }
    ms_lock_drop(&ms_shard.lock);
}

void ms_shard_publish(const char *what, uint64_t began)
{
    struct ms_state_plan facts;
    if (!ms_is_recorded())
        return;
    ms_shard_describe(&facts);
    ms_state_set_plan(&facts);
    if (what != NULL)
        ms_state_event(&(struct ms_event){
            .kind = MS_EVENT_PLAN, .bytes = facts.owned_bytes, .began = began, .text = what});
}

static void mark_entry(bool *is_met, const struct ms_sheet *sheet, size_t position)
{
    const size_t entry = ms_layout_at(sheet->layout, position).entry;
    if (entry != SIZE_MAX)
        is_met[entry] = true;
}

/* Marks the entries that decide a tensor: of a file, named, or an unnamed block. */
MS_HOLDS(ms_shard.lock) static void mark_entries_locked(bool *is_met)
{
    const size_t given = ms_shard.known_count + ms_shard.named_count;
    for (size_t i = 0; i < given; i++)
        mark_entry(is_met, &ms_shard.sheet, ms_shard.sheet.positions[i]);
    for (size_t i = 0; ms_shard.unnamed_sheet.layout != NULL && i < ms_shard.unnamed_count; i++) {
        if (ms_shard.unnamed[i].is_selected)
            mark_entry(is_met, &ms_shard.unnamed_sheet, ms_shard.unnamed_sheet.positions[i]);
    }
}

/* True if some tensor matches the entry, even if another entry decides the tensor. */
MS_HOLDS(ms_shard.lock) static bool is_met_locked(size_t entry)
{
    const struct ms_layout *layout = ms_shard.sheet.layout;
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_tensor tensor = ms_layout_at(layout, i).tensor;
        if (ms_entry_meets(ms_shard.plan, entry, &tensor, i))
            return true;
    }
    return false;
}

MS_HOLDS(ms_shard.lock) static bool is_ambiguous_locked(size_t entry)
{
    for (size_t i = 0; i < ms_shard.ambiguous_count; i++) {
        if (ms_shard.ambiguous[i] == entry)
            return true;
    }
    return false;
}

void ms_shard_visit_idle(ms_shard_visitor *visit, void *context)
{
    ms_lock_take(&ms_shard.lock);
    const size_t count = ms_shard_has_sheet_locked() ? ms_shard.plan->count : 0;
    bool *is_met = ms_heap_zalloc(count + 1);
    if (is_met != NULL && count > 0)
        mark_entries_locked(is_met);
    size_t declared = 0;
    for (size_t i = 0; i < count && is_met != NULL; i++) {
        const bool declares = ms_entry_at(ms_shard.plan, i).declares;
        /* Only the entry's own declaration matches. */
        const bool is_unplaced =
            declares && ms_layout_at(ms_shard.sheet.layout, declared++).is_declaration;
        /* A declaration has an exact name: if its tensor has a place, the tensor matches. */
        const bool is_ambiguous = is_ambiguous_locked(i);
        if (is_ambiguous || is_unplaced || (!declares && !is_met[i] && !is_met_locked(i)))
            visit(context, i, ms_entry_at(ms_shard.plan, i).name, is_ambiguous);
    }
    ms_heap_free(is_met);
    ms_lock_drop(&ms_shard.lock);
}
