/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/replay.h"

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/driver/device_memory.h"
#include "runtime/fill/loaded.h"
#include "runtime/fill/scratch.h"
#include "runtime/kernel/call.h"
#include "runtime/loading/source_read.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/parked.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

enum { BOUNCE_BYTES = 8 << 20, MAX_CONTEXTS = 64 };

static CUresult set_bytes(uint32_t pattern, size_t offset, CUdeviceptr address, size_t bytes,
                          CUstream stream)
{
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char value = (unsigned char)(pattern >> (8 * ((offset + i) & 3)));
        const CUresult result = ms_driver.memset_d8_async(address + i, value, 1, stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

/* Sets a pattern as words where the address allows, and up to three single bytes at either end. */
static CUresult replay_fill(uint32_t pattern, size_t offset, CUdeviceptr address, size_t bytes,
                            CUstream stream)
{
    if (pattern == (pattern & 0xff) * UINT32_C(0x01010101))
        return ms_driver.memset_d8_async(address, (unsigned char)pattern, bytes, stream);

    size_t head = -address & 3;
    if (head > bytes)
        head = bytes;
    const size_t words = (bytes - head) / 4;
    const size_t tail_at = head + 4 * words;
    CUresult result = set_bytes(pattern, offset, address, head, stream);
    if (result == CUDA_SUCCESS && words > 0)
        result = ms_driver.memset_d32_async(address + head,
                                            ms_lineage_move_pattern(pattern, offset + head, 0),
                                            words, stream);
    if (result == CUDA_SUCCESS)
        result = set_bytes(pattern, offset + tail_at, address + tail_at, bytes - tail_at, stream);
    return result;
}

/* Copies one piece and waits: an asynchronous copy of pageable bytes may read them late, and the
 * caller reuses or frees them afterwards. */
static CUresult copy_piece(CUdeviceptr address, const void *host, size_t bytes, CUstream stream)
{
    CUresult result = ms_driver.memcpy_htod_async(address, host, bytes, stream);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver_wait(stream);
    if (result == CUDA_SUCCESS)
        ms_counter_add(MS_COUNT_H2D_BYTES, bytes);
    return result;
}

/* Copies a file through a bounce buffer, and a snapshot in one piece from its own memory. */
static CUresult replay_source(const struct ms_content *content, CUdeviceptr address, size_t bytes,
                              CUstream stream)
{
    const bool is_file = ms_content_file(content) != NULL;
    const size_t bounce_bytes = is_file && bytes > BOUNCE_BYTES ? BOUNCE_BYTES : bytes;
    void *bounce = is_file ? ms_heap_alloc(bounce_bytes) : NULL;
    if (is_file && bounce == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;

    CUresult result = CUDA_SUCCESS;
    for (size_t done = 0; done < bytes && result == CUDA_SUCCESS; done += bounce_bytes) {
        const size_t now = bytes - done < bounce_bytes ? bytes - done : bounce_bytes;
        const void *host;
        result = ms_source_read(content->source, content->source_offset + done, bounce, now, &host);
        if (result == CUDA_SUCCESS)
            result = copy_piece(address + done, host, now, stream);
    }
    ms_heap_free(bounce);
    return result;
}

/* The caller waits for stream before it may drop the parked bytes. */
static CUresult replay_parked(const struct ms_content *content, CUdeviceptr address, size_t bytes,
                              CUstream stream)
{
    CUdeviceptr parked;
    const CUresult result = ms_parked_read(content->parked, &parked);
    if (result != CUDA_SUCCESS)
        return result;
    return ms_driver.memcpy_dtod_async(address, parked + content->source_offset, bytes, stream);
}

CUresult ms_replay(const struct ms_content *content, size_t offset, CUdeviceptr address,
                   size_t bytes, CUstream stream)
{
    switch (content->kind) {
    case MS_FILL:
        return replay_fill(content->pattern, offset, address, bytes, stream);
    case MS_SOURCE:
        return replay_source(content, address, bytes, stream);
    case MS_PARKED:
        return replay_parked(content, address, bytes, stream);
    default:
        ms_fatal("lineage of kind %d cannot be played", (int)content->kind);
    }
}

struct ms_range ms_replay_needed(const struct ms_recorded_launch *recorded, size_t begin,
                                 size_t end)
{
    const struct ms_launch_input *input = recorded->input;
    if (input == NULL)
        return (struct ms_range){0, 0};
    const struct ms_loads *loads = &input->loads;
    const size_t first = begin > input->written_at ? begin - input->written_at : 0;
    if (loads->in_row == 0)
        return (struct ms_range){0, input->lineage.bytes};
    if (end <= input->written_at || begin >= end)
        return (struct ms_range){0, 0};
    const uint64_t last = (end - 1 - input->written_at) / loads->out_step;
    const uint64_t behind = last * loads->in_step + loads->in_row;
    const struct ms_range needed = {first / loads->out_step * loads->in_step,
                                    behind < loads->bytes ? behind : loads->bytes};
    return needed.begin < needed.end ? needed : (struct ms_range){0, 0};
}

static bool is_current(const struct ms_lineage *lineage)
{
    bool is_current = true;
    struct ms_walk walk = {lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent; is_current && (extent = ms_lineage_walk(&walk)) != NULL;)
        is_current = ms_replay_is_current(&extent->content);
    return is_current;
}

bool ms_replay_is_current(const struct ms_content *content)
{
    if (content->kind == MS_SOURCE)
        return !ms_content_is_kept_snapshot(content) && ms_source_read_is_current(content->source);
    if (content->kind != MS_LAUNCHED)
        return true;
    const struct ms_recorded_launch *recorded = content->recorded;
    return is_current(&recorded->before) &&
           (recorded->input == NULL || is_current(&recorded->input->lineage));
}

/* A lineage, and where its block lay when it was recorded. */
struct placed {
    const struct ms_lineage *lineage;
    uint64_t allocation_id;
    CUdeviceptr address;
    CUcontext context;
};

/* Replays [begin, end) of a block that now lies at address, where all of it can be written. */
static CUresult replay_recorded(const struct placed *placed, CUdeviceptr address, size_t begin,
                                size_t end, CUstream stream);

/* True if two contents, of lineages that begin at begin_a and begin_b, are the same. Undefined
 * bytes of b are the same as zeros of a, because a replay makes them zero. */
static bool is_same(const struct ms_content *a, size_t begin_a, const struct ms_content *b,
                    size_t begin_b)
{
    if (b->kind == MS_UNDEFINED && a->kind == MS_FILL && a->pattern == 0)
        return true;
    if (a->kind != b->kind)
        return false;
    if (a->kind == MS_FILL)
        return ms_lineage_move_pattern(a->pattern, begin_a, 0) ==
               ms_lineage_move_pattern(b->pattern, begin_b, 0);
    return ms_content_is_nothing(a) ||
           (a->owned == b->owned && a->source_offset == b->source_offset);
}

bool ms_replay_holds_input(const struct ms_allocation *allocation,
                           const struct ms_recorded_launch *recorded, struct ms_range needed)
{
    const struct ms_launch_input *input = recorded->input;
    const size_t begin = input->address - allocation->address;
    if (allocation->id != input->allocation_id ||
        !ms_fits(allocation, input->address, input->lineage.bytes))
        return false;
    for (size_t at = needed.begin; at < needed.end;) {
        const struct ms_extent here = ms_lineage_at(ms_allocation_lineage(allocation), begin + at);
        const struct ms_extent then = ms_lineage_at(&input->lineage, at);
        if (!is_same(&here.content, begin, &then.content, 0))
            return false;
        at = then.end < here.end - begin ? then.end : here.end - begin;
    }
    return true;
}

/* True if ms_replay_holds_input says so, and the needed bytes are in memory. */
static bool has_input(const struct ms_allocation *allocation,
                      const struct ms_recorded_launch *recorded, struct ms_range needed)
{
    const size_t begin = recorded->input->address - allocation->address;
    if (!ms_replay_holds_input(allocation, recorded, needed))
        return false;
    struct ms_extent extent;
    for (size_t at = begin + needed.begin;
         ms_lineage_next(ms_allocation_lineage(allocation), &at, begin + needed.end, &extent);) {
        if (!extent.content.cached && !ms_content_is_nothing(&extent.content))
            return false;
    }
    /* Asked beside the lineage, because bytes that were never written may have no memory. */
    return ms_replay_unbacked(allocation,
                              (struct ms_range){begin + needed.begin, begin + needed.end}) == 0;
}

/* Makes undefined bytes of the input zero in its own block: the program has written none there, and
 * each replay should give the same result. */
static CUresult define_input(const struct ms_allocation *allocation,
                             const struct ms_launch_input *input, struct ms_range needed,
                             CUstream stream)
{
    const size_t begin = input->address - allocation->address;
    const size_t end = begin + needed.end;
    size_t at = begin + needed.begin;
    struct ms_extent extent;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS &&
           ms_lineage_next(ms_allocation_lineage(allocation), &at, end, &extent)) {
        if (ms_content_is_nothing(&extent.content))
            result = replay_fill(0, 0, allocation->address + extent.begin,
                                 extent.end - extent.begin, stream);
    }
    return result;
}

/* Maps the sink where the input has no memory: the launch may load from the sink, because the
 * result of that goes to the sink as well. */
static CUresult run_in_input(struct ms_allocation *allocation,
                             const struct ms_recorded_launch *recorded, uint64_t delta,
                             struct ms_range needed, CUstream stream)
{
    const struct ms_launch_input *input = recorded->input;
    const size_t begin = input->address - allocation->address;
    const size_t end = begin + input->lineage.bytes;
    CUresult result = ms_backing_sink_map(ms_allocation_memory(allocation), begin, end);
    if (result != CUDA_SUCCESS)
        return result;
    result = define_input(allocation, input, needed, stream);
    if (result == CUDA_SUCCESS)
        result = ms_call_run(recorded->launch, (const uint64_t[]){delta, 0}, stream);
    result = ms_replay_end(stream, result);
    ms_backing_sink_unmap(ms_allocation_backing(allocation), begin, end);
    return result;
}

/*
 * Runs the launch with the block that it has read, if that still exists: then the input is neither
 * sent nor in memory twice. False if the block is gone, or another thread works on its allocation.
 * The input may lie in the launch's own allocation, too: the sink may lie beside the input there,
 * for the output of the launch, say, so that no granule of the input may need the sink. With
 * result_out NULL the function only answers.
 */
static bool run_beside_input(const struct ms_recorded_launch *recorded, uint64_t delta,
                             struct ms_range needed, CUstream stream, CUresult *result_out)
{
    const struct ms_launch_input *input = recorded->input;
    MS_CLAIMED struct ms_allocation *claimed;
    struct ms_allocation *allocation = ms_space_hold(input->address, &claimed);
    bool has = allocation != NULL && has_input(allocation, recorded, needed);
    if (has && claimed == NULL) {
        const size_t begin = ms_offset(allocation, input->address);
        const struct ms_range all = {begin, begin + input->lineage.bytes};
        has = ms_replay_unbacked(allocation, all) == 0;
    }
    if (has && result_out != NULL)
        *result_out = run_in_input(allocation, recorded, delta, needed, stream);
    return has;
}

/* Replays the input to `address`, in scratch memory with memory for the needed bytes and the sink
 * elsewhere, and launches. */
static CUresult run_in_scratch(const struct ms_recorded_launch *recorded, uint64_t delta,
                               struct ms_range needed, CUdeviceptr address, CUstream stream)
{
    const struct ms_launch_input *read = recorded->input;
    const struct placed input = {&read->lineage, read->allocation_id, read->address,
                                 recorded->context};
    const uint64_t deltas[] = {delta, address - read->address};
    CUresult result = replay_recorded(&input, address, needed.begin, needed.end, stream);
    if (result == CUDA_SUCCESS)
        result = ms_call_run(recorded->launch, deltas, stream);
    return ms_replay_end(stream, result);
}

static CUresult ask_for_input(const struct ms_recorded_launch *recorded, struct ms_range needed)
{
    return ms_scratch_ask(recorded->device,
                          ms_device_memory_rounded(recorded->device, needed.end - needed.begin));
}

/* Runs the launch with the needed part of its input in scratch memory. The input is aligned there
 * as in its block, up to multiples of MS_SCRATCH_ALIGNMENT. */
static CUresult run_with_scratch(const struct ms_recorded_launch *recorded, uint64_t delta,
                                 struct ms_range needed, CUstream stream)
{
    const size_t before = recorded->input->address % MS_SCRATCH_ALIGNMENT;
    struct ms_backing scratch;
    CUresult result = ask_for_input(recorded, needed);
    if (result == CUDA_SUCCESS)
        result = ms_addresses_reserve_backing(&scratch, recorded->device,
                                              before + recorded->input->lineage.bytes);
    if (result != CUDA_SUCCESS)
        return result;
    if (needed.begin < needed.end)
        result = ms_backing_cover(&scratch, before + needed.begin, before + needed.end);
    if (result == CUDA_SUCCESS)
        result = ms_backing_sink_map(&scratch, 0, scratch.bytes);
    if (result == CUDA_SUCCESS) {
        result = run_in_scratch(recorded, delta, needed, scratch.address + before, stream);
        ms_backing_sink_unmap(&scratch, 0, scratch.bytes);
    }
    ms_backing_release(&scratch);
    return result;
}

/* Publishes that the launch has run for [begin, end) of its output, or logs the failure. */
static void finish(const struct ms_recorded_launch *recorded, size_t begin, size_t end,
                   CUresult result)
{
    const char *name = ms_call_name(recorded->launch);
    if (result == CUDA_SUCCESS) {
        ms_counter_add(MS_COUNT_REPLAYED_LAUNCHES, 1);
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_REPLAY,
                                          .block = recorded->allocation_id,
                                          .address = recorded->address + begin,
                                          .bytes = end - begin,
                                          .text = name});
    } else if (result != CUDA_ERROR_OUT_OF_MEMORY) { /* logged where it is handled */
        ms_log(MS_ERROR, "the recorded launch of %s cannot be run again: CUDA error %d", name,
               (int)result);
    }
}

/* Replays the old content of [begin, end). Asks for scratch memory for the `needed` input before:
 * after a refusal the old content would be sent once more. */
static CUresult replay_before(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                              size_t begin, size_t end, struct ms_range needed, CUstream stream)
{
    const struct placed before = {&recorded->before, recorded->allocation_id, recorded->address,
                                  recorded->context};
    CUresult result = CUDA_SUCCESS;
    if (recorded->input != NULL && !run_beside_input(recorded, 0, needed, stream, NULL))
        result = ask_for_input(recorded, needed);
    return result == CUDA_SUCCESS ? replay_recorded(&before, address, begin, end, stream) : result;
}

static CUresult replay_launch(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                              size_t begin, size_t end, CUstream stream)
{
    const uint64_t delta = address - recorded->address;
    const struct ms_range needed = ms_replay_needed(recorded, begin, end);
    CUresult result = replay_before(recorded, address, begin, end, needed, stream);
    if (result == CUDA_SUCCESS && recorded->input == NULL)
        result = ms_call_run(recorded->launch, (const uint64_t[]){delta, delta}, stream);
    else if (result == CUDA_SUCCESS && !run_beside_input(recorded, delta, needed, stream, &result))
        result = run_with_scratch(recorded, delta, needed, stream);
    finish(recorded, begin, end, result);
    return result;
}

/* All that the launch has made is written once more, and so needs what the launch loads for it. */
static bool replay_again(const struct ms_recorded_launch *recorded, struct ms_range part,
                         struct ms_range made, CUstream stream, CUresult *result_out)
{
    const struct ms_range all = {part.begin < made.begin ? part.begin : made.begin,
                                 part.end > made.end ? part.end : made.end};
    const struct ms_range needed = ms_replay_needed(recorded, part.begin, part.end),
                          needed_by_all = ms_replay_needed(recorded, all.begin, all.end);
    const bool is_same = needed.begin == needed_by_all.begin && needed.end == needed_by_all.end;
    if (!is_same && !run_beside_input(recorded, 0, needed_by_all, stream, NULL))
        return false;
    bool is_run = true;
    *result_out = replay_before(recorded, recorded->address, part.begin, part.end, needed, stream);
    if (*result_out == CUDA_SUCCESS)
        is_run = run_beside_input(recorded, 0, needed_by_all, stream, result_out);
    if (!is_run && is_same) {
        *result_out = run_with_scratch(recorded, 0, needed, stream);
        is_run = true;
    }
    if (is_run)
        finish(recorded, part.begin, part.end, *result_out);
    return is_run;
}

bool ms_replay_launch(const struct ms_recorded_launch *recorded, CUdeviceptr address,
                      struct ms_range part, struct ms_range made, CUstream stream,
                      CUresult *result_out)
{
    if (recorded->input != NULL && made.begin < made.end)
        return replay_again(recorded, part, made, stream, result_out);
    *result_out = replay_launch(recorded, address, part.begin, part.end, stream);
    return true;
}

/*
 * Makes a recorded launch's bytes [offset, offset + bytes) for another place: runs it where only
 * they have memory. Includes whole elements, of the largest type, because each byte of an element
 * depends on the old value of its other bytes.
 */
static CUresult replay_window(const struct ms_recorded_launch *recorded, size_t offset,
                              size_t bytes, CUstream stream, ms_replay_use *use, void *argument)
{
    enum { LARGEST_ELEMENT = 16 };
    const size_t begin = offset / LARGEST_ELEMENT * LARGEST_ELEMENT;
    size_t end = (offset + bytes + LARGEST_ELEMENT - 1) / LARGEST_ELEMENT * LARGEST_ELEMENT;
    if (end > recorded->before.bytes)
        end = recorded->before.bytes;
    struct ms_scratch own, *scratch;
    CUdeviceptr block;
    CUresult result = ms_scratch_take(recorded->device, recorded->before.bytes, begin, end, &own,
                                      &scratch, &block);
    if (result != CUDA_SUCCESS)
        return result;
    result = replay_launch(recorded, block, begin, end, stream);
    if (result == CUDA_SUCCESS)
        result = use(block + offset, offset, bytes, stream, argument);
    result = ms_replay_end(stream, result);
    ms_scratch_give_back(scratch);
    return result;
}

static const size_t min_window = (size_t)8 << 20;

/* How many bytes to replay at a time: so few that scratch memory is a small part of the shim's
 * memory on the device, and so many that the launch runs a few times only. */
static size_t window_of(CUdevice device, size_t bytes)
{
    enum { HELD_PART = 256, MOST_WINDOWS = 4 };
    const size_t by_device = ms_space_sums(device).held / HELD_PART;
    const size_t by_work = (bytes + MOST_WINDOWS - 1) / MOST_WINDOWS;
    const size_t window = by_device > by_work ? by_device : by_work;
    return window > min_window && ms_scratch_fits(device, window)
               ? window
               : min_window - MS_SCRATCH_ALIGNMENT;
}

CUresult ms_replay_in_scratch(const struct ms_recorded_launch *recorded, size_t offset,
                              size_t bytes, CUstream stream, ms_replay_use *use, void *argument)
{
    size_t window = window_of(recorded->device, bytes);
    for (size_t done = 0; done < bytes;) {
        const size_t now = bytes - done < window ? bytes - done : window;
        const CUresult result = replay_window(recorded, offset + done, now, stream, use, argument);
        if (result == CUDA_SUCCESS)
            done += now;
        else if (result == CUDA_ERROR_OUT_OF_MEMORY && window > min_window &&
                 !ms_scratch_has_refused())
            window = (window / 2 + min_window - 1) / min_window * min_window;
        else
            return result;
    }
    return CUDA_SUCCESS;
}

/* Copies to *block + offset: `block` is where the launch's block would begin. */
static CUresult copy_made(CUdeviceptr made, size_t offset, size_t bytes, CUstream stream,
                          void *block)
{
    return ms_driver.memcpy_dtod_async(*(const CUdeviceptr *)block + offset, made, bytes, stream);
}

CUresult ms_replay_any(const struct ms_content *content, size_t offset, CUdeviceptr address,
                       size_t bytes, CUstream stream)
{
    CUdeviceptr block = address - content->source_offset;
    if (content->kind == MS_LAUNCHED)
        return ms_replay_in_scratch(content->recorded, content->source_offset, bytes, stream,
                                    copy_made, &block);
    return ms_replay(content, offset, address, bytes, stream);
}

/* A recorded launch that wrote all of the block and whose result lies, at its own place, somewhere
 * in [begin, end); or NULL. */
static const struct ms_recorded_launch *find_own_launch(const struct placed *placed, size_t begin,
                                                        size_t end)
{
    struct ms_extent extent;
    while (ms_lineage_next(placed->lineage, &begin, end, &extent)) {
        const struct ms_content *content = &extent.content;
        if (content->kind == MS_LAUNCHED &&
            ms_recorded_launch_is_at(content, placed->allocation_id,
                                     placed->address + extent.begin) &&
            content->recorded->address == placed->address &&
            content->recorded->before.bytes == placed->lineage->bytes)
            return content->recorded;
    }
    return NULL;
}

/* Sends bytes of a source to address, except those that are in memory elsewhere. */
static CUresult send_or_copy(const struct placed *placed, struct ms_content content,
                             CUdeviceptr address, size_t bytes, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    while (bytes > 0 && result == CUDA_SUCCESS) {
        const struct ms_loaded_place place = {content.source, content.source_offset, bytes,
                                              address};
        const struct ms_range copied = ms_loaded_is_likely(&content, bytes)
                                           ? ms_loaded_copy(placed->context, &place, stream)
                                           : (struct ms_range){0};
        if (copied.begin == copied.end)
            return ms_replay(&content, 0, address, bytes, stream);
        const size_t before = copied.begin - content.source_offset;
        const size_t done = copied.end - content.source_offset;
        result = send_or_copy(placed, content, address, before, stream);
        content.source_offset += done;
        address += done;
        bytes -= done;
    }
    return result;
}

static CUresult replay_extent(const struct ms_extent *extent, const struct placed *placed,
                              const struct ms_recorded_launch *launch, CUdeviceptr address,
                              CUstream stream)
{
    const struct ms_content *content = &extent->content;
    const size_t bytes = extent->end - extent->begin;
    if (ms_content_is_nothing(content)) /* zero, so that each replay gives the same result */
        return replay_fill(0, 0, address, bytes, stream);
    if (content->kind == MS_LAUNCHED && content->recorded == launch &&
        content->source_offset == extent->begin)
        return CUDA_SUCCESS; /* the launch has written it there already */
    if (content->kind == MS_SOURCE)
        return send_or_copy(placed, *content, address, bytes, stream);
    return ms_replay_any(content, extent->begin, address, bytes, stream);
}

static CUresult replay_recorded(const struct placed *placed, CUdeviceptr address, size_t begin,
                                size_t end, CUstream stream)
{
    const struct ms_recorded_launch *launch = find_own_launch(placed, begin, end);
    CUresult result = CUDA_SUCCESS;
    if (launch != NULL)
        result = replay_launch(launch, address, begin, end, stream);
    struct ms_extent extent;
    while (result == CUDA_SUCCESS && ms_lineage_next(placed->lineage, &begin, end, &extent))
        result = replay_extent(&extent, placed, launch, address + extent.begin, stream);
    return result;
}

static struct {
    struct ms_lock lock; /* guards the table; not held across driver calls */
    struct {
        CUcontext context;
        CUstream stream;
    } entries[MAX_CONTEXTS];
    int count;
} streams = {.lock = MS_LOCK_INIT(fill_streams)};

MS_HOLDS(streams.lock) static CUstream find_stream_locked(CUcontext context)
{
    for (int i = 0; i < streams.count; i++) {
        if (streams.entries[i].context == context)
            return streams.entries[i].stream;
    }
    return NULL;
}

CUresult ms_replay_stream(CUcontext context, CUstream *stream_out)
{
    ms_lock_take(&streams.lock);
    CUstream stream = find_stream_locked(context);
    ms_lock_drop(&streams.lock);
    if (stream == NULL) {
        CUstream created;
        const CUresult result = ms_driver.stream_create(&created, CU_STREAM_NON_BLOCKING);
        if (result != CUDA_SUCCESS)
            return result;
        ms_lock_take(&streams.lock);
        stream = find_stream_locked(context);
        if (stream == NULL && streams.count < MAX_CONTEXTS) {
            streams.entries[streams.count].context = context;
            streams.entries[streams.count++].stream = created;
        }
        ms_lock_drop(&streams.lock);
        /* If another thread was faster, or the table is full: this stream serves only this call,
         * and is destroyed with its context. */
        stream = created;
    }
    *stream_out = stream;
    return CUDA_SUCCESS;
}

void ms_replay_forget_stream(CUcontext context)
{
    ms_lock_take(&streams.lock);
    for (int i = 0; i < streams.count; i++) {
        if (streams.entries[i].context == context)
            streams.entries[i--] = streams.entries[--streams.count];
    }
    ms_lock_drop(&streams.lock);
}
