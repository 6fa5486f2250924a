/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/receive.h"

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/loading/transfer.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/parked.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"

/* More pieces let memory that is needed no more go sooner, but each piece costs three calls. A
 * gathered tensor ends within a granule, which has memory of its own and costs two calls more. */
enum { PIECES = 64, LEAST_GATHERED = 2 };

/* True for bytes that are received or sent as a whole and then copied on: tensors that a kernel has
 * put one behind the other, without memory, or bytes that are gathered while a model is loaded. */
static bool is_passing(const struct ms_allocation *allocation, size_t begin, size_t end,
                       const struct ms_receive_role *role)
{
    return !ms_has_late_payloads() &&
           (role->gathers ||
            ms_lineage_any(ms_allocation_lineage(allocation), begin, end, MS_IN_SEQUENCE));
}

/* Lists the granules of [begin, end) without memory that lie whole in the ranges. The first and the
 * last granule count, too, because their other bytes are not in memory either, and whatever
 * materialises those bytes waits. */
static bool list_unbacked(const struct ms_allocation *allocation, size_t begin, size_t end,
                          const struct ms_ranges *ranges, struct ms_ranges *unbacked_out)
{
    const size_t granule = allocation->granule;
    struct ms_ranges backed = {0}, whole = {0};
    bool is_good = true;
    for (size_t i = 0; i < ranges->count && is_good; i++) {
        const struct ms_range range = ranges->list[i];
        const size_t from = range.begin + (range.begin > begin ? granule - 1 : 0);
        const size_t to = range.end + (range.end < end ? 0 : granule - 1);
        if (from / granule < to / granule)
            is_good = ms_ranges_add(&whole, from / granule * granule, to / granule * granule);
    }
    struct ms_range chunk = {0, allocation->granule_bytes};
    for (; is_good && ms_backing_next(ms_allocation_backing(allocation), &chunk);
         chunk = (struct ms_range){chunk.end, allocation->granule_bytes})
        is_good = ms_ranges_add(&backed, chunk.begin, chunk.end);
    is_good = is_good && ms_ranges_subtract(&whole, &backed, unbacked_out);
    ms_ranges_cleanup(&whole);
    ms_ranges_cleanup(&backed);
    return is_good;
}

/* Lists the granules of [begin, end) where parked memory can lie. Tensors are gathered one by one,
 * and lie side by side: a granule in which two of them meet is not lent, so that it has memory
 * once, and calls of one group can use it. */
static bool list_parkable(const struct ms_allocation *allocation, size_t begin, size_t end,
                          const struct ms_receive_role *role, const struct ms_ranges *except,
                          struct ms_ranges *parkable_out)
{
    struct ms_ranges whole = {0}, unbacked = {0};
    const struct ms_range edges =
        role->gathers ? (struct ms_range){0, SIZE_MAX} : (struct ms_range){begin, end};
    const bool is_good = ms_ranges_add(&whole, begin, end) &&
                         list_unbacked(allocation, edges.begin, edges.end, &whole, &unbacked) &&
                         ms_ranges_subtract(&unbacked, except, parkable_out);
    ms_ranges_cleanup(&whole);
    ms_ranges_cleanup(&unbacked);
    return is_good;
}

/* --- pieces */

static void drop_pieces(struct ms_park *park)
{
    for (size_t i = 0; i < park->count; i++)
        ms_parked_drop(park->parked[i]);
    ms_heap_free(park->parked);
    ms_heap_free(park->ranges);
    *park = (struct ms_park){0};
}

static size_t piece_bytes(const struct ms_allocation *allocation, const struct ms_ranges *ranges,
                          const struct ms_receive_role *role)
{
    const size_t least = role->gathers ? LEAST_GATHERED : 1;
    size_t granules = 0;
    for (size_t i = 0; i < ranges->count; i++)
        granules += (ranges->list[i].end - ranges->list[i].begin) / allocation->granule;
    const size_t most = (granules + PIECES - 1) / PIECES;
    return (most > least ? most : least) * allocation->granule;
}

/* The end of the piece that begins at `at`: bytes of `brief` are one piece up to the end of their
 * range, others at most `most` bytes. */
static size_t piece_end(size_t at, size_t end, size_t most, const struct ms_ranges *brief)
{
    size_t i = 0;
    while (i < brief->count && brief->list[i].end <= at)
        i++;
    const bool is_brief = i < brief->count && brief->list[i].begin <= at;
    const size_t stop = i == brief->count ? end
                        : is_brief        ? brief->list[i].end
                                          : brief->list[i].begin;
    const size_t left = (stop < end ? stop : end) - at;
    return at + (is_brief || left < most ? left : most);
}

static size_t cut(const struct ms_ranges *ranges, size_t most, const struct ms_ranges *brief,
                  struct ms_range *pieces)
{
    size_t count = 0;
    for (size_t i = 0; i < ranges->count; i++) {
        for (size_t at = ranges->list[i].begin; at < ranges->list[i].end; count++) {
            pieces[count] = (struct ms_range){at, piece_end(at, ranges->list[i].end, most, brief)};
            at = pieces[count].end;
        }
    }
    return count;
}

static CUresult create(const struct ms_allocation *allocation, const struct ms_ranges *ranges,
                       const struct ms_ranges *brief, const struct ms_receive_role *role,
                       struct ms_park *park)
{
    const size_t most = PIECES + ranges->count + 2 * brief->count;
    *park = (struct ms_park){.ranges = ms_heap_alloc(most * sizeof(*park->ranges)),
                             .parked = ms_heap_alloc(most * sizeof(struct ms_parked *))};
    if (park->ranges == NULL || park->parked == NULL) {
        drop_pieces(park);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const size_t bytes = piece_bytes(allocation, ranges, role);
    const size_t count = cut(ranges, bytes, brief, park->ranges);
    CUresult result = CUDA_SUCCESS;
    while (park->count < count && result == CUDA_SUCCESS) {
        const struct ms_range piece = park->ranges[park->count];
        result = ms_parked_create(allocation->context, allocation->device, piece.end - piece.begin,
                                  role->sends, &park->parked[park->count]);
        park->count += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        drop_pieces(park);
    return result;
}

static CUresult lend(struct ms_allocation *allocation, const struct ms_park *park,
                     struct ms_sink_mapping **lent_out)
{
    CUmemGenericAllocationHandle *handles = ms_heap_alloc(park->count * sizeof(*handles));
    if (handles == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < park->count; i++)
        handles[i] = park->parked[i]->pieces.all[0].handle;
    const CUresult result = ms_backing_lend(ms_allocation_memory(allocation), handles, park->ranges,
                                            park->count, allocation->context, lent_out);
    ms_heap_free(handles);
    return result;
}

/* Makes pieces for the ranges, and maps them there until the work is done. `brief` are the granules
 * whose bytes stand elsewhere, too: their memory goes as soon as the work is done. Fails if there
 * are no ranges. */
static CUresult lend_parked(struct ms_allocation *allocation, const struct ms_ranges *ranges,
                            const struct ms_ranges *brief, const struct ms_receive_role *role,
                            struct ms_park *park_out, struct ms_sink_mapping **lent_out)
{
    CUresult result = ranges->count > 0 ? create(allocation, ranges, brief, role, park_out)
                                        : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS)
        return result;
    result = lend(allocation, park_out, lent_out);
    if (result != CUDA_SUCCESS)
        drop_pieces(park_out);
    return result;
}

static struct ms_range cut_to(struct ms_range range, size_t begin, size_t end)
{
    return (struct ms_range){range.begin > begin ? range.begin : begin,
                             range.end < end ? range.end : end};
}

/* Makes the content of [begin, end) parked where there are pieces. */
static CUresult set_parked(struct ms_allocation *allocation, size_t begin, size_t end,
                           const struct ms_park *park)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < park->count && result == CUDA_SUCCESS; i++) {
        const struct ms_range part = cut_to(park->ranges[i], begin, end);
        const struct ms_content content = {.kind = MS_PARKED,
                                           .parked = park->parked[i],
                                           .source_offset = part.begin - park->ranges[i].begin};
        result = ms_bytes_set(allocation, part.begin, part.end, &content);
    }
    return result;
}

/* --- receiving */

/* Backs the bytes of [begin, end) outside the ranges, or also fills them. */
static CUresult cover_rest(struct ms_allocation *allocation, size_t begin, size_t end,
                           const struct ms_ranges *taken, bool fills)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i <= taken->count && result == CUDA_SUCCESS; i++) {
        const size_t stop = i < taken->count ? taken->list[i].begin : end;
        if (begin < stop)
            result = fills ? ms_materialise(allocation, begin, stop, MS_NEED_SEND_LATER)
                           : ms_allocation_cover(allocation, begin, stop);
        begin = i < taken->count ? taken->list[i].end : end;
    }
    return result;
}

/* True if the bytes can be had elsewhere as lineage: they can be made without memory, or have
 * memory already. Bytes of a file would be read again. */
static bool can_be_had(const struct ms_content *content, const struct ms_allocation *allocation)
{
    switch (content->kind) {
    case MS_FILL:
        return true;
    case MS_LAUNCHED:
        return content->recorded->context == allocation->context;
    case MS_PARKED:
        return content->parked->device == allocation->device;
    default:
        return false;
    }
}

/* An extent of what this rank has sent, as content of the bytes that it will receive. */
static struct ms_range own_range(const struct ms_receive_own *own, size_t begin, size_t index,
                                 struct ms_content *content_out)
{
    const struct ms_extent *extent = &own->extents[index];
    const size_t from = begin + own->begin + (extent->begin - own->extents[0].begin);
    *content_out = ms_content_move(&extent->content, extent->begin, from);
    return (struct ms_range){from, from + (extent->end - extent->begin)};
}

/* Lists the granules that hold nothing but bytes that this rank has sent and can have elsewhere. */
static bool list_own(const struct ms_allocation *allocation, size_t begin,
                     const struct ms_receive_own *own, struct ms_ranges *granules_out)
{
    const size_t granule = allocation->granule;
    struct ms_ranges bytes = {0};
    struct ms_content content;
    bool is_good = true;
    for (size_t i = 0; own != NULL && i < own->count && is_good; i++) {
        const struct ms_range range = own_range(own, begin, i, &content);
        if (can_be_had(&content, allocation))
            is_good = ms_ranges_add(&bytes, range.begin, range.end);
    }
    for (size_t i = 0; i < bytes.count && is_good; i++) {
        const size_t from = (bytes.list[i].begin + granule - 1) / granule * granule;
        const size_t to = bytes.list[i].end / granule * granule;
        is_good = from >= to || ms_ranges_add(granules_out, from, to);
    }
    ms_ranges_cleanup(&bytes);
    return is_good;
}

/* Sets the content of the parked parts of [begin, end). */
static CUresult replace_parked(struct ms_allocation *allocation, size_t begin, size_t end,
                               const struct ms_content *content)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_extent there;
    for (size_t at = begin; result == CUDA_SUCCESS &&
                            ms_lineage_next(ms_allocation_lineage(allocation), &at, end, &there);) {
        struct ms_content part = *content;
        part.source_offset += there.begin - begin;
        if (there.content.kind == MS_PARKED)
            result = ms_bytes_set(allocation, there.begin, there.end, &part);
    }
    return result;
}

/* Replaces the part that this rank has sent by its lineage, so that the bytes do not stand twice:
 * pieces that hold nothing else go when the work is done. */
static CUresult set_own(struct ms_allocation *allocation, size_t begin,
                        const struct ms_receive_own *own)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; result == CUDA_SUCCESS && i < own->count; i++) {
        struct ms_content content;
        const struct ms_range range = own_range(own, begin, i, &content);
        if (can_be_had(&content, allocation))
            result = replace_parked(allocation, range.begin, range.end, &content);
    }
    return result;
}

static void make_resident(struct ms_content *content)
{
    if (content->kind == MS_UNDEFINED)
        content->kind = MS_RESIDENT;
}

/* Marks [begin, end) as resident, except absent bytes (`gone`), parked bytes, and the bytes that
 * this rank has sent. All are undefined first: after a failure, bytes without memory must not count
 * as resident. */
static CUresult set_received(struct ms_allocation *allocation, size_t begin, size_t end,
                             const struct ms_ranges *gone, const struct ms_park *park,
                             const struct ms_receive_own *own)
{
    CUresult result = ms_bytes_set_kind(allocation, begin, end, MS_UNDEFINED);
    for (size_t i = 0; i < gone->count && result == CUDA_SUCCESS; i++) {
        const struct ms_range range = cut_to(gone->list[i], begin, end);
        result = ms_bytes_set_kind(allocation, range.begin, range.end, MS_ABSENT);
    }
    if (result == CUDA_SUCCESS)
        result = set_parked(allocation, begin, end, park);
    if (result == CUDA_SUCCESS && own != NULL)
        result = set_own(allocation, begin, own);
    if (result == CUDA_SUCCESS)
        result = ms_bytes_change_range(allocation, begin, end, make_resident);
    if (result != CUDA_SUCCESS)
        ms_bytes_set_kind(allocation, begin, end, MS_UNDEFINED);
    return result;
}

/* Finds memory for [begin, end), except for the bytes that go to the sink. */
static CUresult find_memory(struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_ranges *sinkable, const struct ms_ranges *parkable,
                            const struct ms_receive_role *role, struct ms_receive *receive)
{
    struct ms_ranges taken = {0}, brief = {0};
    CUresult result =
        list_own(allocation, begin, role->own, &brief)
            ? lend_parked(allocation, parkable, &brief, role, &receive->park, &receive->lent)
            : CUDA_ERROR_OUT_OF_MEMORY;
    ms_ranges_cleanup(&brief);
    /* Without parked memory, the range gets memory of its own. */
    if (result != CUDA_SUCCESS)
        return cover_rest(allocation, begin, end, sinkable, false);
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (ms_ranges_add_all(&taken, sinkable) && ms_ranges_add_all(&taken, parkable)) {
        ms_ranges_sort(&taken);
        result = cover_rest(allocation, begin, end, &taken, false);
    }
    ms_ranges_cleanup(&taken);
    return result;
}

/* Undoes the preparation. No work is queued: neither the sink nor the parked memory has to wait. */
static void take_back(struct ms_allocation *allocation, struct ms_receive *receive)
{
    ms_backing_lent(ms_allocation_memory(allocation), receive->sink, NULL);
    ms_backing_lent(ms_allocation_memory(allocation), receive->lent, NULL);
    drop_pieces(&receive->park);
    *receive = (struct ms_receive){0};
}

static CUresult sink_and_park(struct ms_allocation *allocation, size_t begin, size_t end,
                              const struct ms_ranges *absent, const struct ms_ranges *sinkable,
                              const struct ms_ranges *parkable, const struct ms_receive_role *role,
                              struct ms_receive *receive)
{
    CUresult result = ms_backing_sink_wait(ms_allocation_memory(allocation), begin, end);
    if (result == CUDA_SUCCESS)
        result = find_memory(allocation, begin, end, sinkable, parkable, role, receive);
    if (result == CUDA_SUCCESS && sinkable->count > 0)
        result = ms_backing_lend(ms_allocation_memory(allocation), NULL, sinkable->list,
                                 sinkable->count, allocation->context, &receive->sink);
    if (result == CUDA_SUCCESS)
        result = set_received(allocation, begin, end, absent, &receive->park, role->own);
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

/* True if all bytes must be in memory because the program may copy a part of the tensor, its own or
 * another rank's (distribute_tensor pads the last one), to a new allocation that is too small to be
 * deferred. A caching allocator takes a part from a segment. */
static bool has_small_parts(const struct ms_allocation *allocation, size_t bytes,
                            const struct ms_ranges *remote_parts, int ranks)
{
    enum { LEAST_SEGMENT = 2 << 20 };
    const size_t own = bytes - bytes_within(remote_parts, 0, allocation->bytes);
    const size_t part = own > bytes / (unsigned)ranks ? own : bytes / (unsigned)ranks;
    const size_t least = ms_carve_has_begun(allocation) ? LEAST_SEGMENT : 0;
    return (part > least ? part : least) < ms_config.min_bytes;
}

static void count_received(const struct ms_allocation *allocation, size_t begin, size_t end,
                           const struct ms_ranges *sinkable, const struct ms_receive *receive)
{
    const uint64_t sink = receive->sink != NULL ? bytes_within(sinkable, begin, end) : 0;
    if (receive->sink == NULL && receive->lent == NULL)
        return;
    ms_counter_add(MS_COUNT_SINK_BYTES, sink);
    ms_counter_add(MS_COUNT_MATERIALISED_BYTES, end - begin - sink);
    ms_log(MS_DEBUG, "%llu of %zu bytes at 0x%llx that are received go to the sink",
           (unsigned long long)sink, end - begin, allocation->address + begin);
}

/* True if a plan divides the bytes, which all ranks receive alike. The program has already divided
 * bytes that ranks gather. */
static bool is_divided(const struct ms_receive_role *role)
{
    return !role->gathers && ms_shard_receives_parts(role->ranks);
}

/*
 * Prepares to receive the part of [begin, end) that this rank keeps. Remote copies mark
 * concatenated tensors, which the program will copy back: their remote bytes become absent even in
 * granules with local bytes, where they could stay otherwise, because copied on they would take
 * memory again.
 */
static CUresult receive_parts(struct ms_allocation *allocation, size_t begin, size_t end,
                              const struct ms_receive_role *role, struct ms_receive *receive)
{
    struct ms_ranges remote_parts = {0}, sinkable = {0}, parkable = {0};
    CUresult result = CUDA_SUCCESS;
    const bool keeps_parts = is_divided(role);
    const bool passes =
        ms_lineage_any(ms_allocation_lineage(allocation), begin, end, MS_REMOTE_COPY);
    if ((keeps_parts &&
         (!ms_placement_query_list_remote(allocation, begin, end - begin, NULL, &remote_parts) ||
          !list_unbacked(allocation, begin, end, &remote_parts, &sinkable))) ||
        ((sinkable.count > 0 ? passes : is_passing(allocation, begin, end, role)) &&
         !list_parkable(allocation, begin, end, role, &sinkable, &parkable)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (sinkable.count == 0
                 ? parkable.count == 0
                 : !passes && has_small_parts(allocation, end - begin, &remote_parts, role->ranks))
        result = ms_materialise(allocation, begin, end, MS_NEED_OVERWRITE);
    else
        result = sink_and_park(allocation, begin, end,
                               passes && sinkable.count > 0 ? &remote_parts : &sinkable, &sinkable,
                               &parkable, role, receive);
    count_received(allocation, begin, end, &sinkable, receive);
    ms_ranges_cleanup(&remote_parts);
    ms_ranges_cleanup(&sinkable);
    ms_ranges_cleanup(&parkable);
    return result;
}

/* --- sending */

/* True if the content can be sent from parked memory. Results of launches can be made again, so
 * they are cached while they are sent. So are gathered bytes of files: the next gather finds them
 * in place. */
static bool can_be_parked(const struct ms_content *content, const struct ms_receive_role *role)
{
    return role->gathers ? content->kind == MS_FILL && !content->cached
                         : content->kind != MS_LAUNCHED && content->kind != MS_ABSENT;
}

static bool has_whole_granule(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t granule = allocation->granule;
    return (begin + granule - 1) / granule < end / granule;
}

static bool may_send_parked(const struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_receive_role *role)
{
    struct ms_extent extent;
    bool may = is_passing(allocation, begin, end, role) &&
               (!role->gathers || has_whole_granule(allocation, begin, end));
    while (may && ms_lineage_next(ms_allocation_lineage(allocation), &begin, end, &extent))
        may = can_be_parked(&extent.content, role);
    return may;
}

/* [begin, end) of an allocation, whose bytes go into pieces. */
struct filling {
    const struct ms_allocation *allocation;
    size_t begin, end;
    const struct ms_park *park;
};

/* An extent, cut to a piece. */
struct part {
    size_t piece, at; /* where the next part is looked for; zero: from the start */
    struct ms_extent extent;
};

static bool next_part(const struct filling *filling, struct part *part)
{
    const struct ms_park *park = filling->park;
    for (; part->piece < park->count; part->piece++) {
        const struct ms_range piece =
            cut_to(park->ranges[part->piece], filling->begin, filling->end);
        if (part->at < piece.begin)
            part->at = piece.begin;
        if (ms_lineage_next(ms_allocation_lineage(filling->allocation), &part->at, piece.end,
                            &part->extent))
            return true;
    }
    return false;
}

/* The pieces are lent to the block, so that they are filled there. */
static CUdeviceptr address_of(const struct filling *filling, const struct part *part)
{
    return filling->allocation->address + part->extent.begin;
}

static bool is_file(const struct ms_content *content)
{
    return ms_content_file(content) != NULL;
}

/* Lists the parts that come from files as requests, or only counts them if `requests` is NULL. */
static size_t list_files(const struct filling *filling, struct ms_read_request *requests)
{
    size_t count = 0;
    for (struct part part = {0}; next_part(filling, &part);) {
        const struct ms_content *content = &part.extent.content;
        if (!is_file(content))
            continue;
        if (requests != NULL)
            requests[count] =
                (struct ms_read_request){ms_content_file(content), content->source_offset,
                                         part.extent.end - part.extent.begin,
                                         address_of(filling, &part)};
        count++;
    }
    return count;
}

static CUresult fill_from_files(const struct filling *filling, CUstream stream)
{
    const size_t count = list_files(filling, NULL);
    if (count == 0)
        return CUDA_SUCCESS;
    struct ms_read_request *requests = ms_heap_alloc(count * sizeof(*requests));
    if (requests == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    list_files(filling, requests);
    const CUresult result = ms_transfer(requests, count, filling->allocation->context, stream);
    ms_heap_free(requests);
    return result;
}

/* Fills the pieces. Undefined bytes may become whatever the memory holds. */
static CUresult fill_pieces(const struct filling *filling, CUstream stream)
{
    CUresult result = fill_from_files(filling, stream);
    struct part part = {0};
    while (result == CUDA_SUCCESS && next_part(filling, &part)) {
        const struct ms_extent *extent = &part.extent;
        if (!is_file(&extent->content) && !ms_content_is_nothing(&extent->content))
            result = ms_replay(&extent->content, extent->begin, address_of(filling, &part),
                               extent->end - extent->begin, stream);
    }
    return result;
}

static CUresult fill(const struct filling *filling)
{
    CUstream stream;
    struct ms_driver_scope scope;
    const CUcontext context = filling->allocation->context;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_replay_stream(context, &stream);
    if (result == CUDA_SUCCESS) {
        result = fill_pieces(filling, stream);
        /* Also after a failure: queued work must not outlive this call. */
        const CUresult waited = ms_driver_wait(stream);
        result = result != CUDA_SUCCESS ? result : waited;
    }
    ms_driver_leave(&scope);
    return result;
}

/* Brings the bytes to send into parked memory instead of their own place, so that the copies back
 * are lineage, and change nothing. A gathered pattern stays a pattern: its parked memory goes. */
static CUresult park_and_fill(struct ms_allocation *allocation, size_t begin, size_t end,
                              const struct ms_ranges *parkable, const struct ms_receive_role *role,
                              struct ms_receive *receive)
{
    static const struct ms_ranges none;
    CUresult result = ms_backing_sink_wait(ms_allocation_memory(allocation), begin, end);
    if (result == CUDA_SUCCESS)
        result = cover_rest(allocation, begin, end, parkable, true);
    if (result == CUDA_SUCCESS)
        result = lend_parked(allocation, parkable, role->gathers ? parkable : &none, role,
                             &receive->park, &receive->lent);
    if (result == CUDA_SUCCESS)
        result = fill(&(struct filling){allocation, begin, end, &receive->park});
    if (result == CUDA_SUCCESS && !role->gathers)
        result = set_parked(allocation, begin, end, &receive->park);
    if (result == CUDA_SUCCESS)
        ms_counter_add(MS_COUNT_MATERIALISED_BYTES, end - begin);
    else
        take_back(allocation, receive);
    return result;
}

static CUresult send_parked(struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_receive_role *role, struct ms_receive *receive)
{
    struct ms_ranges sinkable = {0}, parkable = {0};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (list_parkable(allocation, begin, end, role, &sinkable, &parkable))
        result = parkable.count > 0
                     ? park_and_fill(allocation, begin, end, &parkable, role, receive)
                     : ms_materialise(allocation, begin, end, MS_NEED_SEND_LATER);
    ms_ranges_cleanup(&parkable);
    return result;
}

/* --- before the call */

/* False for bytes that are read or written like any others. */
static bool is_special(const struct ms_allocation *allocation, size_t begin, size_t end,
                       const struct ms_receive_role *role)
{
    return role->sends ? may_send_parked(allocation, begin, end, role)
                       : is_divided(role) || is_passing(allocation, begin, end, role);
}

/* Returns false for captured operations, whose memory must not change, for more than one
 * allocation, and for a device without sinks. */
static bool try_prepare(CUdeviceptr address, size_t bytes, const struct ms_receive_role *role,
                        struct ms_receive *receive, CUresult *result)
{
    if (ms_is_capturing())
        return false;
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL || !ms_fits(allocation, address, bytes) ||
        !ms_fact_holds(allocation->device, MS_FACT_ALIAS))
        return false;
    const size_t begin = ms_offset(allocation, address), end = begin + bytes;
    if (!is_special(allocation, begin, end, role))
        return false;
    *receive = (struct ms_receive){.address = allocation->address,
                                   .allocation_id = allocation->id,
                                   .context = allocation->context};
    ms_carve_add_use(allocation, begin, end);
    *result = role->sends ? send_parked(allocation, begin, end, role, receive)
                          : receive_parts(allocation, begin, end, role, receive);
    if (role->gathers && receive->lent == NULL)
        receive->address = 0; /* the bytes come to their place, and nobody waits for that */
    return true;
}

CUresult ms_receive_prepare(CUdeviceptr address, size_t bytes, const struct ms_receive_role *role,
                            struct ms_receive *receive_out)
{
    int attempts = 0;
    CUresult result;
    *receive_out = (struct ms_receive){0};
    do {
        if (!ms_config.receive_parts || !try_prepare(address, bytes, role, receive_out, &result))
            return role->sends ? CUDA_SUCCESS : ms_access(address, bytes, MS_NEED_OVERWRITE);
    } while (!role->sends && ms_evict_try_bytes_again(result, &attempts));
    ms_window_extend();
    return result;
}

/* Hands an event over to the memory that is lent under the allocation, unless the allocation was
 * freed meanwhile. */
static void hand_over(const struct ms_receive *receive, const struct ms_sink_mapping *sink,
                      CUevent event)
{
    MS_CLAIMED struct ms_allocation *allocation =
        ms_space_claim_same(receive->address, receive->allocation_id);
    if (allocation != NULL)
        ms_backing_lent(ms_allocation_memory(allocation), sink, event);
    else
        ms_driver.event_destroy(event);
}

static void unmap_sink(const struct ms_receive *receive)
{
    MS_CLAIMED struct ms_allocation *allocation =
        ms_space_claim_same(receive->address, receive->allocation_id);
    if (allocation != NULL)
        ms_backing_sink_wait(ms_allocation_memory(allocation), 0, allocation->bytes);
}

/* Records events that users of the memory wait for: one each for the sink, the lent memory and its
 * pieces. */
static CUresult hand_events_over(const struct ms_receive *receive, CUstream stream)
{
    const struct ms_sink_mapping *const sink[] = {receive->sink, receive->lent};
    CUevent event;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
        if (sink[i] != NULL && (result = ms_driver_record(stream, &event)) == CUDA_SUCCESS)
            hand_over(receive, sink[i], event);
    }
    for (size_t i = 0; i < receive->park.count && result == CUDA_SUCCESS; i++) {
        if ((result = ms_driver_record(stream, &event)) == CUDA_SUCCESS)
            ms_parked_attach_event(receive->park.parked[i], event);
    }
    return result;
}

/* Waits until the broadcast has run: the calls that follow can be recorded only when the stream is
 * idle, and PyTorch queues a whole model's broadcasts in one go. The wait, which has an event of
 * its own, is limited, because another rank may wait for this rank first. */
static CUresult follow(const struct ms_receive *receive, CUstream stream)
{
    CUevent event;
    CUresult result = hand_events_over(receive, stream);
    if (result == CUDA_SUCCESS)
        result = ms_driver_record(stream, &event);
    if (result != CUDA_SUCCESS)
        return result;
    if (ms_order_event_poll(event, ms_config.receive_ms) == CUDA_SUCCESS &&
        (receive->sink != NULL || receive->lent != NULL))
        unmap_sink(receive);
    ms_driver.event_destroy(event);
    return CUDA_SUCCESS;
}

void ms_receive_queued(struct ms_receive *receive, CUstream stream)
{
    struct ms_driver_scope scope;
    if (receive->address != 0 && ms_driver_enter(receive->context, &scope) == CUDA_SUCCESS) {
        const CUresult result = follow(receive, stream);
        if (result != CUDA_SUCCESS)
            ms_log(MS_ERROR, "cannot wait for received bytes: CUDA error %d", (int)result);
        ms_driver_leave(&scope);
    }
    drop_pieces(&receive->park);
}
