/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/prefetch.h"

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/base/ranges.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/hold_up.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/origins.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/restore.h"
#include "runtime/loading/transfer.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/why.h"

/* Limits of a batch: the thread holds its claims until the batch is filled. */
enum { MAX_PARTS = 256 };
static const uint64_t batch_bytes = UINT64_C(1) << 30;

/* The ranges of a claimed allocation that are being filled; their granules are backed. */
struct part {
    struct ms_allocation *allocation;
    struct ms_ranges files;  /* go through the transfer */
    struct ms_ranges others; /* are replayed one by one */
};

/* True for content to fill: what the plan gives to this rank, or what was resident. */
typedef bool wanted(const struct ms_allocation *allocation, const struct ms_content *content);

struct batch {
    wanted *is_wanted;
    struct part parts[MAX_PARTS];
    size_t part_count, limit;
    struct ms_read_request *runs;
    size_t run_count, run_capacity;
    uint64_t bytes;
};

static bool add_run(struct batch *batch, const struct ms_allocation *allocation,
                    const struct ms_extent *extent)
{
    if (!MS_ARRAY_GROW(batch->runs, batch->run_count, batch->run_capacity))
        return false;
    batch->runs[batch->run_count++] =
        (struct ms_read_request){ms_content_file(&extent->content), extent->content.source_offset,
                                 extent->end - extent->begin, allocation->address + extent->begin};
    return true;
}

static bool is_missing(const struct ms_content *content)
{
    return !ms_content_is_present(content) && !ms_content_is_nothing(content) &&
           content->kind != MS_PARKED; /* parked bytes have memory already */
}

static bool is_local(const struct ms_allocation *allocation, const struct ms_content *content)
{
    (void)allocation;
    return content->locality == MS_LOCAL && is_missing(content);
}

static bool was_resident(const struct ms_allocation *allocation, const struct ms_content *content)
{
    return allocation->notes.was_resident && content->locality != MS_REMOTE && is_missing(content);
}

/* Lists the part's wanted bytes, none of which is present. */
static bool list_wanted(struct batch *batch, struct part *part)
{
    bool is_good = true;
    struct ms_walk walk = {ms_allocation_lineage(part->allocation), 0, part->allocation->bytes};
    for (const struct ms_extent *extent; is_good && (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (!batch->is_wanted(part->allocation, &extent->content))
            continue;
        ms_origins_note(part->allocation, extent);
        if (ms_content_file(&extent->content) != NULL)
            is_good = ms_ranges_add(&part->files, extent->begin, extent->end) &&
                      add_run(batch, part->allocation, extent);
        else
            is_good = ms_ranges_add(&part->others, extent->begin, extent->end);
    }
    return is_good;
}

/* Backs the granules under the ranges; ranges whose granules touch get one handle. */
static CUresult cover(struct ms_allocation *allocation, const struct ms_ranges *ranges)
{
    const uint64_t granule = allocation->granule;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < ranges->count && result == CUDA_SUCCESS;) {
        const uint64_t begin = ranges->list[i].begin;
        uint64_t end = ranges->list[i].end;
        for (i++;
             i < ranges->count && ranges->list[i].begin / granule <= (end + granule - 1) / granule;
             i++)
            end = ranges->list[i].end;
        result = ms_allocation_cover(allocation, begin, end);
    }
    return result;
}

static uint64_t sum_bytes(const struct ms_ranges *ranges)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < ranges->count; i++)
        bytes += ranges->list[i].end - ranges->list[i].begin;
    return bytes;
}

static void part_cleanup(struct part *part)
{
    ms_ranges_cleanup(&part->files);
    ms_ranges_cleanup(&part->others);
    ms_space_release(part->allocation);
}

/* Adds a claimed allocation, and takes the claim over: a failure adds nothing and ends the
 * claim. */
static CUresult add_allocation(struct batch *batch, struct ms_allocation *allocation)
{
    struct part part = {.allocation = allocation};
    const size_t runs_before = batch->run_count;
    ms_placement_query(allocation, 0, allocation->bytes);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (list_wanted(batch, &part))
        result = cover(allocation, &part.files);
    if (result == CUDA_SUCCESS)
        result = cover(allocation, &part.others);
    if (result != CUDA_SUCCESS || part.files.count + part.others.count == 0) {
        batch->run_count = runs_before;
        part_cleanup(&part);
        return result;
    }
    batch->bytes += sum_bytes(&part.files);
    batch->parts[batch->part_count++] = part;
    return CUDA_SUCCESS;
}

static CUresult finish_part(struct part *part)
{
    struct ms_allocation *allocation = part->allocation;
    for (size_t i = 0; i < part->files.count; i++)
        ms_compare(allocation, part->files.list[i].begin, part->files.list[i].end,
                   MS_COMPARE_REPLAYED);
    CUresult result = ms_bytes_set_present(allocation, part->files.list, part->files.count);
    if (result == CUDA_SUCCESS)
        ms_counter_add(MS_COUNT_MATERIALISED_BYTES, sum_bytes(&part->files));
    return result == CUDA_SUCCESS ? ms_materialise_ranges(allocation, part->others.list,
                                                          part->others.count, MS_NEED_READ)
                                  : result;
}

static CUresult transfer(const struct batch *batch, CUcontext context)
{
    struct ms_driver_scope scope;
    CUstream stream;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_replay_stream(context, &stream);
    if (result == CUDA_SUCCESS)
        result = ms_transfer(batch->runs, batch->run_count, context, stream);
    ms_driver_leave(&scope);
    return result;
}

/* Fills the parts. Ends their claims also on failure. */
static CUresult flush(struct batch *batch)
{
    CUresult result = CUDA_SUCCESS;
    const uint64_t began = ms_state_now();
    if (batch->run_count > 0)
        result = transfer(batch, batch->parts[0].allocation->context);
    if (batch->run_count > 0 && result == CUDA_SUCCESS)
        ms_publish_filled(batch->bytes, began);
    for (size_t i = 0; i < batch->part_count; i++) {
        if (result == CUDA_SUCCESS)
            result = finish_part(&batch->parts[i]);
        part_cleanup(&batch->parts[i]);
    }
    batch->part_count = batch->run_count = 0;
    batch->bytes = 0;
    return result;
}

/* A batch has allocations of one context only. */
static bool is_full(const struct batch *batch, const struct ms_allocation *next)
{
    return batch->part_count == batch->limit || batch->bytes >= batch_bytes ||
           (batch->part_count > 0 && batch->parts[0].allocation->context != next->context);
}

/* Fills one batch from *at on, and on success moves *at behind the batch. Takes claims in the order
 * of addresses. *more_out: another batch follows. */
static CUresult fill_batch(struct batch *batch, CUdeviceptr *at, bool *more_out)
{
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr next = *at;
    struct ms_allocation *allocation;
    *more_out = false;
    while (result == CUDA_SUCCESS && (allocation = ms_space_claim_next(next)) != NULL) {
        *more_out = is_full(batch, allocation);
        if (*more_out) {
            ms_space_release(allocation);
            break;
        }
        next = allocation->address + allocation->bytes;
        result = add_allocation(batch, allocation);
    }
    const CUresult flushed = flush(batch);
    if (result == CUDA_SUCCESS)
        result = flushed;
    if (result == CUDA_SUCCESS)
        *at = next;
    return result;
}

/* Moves *at behind the next allocation. False if there is none. */
static bool skip(CUdeviceptr *at)
{
    struct ms_allocation_facts facts;
    if (!ms_space_first_behind(*at, &facts))
        return false;
    *at = facts.address + facts.bytes;
    return true;
}

/* Fills in batches; after a failure one allocation at a time, so that the one that fails does not
 * keep the others deferred. */
static bool fill(wanted *is_wanted)
{
    MS_WHY const struct ms_why why = ms_why_begin(MS_REASON_PREFETCH);
    struct batch *batch = ms_heap_zalloc(sizeof(*batch));
    bool is_good = batch != NULL, more = is_good;
    CUdeviceptr at = 0;
    int attempts = 0;
    if (batch != NULL)
        *batch = (struct batch){.is_wanted = is_wanted, .limit = MAX_PARTS};
    while (more) {
        const CUresult result = fill_batch(batch, &at, &more);
        if (result == CUDA_SUCCESS)
            continue;
        more = true;
        if (ms_evict_try_again(result, &attempts))
            continue;
        if (batch->limit == 1) {
            is_good = false;
            more = result != CUDA_ERROR_OUT_OF_MEMORY && skip(&at);
        }
        batch->limit = 1;
    }
    if (batch != NULL)
        ms_heap_free(batch->runs);
    ms_heap_free(batch);
    return is_good;
}

/* --- memory from before the plan came */

/* Lists the cached bytes of the range. False if some present byte could not be read again. */
static bool list_cached(const struct ms_allocation *allocation, const struct ms_range *range,
                        struct ms_ranges *cached)
{
    struct ms_extent extent;
    for (size_t at = range->begin;
         ms_lineage_next(ms_allocation_lineage(allocation), &at, range->end, &extent);) {
        const struct ms_content *content = &extent.content;
        if (content->kind == MS_RESIDENT || (content->cached && !ms_replay_is_current(content)))
            return false;
        if (content->cached && !ms_ranges_add(cached, extent.begin, extent.end))
            return false;
    }
    return true;
}

/* True if some granule of the range holds only bytes that other ranks keep; the allocation's last
 * granule may be partial. */
static bool has_remote_granule(const struct ms_allocation *allocation, const struct ms_range *range)
{
    const size_t granule = allocation->granule;
    size_t begin = range->begin; /* of the first granule from which on all is remote */
    bool is_found = false;
    struct ms_extent extent;
    for (size_t at = range->begin;
         ms_lineage_next(ms_allocation_lineage(allocation), &at, range->end, &extent);) {
        if (extent.content.locality != MS_REMOTE)
            begin = (extent.end + granule - 1) / granule * granule;
        is_found |= extent.end >= begin + granule ||
                    (extent.end > begin && extent.end == allocation->bytes);
    }
    return is_found;
}

/* Frees a chunk that has remote granules, as a whole: the prefetch reads this rank's bytes of it
 * again. Marks its bytes as missing first, because the plan is asked only about missing bytes. */
static size_t give_back_chunk(struct ms_allocation *allocation, struct ms_range chunk)
{
    const struct ms_range range = ms_allocation_granules(allocation, chunk.begin, chunk.end);
    struct ms_ranges cached = {0};
    size_t freed = 0;
    if (list_cached(allocation, &range, &cached) &&
        ms_bytes_change(allocation, &range, 1, ms_content_set_missing) == CUDA_SUCCESS) {
        ms_placement_query(allocation, range.begin, range.end);
        if (has_remote_granule(allocation, &range))
            freed =
                ms_backing_uncover(ms_allocation_memory(allocation), chunk.begin, chunk.end, false);
        else
            ms_bytes_set_present(allocation, cached.list, cached.count);
    }
    ms_ranges_cleanup(&cached);
    return freed;
}

static size_t give_back(struct ms_allocation *allocation, void *argument)
{
    size_t freed = 0;
    (void)argument;
    struct ms_range chunk = {0, allocation->granule_bytes};
    for (; ms_backing_next(ms_allocation_backing(allocation), &chunk);
         chunk = (struct ms_range){chunk.end, allocation->granule_bytes})
        freed += give_back_chunk(allocation, chunk);
    return freed;
}

/* The memory of allocations with resident bytes: the program may have written them, and nobody
 * knows any more where they came from. */
static uint64_t written_bytes(void)
{
    uint64_t bytes = 0;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL)
        bytes += ms_lineage_any(ms_allocation_lineage(allocation), 0, allocation->bytes,
                                MS_OF_KIND(MS_RESIDENT))
                     ? ms_backing_bytes(ms_allocation_backing(allocation))
                     : 0;
    return bytes;
}

static void make_way(void)
{
    const size_t freed = ms_evict_all(NULL, give_back, NULL);
    const uint64_t stays = written_bytes();
    ms_counter_add(MS_COUNT_PLAN_FREED_BYTES, freed);
    if (freed == 0 && stays == 0)
        return;
    ms_log(freed > 0 ? MS_INFO : MS_WARN,
           "the plan: %zu bytes of memory were given back, %llu stay, because the program may have "
           "written there; %s",
           freed, (unsigned long long)stays,
           ms_shard_enforces()
               ? "a plan that comes before the tensors are used can leave out more"
               : "a plan that comes before the tensors are used can leave out more, and "
                 "METASHARD_PLAN_MODE=enforce also bytes that are equal to their file");
}

/* --- */

/* Allows one prefetch at a time. Taken before claims, and held while the thread waits for
 * claims. */
static struct ms_lock turn = MS_LOCK_INIT(prefetch);

/* The caller has taken the turn. */
static bool prefetch(const char *why)
{
    ms_log(MS_DEBUG, "materialising what the plan gives to this rank: %s", why);
    ms_shard_match_unnamed();
    const uint64_t began = ms_state_now();
    const bool is_good = fill(is_local);
    ms_counter_add(MS_COUNT_PREFETCHES, 1);
    ms_shard_publish(why, began);
    if (!is_good)
        ms_log(MS_INFO, "not everything that the plan gives to this rank could be materialised; "
                        "it stays deferred");
    return is_good;
}

bool ms_prefetch_run(const char *why)
{
    if (!ms_shard_is_active() || !ms_owns_any())
        return true;
    ms_lock_take(&turn);
    const bool is_good = prefetch(why);
    ms_lock_drop(&turn);
    return is_good;
}

bool ms_prefetch_residents(void)
{
    ms_lock_take(&turn);
    const bool is_good = fill(was_resident);
    ms_lock_drop(&turn);
    return is_good;
}

void ms_prefetch_prepare(bool is_first)
{
    struct ms_allocation *allocation = NULL;
    if (is_first)
        ms_shard_catch_up();
    while (!is_first && (allocation = ms_space_walk(allocation)) != NULL)
        ms_bytes_change_range(allocation, 0, allocation->bytes, ms_content_forget_locality);
    ms_shard_publish("a plan came into force", 0);
}

/* Asks the plan about all allocations. The caller has taken the turn. */
static void learn(bool is_first)
{
    struct ms_allocation *allocation = NULL;
    ms_prefetch_prepare(is_first);
    ms_shard_match_unnamed();
    while ((allocation = ms_space_walk(allocation)) != NULL)
        ms_placement_query(allocation, 0, allocation->bytes);
}

/* Holds the program up: it must not write while the shim compares bytes and frees them. */
static bool hold_up(void)
{
    struct ms_fault fault;
    const bool is_held_up = ms_hold_up_begin(&fault);
    if (!is_held_up)
        ms_log(MS_WARN, "the plan: bytes in memory are not compared with their files: %s",
               fault.text);
    return is_held_up;
}

/* The caller has taken the turn. */
static void learn_and_fetch(bool is_first, bool is_held_up)
{
    ms_examining_begin();
    const bool restored = is_held_up && ms_restore_all() > 0;
    ms_prefetch_prepare(is_first);
    make_way();
    if (is_held_up)
        ms_hold_up_end();
    prefetch("a plan has arrived");
    if (restored)
        ms_restore_keep();
    ms_examining_end();
}

void ms_prefetch_arrive(bool is_first, bool fetches)
{
    if (!ms_shard_is_active() || !ms_owns_any()) {
        ms_prefetch_prepare(is_first);
        return;
    }
    const bool is_held_up = fetches && ms_shard_enforces() && hold_up();
    ms_lock_take(&turn);
    if (fetches)
        learn_and_fetch(is_first, is_held_up);
    else
        learn(is_first);
    ms_lock_drop(&turn);
}
