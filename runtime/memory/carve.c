/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/carve.h"

#include <stdatomic.h>
#include <time.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/ranges.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/ready.h"
#include "runtime/memory/recorded_launch.h"

struct ms_lock ms_space_lock = MS_LOCK_INIT(space);
_Atomic uint64_t ms_space_dead;

/* --- ready blocks */

struct ms_ready_blocks ms_ready;

_Static_assert(MS_READY_PLACES < UINT16_MAX, "numbers of places are small");

static struct ms_lock ready_lock = MS_LOCK_INIT(ready);

/* A reporting thread is busy for a few instructions only. Sleeps rather than spins, because this
 * thread may have preempted the other at a higher priority. */
static void begin_ready(void) MS_LOCK_ATTRIBUTE(acquire_capability(ready_lock));
static void begin_ready(void)
{
    static const struct timespec moment = {.tv_nsec = 1000};
    ms_lock_take(&ready_lock);
    while (atomic_exchange_explicit(&ms_ready.is_busy, true, memory_order_acquire))
        nanosleep(&moment, NULL);
}

static void end_ready(void) MS_LOCK_ATTRIBUTE(release_capability(ready_lock));
static void end_ready(void)
{
    atomic_store_explicit(&ms_ready.is_busy, false, memory_order_release);
    ms_lock_drop(&ready_lock);
}

static bool is_handed_out(const struct ms_ready *one)
{
    return one->bytes > 0;
}

/* The first ready block that is handed out and meets [begin, end), or NULL. */
MS_HOLDS(ready_lock) static struct ms_ready *find_ready(CUdeviceptr begin, CUdeviceptr end)
{
    for (unsigned at = ms_ready.all[0].next; at != 0; at = ms_ready.all[at].next) {
        struct ms_ready *one = &ms_ready.all[at];
        if (one->address < end && begin < one->address + one->bytes)
            return one;
    }
    return NULL;
}

/* A place for the address: its own, an empty one, or that of another block which is not handed out.
 * NULL: there is none. */
MS_HOLDS(ready_lock) static struct ms_ready *find_ready_place(CUdeviceptr address)
{
    static unsigned next_way; /* the next place to give up */
    struct ms_ready *one = ms_ready_find(address);
    struct ms_ready *const set = ms_ready_set(address);
    for (unsigned way = 0; one == NULL && way < MS_READY_WAYS; way++)
        one = set[way].address == 0 ? &set[way] : NULL;
    for (unsigned way = 0; one == NULL && way < MS_READY_WAYS; way++) {
        struct ms_ready *const other = &set[next_way++ % MS_READY_WAYS];
        one = is_handed_out(other) ? NULL : other;
    }
    return one == NULL || is_handed_out(one) ? NULL : one;
}

/* Not with a shadow: verify mode compares a block's content when the program returns the block. */
static bool may_be_ready(const struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    return allocation->notes.shadow == NULL &&
           lineage->resident_bytes + lineage->kind_bytes[MS_DEAD] == ms_mapped_bytes(lineage);
}

static void keep_unwanted(struct ms_content *content)
{
    if (ms_content_is_kept_snapshot(content) && !ms_host_snapshot_is_wanted(content->source, 0))
        *content = (struct ms_content){.kind = MS_RESIDENT};
}

/* Makes bytes of snapshots resident that no other place wants any more, where all is present. */
static void settle_snapshots(struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    const struct ms_range all = {0, allocation->bytes};
    if (lineage->kind_bytes[MS_SOURCE] > lineage->file_bytes &&
        lineage->deferred_bytes == lineage->cached_bytes && allocation->notes.shadow == NULL)
        ms_lineage_change(&MS_OWN(allocation)->lineage, &all, 1, keep_unwanted);
}

/* The program has returned the block at offset: notes the block if it is ready. */
static void add_ready(struct ms_allocation *allocation, size_t offset)
{
    settle_snapshots(allocation);
    const struct ms_extent extent = ms_lineage_at(&MS_OWN(allocation)->lineage, offset);
    if (extent.content.kind != MS_RESIDENT || !may_be_ready(allocation))
        return;
    begin_ready();
    struct ms_ready *one = find_ready_place(allocation->address + offset);
    if (one != NULL)
        *one = (struct ms_ready){.address = allocation->address + offset,
                                 .room = extent.end - offset,
                                 .granule = (uint32_t)allocation->granule};
    MS_OWN(allocation)->has_ready = true;
    atomic_store_explicit(&ms_ready.is_any, true, memory_order_relaxed);
    end_ready();
}

MS_HOLDS(ready_lock) static void forget_ready_locked(struct ms_allocation *allocation)
{
    for (unsigned at = 1; at <= MS_READY_PLACES; at++) {
        struct ms_ready *one = &ms_ready.all[at];
        if (one->address - allocation->address < allocation->bytes)
            one->address = 0;
    }
    MS_OWN(allocation)->has_ready = false;
}

/* Takes back the first handed-out ready block that meets the range. False if there is none; if the
 * range is the whole allocation, no block of it is ready any more then. */
static bool take_out_ready(struct ms_allocation *allocation, size_t first, size_t behind,
                           struct ms_range *block_out)
{
    const CUdeviceptr address = allocation->address;
    if (!MS_OWN(allocation)->has_ready)
        return false;
    begin_ready();
    struct ms_ready *one = find_ready(address + first, address + behind);
    if (one != NULL) {
        const size_t at = one->address - address;
        *block_out = (struct ms_range){at, at + one->bytes};
        ms_ready_take_back(one);
    } else if (first == 0 && behind >= allocation->bytes) {
        forget_ready_locked(allocation);
    }
    end_ready();
    return one != NULL;
}

/* True if the range lies in a ready block that is handed out. */
static bool ready_holds(const struct ms_allocation *allocation, size_t first, size_t behind)
{
    const CUdeviceptr address = allocation->address;
    if (!MS_OWN(allocation)->has_ready)
        return false;
    begin_ready();
    const struct ms_ready *one = ms_ready_find(address + first);
    if (one == NULL || !is_handed_out(one))
        one = find_ready(address + first, address + first + 1);
    const bool is_held = one != NULL && address + behind <= one->address + one->bytes;
    end_ready();
    return is_held;
}

/* --- blocks */

bool ms_carve_has_begun(const struct ms_allocation *allocation)
{
    return MS_OWN(allocation)->is_carved;
}

bool ms_carve_next_block(const struct ms_allocation *allocation, size_t offset,
                         struct ms_range *block_out)
{
    const bool carved = MS_OWN(allocation)->is_carved;
    const struct ms_block *block = carved ? ms_block_behind(allocation, offset) : NULL;
    *block_out = block != NULL ? (struct ms_range){block->begin, block->end}
                               : (struct ms_range){0, allocation->bytes};
    return carved ? block != NULL : offset < allocation->bytes;
}

static void stray(struct ms_allocation *allocation)
{
    ms_lock_take(&ms_space_lock);
    MS_OWN(allocation)->blocks.uses_dead = true;
    ms_lock_drop(&ms_space_lock);
}

void ms_carve_add_use(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    if (!MS_OWN(allocation)->is_carved || blocks->uses_dead)
        return;
    const struct ms_block *block = ms_block_behind(allocation, begin);
    if (block != NULL && block->begin <= begin && end <= block->end)
        return;
    if (!ready_holds(allocation, begin, end))
        stray(allocation);
}

bool ms_carve_add_block(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    const struct ms_block block = {.begin = begin, .end = end};
    ms_lock_take(&ms_space_lock);
    blocks->all.item_bytes = sizeof(block);
    const bool is_added =
        ms_sorted_insert(&blocks->all, ms_sorted_behind(&blocks->all, begin), &block, 1);
    MS_OWN(allocation)->is_carved |= is_added;
    ms_lock_drop(&ms_space_lock);
    return is_added;
}

bool ms_carve_remove_block(struct ms_allocation *allocation, size_t begin, size_t *end_out)
{
    struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    ms_lock_take(&ms_space_lock);
    const struct ms_position at = ms_sorted_behind(&blocks->all, begin);
    struct ms_block *block = ms_sorted_item(&blocks->all, at);
    const bool found = block != NULL && block->begin == begin;
    if (found) {
        *end_out = block->end;
        ms_state_remove(&block->place);
        ms_sorted_remove(&blocks->all, at, 1);
    }
    ms_lock_drop(&ms_space_lock);
    return found;
}

/* --- the content of blocks */

void ms_carve_make_dead(struct ms_content *content)
{
    if (ms_content_is_nothing(content) && content->kind != MS_UNMAPPED)
        *content = (struct ms_content){.kind = MS_DEAD};
}

void ms_carve_make_undefined(struct ms_content *content)
{
    if (ms_content_is_nothing(content) && content->kind != MS_UNMAPPED)
        *content = (struct ms_content){.kind = MS_UNDEFINED};
}

/* Present bytes become resident, other mapped bytes dead. */
void ms_carve_forget(struct ms_content *content)
{
    if (content->kind != MS_UNMAPPED)
        *content =
            (struct ms_content){.kind = ms_content_is_present(content) ? MS_RESIDENT : MS_DEAD};
}

static bool change(struct ms_allocation *allocation, size_t begin, size_t end,
                   ms_content_change *how)
{
    const struct ms_range range = {begin, end};
    return ms_lineage_change(&MS_OWN(allocation)->lineage, &range, 1, how);
}

static size_t present_bytes(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    size_t bytes = 0;
    struct ms_extent extent;
    while (ms_lineage_next(&MS_OWN(allocation)->lineage, &begin, end, &extent))
        bytes += ms_content_is_present(&extent.content) ? extent.end - extent.begin : 0;
    return bytes;
}

void ms_carve_set_dead(struct ms_allocation *allocation, size_t bytes)
{
    atomic_fetch_add(&ms_space_dead, bytes - MS_OWN(allocation)->dead_memory);
    MS_OWN(allocation)->dead_memory = bytes;
}

/* True if the allocation has blocks, or can get its first block: nobody has written to it. */
static bool can_carve(struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    if (!MS_OWN(allocation)->is_carved &&
        lineage->deferred_bytes + lineage->resident_bytes + lineage->kind_bytes[MS_DEAD] > 0)
        MS_OWN(allocation)->is_whole = true;
    return !MS_OWN(allocation)->is_whole;
}

/* Present bytes of [begin, end) are not dead any more. */
static void use_again(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t left = MS_OWN(allocation)->dead_memory;
    const size_t used = left > 0 ? present_bytes(allocation, begin, end) : 0;
    ms_carve_set_dead(allocation, used < left ? left - used : 0);
}

static enum ms_carved carve(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const bool is_first = !MS_OWN(allocation)->is_carved;
    if (!can_carve(allocation) ||
        (is_first && !change(allocation, 0, allocation->bytes, ms_carve_make_dead)))
        return MS_CARVED_NOT;
    if (!ms_carve_add_block(allocation, begin, end)) {
        if (is_first)
            change(allocation, 0, allocation->bytes, ms_carve_make_undefined); /* needs no memory */
        return is_first ? MS_CARVED_NOT : MS_CARVED_FAILED;
    }
    use_again(allocation, begin, end);
    if (change(allocation, begin, end, ms_carve_make_undefined))
        return MS_CARVED;
    ms_carve_remove_block(allocation, begin, &end);
    return MS_CARVED_FAILED;
}

enum ms_carved ms_carve_take(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const enum ms_carved carved = carve(allocation, begin, end);
    if (carved == MS_CARVED) {
        begin_ready();
        ms_ready_count();
        end_ready();
    }
    return carved;
}

static _Atomic int64_t trim_gain[MS_MAX_DEVICES];

int64_t ms_carve_trim_gain(CUdevice device)
{
    return atomic_load_explicit(&trim_gain[device], memory_order_relaxed);
}

static void add_gain(const struct ms_allocation *allocation, int64_t bytes)
{
    atomic_fetch_add(&trim_gain[allocation->device], bytes);
}

/* How many bytes of [begin, end) lost their memory as dead ones and have not got it again. */
static size_t trimmed_bytes(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_ranges *trimmed = MS_OWN(allocation)->trimmed;
    size_t bytes = 0;
    for (size_t i = 0; trimmed != NULL && i < trimmed->count; i++) {
        const struct ms_range *range = &trimmed->list[i];
        const size_t first = range->begin > begin ? range->begin : begin;
        const size_t last = range->end < end ? range->end : end;
        bytes += first < last ? last - first : 0;
    }
    return bytes;
}

bool ms_carve_return(struct ms_allocation *allocation, size_t begin, size_t *end_out)
{
    if (!ms_carve_remove_block(allocation, begin, end_out))
        return false;
    if (change(allocation, begin, *end_out, ms_carve_forget) && !allocation->notes.keeps_dead)
        ms_carve_set_dead(allocation, MS_OWN(allocation)->dead_memory +
                                          present_bytes(allocation, begin, *end_out));
    add_gain(allocation, (int64_t)trimmed_bytes(allocation, begin, *end_out));
    add_ready(allocation, begin);
    return true;
}

/* If the block cannot be recorded, all of the allocation keeps its memory, and pointers outside of
 * blocks refer to it. */
static void make_block(struct ms_allocation *allocation, const struct ms_range *block)
{
    struct ms_range old;
    size_t old_end;
    while (ms_carve_next_block(allocation, block->begin, &old) && old.begin < block->end &&
           ms_carve_return(allocation, old.begin, &old_end))
        ;
    if (carve(allocation, block->begin, block->end) == MS_CARVED)
        return;
    allocation->notes.keeps_dead = true;
    stray(allocation);
}

void ms_carve_settle(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_range block;
    while (take_out_ready(allocation, begin, end, &block))
        make_block(allocation, &block);
}

/* Keeps a part of a block outside of the cut as a block. */
static bool add_rest(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return begin >= end || ms_carve_add_block(allocation, begin, end);
}

void ms_carve_cut(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_block *block;
    ms_carve_settle(allocation, 0, allocation->bytes);
    while ((block = ms_block_behind(allocation, begin)) != NULL && block->begin < end) {
        size_t block_end;
        const size_t block_begin = block->begin;
        if (!ms_carve_remove_block(allocation, block_begin, &block_end) ||
            !add_rest(allocation, block_begin, begin) || !add_rest(allocation, end, block_end))
            ms_fatal("there is no memory for the record of a block at 0x%llx",
                     allocation->address + block_begin);
    }
    use_again(allocation, begin, end);
}

size_t ms_carve_dead(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t all = MS_OWN(allocation)->dead_memory;
    const size_t present = all > 0 ? present_bytes(allocation, begin, end) : 0;
    return present < all ? present : all;
}

/* --- blocks in many pieces */

static struct ms_range block_at(const struct ms_allocation *allocation, size_t offset)
{
    const struct ms_block *block = ms_block_behind(allocation, offset);
    if (block == NULL || block->begin > offset)
        return (struct ms_range){0, allocation->bytes};
    return (struct ms_range){block->begin, block->end};
}

/*
 * A piece costs some 50 bytes. A large block may have more pieces: a copy row by row makes one for
 * each row. Bytes that the plan leaves to other ranks stay in pieces, so the next look comes at
 * twice as many (ms_carve_gather).
 */
static bool is_scattered(struct ms_allocation *allocation, size_t offset,
                         struct ms_range *block_out)
{
    enum { LEAST_PIECES = 131072, BYTES_FOR_ONE = 512 << 10 };
    if (MS_OWN(allocation)->lineage.extents.count <= LEAST_PIECES)
        return false;
    ms_carve_settle(allocation, offset, offset + 1);
    const struct ms_range block = *block_out = block_at(allocation, offset);
    const size_t pieces = ms_lineage_pieces(&MS_OWN(allocation)->lineage, block.begin, block.end);
    return pieces > LEAST_PIECES && pieces > MS_OWN(allocation)->least_pieces &&
           pieces > (block.end - block.begin) / BYTES_FOR_ONE;
}

CUresult ms_carve_gather(struct ms_allocation *allocation, size_t offset, ms_carve_bring *bring)
{
    struct ms_range block;
    if (!is_scattered(allocation, offset, &block))
        return CUDA_SUCCESS;
    const CUresult result = bring(allocation, block.begin, block.end);
    MS_OWN(allocation)->least_pieces =
        2 * ms_lineage_pieces(&MS_OWN(allocation)->lineage, block.begin, block.end);
    return result;
}

/* --- giving back */

/* Makes cached bytes resident that a replay could not restore. */
static void keep_what_is_lost(struct ms_allocation *allocation, ms_carve_asks *can_replay)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    struct ms_extent extent;
    for (size_t at = 0;
         ms_lineage_next(&MS_OWN(allocation)->lineage, &at, allocation->bytes, &extent);) {
        if (extent.content.cached && !can_replay(&extent.content))
            ms_lineage_set(&MS_OWN(allocation)->lineage, extent.begin, extent.end, &resident);
    }
}

/* Makes a resident range dead, but for chunks whose memory others may use. */
static void give_up_resident(struct ms_allocation *allocation, size_t begin, size_t end)
{
    static const struct ms_content dead = {.kind = MS_DEAD};
    for (size_t stop; begin < end; begin = stop) {
        const struct ms_chunk *chunk = ms_backing_chunk(&MS_OWN(allocation)->backing, begin);
        stop = ms_least(chunk->end, end);
        if (!chunk->is_pinned)
            ms_lineage_set(&MS_OWN(allocation)->lineage, begin, stop, &dead);
    }
}

static void give_up_dead(struct ms_allocation *allocation)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    ms_carve_set_dead(allocation, 0);
    if (!MS_OWN(allocation)->is_carved || allocation->notes.keeps_dead || blocks->uses_dead)
        return;
    size_t at = 0;
    struct ms_extent extent;
    struct ms_position next = {0, 0};
    for (const struct ms_block *block; at < allocation->bytes;
         at = block != NULL ? block->end : allocation->bytes) {
        block = ms_sorted_step(&blocks->all, &next);
        const size_t end = block != NULL ? block->begin : allocation->bytes;
        while (ms_lineage_next(&MS_OWN(allocation)->lineage, &at, end, &extent)) {
            if (extent.content.kind == MS_RESIDENT)
                give_up_resident(allocation, extent.begin, extent.end);
        }
    }
}

/* Unmaps the chunks that hold no present byte. */
static size_t uncover(struct ms_allocation *allocation)
{
    size_t freed = 0, begin = 0;
    struct ms_walk walk = {&MS_OWN(allocation)->lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (!ms_content_is_present(&extent->content))
            continue;
        freed += ms_backing_uncover(&MS_OWN(allocation)->backing, begin, extent->begin, false);
        begin = extent->end;
    }
    /* The last granule reaches behind the end of the allocation. */
    return freed + ms_backing_uncover(&MS_OWN(allocation)->backing, begin,
                                      MS_OWN(allocation)->backing.bytes, false);
}

static bool list_backed(const struct ms_allocation *allocation, struct ms_ranges *ranges)
{
    const size_t end = MS_OWN(allocation)->backing.bytes;
    struct ms_range range = {0, end};
    bool is_listed = true;
    for (; is_listed && ms_backing_next(&MS_OWN(allocation)->backing, &range);
         range = (struct ms_range){range.end, end})
        is_listed = ms_ranges_add(ranges, range.begin, range.end);
    return is_listed;
}

/* Makes the list at its first use, because few allocations ever need it. NULL: out of memory. */
static struct ms_ranges *list_of_trimmed(struct ms_allocation *allocation)
{
    struct ms_ranges **trimmed = &MS_OWN(allocation)->trimmed;
    if (*trimmed == NULL)
        *trimmed = ms_heap_zalloc(sizeof(**trimmed));
    return *trimmed;
}

/* If there is no host memory for the lists, memory that comes again does not count. */
static size_t trim(struct ms_allocation *allocation)
{
    struct ms_ranges before = {0}, after = {0};
    const bool is_listed = list_backed(allocation, &before);
    const size_t freed = uncover(allocation);
    if (is_listed && freed > 0 && list_backed(allocation, &after) &&
        list_of_trimmed(allocation) != NULL)
        ms_ranges_subtract(&before, &after, MS_OWN(allocation)->trimmed);
    ms_ranges_cleanup(&before);
    ms_ranges_cleanup(&after);
    add_gain(allocation, (int64_t)freed);
    return freed;
}

static void note_memory(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_ranges *trimmed = MS_OWN(allocation)->trimmed, rest = {0};
    struct ms_range range = {ms_round_down(begin, allocation->granule),
                             ms_round_up(end, allocation->granule)};
    ms_ranges_sort(trimmed);
    add_gain(allocation, -2 * (int64_t)trimmed_bytes(allocation, range.begin, range.end));
    ms_ranges_subtract(trimmed, &(struct ms_ranges){.list = &range, .count = 1}, &rest);
    ms_ranges_cleanup(trimmed);
    *trimmed = rest;
    if (rest.count == 0)
        ms_trimmed_forget(allocation);
}

/* With memory in its block the launch would not be recorded, and its input would come into memory:
 * of that, the share of [begin, end). */
static void note_recorded(const struct ms_allocation *allocation, size_t begin, size_t end,
                          const struct ms_recorded_launch *recorded)
{
    if (recorded->input == NULL || trimmed_bytes(allocation, begin, end) == 0)
        return;
    const double share = (double)(end - begin) / (double)recorded->before.bytes;
    add_gain(allocation, (int64_t)(share * (double)recorded->input->lineage.bytes));
}

void ms_carve_note(struct ms_allocation *allocation, size_t begin, size_t end,
                   const struct ms_recorded_launch *recorded)
{
    if (MS_OWN(allocation)->trimmed == NULL)
        return;
    if (recorded == NULL)
        note_memory(allocation, begin, end);
    else
        note_recorded(allocation, begin, end, recorded);
}

size_t ms_carve_give_back(struct ms_allocation *allocation, ms_carve_asks *can_replay)
{
    give_up_dead(allocation);
    if (can_replay == NULL)
        return trim(allocation);
    keep_what_is_lost(allocation, can_replay);
    /* Whole extents change: no memory is needed. */
    if (MS_OWN(allocation)->lineage.cached_bytes > 0)
        change(allocation, 0, allocation->bytes, ms_content_set_missing);
    return uncover(allocation);
}
