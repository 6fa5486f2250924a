/* SPDX-License-Identifier: Apache-2.0 */
/* The plan's decision on an allocation's bytes, and the program's reads of remote ones. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/ranges.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/checkpoint_files.h"
#include "runtime/shard/named_tensors.h"
#include "runtime/shard/shard_internal.h"
#include "runtime/state/caller.h"

/* The tensor whose ranges were walked last, and how far: a tensor may lie in many extents. */
struct walk {
    uint64_t version; /* of the sheet; 0: none */
    size_t position;
    struct ms_cursor cursor;
    struct ms_range range; /* the first one not passed yet, or empty */
};

struct query {
    struct walk walk;
    uint64_t begin, end;            /* in the file, or in the tensor */
    uint64_t at;                    /* offset in the allocation of `begin` */
    struct ms_ranges ours, planned; /* offsets in the allocation */
    bool is_out_of_memory;
};

static void next_range(struct walk *walk)
{
    if (!ms_placement_next(&walk->cursor, &walk->range))
        walk->range = (struct ms_range){UINT64_MAX, UINT64_MAX};
}

static void walk_to(struct walk *walk, const struct ms_sheet *sheet, size_t position,
                    uint64_t begin)
{
    if (walk->version != sheet->version || walk->position != position ||
        walk->range.begin > begin) {
        walk->version = sheet->version;
        walk->position = position;
        ms_placement_begin(&walk->cursor, sheet->placement, position);
        next_range(walk);
    }
    while (walk->range.end <= begin)
        next_range(walk);
}

/* Bytes [begin, end) of a tensor lie at offset `at` of the allocation. */
static void query_part(struct query *query, const struct ms_sheet *sheet, size_t position,
                       struct ms_range part, uint64_t at)
{
    struct walk *walk = &query->walk;
    bool is_good = ms_ranges_add(&query->planned, at, at + (part.end - part.begin));
    walk_to(walk, sheet, position, part.begin);
    while (walk->range.begin < part.end && is_good) {
        const uint64_t begin = walk->range.begin > part.begin ? walk->range.begin : part.begin;
        const uint64_t end = walk->range.end < part.end ? walk->range.end : part.end;
        is_good = ms_ranges_add(&query->ours, at + (begin - part.begin), at + (end - part.begin));
        if (walk->range.end > part.end)
            break;
        next_range(walk);
    }
    if (!is_good)
        query->is_out_of_memory = true;
}

static bool query_tensor(void *context, size_t index, const struct ms_tensor *tensor)
{
    struct query *query = context;
    const uint64_t tensor_end = tensor->offset + tensor->bytes;
    const uint64_t begin = query->begin > tensor->offset ? query->begin : tensor->offset;
    const uint64_t end = query->end < tensor_end ? query->end : tensor_end;
    const struct ms_range part = {begin - tensor->offset, end - tensor->offset};
    if (index >= ms_shard.known_count)
        return true; /* became known just now; asked next time */
    ms_shard.is_seen[index] = true;
    query_part(query, &ms_shard.sheet, ms_shard.sheet.positions[index], part,
               query->at + (begin - query->begin));
    return !query->is_out_of_memory;
}

MS_HOLDS(ms_shard.lock)
static void query_file(struct query *query, const struct ms_extent *extent)
{
    const struct ms_checkpoint_file *file = ms_checkpoint_files_find(extent->content.source);
    /* That may have added tensors. */
    if (file == NULL || !ms_shard_has_sheet_locked())
        return;
    query->begin = extent->content.source_offset;
    query->end = query->begin + (extent->end - extent->begin);
    query->at = extent->begin;
    ms_checkpoint_files_visit(file, query->begin, query->end, query_tensor, query);
}

/* Handles the part of a named range that is in the extent. */
static bool query_named(struct query *query, const struct ms_sheet *sheet, size_t position,
                        const struct ms_extent *extent, size_t begin, size_t end)
{
    const size_t from = extent->begin > begin ? extent->begin : begin;
    const size_t to = extent->end < end ? extent->end : end;
    if (from >= to)
        return false;
    query_part(query, sheet, position, (struct ms_range){from - begin, to - begin}, from);
    return true;
}

static void query_by_address(struct query *query, uint64_t allocation_id,
                             const struct ms_extent *extent)
{
    for (size_t i = 0; i < ms_named_tensors_count(); i++) {
        struct ms_named_tensor *named = ms_named_tensors_at(i);
        if (named->allocation_id == allocation_id &&
            query_named(query, &ms_shard.sheet, ms_shard.sheet.positions[ms_shard.known_count + i],
                        extent, named->begin, named->end))
            named->is_seen = true;
    }
    for (size_t i = 0; i < ms_shard.unnamed_count && ms_shard.unnamed_sheet.layout != NULL; i++) {
        struct ms_unnamed_block *block = &ms_shard.unnamed[i];
        if (block->is_selected && block->allocation_id == allocation_id &&
            query_named(query, &ms_shard.unnamed_sheet, ms_shard.unnamed_sheet.positions[i], extent,
                        block->begin, block->end))
            block->is_seen = true;
    }
}

MS_HOLDS(ms_shard.lock)
static void query_locked(struct query *query, const struct ms_allocation *allocation, size_t begin,
                         size_t end)
{
    struct ms_walk walk = ms_bytes_walk(allocation, begin, end);
    for (const struct ms_extent *extent; (extent = ms_lineage_walk_next(&walk)) != NULL;) {
        if ((ms_content_states(&extent->content) & MS_UNDECIDED) == 0)
            continue;
        if (extent->content.kind == MS_SOURCE && ms_source_is_file(extent->content.source))
            query_file(query, extent);
        if (ms_shard_has_sheet_locked())
            query_by_address(query, allocation->id, extent);
    }
}

static void set_ours(struct ms_content *content)
{
    content->locality = MS_LOCAL;
    content->is_remote_copy = false;
}

static void set_remote(struct ms_content *content)
{
    content->locality = MS_REMOTE;
}

/* Tensors may overlap: what one of them keeps is local, whatever the others say. */
static void apply(struct query *query, struct ms_allocation *allocation)
{
    struct ms_ranges remote = {0};
    ms_ranges_sort(&query->ours);
    ms_ranges_sort(&query->planned);
    if (!query->is_out_of_memory && ms_ranges_subtract(&query->planned, &query->ours, &remote)) {
        ms_bytes_change(allocation, query->ours.list, query->ours.count, set_ours);
        ms_bytes_change(allocation, remote.list, remote.count, set_remote);
    }
    ms_ranges_cleanup(&remote);
}

void ms_placement_query(struct ms_allocation *allocation, size_t begin, size_t end)
{
    if (!ms_shard_is_active() || !ms_bytes_any(allocation, begin, end, MS_UNDECIDED))
        return;
    struct query *query = ms_heap_zalloc(sizeof(*query));
    if (query == NULL)
        return;
    ms_lock_take(&ms_shard.lock);
    if (ms_shard_has_sheet_locked())
        query_locked(query, allocation, begin, end);
    ms_lock_drop(&ms_shard.lock);
    if (query->planned.count > 0)
        apply(query, allocation);
    ms_ranges_cleanup(&query->ours);
    ms_ranges_cleanup(&query->planned);
    ms_heap_free(query);
}

bool ms_placement_query_unname(CUdeviceptr address, size_t bytes, struct ms_fault *fault)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    const bool fits = allocation != NULL && ms_fits(allocation, address, bytes);
    bool is_good = fits;
    if (fits) {
        const size_t begin = ms_offset(allocation, address);
        const struct ms_range range = {begin, begin + bytes};
        ms_shard_forget(allocation, range.begin, range.end);
        is_good =
            ms_bytes_change(allocation, &range, 1, ms_content_forget_locality) == CUDA_SUCCESS;
    }
    ms_claim_release(allocation);
    if (!fits)
        return ms_fault_set(fault, "no allocation that the shim defers holds %zu bytes at 0x%llx",
                            bytes, address);
    return is_good || ms_fault_set(fault, "out of memory");
}

/* --- reading what is remote */

/* A reader of remote bytes, for a message. */
struct reader {
    const char *tensor;
    uint64_t begin; /* in the tensor */
    uint64_t file_begin;
};

static bool take_first(void *context, __attribute__((unused)) size_t index,
                       const struct ms_tensor *tensor)
{
    struct reader *reader = context;
    reader->tensor = tensor->name;
    reader->begin = reader->file_begin > tensor->offset ? reader->file_begin - tensor->offset : 0;
    return false;
}

/* Finds the tensor that an extent, cut to what is read, belongs to. */
MS_HOLDS(ms_shard.lock)
static struct reader find_tensor_locked(const struct ms_allocation *allocation,
                                        const struct ms_extent *extent)
{
    struct reader reader = {"a block", extent->begin, 0};
    const struct ms_content *content = &extent->content;
    if (content->kind == MS_SOURCE && ms_source_is_file(content->source)) {
        const struct ms_checkpoint_file *file = ms_checkpoint_files_find(content->source);
        reader.file_begin = content->source_offset;
        if (file != NULL)
            ms_checkpoint_files_visit(file, reader.file_begin,
                                      reader.file_begin + (extent->end - extent->begin), take_first,
                                      &reader);
    }
    for (size_t i = 0; i < ms_named_tensors_count(); i++) {
        const struct ms_named_tensor *named = ms_named_tensors_at(i);
        if (named->allocation_id == allocation->id && named->begin <= extent->begin &&
            extent->begin < named->end)
            reader = (struct reader){named->name, extent->begin - named->begin, 0};
    }
    return reader;
}

bool ms_placement_query_name(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes)
{
    if (!ms_shard_is_active() || begin >= end)
        return false;
    struct ms_extent extent = ms_bytes_at(allocation, begin);
    extent.end = extent.end < end ? extent.end : end;
    ms_lock_take(&ms_shard.lock);
    const struct reader reader = find_tensor_locked(allocation, &extent);
    const bool is_named = strcmp(reader.tensor, "a block") != 0;
    if (is_named)
        snprintf(name_out, bytes, "%s", reader.tensor);
    ms_lock_drop(&ms_shard.lock);
    return is_named;
}

/* The index of the name of exactly these bytes, or ms_named_tensors_count() if there is none. */
MS_HOLDS(ms_shard.lock)
static size_t find_named_locked(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    size_t at = 0;
    for (; at < ms_named_tensors_count(); at++) {
        const struct ms_named_tensor *named = ms_named_tensors_at(at);
        if (named->allocation_id == allocation->id && named->begin == begin && named->end == end)
            break;
    }
    return at;
}

bool ms_placement_query_remote_parts(const struct ms_allocation *allocation, size_t begin,
                                     size_t end, struct ms_ranges *remote)
{
    struct query query = {0};
    ms_lock_take(&ms_shard.lock);
    const size_t at = ms_shard_has_sheet_locked() ? find_named_locked(allocation, begin, end)
                                                  : ms_named_tensors_count();
    const bool is_named = at < ms_named_tensors_count();
    if (is_named)
        query_part(&query, &ms_shard.sheet, ms_shard.sheet.positions[ms_shard.known_count + at],
                   (struct ms_range){0, end - begin}, begin);
    ms_lock_drop(&ms_shard.lock);
    if (!query.is_out_of_memory)
        ms_ranges_subtract(&query.planned, &query.ours, remote);
    ms_ranges_cleanup(&query.ours);
    ms_ranges_cleanup(&query.planned);
    return is_named;
}

/* The call has not read the tensor before. When there is no room for it, it counts as one that
 * has. */
MS_HOLDS(ms_shard.lock) static bool is_first_locked(const struct ms_remote_reader *reader)
{
    const size_t most = sizeof(ms_shard.remote_readers) / sizeof(ms_shard.remote_readers[0]);
    size_t i = 0;
    while (i < ms_shard.remote_reader_count &&
           (strcmp(ms_shard.remote_readers[i].call, reader->call) != 0 ||
            strcmp(ms_shard.remote_readers[i].tensor, reader->tensor) != 0))
        i++;
    if (i < ms_shard.remote_reader_count || i == most)
        return false;
    ms_shard.remote_readers[ms_shard.remote_reader_count++] = *reader;
    return true;
}

/* The first remote extent determines the tensor; all of them count. */
MS_HOLDS(ms_shard.lock)
static void publish_remote_reads_locked(const struct ms_allocation *allocation, size_t begin,
                                        size_t end)
{
    struct reader reader = {"a block", 0, 0};
    bool is_found = false;
    uint64_t bytes = 0;
    struct ms_extent extent;
    for (size_t at = begin; ms_bytes_next(allocation, &at, end, &extent);) {
        if (extent.content.locality != MS_REMOTE)
            continue;
        bytes += extent.end - extent.begin;
        if (!is_found)
            reader = find_tensor_locked(allocation, &extent);
        is_found = true;
    }
    ms_publish_remote_read(allocation, begin, bytes, reader.tensor);
    struct ms_remote_reader who;
    snprintf(who.call, sizeof(who.call), "%s%s%s", ms_caller != NULL ? ms_caller : "a call",
             ms_caller_kernel != NULL ? " of " : "",
             ms_caller_kernel != NULL ? ms_caller_kernel : "");
    snprintf(who.tensor, sizeof(who.tensor), "%s", reader.tensor);
    /* Logs once for each call and tensor, and each time a call fails. */
    const bool is_first = is_first_locked(&who);
    if (is_first || ms_shard_enforces())
        ms_log(ms_shard_enforces() ? MS_ERROR : MS_INFO,
               "%s reads %" PRIu64 " bytes of tensor %s, from byte %" PRIu64 " on, which the plan "
               "%s gives to other ranks than %" PRIu32 " of %" PRIu32 "%s",
               who.call, bytes, reader.tensor, reader.begin, ms_shard.name, ms_shard.rank,
               ms_plan_mesh(ms_shard.plan)->world,
               ms_shard_enforces() ? "; METASHARD_PLAN_MODE is enforce" : "");
}

CUresult ms_shard_read_remote(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    if (!ms_bytes_any(allocation, begin, end, MS_OF_OTHERS))
        return CUDA_SUCCESS;
    ms_lock_take(&ms_shard.lock);
    if (ms_shard.plan != NULL)
        publish_remote_reads_locked(allocation, begin, end);
    ms_lock_drop(&ms_shard.lock);
    return ms_shard_enforces() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}
