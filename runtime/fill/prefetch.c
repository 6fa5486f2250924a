/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/prefetch.h"

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/base/range_list.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/shard/active_plan.h"
#include "runtime/source/transfer.h"
#include "runtime/state/counters.h"

/* Limits of a batch, whose claims are held while it is filled. */
enum { MAX_PARTS = 256 };
static const uint64_t batch_bytes = UINT64_C(1) << 30;

/* The ranges of a claimed allocation that are being filled; their granules are backed. */
struct part {
    struct ms_allocation *allocation;
    struct ms_ranges files;  /* go through the transfer */
    struct ms_ranges others; /* are replayed one by one */
};

struct batch {
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
        (struct ms_read_request){extent->content.source, extent->content.source_offset,
                                 extent->end - extent->begin, allocation->address + extent->begin};
    return true;
}

static bool is_wanted(const struct ms_content *content)
{
    return content->locality == MS_LOCAL && !ms_content_is_present(content) &&
           !ms_content_is_nothing(content) && content->kind != MS_PARKED; /* that has its memory */
}

/* Lists local bytes that are not present. */
static bool list_wanted(struct batch *batch, struct part *part)
{
    const struct ms_lineage *lineage = &part->allocation->lineage;
    bool is_good = true;
    struct ms_walk walk = ms_walk_all(lineage);
    for (const struct ms_extent *extent; is_good && (extent = ms_walk_next(&walk)) != NULL;) {
        if (!is_wanted(&extent->content))
            continue;
        if (extent->content.kind == MS_SOURCE && ms_source_is_file(extent->content.source))
            is_good = ms_ranges_add(&part->files, extent->begin, extent->end) &&
                      add_run(batch, part->allocation, extent);
        else
            is_good = ms_ranges_add(&part->others, extent->begin, extent->end);
    }
    return is_good;
}

/* The granules under the ranges; those that touch get one handle. */
static CUresult cover(struct ms_allocation *allocation, const struct ms_ranges *ranges)
{
    const uint64_t granule = allocation->backing.granule;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < ranges->count && result == CUDA_SUCCESS;) {
        const uint64_t begin = ranges->list[i].begin;
        uint64_t end = ranges->list[i].end;
        for (i++;
             i < ranges->count && ranges->list[i].begin / granule <= (end + granule - 1) / granule;
             i++)
            end = ranges->list[i].end;
        result = ms_backing_cover(&allocation->backing, begin, end);
    }
    return result;
}

static void part_cleanup(struct part *part)
{
    ms_ranges_cleanup(&part->files);
    ms_ranges_cleanup(&part->others);
    ms_space_release(part->allocation);
}

/* Adds a claimed allocation, which the batch then owns. A failure adds nothing. */
static CUresult add_allocation(struct batch *batch, struct ms_allocation *allocation)
{
    struct part part = {.allocation = allocation};
    const size_t runs_before = batch->run_count;
    ms_shard_query_placement(allocation, 0, allocation->bytes);
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
    batch->bytes += ms_ranges_bytes(&part.files);
    batch->parts[batch->part_count++] = part;
    return CUDA_SUCCESS;
}

static void set_cached(struct ms_content *content)
{
    content->cached = true;
}

static CUresult finish_part(struct part *part)
{
    struct ms_allocation *allocation = part->allocation;
    for (size_t i = 0; i < part->files.count; i++)
        ms_compare(allocation, part->files.list[i].begin, part->files.list[i].end,
                   MS_COMPARE_REPLAYED);
    if (!ms_lineage_change(&allocation->lineage, part->files.list, part->files.count, set_cached))
        return CUDA_ERROR_OUT_OF_MEMORY;
    ms_count(MS_COUNT_MATERIALISED_BYTES, ms_ranges_bytes(&part->files));
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < part->others.count && result == CUDA_SUCCESS; i++)
        result = ms_materialise(allocation, part->others.list[i].begin, part->others.list[i].end,
                                MS_NEED_READ);
    return result;
}

static CUresult transfer(const struct batch *batch, CUcontext context)
{
    struct ms_driver_scope scope;
    CUstream stream;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_fill_stream(context, &stream);
    if (result == CUDA_SUCCESS)
        result = ms_transfer(batch->runs, batch->run_count, context, stream);
    ms_driver_leave(&scope);
    return result;
}

/* Fills the parts, and ends their claims in any case. */
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

/* A batch is of one context. */
static bool is_full(const struct batch *batch, const struct ms_allocation *next)
{
    return batch->part_count == batch->limit || batch->bytes >= batch_bytes ||
           (batch->part_count > 0 && batch->parts[0].allocation->context != next->context);
}

/* Fills one batch from *at on, and on success moves *at behind it. Takes claims in the order of
 * addresses. *more_out: it was not the last batch. */
static CUresult fill_batch(struct batch *batch, CUdeviceptr *at, bool *more_out)
{
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr next = *at;
    *more_out = false;
    while (result == CUDA_SUCCESS && !*more_out) {
        struct ms_allocation *allocation = ms_space_claim_next(next);
        if (allocation == NULL)
            break;
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

/* Behind the next allocation that has something to fill. */
static bool skip(CUdeviceptr *at)
{
    struct ms_allocation_facts facts;
    if (!ms_space_first_behind(*at, &facts))
        return false;
    *at = facts.address + facts.bytes;
    return true;
}

/* After a failure fills one by one, so that one allocation does not keep the others deferred. */
static bool fill(void)
{
    struct batch *batch = ms_heap_zalloc(sizeof(*batch));
    bool is_good = batch != NULL, more = is_good;
    CUdeviceptr at = 0;
    int attempts = 0;
    if (batch != NULL)
        batch->limit = MAX_PARTS;
    while (more) {
        const CUresult result = fill_batch(batch, &at, &more);
        if (result == CUDA_SUCCESS)
            continue;
        more = true;
        if (ms_try_again(result, &attempts))
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

/* --- another plan than before */

/* True if all bytes of the chunk can be read again. */
static bool can_be_given_back(const struct ms_allocation *allocation, const struct ms_chunk *chunk)
{
    const struct ms_lineage *lineage = &allocation->lineage;
    bool was_planned = false;
    struct ms_walk walk = ms_walk_begin(lineage, chunk->begin, chunk->end);
    for (const struct ms_extent *extent; (extent = ms_walk_next(&walk)) != NULL;) {
        const struct ms_content *content = &extent->content;
        if (content->kind == MS_RESIDENT || (content->cached && !ms_content_is_current(content)))
            return false;
        was_planned |= content->cached && content->locality == MS_LOCAL;
    }
    return was_planned;
}

static void set_missing(struct ms_content *content)
{
    content->cached = false;
}

/* The last granule reaches behind the end of the allocation. */
static struct ms_range range_of(const struct ms_allocation *allocation,
                                const struct ms_chunk *chunk)
{
    return (struct ms_range){chunk->begin,
                             chunk->end < allocation->bytes ? chunk->end : allocation->bytes};
}

static size_t give_back(struct ms_allocation *allocation)
{
    size_t freed = 0;
    for (size_t i = 0; i < allocation->backing.count;) {
        const struct ms_chunk chunk = allocation->backing.chunks[i];
        const struct ms_range range = range_of(allocation, &chunk);
        if (!can_be_given_back(allocation, &chunk) ||
            !ms_lineage_change(&allocation->lineage, &range, 1, set_missing)) {
            i++;
            continue;
        }
        freed += ms_backing_uncover(&allocation->backing, chunk.begin, chunk.end);
    }
    return freed;
}

/* Forgets what the old plan said; returns the bytes that are still in memory for it. */
static uint64_t reopen(struct ms_allocation *allocation)
{
    const struct ms_range all = {0, allocation->bytes};
    uint64_t kept = 0;
    struct ms_walk walk = ms_walk_all(&allocation->lineage);
    for (const struct ms_extent *extent; (extent = ms_walk_next(&walk)) != NULL;) {
        if (extent->content.locality == MS_LOCAL && ms_content_is_present(&extent->content))
            kept += extent->end - extent->begin;
    }
    ms_lineage_change(&allocation->lineage, &all, 1, ms_content_forget_locality);
    return kept;
}

static void drop_old_plan(void)
{
    const size_t freed = ms_pressure_evict(give_back);
    uint64_t kept = 0;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_claim_after(allocation)) != NULL)
        kept += reopen(allocation);
    if (freed > 0 || kept > 0)
        ms_log(kept > 0 ? MS_WARN : MS_INFO,
               "another plan: %zu bytes of the old one were given back, %llu stay in memory "
               "because the program has written there, or they cannot be read again",
               freed, (unsigned long long)kept);
}

/* --- */

/* One prefetch at a time. Taken before claims, and held while the thread waits for them. */
static struct ms_lock turn = MS_LOCK_INIT(prefetch);
static uint64_t passed MS_GUARDED_BY(turn); /* the generation of the plan of the last prefetch */

bool ms_prefetch_run(const char *why)
{
    if (!ms_shard_is_active() || !ms_owns_any())
        return true;
    ms_lock_take(&turn);
    ms_log(MS_DEBUG, "materialising what the plan gives to this rank: %s", why);
    const uint64_t generation = ms_shard_generation();
    if (passed != 0 && passed != generation)
        drop_old_plan();
    passed = generation;
    ms_shard_match_blocks();
    const uint64_t began = ms_state_now();
    const struct ms_why reason = ms_why_begin(MS_REASON_PREFETCH);
    const bool is_good = fill();
    ms_why_end(reason);
    ms_count(MS_COUNT_PREFETCHES, 1);
    ms_lock_drop(&turn);
    ms_shard_publish(why, began);
    if (!is_good)
        ms_log(MS_INFO, "not everything that the plan gives to this rank could be materialised; "
                        "it stays deferred");
    return is_good;
}

void ms_prefetch_begin(bool is_first)
{
    if (is_first)
        ms_shard_catch_up();
    ms_shard_publish("a plan came into force", 0);
    ms_prefetch_run("a plan has arrived");
}
