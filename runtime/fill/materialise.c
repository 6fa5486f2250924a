/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/materialise.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/loaded.h"
#include "runtime/fill/origins.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/shadow.h"
#include "runtime/loading/transfer.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/examining.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/why.h"
#include "runtime/state/window.h"

/* True if writes may happen later than their calls, or kernels find addresses unseen. */
static bool may_come_late(void)
{
    return ms_is_capturing() || ms_has_late_payloads();
}

/* ms_lineage_next and ms_lineage_any, of a claimed allocation. */
static bool next_extent(const struct ms_allocation *allocation, size_t *at, size_t end,
                        struct ms_extent *extent_out)
{
    return ms_lineage_next(ms_allocation_lineage(allocation), at, end, extent_out);
}
static bool has_any(const struct ms_allocation *allocation, size_t begin, size_t end,
                    unsigned states)
{
    return ms_lineage_any(ms_allocation_lineage(allocation), begin, end, states);
}

/* A smaller copy is done before a transfer has taken its staging memory. */
static const size_t min_transfer_bytes = (size_t)256 << 10;

static bool is_missing_file(const struct ms_content *content)
{
    return !ms_content_is_present(content) && ms_content_file(content) != NULL;
}

/* `block`: where offset 0 of the extent's block lies. */
static struct ms_loaded_place place_of(CUdeviceptr block, const struct ms_extent *extent)
{
    return (struct ms_loaded_place){extent->content.source, extent->content.source_offset,
                                    extent->end - extent->begin, block + extent->begin};
}

/* Missing pieces of one file, in one line (loaded.h). */
struct run {
    size_t end; /* in the allocation */
    size_t bytes;
};

static bool is_in_line(const struct ms_extent *extent, const struct ms_extent *first)
{
    const struct ms_content *content = &extent->content;
    return is_missing_file(content) && content->source == first->content.source &&
           content->source_offset - extent->begin == first->content.source_offset - first->begin;
}

/* The run that begins with an extent, up to `end`. */
static struct run find_run(const struct ms_allocation *allocation, const struct ms_extent *first,
                           size_t end)
{
    struct run run = {first->end, 0};
    struct ms_extent extent;
    for (size_t at = first->begin;
         next_extent(allocation, &at, end, &extent) && extent.begin < run.end + MS_LOADED_NEAR;) {
        if (is_in_line(&extent, first))
            run = (struct run){extent.end, run.bytes + (extent.end - extent.begin)};
    }
    return run;
}

/* True if other places may have the missing bytes of a file or a snapshot. `run`: that of the
 * extent before, at first {0}. */
static bool is_perhaps_elsewhere(const struct ms_allocation *allocation,
                                 const struct ms_extent *extent, size_t end, struct run *run)
{
    const struct ms_content *content = &extent->content;
    if (is_missing_file(content) && extent->begin >= run->end)
        *run = find_run(allocation, extent, end);
    return !ms_content_is_present(content) && content->kind == MS_SOURCE &&
           ms_loaded_is_likely(content, run->bytes);
}

/* Fills [begin, end) from all files in one transfer. *done_out: the transfer was worth it. */
static CUresult replay_files(const struct ms_allocation *allocation, size_t begin, size_t end,
                             CUstream stream, bool *done_out)
{
    struct ms_read_request *runs = NULL;
    size_t count = 0, capacity = 0, bytes = 0;
    struct ms_extent extent;
    CUresult result = CUDA_SUCCESS;
    bool are_listed = end - begin >= min_transfer_bytes;
    while (are_listed && next_extent(allocation, &begin, end, &extent)) {
        const size_t run_bytes = extent.end - extent.begin;
        if (!is_missing_file(&extent.content))
            continue;
        are_listed = MS_ARRAY_GROW(runs, count, capacity);
        if (are_listed)
            runs[count++] = (struct ms_read_request){ms_content_file(&extent.content),
                                                     extent.content.source_offset, run_bytes,
                                                     allocation->address + extent.begin};
        bytes += run_bytes;
    }
    *done_out = are_listed && bytes >= min_transfer_bytes;
    if (*done_out)
        result = ms_transfer(runs, count, allocation->context, stream);
    ms_heap_free(runs);
    return result;
}

static CUresult replay_extent(const struct ms_allocation *allocation,
                              const struct ms_extent *extent, CUstream stream)
{
    return ms_replay_any(&extent->content, extent->begin, allocation->address + extent->begin,
                         extent->end - extent->begin, stream);
}

/* Replays the missing bytes of [begin, end): files together, the rest extent by extent. */
static CUresult replay_missing(const struct ms_allocation *allocation, size_t begin, size_t end,
                               CUstream stream)
{
    bool files_done;
    CUresult result = replay_files(allocation, begin, end, stream, &files_done);
    struct ms_extent extent;
    while (result == CUDA_SUCCESS && next_extent(allocation, &begin, end, &extent)) {
        if (!ms_content_is_present(&extent.content) && !ms_content_is_nothing(&extent.content) &&
            !(files_done && is_missing_file(&extent.content)))
            result = replay_extent(allocation, &extent, stream);
    }
    return result;
}

/* A missing extent has come into memory. `end` and `run`: as is_perhaps_elsewhere wants them. */
static void note_arrival(const struct ms_allocation *allocation, const struct ms_extent *extent,
                         size_t end, struct run *run)
{
    const struct ms_loaded_place place = place_of(allocation->address, extent);
    ms_counter_add(MS_COUNT_MATERIALISED_BYTES, extent->end - extent->begin);
    ms_origins_note(allocation, extent);
    if (is_perhaps_elsewhere(allocation, extent, end, run))
        ms_loaded_note(&place, MS_LOADED_IS_THERE);
}

/* All of [begin, end) has come into memory. */
static CUresult set_present(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_range range = {begin, end};
    struct ms_extent extent;
    struct run run = {0};
    ms_compare(allocation, begin, end, MS_COMPARE_REPLAYED);
    for (size_t at = begin; next_extent(allocation, &at, end, &extent);) {
        if (!ms_content_is_present(&extent.content))
            note_arrival(allocation, &extent, end, &run);
    }
    return ms_bytes_set_present(allocation, &range, 1);
}

/* The files of [begin, end) have come into memory. */
static CUresult set_files_present(struct ms_allocation *allocation, size_t begin, size_t end)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    struct run run = {0};
    while (result == CUDA_SUCCESS && next_extent(allocation, &begin, end, &extent)) {
        const struct ms_range range = {extent.begin, extent.end};
        if (!is_missing_file(&extent.content))
            continue;
        ms_compare(allocation, range.begin, range.end, MS_COMPARE_REPLAYED);
        note_arrival(allocation, &extent, end, &run);
        result = ms_bytes_set_present(allocation, &range, 1);
    }
    return result;
}

/* Fills the files of [begin, end), if they are worth a transfer. */
static CUresult send_files(struct ms_allocation *allocation, size_t begin, size_t end,
                           CUstream stream)
{
    bool are_done;
    if (begin >= end)
        return CUDA_SUCCESS;
    CUresult result = replay_files(allocation, begin, end, stream, &are_done);
    result = ms_replay_end(stream, result);
    return result == CUDA_SUCCESS && are_done ? set_files_present(allocation, begin, end) : result;
}

/* Sends an extent of a snapshot by itself, because the next one may be the same bytes. */
static CUresult send_snapshot(struct ms_allocation *allocation, const struct ms_extent *extent,
                              CUstream stream)
{
    const CUresult result = ms_replay_end(stream, replay_extent(allocation, extent, stream));
    return result == CUDA_SUCCESS ? set_present(allocation, extent->begin, extent->end) : result;
}

/* Copies missing bytes of files and snapshots in [begin, end) that are in memory elsewhere. */
static CUresult copy_loaded(struct ms_allocation *allocation, size_t begin, size_t end,
                            CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    struct run run = {0};
    for (size_t next = begin;
         result == CUDA_SUCCESS && next_extent(allocation, &next, end, &extent);) {
        const struct ms_content *content = &extent.content;
        if (!is_perhaps_elsewhere(allocation, &extent, end, &run))
            continue;
        const struct ms_loaded_place place = place_of(allocation->address, &extent);
        const struct ms_range copied = ms_loaded_copy(allocation->context, &place, stream);
        if (copied.begin == copied.end && ms_content_file(content) == NULL)
            result = send_snapshot(allocation, &extent, stream);
        if (copied.begin == copied.end)
            continue;
        const size_t at = extent.begin + (copied.begin - content->source_offset);
        result = set_present(allocation, at, at + (copied.end - copied.begin));
        next = extent.begin; /* the rest of the extent */
    }
    return result;
}

/* Replays the missing results of launches in [begin, end). Each is present then: the scratch memory
 * of the next may be refused, and what was sent for this one would be sent again. */
static CUresult replay_launched(struct ms_allocation *allocation, size_t begin, size_t end,
                                CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    while (result == CUDA_SUCCESS && next_extent(allocation, &begin, end, &extent)) {
        if (extent.content.kind != MS_LAUNCHED || extent.content.cached)
            continue;
        result = replay_extent(allocation, &extent, stream);
        if (result == CUDA_SUCCESS)
            result = set_present(allocation, extent.begin, extent.end);
    }
    return result;
}

/* Frees kept scratch memory first, where it would exceed the bound beside the program's memory. */
static CUresult cover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_range all = ms_allocation_granules(allocation, begin, end);
    const size_t bytes = ms_replay_unbacked(allocation, all);
    if (bytes > 0)
        ms_scratch_make_way(allocation->device, bytes);
    return ms_allocation_cover(allocation, begin, end);
}

static CUresult replay_extents(struct ms_allocation *allocation, size_t begin, size_t end,
                               CUstream stream)
{
    CUresult result = copy_loaded(allocation, begin, end, stream);
    if (result == CUDA_SUCCESS)
        result = replay_launched(allocation, begin, end, stream);
    if (result == CUDA_SUCCESS)
        result = replay_missing(allocation, begin, end, stream);
    return ms_replay_end(stream, result);
}

/* The block of the allocation that a recorded launch writes, if the extent is the result of one
 * with an input; else empty. */
static struct ms_range block_with_input(const struct ms_allocation *allocation,
                                        const struct ms_extent *extent)
{
    const struct ms_recorded_launch *recorded = extent->content.recorded;
    if (extent->content.kind != MS_LAUNCHED || extent->content.cached || recorded->input == NULL)
        return (struct ms_range){0};
    if (recorded->allocation_id != allocation->id || recorded->address < allocation->address)
        return (struct ms_range){extent->begin, extent->end};
    const size_t begin = ms_offset(allocation, recorded->address);
    return (struct ms_range){begin < extent->begin ? begin : extent->begin,
                             begin + recorded->before.bytes};
}

/*
 * Fills files before launches with an input are replayed: the input may have the same bytes, and
 * gets them from here. Leaves the blocks that these launches write, because a launch can only run
 * in its place if nothing else is in memory there.
 */
static CUresult send_files_first(struct ms_allocation *allocation, size_t begin, size_t end,
                                 CUstream stream)
{
    bool is_any = false;
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    for (size_t at = begin; result == CUDA_SUCCESS && next_extent(allocation, &at, end, &extent);) {
        const struct ms_range block = block_with_input(allocation, &extent);
        if (block.begin >= block.end)
            continue;
        is_any = true;
        result = send_files(allocation, begin, block.begin, stream);
        begin = block.end > begin ? block.end : begin;
    }
    return is_any && result == CUDA_SUCCESS ? send_files(allocation, begin, end, stream) : result;
}

/* A recorded launch that can run at its own place for a part of its output, [begin, end) of the
 * allocation. */
struct in_place {
    struct ms_recorded_launch *recorded;
    size_t recorded_begin, recorded_end; /* of the whole output */
    size_t begin, end;
};

/* True if the launch can run again: its output depends neither on the bytes that it overwrites nor
 * on earlier recorded launches there. */
static bool is_repeatable(const struct ms_recorded_launch *recorded)
{
    return (recorded->input != NULL || recorded->only_writes) &&
           !ms_lineage_any(&recorded->before, 0, recorded->before.bytes, MS_OF_KIND(MS_LAUNCHED));
}

/* True if all present bytes of [begin, end) are the launch's own output: another run changes
 * nothing. */
static bool has_only_made(const struct ms_allocation *allocation,
                          const struct ms_recorded_launch *recorded, size_t begin, size_t end)
{
    struct ms_extent extent;
    bool is_made = true;
    while (is_made && next_extent(allocation, &begin, end, &extent)) {
        const struct ms_content *content = &extent.content;
        is_made =
            !ms_content_is_present(content) ||
            (content->kind == MS_LAUNCHED && content->recorded == recorded &&
             ms_recorded_launch_is_at(content, allocation->id, allocation->address + extent.begin));
    }
    return is_made;
}

/* The offset of the first present byte from begin on, or end. */
static size_t end_of_missing(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_walk walk = {ms_allocation_lineage(allocation), begin, end};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (ms_content_is_present(&extent->content))
            return extent->begin;
    }
    return end;
}

/* Grows the part to whole granules, as far as the launch writes them. If some byte there must not
 * be written, the part is the missing bytes alone, which may cut an element of the launch: false
 * then, unless the launch can run again. */
static bool find_part(const struct ms_allocation *allocation, const struct ms_extent *extent,
                      size_t end, struct in_place *run)
{
    const size_t missing = end_of_missing(allocation, extent->begin, end);
    const struct ms_range all = ms_allocation_granules(allocation, extent->begin, missing);
    run->begin = all.begin > run->recorded_begin ? all.begin : run->recorded_begin;
    run->end = all.end < run->recorded_end ? all.end : run->recorded_end;
    if (!has_any(allocation, run->begin, run->end, MS_PRESENT | MS_OF_KIND(MS_ABSENT)))
        return true;
    run->begin = extent->begin;
    run->end = missing < run->recorded_end ? missing : run->recorded_end;
    return is_repeatable(run->recorded);
}

/*
 * A replay writes the whole output of the launch. So the launch runs in place only if no byte of
 * the output is present or it can run again, and the program has unmapped no part of the output.
 * Nothing of the part that is found is present.
 */
static bool may_run_in_place(const struct ms_allocation *allocation, const struct ms_extent *extent,
                             size_t end, struct in_place *run_out)
{
    struct ms_recorded_launch *recorded = extent->content.recorded;
    if (extent->content.kind != MS_LAUNCHED || extent->content.cached ||
        !ms_recorded_launch_is_at(&extent->content, allocation->id,
                                  allocation->address + extent->begin) ||
        recorded->address < allocation->address)
        return false;
    const size_t recorded_begin = ms_offset(allocation, recorded->address);
    const size_t recorded_end = recorded_begin + recorded->before.bytes;
    if (!ms_fits(allocation, recorded->address, recorded->before.bytes) ||
        (has_any(allocation, recorded_begin, recorded_end, MS_PRESENT) &&
         !(is_repeatable(recorded) &&
           has_only_made(allocation, recorded, recorded_begin, recorded_end))))
        return false;
    *run_out = (struct in_place){.recorded = recorded,
                                 .recorded_begin = recorded_begin,
                                 .recorded_end = recorded_end};
    return find_part(allocation, extent, end, run_out);
}

static bool find_in_place(const struct ms_allocation *allocation, size_t begin, size_t end,
                          struct in_place *run_out)
{
    struct ms_extent extent;
    bool found = false;
    for (size_t at = begin; !found && next_extent(allocation, &at, end, &extent);)
        found = may_run_in_place(allocation, &extent, end, run_out);
    return found;
}

/* True if the launch has written the extent, of the part, where it lies. */
static bool is_made_by(const struct in_place *run, const struct ms_extent *extent)
{
    return extent->content.kind == MS_LAUNCHED && extent->content.recorded == run->recorded &&
           extent->content.source_offset == extent->begin - run->recorded_begin;
}

/* Replays the bytes of the part that are not the launch's output. What the launch has made is
 * present before, as in replay_launched. */
static CUresult replay_around(struct ms_allocation *allocation, const struct in_place *run,
                              CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    for (size_t at = run->begin;
         result == CUDA_SUCCESS && next_extent(allocation, &at, run->end, &extent);) {
        if (is_made_by(run, &extent))
            result = set_present(allocation, extent.begin, extent.end);
    }
    for (size_t at = run->begin;
         result == CUDA_SUCCESS && next_extent(allocation, &at, run->end, &extent);) {
        if (!is_made_by(run, &extent) && !ms_content_is_nothing(&extent.content))
            result = replay_extent(allocation, &extent, stream);
    }
    return result;
}

/* True if scratch memory is cheaper. Running in place maps the sink, with one call a granule: that
 * cost should grow with the part that is kept, not with the whole output. */
static bool is_small_part(const struct ms_allocation *allocation, const struct in_place *run)
{
    enum { FEW = 8, TIMES = 2 };
    const struct ms_range all =
        ms_allocation_granules(allocation, run->recorded_begin, run->recorded_end);
    const struct ms_range part = ms_allocation_granules(allocation, run->begin, run->end);
    const size_t sunk = ms_replay_unbacked(allocation, all) - ms_replay_unbacked(allocation, part);
    return sunk > FEW * allocation->granule && sunk > TIMES * (part.end - part.begin);
}

/* Frees scratch memory that the first pieces of a launch's output may have left: the last pieces
 * run in place, where it would stand beside the whole block. */
static void drop_scratch_beside(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct in_place run;
    if (find_in_place(allocation, begin, end, &run) &&
        has_any(allocation, run.recorded_begin, run.recorded_end, MS_PRESENT) &&
        !is_small_part(allocation, &run))
        ms_scratch_drop();
}

/* From the first to the last byte that the launch has made; empty: it has made none. */
static struct ms_range find_made(const struct ms_allocation *allocation, const struct in_place *run)
{
    struct ms_range made = {run->recorded_begin, run->recorded_begin};
    struct ms_extent extent;
    for (size_t at = run->recorded_begin;
         next_extent(allocation, &at, run->recorded_end, &extent);) {
        if (!ms_content_is_present(&extent.content))
            continue;
        made.begin = made.begin < made.end ? made.begin : extent.begin;
        made.end = extent.end;
    }
    return (struct ms_range){made.begin - run->recorded_begin, made.end - run->recorded_begin};
}

/* Runs the launch over its whole output: the part is in memory, the sink lies under the rest.
 * False, and the part holds anything, if a run would change what the launch has made before. */
static bool run_in_place(struct ms_allocation *allocation, const struct in_place *run,
                         CUstream stream, CUresult *result_out)
{
    const struct ms_range part = {run->begin - run->recorded_begin, run->end - run->recorded_begin};
    *result_out = ms_backing_sink_map(ms_allocation_memory(allocation), run->recorded_begin,
                                      run->recorded_end);
    if (*result_out != CUDA_SUCCESS)
        return true;
    const bool is_run = ms_replay_launch(run->recorded, allocation->address + run->recorded_begin,
                                         part, find_made(allocation, run), stream, result_out);
    *result_out = ms_replay_end(stream, *result_out);
    ms_backing_sink_unmap(ms_allocation_backing(allocation), run->recorded_begin,
                          run->recorded_end);
    return is_run;
}

static CUresult replay_in_place(struct ms_allocation *allocation, const struct in_place *run,
                                CUstream stream)
{
    CUresult result;
    const struct ms_content launched = {.kind = MS_LAUNCHED,
                                        .recorded = run->recorded,
                                        .source_offset = run->begin - run->recorded_begin};
    if (is_small_part(allocation, run) || !run_in_place(allocation, run, stream, &result))
        result = ms_replay_any(&launched, run->begin, allocation->address + run->begin,
                               run->end - run->begin, stream);
    if (result == CUDA_SUCCESS)
        result = replay_around(allocation, run, stream);
    return ms_replay_end(stream, result);
}

static CUresult replay_range(struct ms_allocation *allocation, size_t begin, size_t end,
                             CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    if (begin >= end)
        return result;
    if (has_any(allocation, begin, end, MS_DEFERRED))
        result = replay_extents(allocation, begin, end, stream);
    return result == CUDA_SUCCESS ? set_present(allocation, begin, end) : result;
}

/* Replays launch by launch, and after each the bytes before it, where the launch may have written
 * too. */
static CUresult replay_all(struct ms_allocation *allocation, size_t begin, size_t end,
                           CUstream stream)
{
    struct in_place run;
    CUresult result = send_files_first(allocation, begin, end, stream);
    while (result == CUDA_SUCCESS && begin < end && find_in_place(allocation, begin, end, &run)) {
        result = replay_in_place(allocation, &run, stream);
        if (result == CUDA_SUCCESS)
            result = set_present(allocation, run.begin, run.end);
        if (result == CUDA_SUCCESS)
            result = replay_range(allocation, begin, run.begin, stream);
        begin = run.end;
    }
    return result == CUDA_SUCCESS ? replay_range(allocation, begin, end, stream) : result;
}

/* When something began to come into memory, for the state page; began: 0 without a page. */
struct timer {
    uint64_t began, present_bytes;
};

static uint64_t present_bytes(const struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = ms_allocation_lineage(allocation);
    return lineage->resident_bytes + lineage->cached_bytes;
}

static struct timer begin_timer(const struct ms_allocation *allocation)
{
    return (struct timer){ms_state_now(), present_bytes(allocation)};
}

/* Counts the time, and publishes an event with the bytes that have come. */
static void publish(const struct timer *timer, const struct ms_allocation *allocation, size_t begin,
                    CUresult result)
{
    if (timer->began == 0)
        return;
    ms_counter_add(MS_COUNT_MATERIALISE_NS, ms_state_now() - timer->began);
    const uint64_t present = present_bytes(allocation);
    const uint64_t bytes = present > timer->present_bytes ? present - timer->present_bytes : 0;
    ms_why_add(bytes);
    if (result == CUDA_SUCCESS)
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_MATERIALISE,
                                          .block = allocation->id,
                                          .address = allocation->address + begin,
                                          .bytes = bytes,
                                          .began = timer->began});
}

static CUresult copy_from(struct ms_allocation *allocation, size_t begin, size_t end,
                          CUdeviceptr from)
{
    struct ms_driver_scope scope;
    CUstream stream;
    CUresult result = ms_driver_enter(allocation->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_allocation_cover(allocation, begin, end);
    if (result == CUDA_SUCCESS)
        result = ms_replay_stream(allocation->context, &stream);
    if (result == CUDA_SUCCESS) {
        result =
            ms_driver.memcpy_dtod_async(allocation->address + begin, from, end - begin, stream);
        result = ms_replay_end(stream, result);
    }
    if (result == CUDA_SUCCESS)
        result = set_present(allocation, begin, end);
    ms_driver_leave(&scope);
    return result;
}

CUresult ms_materialise_copied(struct ms_allocation *allocation, size_t begin, size_t end,
                               CUdeviceptr from)
{
    const struct timer timer = begin_timer(allocation);
    const CUresult result = copy_from(allocation, begin, end, from);
    publish(&timer, allocation, begin, result);
    return result;
}

static CUresult play(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_driver_scope scope;
    CUstream stream = NULL; /* where nothing is deferred, nothing is queued */
    CUresult result = ms_driver_enter(allocation->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    drop_scratch_beside(allocation, begin, end);
    /* In one call, so that bytes materialised together lie in one handle. */
    result = cover(allocation, begin, end);
    if (result == CUDA_SUCCESS && has_any(allocation, begin, end, MS_DEFERRED))
        result = ms_replay_stream(allocation->context, &stream);
    if (result == CUDA_SUCCESS)
        result = replay_all(allocation, begin, end, stream);
    ms_driver_leave(&scope);
    return result;
}

/* Goes in steps if there are parked bytes: each step frees their old memory as they come to their
 * own addresses. */
static CUresult play_in_steps(struct ms_allocation *allocation, size_t begin, size_t end,
                              const struct ms_need_row *need)
{
    static const size_t step = (size_t)32 << 20;
    const bool has_parked = has_any(allocation, begin, end, MS_OF_KIND(MS_PARKED));
    CUresult result = CUDA_SUCCESS;
    for (size_t at = begin, stop; at < end && result == CUDA_SUCCESS; at = stop) {
        stop = (at / step + 1) * step;
        if (stop > end || !has_parked || need->becomes == MS_BECOMES_PINNED)
            stop = end;
        result = play(allocation, at, stop);
    }
    return result;
}

/* --- places that wait for bytes of a file or a snapshot */

/* With a plan, only bytes that this rank keeps. Never launches, which would write their whole
 * block. */
static bool fills_granule(const struct ms_content *content)
{
    const bool is_kept =
        content->locality == MS_LOCAL || (content->locality == MS_UNKNOWN && !ms_shard_is_active());
    return is_kept &&
           (content->kind == MS_FILL || content->kind == MS_SOURCE || content->kind == MS_PARKED);
}

/* True if the extent of `to` still waits for these bytes: the program has not written there since,
 * and there is room. */
static bool still_waits(const struct ms_allocation *to, const struct ms_extent *extent,
                        const struct ms_loaded_place *waiting)
{
    const struct ms_content *content = &extent->content;
    const uint64_t offset = waiting->offset + (extent->begin - ms_offset(to, waiting->address));
    return content->kind == MS_SOURCE && content->source == waiting->source &&
           content->source_offset == offset &&
           (ms_content_states(content) & (MS_CACHED | MS_IN_SEQUENCE)) == 0 &&
           fills_granule(content) && ms_materialise_has_room(extent->end - extent->begin);
}

/* ms_materialise_beside, for a place that waits. NULL also if the allocation is of another
 * context. */
static struct ms_allocation *find_place(struct ms_allocation *own, CUdeviceptr address,
                                        struct ms_allocation **claimed_out)
{
    struct ms_allocation *to = ms_materialise_beside(own, address, claimed_out);
    return to != NULL && to->context == own->context ? to : NULL;
}

/* Bytes of a claimed allocation on their way to places that wait. */
enum { MOST_PLACES = 32 };
struct hand_over {
    struct ms_allocation *from;
    struct ms_loaded_place bytes;        /* the part of `from` that is handed over now */
    struct ms_range places[MOST_PLACES]; /* addresses whose granules are yet to be filled */
    size_t count;
};

/* The granules are filled when all bytes are handed over: the rest of a granule may come, too. */
static void fill_places(struct hand_over *hand_over)
{
    for (size_t i = 0; i < hand_over->count; i++) {
        const struct ms_range *place = &hand_over->places[i];
        MS_CLAIMED struct ms_allocation *claimed;
        struct ms_allocation *to = find_place(hand_over->from, place->begin, &claimed);
        if (to != NULL)
            ms_materialise_granules(to, ms_offset(to, place->begin), ms_offset(to, place->end));
    }
    hand_over->count = 0;
}

static void note_place(struct hand_over *hand_over, const struct ms_allocation *to,
                       const struct ms_loaded_place *waiting)
{
    const CUdeviceptr end = waiting->address + waiting->bytes;
    for (size_t i = 0; i < hand_over->count; i++) {
        struct ms_range *place = &hand_over->places[i];
        if (place->begin >= to->address && place->begin <= waiting->address &&
            waiting->address <= place->end + to->granule) {
            place->end = end > place->end ? end : place->end;
            return;
        }
    }
    if (hand_over->count == MOST_PLACES)
        fill_places(hand_over);
    hand_over->places[hand_over->count++] = (struct ms_range){waiting->address, end};
}

/* Brings to a place that waits what the program has not written since: bytes that are handed over,
 * or that are sent (NULL). Leaves the place if another thread works on it, and where the bytes
 * cannot come. */
static void bring_place(struct ms_allocation *claimed, const struct ms_loaded_place *waiting,
                        struct hand_over *hand_over)
{
    MS_CLAIMED struct ms_allocation *other;
    struct ms_allocation *to = find_place(claimed, waiting->address, &other);
    if (to == NULL || !ms_fits(to, waiting->address, waiting->bytes))
        return;
    const size_t begin = ms_offset(to, waiting->address), end = begin + waiting->bytes;
    struct ms_extent extent;
    for (size_t at = begin; next_extent(to, &at, end, &extent);) {
        if (!still_waits(to, &extent, waiting))
            continue;
        if (hand_over == NULL)
            ms_materialise(to, extent.begin, extent.end, MS_NEED_LOAD);
        else
            ms_materialise_copied(to, extent.begin, extent.end,
                                  hand_over->bytes.address +
                                      (extent.content.source_offset - hand_over->bytes.offset));
    }
    if (hand_over != NULL)
        note_place(hand_over, to, waiting);
}

/* A launch takes bytes of a source, and nothing has them afterwards: the bytes go to a place first
 * that keeps them, because that place would have them sent once more. `block`: where the block of
 * the extent was for the launch. */
static void bring_waiting(struct ms_allocation *claimed, const struct ms_extent *extent,
                          CUdeviceptr block)
{
    const struct ms_loaded_place place = place_of(block, extent);
    const bool is_likely = ms_loaded_is_likely(&extent->content, place.bytes);
    struct ms_loaded_place waiting;
    while (is_likely && ms_loaded_take_waiting(&place, &waiting))
        bring_place(claimed, &waiting, NULL);
}

/* --- inputs of recorded launches */

/* `address`: where the bytes lay. */
static void bring_of_lineage(struct ms_allocation *claimed, const struct ms_lineage *lineage,
                             CUdeviceptr address, size_t begin, size_t end);

/* Makes undefined bytes zero, because bytes that a launch has loaded must stay the same
 * (replay.c). */
static bool define_unwritten(struct ms_allocation *allocation, size_t begin, size_t end)
{
    static const struct ms_content unwritten = {.kind = MS_FILL};
    struct ms_extent extent;
    bool is_defined = true;
    while (is_defined && next_extent(allocation, &begin, end, &extent)) {
        if (extent.content.kind == MS_UNDEFINED)
            is_defined =
                ms_bytes_set(allocation, extent.begin, extent.end, &unwritten) == CUDA_SUCCESS;
    }
    return is_defined;
}

static bool launch_needs_sources(const struct ms_recorded_launch *recorded, size_t begin,
                                 size_t end);

/* True if bytes of files or snapshots are sent to make [begin, end). Recursion ends at
 * MS_MAX_LAUNCH_DEPTH. */
static bool needs_sources(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    struct ms_extent extent;
    bool needs = ms_lineage_any(lineage, begin, end, MS_OF_KIND(MS_SOURCE));
    while (!needs && ms_lineage_next(lineage, &begin, end, &extent)) {
        const size_t offset = extent.content.source_offset;
        needs = extent.content.kind == MS_LAUNCHED &&
                launch_needs_sources(extent.content.recorded, offset,
                                     offset + (extent.end - extent.begin));
    }
    return needs;
}

static bool launch_needs_sources(const struct ms_recorded_launch *recorded, size_t begin,
                                 size_t end)
{
    if (needs_sources(&recorded->before, begin, end))
        return true;
    const struct ms_range needed = ms_replay_needed(recorded, begin, end);
    return needed.begin < needed.end &&
           needs_sources(&recorded->input->lineage, needed.begin, needed.end);
}

/* Brings the needed part of the input's block into memory. False if the block is gone, or holds
 * other bytes now. */
static bool bring_block(struct ms_allocation *claimed, const struct ms_recorded_launch *recorded,
                        struct ms_range needed)
{
    const struct ms_launch_input *input = recorded->input;
    MS_CLAIMED struct ms_allocation *other;
    struct ms_allocation *allocation = ms_materialise_beside(claimed, input->address, &other);
    if (allocation == NULL || !ms_replay_holds_input(allocation, recorded, needed))
        return false;
    const size_t begin = ms_offset(allocation, input->address) + needed.begin;
    const size_t end = begin + (needed.end - needed.begin);
    if (define_unwritten(allocation, begin, end))
        ms_materialise(allocation, begin, end, MS_NEED_LOAD);
    return true;
}

/* Brings the inputs of [begin, end) of a launch's result into memory. Recursion ends at
 * MS_MAX_LAUNCH_DEPTH. */
static void bring_of_launch(struct ms_allocation *claimed, struct ms_recorded_launch *recorded,
                            size_t begin, size_t end)
{
    ms_counted_take(&recorded->counted); /* nothing else may refer to the launch afterwards */
    bring_of_lineage(claimed, &recorded->before, recorded->address, begin, end);
    if (recorded->input != NULL) {
        const struct ms_range needed = ms_replay_needed(recorded, begin, end);
        if (needs_sources(&recorded->input->lineage, needed.begin, needed.end) &&
            !bring_block(claimed, recorded, needed))
            bring_of_lineage(claimed, &recorded->input->lineage, recorded->input->address,
                             needed.begin, needed.end);
    }
    ms_recorded_launch_drop(recorded);
}

static void bring_of_lineage(struct ms_allocation *claimed, const struct ms_lineage *lineage,
                             CUdeviceptr address, size_t begin, size_t end)
{
    struct ms_extent extent;
    while (ms_lineage_next(lineage, &begin, end, &extent)) {
        const size_t offset = extent.content.source_offset;
        if (extent.content.kind == MS_SOURCE)
            bring_waiting(claimed, &extent, address);
        if (extent.content.kind == MS_LAUNCHED)
            bring_of_launch(claimed, extent.content.recorded, offset,
                            offset + (extent.end - extent.begin));
    }
}

/* Widens the range like find_part: a replay in place grows to whole granules. */
static void bring_of_extent(struct ms_allocation *allocation, const struct ms_extent *extent)
{
    const struct ms_range all = ms_allocation_granules(allocation, extent->begin, extent->end);
    const struct ms_content *content = &extent->content;
    const size_t bytes = content->recorded->before.bytes;
    size_t begin = content->source_offset, end = begin + (extent->end - extent->begin);
    if (ms_recorded_launch_is_at(content, allocation->id, allocation->address + extent->begin)) {
        const size_t before = extent->begin - all.begin, after = all.end - extent->end;
        begin = begin > before ? begin - before : 0;
        end = bytes - end > after ? end + after : bytes;
    }
    bring_of_launch(allocation, content->recorded, begin, end);
}

/*
 * A recorded launch loads from the block that it was recorded with, if the block still exists and
 * holds the same bytes: the program would have these bytes in memory, and other launches find them
 * there, so the shim sends them once. Brings in the blocks that the input was made of if its block
 * is gone, as the cast of a shard is. Where that fails, the launch loads from scratch memory. So it
 * does where nothing is sent for the input: a model that looks at its random numbers while it makes
 * them would have them all in memory else.
 *
 * Looks only at the launches of the range: their inputs may lie in the same granule, and would in
 * turn ask for the inputs of everything in that granule.
 */
static void bring_inputs(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_extent extent;
    while (next_extent(allocation, &begin, end, &extent)) {
        if (extent.content.kind == MS_LAUNCHED && !extent.content.cached)
            bring_of_extent(allocation, &extent);
    }
}

/* Logs an error, unless another function has logged it (a file, a plan, out of memory) or the
 * driver is shutting down. */
static void log_error(const struct ms_allocation *allocation, size_t begin, size_t end,
                      CUresult result)
{
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY &&
        result != CUDA_ERROR_OPERATING_SYSTEM && result != CUDA_ERROR_NOT_PERMITTED &&
        result != CUDA_ERROR_DEINITIALIZED)
        ms_log(
            MS_ERROR,
            "%s: bytes %zu to %zu of the allocation of %zu bytes at 0x%llx cannot be brought into "
            "memory: CUDA error %d",
            ms_caller != NULL ? ms_caller : "a call", begin, end, allocation->bytes,
            allocation->address, (int)result);
}

/* Refuses in every mode, because no source has absent bytes. */
static CUresult refuse_absent(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    if (!has_any(allocation, begin, end, MS_OF_KIND(MS_ABSENT)))
        return CUDA_SUCCESS;
    ms_log(
        MS_ERROR,
        "%s needs bytes %zu to %zu of the allocation of %zu bytes at 0x%llx, of which a part was "
        "received for other ranks only, by the plan",
        ms_caller != NULL ? ms_caller : "a call", begin, end, allocation->bytes,
        allocation->address);
    return CUDA_ERROR_NOT_PERMITTED;
}

/* A recurring allocation is no sign of a program that loads. */
static void extend_window(const struct ms_allocation *allocation)
{
    if (!allocation->is_recurring)
        ms_window_extend();
}

/*
 * Bytes of shared snapshots in [begin, end) are about to change. Other places that wait for these
 * bytes get them before that, because the bytes would have to be sent again: without the shim those
 * places have memory, too. With a plan, only places that this rank keeps; none during a capture.
 */
static void hand_on(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_lineage *lineage = ms_allocation_lineage(allocation);
    struct hand_over hand_over = {.from = allocation};
    struct ms_driver_scope scope;
    struct ms_extent extent;
    if (lineage->cached_bytes == 0 || lineage->kind_bytes[MS_SOURCE] == lineage->file_bytes ||
        may_come_late() || ms_driver_enter(allocation->context, &scope) != CUDA_SUCCESS)
        return;
    while (ms_lineage_next(lineage, &begin, end, &extent)) {
        struct ms_loaded_place waiting;
        if (!ms_content_is_kept_snapshot(&extent.content))
            continue;
        hand_over.bytes = place_of(allocation->address, &extent);
        while (ms_host_snapshot_is_wanted(extent.content.source, 0) &&
               ms_loaded_take_waiting(&hand_over.bytes, &waiting))
            bring_place(allocation, &waiting, &hand_over);
    }
    fill_places(&hand_over);
    ms_driver_leave(&scope);
}

/* Materialises [begin, end) whatever a plan says. */
static CUresult materialise(struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_need_row *need)
{
    const bool is_cached = need->becomes == MS_BECOMES_CACHED;
    CUresult result = refuse_absent(allocation, begin, end);
    if (is_cached)
        allocation->notes.touches++;
    if (result == CUDA_SUCCESS && has_any(allocation, begin, end, MS_MISSING)) {
        extend_window(allocation);
        bring_inputs(allocation, begin, end);
        const struct timer timer = begin_timer(allocation);
        result = play_in_steps(allocation, begin, end, need);
        publish(&timer, allocation, begin, result);
        log_error(allocation, begin, end, result);
    }
    if (result == CUDA_SUCCESS && !is_cached && has_any(allocation, begin, end, MS_NOT_RESIDENT)) {
        ms_compare(allocation, begin, end, MS_COMPARE_CACHED);
        hand_on(allocation, begin, end);
        result = ms_bytes_set_kind(allocation, begin, end, MS_RESIDENT);
        ms_shadow_trim(allocation, begin, end);
    }
    return result;
}

static bool leaves_remote(const struct ms_need_row *need)
{
    return need->remote == MS_REMOTE_LEFT ||
           (need->remote == MS_REMOTE_FAULTS && ms_shard_enforces());
}

static bool is_left_out(const struct ms_content *content, const struct ms_need_row *need)
{
    return content->kind == MS_UNMAPPED ||
           (need->extents == MS_EXTENTS_LIVE && content->kind == MS_DEAD) ||
           (need->extents == MS_EXTENTS_LAUNCHED && content->kind != MS_LAUNCHED) ||
           (need->absent == MS_ABSENT_LEFT && content->kind == MS_ABSENT) ||
           (content->locality == MS_REMOTE && leaves_remote(need));
}

static CUresult materialise_chosen(struct ms_allocation *allocation, size_t begin, size_t end,
                                   const struct ms_need_row *need)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    for (size_t at = begin, stop = begin; at < end && result == CUDA_SUCCESS; at = stop) {
        size_t next = at;
        while (next_extent(allocation, &next, end, &extent) && !is_left_out(&extent.content, need))
            stop = extent.end;
        if (stop > at)
            result = materialise(allocation, at, stop, need);
        else
            stop = extent.end;
    }
    return result;
}

/* Fills the remote bytes that were left out in backed granules. */
static CUresult materialise_edges(struct ms_allocation *allocation, size_t begin, size_t end,
                                  const struct ms_need_row *need)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    while (result == CUDA_SUCCESS && next_extent(allocation, &begin, end, &extent)) {
        struct ms_range range = {extent.begin, extent.end};
        while (extent.content.locality == MS_REMOTE && result == CUDA_SUCCESS &&
               ms_backing_next(ms_allocation_backing(allocation), &range)) {
            result = materialise(allocation, range.begin, range.end, need);
            range = (struct ms_range){range.end, extent.end};
        }
    }
    return result;
}

static CUresult overwrite(struct ms_allocation *allocation, size_t begin, size_t end,
                          const struct ms_need_row *need)
{
    if (may_come_late()) {
        /* A captured write runs later, or never: until then the old bytes must be in memory. They
         * must be there, too, if a kernel queued before the write may find their address. */
        const CUresult kept = materialise_chosen(allocation, begin, end, need);
        if (kept != CUDA_SUCCESS)
            return kept;
    }
    if (!has_any(allocation, begin, end, MS_NOT_RESIDENT))
        return CUDA_SUCCESS;
    struct ms_driver_scope scope;
    const struct timer timer = begin_timer(allocation);
    CUresult result = ms_driver_enter(allocation->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = cover(allocation, begin, end);
        ms_driver_leave(&scope);
    }
    log_error(allocation, begin, end, result);
    if (result != CUDA_SUCCESS)
        return result;
    extend_window(allocation);
    hand_on(allocation, begin, end);
    ms_counter_add(MS_COUNT_MATERIALISED_BYTES, end - begin);
    result = ms_bytes_set_kind(allocation, begin, end, MS_RESIDENT);
    publish(&timer, allocation, begin, result);
    return result;
}

/* Overwrites only the parts that the program has mapped: a call with rows may step over the
 * others. */
static CUresult overwrite_mapped(struct ms_allocation *allocation, size_t begin, size_t end,
                                 const struct ms_need_row *need)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    if (!has_any(allocation, begin, end, MS_OF_KIND(MS_UNMAPPED)))
        return overwrite(allocation, begin, end, need);
    while (result == CUDA_SUCCESS && next_extent(allocation, &begin, end, &extent)) {
        if (extent.content.kind != MS_UNMAPPED)
            result = overwrite(allocation, extent.begin, extent.end, need);
    }
    return result;
}

/* Fills the runs of bytes that can be filled, or are present. */
static void fill_backed(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_extent extent;
    ms_placement_query(allocation, begin, end);
    for (size_t at = begin, stop = begin; at < end; at = stop) {
        size_t next = at;
        while (next_extent(allocation, &next, end, &extent) &&
               (fills_granule(&extent.content) || ms_content_is_present(&extent.content)))
            stop = extent.end;
        if (stop > at)
            materialise(allocation, at, stop, &ms_needs[MS_NEED_READ]);
        else
            stop = extent.end;
    }
}

static void fill_all_backed(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_range backed = {begin, end};
    for (; ms_backing_next(ms_allocation_backing(allocation), &backed);
         backed = (struct ms_range){backed.end, end}) {
        if (has_any(allocation, backed.begin, backed.end, MS_MISSING))
            fill_backed(allocation, backed.begin, backed.end);
    }
}

/*
 * Granules with memory of which a part is not filled yet. A copy has written the rest, and the next
 * copy mostly writes this part too: bytes brought in between the two would be sent in vain. No
 * kernel comes there unseen meanwhile: when the first granule is noted, no kernel of the program is
 * queued, and a launch that is not recorded fills them first (ms_materialise_unfilled).
 */
enum { MAX_UNFILLED = 64 };

static struct {
    struct ms_lock lock;
    CUdeviceptr granules[MAX_UNFILLED];
    size_t count; /* also in ms_hot.unfilled, for those without the lock */
} unfilled = {.lock = MS_LOCK_INIT(unfilled)};

static void set_count_locked(size_t count)
{
    unfilled.count = count;
    atomic_store(&ms_hot.unfilled, (uint32_t)count);
}

/* While granules are noted, no kernel can have been queued: its launch would have filled them. */
static bool may_wait(CUcontext context)
{
    return !may_come_late() && (ms_has_unfilled() || ms_examining_no_kernel(context));
}

/* False: the granule is not noted. */
static bool add_unfilled(CUdeviceptr granule, CUcontext context)
{
    size_t at = 0;
    if (!may_wait(context))
        return false;
    ms_lock_take(&unfilled.lock);
    while (at < unfilled.count && unfilled.granules[at] != granule)
        at++;
    if (at == unfilled.count && at < MAX_UNFILLED) {
        unfilled.granules[at] = granule;
        set_count_locked(at + 1);
    }
    ms_lock_drop(&unfilled.lock);
    return at < MAX_UNFILLED;
}

static void remove_unfilled(CUdeviceptr begin, CUdeviceptr end)
{
    if (!ms_has_unfilled())
        return;
    ms_lock_take(&unfilled.lock);
    size_t kept = 0;
    for (size_t i = 0; i < unfilled.count; i++) {
        if (unfilled.granules[i] < begin || unfilled.granules[i] >= end)
            unfilled.granules[kept++] = unfilled.granules[i];
    }
    set_count_locked(kept);
    ms_lock_drop(&unfilled.lock);
}

void ms_materialise_granules(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_range all = ms_allocation_granules(allocation, begin, end);
    fill_all_backed(allocation, all.begin, all.end);
    remove_unfilled(allocation->address + all.begin, allocation->address + all.end);
}

/* True if ms_materialise_granules would fill some byte of [begin, end). */
static bool is_unfilled(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_extent extent;
    bool found = false;
    if (!has_any(allocation, begin, end, MS_MISSING))
        return false;
    ms_placement_query(allocation, begin, end);
    while (!found && next_extent(allocation, &begin, end, &extent))
        found = !ms_content_is_present(&extent.content) && fills_granule(&extent.content);
    return found;
}

/* Notes or fills one granule. */
static void note_unfilled(struct ms_allocation *allocation, size_t begin, size_t end)
{
    if (!is_unfilled(allocation, begin, end))
        remove_unfilled(allocation->address + begin, allocation->address + end);
    else if (!add_unfilled(allocation->address + begin, allocation->context))
        ms_materialise_granules(allocation, begin, end);
}

void ms_materialise_granules_later(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_range all = ms_allocation_granules(allocation, begin, end);
    fill_all_backed(allocation, begin, end);
    for (struct ms_range backed = all; ms_backing_next(ms_allocation_backing(allocation), &backed);
         backed = (struct ms_range){backed.end, all.end}) {
        const bool is_whole = !has_any(allocation, backed.begin, backed.end, MS_MISSING);
        const size_t step = is_whole ? backed.end - backed.begin : allocation->granule;
        for (size_t at = backed.begin; at < backed.end; at += step)
            note_unfilled(allocation, at, at + step < backed.end ? at + step : backed.end);
    }
}

/* Removes a granule from the list only when it is filled: another thread that launches finds the
 * granule there, and waits for the claim. */
static void fill_noted(CUdeviceptr granule)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(granule);
    if (allocation != NULL) {
        const size_t begin = ms_offset(allocation, granule);
        ms_materialise_granules(allocation, begin, begin + 1);
    }
    remove_unfilled(granule, granule + 1); /* also if the allocation is another one by now */
}

void ms_materialise_unfilled(void)
{
    CUdeviceptr granules[MAX_UNFILLED];
    if (!ms_has_unfilled())
        return;
    ms_lock_take(&unfilled.lock);
    const size_t count = unfilled.count;
    memcpy(granules, unfilled.granules, count * sizeof(*granules));
    ms_lock_drop(&unfilled.lock);
    for (size_t i = 0; i < count; i++)
        fill_noted(granules[i]);
}

CUresult ms_materialise_for_copy(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const CUresult result = overwrite_mapped(allocation, begin, end, &ms_needs[MS_NEED_OVERWRITE]);
    if (result == CUDA_SUCCESS)
        ms_materialise_granules_later(allocation, begin, end);
    return result;
}

const struct ms_need_row ms_needs[MS_NEED_COUNT] = {
#define MS_NEED(name, becomes, elsewhere, remote, absent, extents, original, why)           \
    [MS_NEED_##name] = {MS_BECOMES_##becomes, MS_NEED_##elsewhere,  MS_REMOTE_##remote,     \
                        MS_ABSENT_##absent,   MS_EXTENTS_##extents, MS_ORIGINAL_##original, \
                        MS_REASON_##why},
#include "runtime/fill/needs.def"
#undef MS_NEED
};

/* Materialises as the need says, but does not fill whole granules. */
static CUresult materialise_alone(struct ms_allocation *allocation, size_t begin, size_t end,
                                  enum ms_need need)
{
    const struct ms_need_row *row = &ms_needs[need];
    const bool faults = row->remote == MS_REMOTE_FAULTS;
    CUresult result = CUDA_SUCCESS;
    if (row->becomes == MS_BECOMES_OVERWRITTEN)
        return overwrite_mapped(allocation, begin, end, row);
    if (row->becomes == MS_BECOMES_PINNED)
        allocation->notes.keeps_dead = true;
    if (need == MS_NEED_PIN)
        allocation->notes.is_exported = true;
    if (faults) /* a kernel must meet no memory there, not even the sink */
        result = ms_backing_sink_wait(ms_allocation_memory(allocation), begin, end);
    /* while the content still identifies the tensor */
    ms_placement_query(allocation, begin, end);
    if (result == CUDA_SUCCESS && row->remote != MS_REMOTE_ALLOWED && !leaves_remote(row))
        result = ms_placement_query_read_remote(allocation, begin, end);
    if (result == CUDA_SUCCESS)
        result = materialise_chosen(allocation, begin, end, row);
    if (result == CUDA_SUCCESS && faults && has_any(allocation, begin, end, MS_OF_OTHERS))
        result = materialise_edges(allocation, begin, end, row);
    return result;
}

CUresult ms_materialise(struct ms_allocation *allocation, size_t begin, size_t end,
                        enum ms_need need)
{
    MS_WHY const struct ms_why why = ms_why_begin(ms_needs[need].why);
    const CUresult result = materialise_alone(allocation, begin, end, need);
    /* Programs mostly send a tensor in pieces: bytes beside a piece would be read twice. */
    if (result == CUDA_SUCCESS && need != MS_NEED_SEND && need != MS_NEED_SEND_LATER)
        ms_materialise_granules(allocation, begin, end);
    return result;
}

CUresult ms_materialise_ranges(struct ms_allocation *allocation, const struct ms_range *ranges,
                               size_t count, enum ms_need need)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = materialise_alone(allocation, ranges[i].begin, ranges[i].end, need);
    if (result == CUDA_SUCCESS)
        ms_materialise_granules(allocation, 0, allocation->bytes);
    return result;
}
