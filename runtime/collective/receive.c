/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/receive.h"

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/order.h"
#include "runtime/memory/parked.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"

/* Lists the unbacked granules of the ranges, including the first and the last of [begin, end):
 * other bytes in these are not in memory either, and what materialises them waits. */
static bool list_sinkable(const struct ms_allocation *allocation, size_t begin, size_t end,
                          const struct ms_ranges *remote_parts, struct ms_ranges *sinkable)
{
    const size_t granule = allocation->granule;
    struct ms_ranges backed = {0}, whole = {0};
    bool is_good = true;
    for (size_t i = 0; i < remote_parts->count && is_good; i++) {
        const struct ms_range range = remote_parts->list[i];
        const size_t from = range.begin + (range.begin > begin ? granule - 1 : 0);
        const size_t to = range.end + (range.end < end ? 0 : granule - 1);
        if (from / granule < to / granule)
            is_good = ms_ranges_add(&whole, from / granule * granule, to / granule * granule);
    }
    struct ms_range chunk = {0, allocation->granule_bytes};
    for (; is_good && ms_backing_next(&allocation->backing, &chunk);
         chunk = (struct ms_range){chunk.end, allocation->granule_bytes})
        is_good = ms_ranges_add(&backed, chunk.begin, chunk.end);
    is_good = is_good && ms_ranges_subtract(&whole, &backed, sinkable);
    ms_ranges_cleanup(&whole);
    ms_ranges_cleanup(&backed);
    return is_good;
}

/* Lists the granules of [begin, end), neither sinkable nor backed, where parked memory can lie. */
static bool list_storable(const struct ms_allocation *allocation, size_t begin, size_t end,
                          const struct ms_ranges *sinkable, struct ms_ranges *parkable)
{
    struct ms_ranges whole = {0}, unbacked = {0};
    const bool is_good = ms_ranges_add(&whole, begin, end) &&
                         list_sinkable(allocation, begin, end, &whole, &unbacked) &&
                         ms_ranges_subtract(&unbacked, sinkable, parkable);
    ms_ranges_cleanup(&whole);
    ms_ranges_cleanup(&unbacked);
    return is_good;
}

/* Backs what lies between the ranges. */
static CUresult cover_rest(struct ms_allocation *allocation, size_t begin, size_t end,
                           const struct ms_ranges *taken)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i <= taken->count && result == CUDA_SUCCESS; i++) {
        const size_t stop = i < taken->count ? taken->list[i].begin : end;
        if (begin < stop)
            result = ms_allocation_cover(allocation, begin, stop);
        begin = i < taken->count ? taken->list[i].end : end;
    }
    return result;
}

static struct ms_range cut_to(struct ms_range range, size_t begin, size_t end)
{
    return (struct ms_range){range.begin > begin ? range.begin : begin,
                             range.end < end ? range.end : end};
}

/* Marks [begin, end) as resident, except what is in the ranges: absent, or parked, each from its
 * own offset in the parked memory on. */
static CUresult set_received(struct ms_allocation *allocation, size_t begin, size_t end,
                             const struct ms_ranges *gone, const struct ms_ranges *parked_ranges,
                             struct ms_parked *parked)
{
    struct ms_content content = {.kind = MS_PARKED, .parked = parked};
    uint64_t at = 0;
    CUresult result = ms_bytes_set_kind(allocation, begin, end, MS_RESIDENT);
    for (size_t i = 0; i < gone->count && result == CUDA_SUCCESS; i++) {
        const struct ms_range range = cut_to(gone->list[i], begin, end);
        result = ms_bytes_set_kind(allocation, range.begin, range.end, MS_ABSENT);
    }
    for (size_t i = 0; parked != NULL && i < parked_ranges->count && result == CUDA_SUCCESS; i++) {
        const struct ms_range range = cut_to(parked_ranges->list[i], begin, end);
        content.source_offset = at + (range.begin - parked_ranges->list[i].begin);
        result = ms_bytes_set(allocation, range.begin, range.end, &content);
        at += parked_ranges->list[i].end - parked_ranges->list[i].begin;
    }
    return result;
}

/* Maps new parked memory under the ranges until the work is done; else they get memory. */
static CUresult lend_parked(struct ms_allocation *allocation, const struct ms_ranges *parkable,
                            struct ms_receive *receive)
{
    struct ms_parked *parked;
    CUresult result = parkable->count > 0
                          ? ms_parked_create(allocation->context, allocation->device,
                                             parkable->list, parkable->count, &parked)
                          : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_backing_lend(&allocation->backing, ms_parked_backing(parked), parkable->list,
                             parkable->count, allocation->context, &receive->lent);
    if (result == CUDA_SUCCESS)
        receive->parked = parked;
    else
        ms_parked_drop(parked);
    return result;
}

/* Memory for [begin, end), except what goes to the sink. */
static CUresult find_memory(struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_ranges *sinkable, const struct ms_ranges *parkable,
                            struct ms_receive *receive)
{
    struct ms_ranges taken = {0};
    if (lend_parked(allocation, parkable, receive) != CUDA_SUCCESS)
        return cover_rest(allocation, begin, end, sinkable);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (ms_ranges_add_all(&taken, sinkable) && ms_ranges_add_all(&taken, parkable)) {
        ms_ranges_sort(&taken);
        result = cover_rest(allocation, begin, end, &taken);
    }
    ms_ranges_cleanup(&taken);
    return result;
}

/* No work is queued: neither the sink nor the parked memory has to wait. */
static void take_back(struct ms_allocation *allocation, struct ms_receive *receive)
{
    ms_backing_lent(&allocation->backing, receive->sink, NULL);
    ms_backing_lent(&allocation->backing, receive->lent, NULL);
    ms_parked_drop(receive->parked);
    *receive = (struct ms_receive){0};
}

static CUresult sink_and_park(struct ms_allocation *allocation, size_t begin, size_t end,
                              const struct ms_ranges *absent, const struct ms_ranges *sinkable,
                              const struct ms_ranges *parkable, struct ms_receive *receive)
{
    CUresult result = ms_backing_sink_wait(&allocation->backing, begin, end);
    if (result == CUDA_SUCCESS)
        result = find_memory(allocation, begin, end, sinkable, parkable, receive);
    if (result == CUDA_SUCCESS)
        result = ms_backing_lend(&allocation->backing, NULL, sinkable->list, sinkable->count,
                                 allocation->context, &receive->sink);
    if (result == CUDA_SUCCESS)
        result = set_received(allocation, begin, end, absent, parkable, receive->parked);
    if (result != CUDA_SUCCESS)
        take_back(allocation, receive);
    return result;
}

static uint64_t bytes_within(const struct ms_ranges *ranges, size_t begin, size_t end)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < ranges->count; i++) {
        const struct ms_range range = cut_to(ranges->list[i], begin, end);
        bytes += range.end - range.begin;
    }
    return bytes;
}

/*
 * The program may copy a part of the tensor, its own or another rank's (distribute_tensor pads the
 * last one), to a new allocation. If that is too small to be deferred, all bytes must be there. A
 * caching allocator takes a part from a segment.
 */
static bool has_small_parts(const struct ms_allocation *allocation, size_t bytes,
                            const struct ms_ranges *remote_parts, int ranks)
{
    enum { LEAST_SEGMENT = 2 << 20 };
    const size_t own = bytes - bytes_within(remote_parts, 0, allocation->bytes);
    const size_t part = own > bytes / (unsigned)ranks ? own : bytes / (unsigned)ranks;
    const size_t least = allocation->is_carved ? LEAST_SEGMENT : 0;
    return (part > least ? part : least) < ms_config.min_bytes;
}

static CUresult receive_into(struct ms_allocation *allocation, size_t begin, size_t end, int ranks,
                             struct ms_receive *receive)
{
    struct ms_ranges remote_parts = {0}, sinkable = {0}, parkable = {0};
    CUresult result = CUDA_SUCCESS;
    *receive = (struct ms_receive){.address = allocation->address,
                                   .allocation_id = allocation->id,
                                   .context = allocation->context};
    ms_carve_add_use(allocation, begin, end);
    /* Remote copies: concatenated tensors, which will be copied back. In its own place, what comes
     * in granules with local bytes may stay; copied on from there, it would take memory again. */
    const bool passes = ms_lineage_any(&allocation->lineage, begin, end, MS_REMOTE_COPY);
    if (!ms_placement_query_list_remote(allocation, begin, end - begin, NULL, &remote_parts) ||
        !list_sinkable(allocation, begin, end, &remote_parts, &sinkable) ||
        (passes && !list_storable(allocation, begin, end, &sinkable, &parkable)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (sinkable.count == 0 ||
             (!passes && has_small_parts(allocation, end - begin, &remote_parts, ranks)))
        result = ms_materialise(allocation, begin, end, MS_NEED_OVERWRITE);
    else
        result = sink_and_park(allocation, begin, end, passes ? &remote_parts : &sinkable,
                               &sinkable, &parkable, receive);
    if (receive->sink != NULL) {
        const uint64_t sink = bytes_within(&sinkable, begin, end);
        ms_counter_add(MS_COUNT_SINK_BYTES, sink);
        ms_counter_add(MS_COUNT_MATERIALISED_BYTES, end - begin - sink);
        ms_log(MS_DEBUG, "%llu of %zu bytes at 0x%llx that are received go to the sink",
               (unsigned long long)sink, end - begin, allocation->address + begin);
    }
    ms_ranges_cleanup(&remote_parts);
    ms_ranges_cleanup(&sinkable);
    ms_ranges_cleanup(&parkable);
    return result;
}

/* Refuses captured operations, whose memory must not change, more than one allocation, and a device
 * without sinks. */
static bool try_receive(CUdeviceptr address, size_t bytes, int ranks, struct ms_receive *receive,
                        CUresult *result)
{
    if (ms_is_capturing())
        return false;
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    const bool fits = allocation != NULL && ms_fits(allocation, address, bytes) &&
                      ms_fact_holds(allocation->device, MS_FACT_ALIAS);
    if (fits) {
        const size_t begin = ms_offset(allocation, address);
        *result = receive_into(allocation, begin, begin + bytes, ranks, receive);
    }
    return fits;
}

CUresult ms_receive_prepare(CUdeviceptr address, size_t bytes, int ranks,
                            struct ms_receive *receive_out)
{
    int attempts = 0;
    CUresult result;
    *receive_out = (struct ms_receive){0};
    do {
        if (!ms_shard_receives_parts(ranks) ||
            !try_receive(address, bytes, ranks, receive_out, &result))
            return ms_access(address, bytes, MS_NEED_OVERWRITE);
    } while (ms_evict_try_bytes_again(result, &attempts));
    ms_window_extend();
    return result;
}

/* Hands over an event to what is mapped under the allocation, unless that was freed meanwhile. */
static void hand_over(const struct ms_receive *receive, const struct ms_sink_mapping *sink,
                      CUevent event)
{
    MS_CLAIMED struct ms_allocation *allocation =
        ms_space_claim_same(receive->address, receive->allocation_id);
    if (allocation != NULL)
        ms_backing_lent(&allocation->backing, sink, event);
    else
        ms_driver.event_destroy(event);
}

static void unmap_sink(const struct ms_receive *receive)
{
    MS_CLAIMED struct ms_allocation *allocation =
        ms_space_claim_same(receive->address, receive->allocation_id);
    if (allocation != NULL)
        ms_backing_sink_wait(&allocation->backing, 0, allocation->bytes);
}

static CUresult record(CUstream stream, CUevent *event_out)
{
    CUresult result = ms_driver.event_create(event_out, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.event_record(*event_out, stream);
    if (result != CUDA_SUCCESS)
        ms_driver.event_destroy(*event_out);
    return result;
}

/* Users of the memory wait for events: one each for the sink, the lent and the parked memory. */
static CUresult hand_events_over(const struct ms_receive *receive, CUstream stream)
{
    const struct ms_sink_mapping *const sink[] = {receive->sink, receive->lent};
    CUevent event;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
        if (sink[i] != NULL && (result = record(stream, &event)) == CUDA_SUCCESS)
            hand_over(receive, sink[i], event);
    }
    if (receive->parked != NULL && result == CUDA_SUCCESS &&
        (result = record(stream, &event)) == CUDA_SUCCESS)
        ms_parked_attach_event(receive->parked, event);
    return result;
}

/*
 * What follows a broadcast can be recorded when its stream is idle, and PyTorch queues a whole
 * model's broadcasts in one go. So the call returns when this one has run. The wait, which has an
 * event of its own, is limited, because another rank may wait for this one first.
 */
static CUresult follow(const struct ms_receive *receive, CUstream stream)
{
    CUevent event;
    CUresult result = hand_events_over(receive, stream);
    if (result == CUDA_SUCCESS)
        result = record(stream, &event);
    if (result != CUDA_SUCCESS)
        return result;
    if (ms_order_event_poll(event, ms_config.receive_ms) == CUDA_SUCCESS &&
        (receive->sink != NULL || receive->lent != NULL))
        unmap_sink(receive);
    ms_driver.event_destroy(event);
    return CUDA_SUCCESS;
}

void ms_receive_queued(const struct ms_receive *receive, CUstream stream)
{
    struct ms_driver_scope scope;
    if (receive->address != 0 && ms_driver_enter(receive->context, &scope) == CUDA_SUCCESS) {
        const CUresult result = follow(receive, stream);
        if (result != CUDA_SUCCESS)
            ms_log(MS_ERROR, "cannot wait for received bytes: CUDA error %d", (int)result);
        ms_driver_leave(&scope);
    }
    ms_parked_drop(receive->parked);
}
