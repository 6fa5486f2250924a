/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/placement_query.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/ranges.h"
#include "runtime/config/config.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/publish.h"
#include "runtime/order/order.h"
#include "runtime/plan/placement.h"
#include "runtime/shard/checkpoint_files.h"
#include "runtime/shard/shard_internal.h"
#include "runtime/state/caller.h"

/* A walk through a tensor's ranges, kept from extent to extent: a tensor may lie in many. */
struct walk {
    uint64_t version; /* of the sheet; 0: no walk yet */
    size_t position;
    struct ms_cursor cursor;
    struct ms_range range; /* the first range not passed yet; UINT64_MAX: no more */
    uint64_t passed;       /* the end of the range before */
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
    walk->passed = walk->range.end;
    if (!ms_placement_next(&walk->cursor, &walk->range))
        walk->range = (struct ms_range){UINT64_MAX, UINT64_MAX};
}

static void walk_to(struct walk *walk, const struct ms_sheet *sheet, size_t position,
                    uint64_t begin)
{
    if (walk->version != sheet->version || walk->position != position || begin < walk->passed) {
        walk->version = sheet->version;
        walk->position = position;
        walk->range.end = 0;
        ms_placement_begin(&walk->cursor, sheet->placement, position);
        next_range(walk);
    }
    while (walk->range.end <= begin)
        next_range(walk);
}

/* Adds a tensor's `part`, at offset `at` of the allocation, to `planned`, and this rank's bytes in
 * it to `ours`. */
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

MS_HOLDS(ms_shard.lock)
static bool query_tensor(void *context, size_t index, const struct ms_tensor *tensor)
{
    struct query *query = context;
    const uint64_t tensor_end = tensor->offset + tensor->bytes;
    const uint64_t begin = query->begin > tensor->offset ? query->begin : tensor->offset;
    const uint64_t end = query->end < tensor_end ? query->end : tensor_end;
    const struct ms_range part = {begin - tensor->offset, end - tensor->offset};
    if (!ms_shard_has_sheet_locked()) /* the visit may have read new headers */
        return false;
    ms_shard.is_seen[index] = true;
    query_part(query, &ms_shard.sheet, ms_shard.sheet.positions[index], part,
               query->at + (begin - query->begin));
    return !query->is_out_of_memory;
}

MS_HOLDS(ms_shard.lock)
static void query_file(struct query *query, const struct ms_extent *extent)
{
    query->begin = extent->content.source_offset;
    query->end = query->begin + (extent->end - extent->begin);
    query->at = extent->begin;
    ms_checkpoint_files_visit(ms_content_file(&extent->content), query->begin, query->end,
                              query_tensor, query);
}

/* Queries the part of a named range that lies in the extent; false: no part does. */
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

MS_HOLDS(ms_shard.lock)
static void query_by_address(struct query *query, const struct ms_allocation *allocation,
                             const struct ms_extent *extent)
{
    struct ms_named_tensor *named;
    for (size_t at = extent->begin;
         at < extent->end &&
         (named = ms_shard_named_in_locked(allocation->address + at, extent->end - at)) != NULL;
         at = named->end) {
        query_named(query, &ms_shard.sheet,
                    ms_shard.sheet.positions[ms_shard.known_count + named->at], extent,
                    named->begin, named->end);
        named->is_seen = true;
    }
    for (size_t i = 0; i < ms_shard.unnamed_count && ms_shard.unnamed_sheet.layout != NULL; i++) {
        struct ms_unnamed_block *block = &ms_shard.unnamed[i];
        if (block->is_selected && block->allocation_id == allocation->id &&
            query_named(query, &ms_shard.unnamed_sheet, ms_shard.unnamed_sheet.positions[i], extent,
                        block->begin, block->end))
            block->is_seen = true;
    }
}

MS_HOLDS(ms_shard.lock)
static void query_locked(struct query *query, const struct ms_allocation *allocation, size_t begin,
                         size_t end)
{
    struct ms_walk walk = {ms_allocation_lineage(allocation), begin, end};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if ((ms_content_states(&extent->content) & MS_UNDECIDED) == 0)
            continue;
        if (ms_content_file(&extent->content) != NULL)
            query_file(query, extent);
        if (ms_shard_has_sheet_locked())
            query_by_address(query, allocation, extent);
    }
}

static void set_ours(struct ms_content *content)
{
    ms_content_forget_locality(content);
    content->locality = MS_LOCAL;
}

static void set_remote(struct ms_content *content)
{
    content->locality = MS_REMOTE;
}

/* Tensors may overlap: a byte kept for one tensor is local, whatever the others say. */
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
    if (!ms_shard_is_active() ||
        !ms_lineage_any(ms_allocation_lineage(allocation), begin, end, MS_UNDECIDED))
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
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL || !ms_fits(allocation, address, bytes))
        return ms_fault_set(fault, "no allocation that the shim defers holds %zu bytes at 0x%llx",
                            bytes, address);
    const size_t begin = ms_offset(allocation, address);
    const struct ms_range range = {begin, begin + bytes};
    ms_shard_forget(allocation, range.begin, range.end);
    return ms_bytes_change(allocation, &range, 1, ms_content_forget_locality) == CUDA_SUCCESS ||
           ms_fault_set(fault, "out of memory");
}

/* --- reads of remote bytes */

/* The tensor that a call reads, for a message. */
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

/* Finds the tensor of an extent, which is cut to the bytes that are read. */
MS_HOLDS(ms_shard.lock)
static struct reader find_tensor_locked(const struct ms_allocation *allocation,
                                        const struct ms_extent *extent)
{
    struct reader reader = {"a block", extent->begin, 0};
    const struct ms_content *content = &extent->content;
    const struct ms_file *file = ms_content_file(content);
    if (file != NULL) {
        reader.file_begin = content->source_offset;
        ms_checkpoint_files_visit(file, reader.file_begin,
                                  reader.file_begin + (extent->end - extent->begin), take_first,
                                  &reader);
    }
    const struct ms_named_tensor *named =
        ms_shard_named_in_locked(allocation->address + extent->begin, 1);
    if (named != NULL)
        reader = (struct reader){named->name, extent->begin - named->begin, 0};
    return reader;
}

bool ms_placement_query_name(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes)
{
    if (!ms_shard_is_active() || begin >= end)
        return false;
    struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), begin);
    extent.end = extent.end < end ? extent.end : end;
    ms_lock_take(&ms_shard.lock);
    const struct reader reader = find_tensor_locked(allocation, &extent);
    const bool is_named = strcmp(reader.tensor, "a block") != 0;
    if (is_named)
        snprintf(name_out, bytes, "%s", reader.tensor);
    ms_lock_drop(&ms_shard.lock);
    return is_named;
}

/* True if [begin, end) of the allocation is exactly a named tensor; then adds its remote parts, or,
 * if out of memory, fewer. */
static bool list_named(const struct ms_allocation *allocation, size_t begin, size_t end,
                       struct ms_ranges *remote)
{
    struct query query = {0};
    ms_lock_take(&ms_shard.lock);
    const struct ms_named_tensor *named =
        ms_shard_has_sheet_locked()
            ? ms_shard_named_in_locked(allocation->address + begin, end - begin)
            : NULL;
    const bool is_named = named != NULL && named->begin == begin && named->end == end;
    if (is_named)
        query_part(&query, &ms_shard.sheet,
                   ms_shard.sheet.positions[ms_shard.known_count + named->at],
                   (struct ms_range){0, end - begin}, begin);
    ms_lock_drop(&ms_shard.lock);
    if (!query.is_out_of_memory)
        ms_ranges_subtract(&query.planned, &query.ours, remote);
    ms_ranges_cleanup(&query.ours);
    ms_ranges_cleanup(&query.planned);
    return is_named;
}

/* True if the call has not read the tensor before. False if the table has no room for the pair. */
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

/* The first remote extent determines the tensor; the bytes of all remote extents count. */
MS_HOLDS(ms_shard.lock)
static void publish_remote_reads_locked(const struct ms_allocation *allocation, size_t begin,
                                        size_t end)
{
    struct reader reader = {"a block", 0, 0};
    bool is_found = false;
    uint64_t bytes = 0;
    struct ms_extent extent;
    for (size_t at = begin;
         ms_lineage_next(ms_allocation_lineage(allocation), &at, end, &extent);) {
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
               ms_shard.plan->mesh.world,
               ms_shard_enforces() ? "; METASHARD_PLAN_MODE is enforce" : "");
}

CUresult ms_placement_query_read_remote(const struct ms_allocation *allocation, size_t begin,
                                        size_t end)
{
    if (!ms_lineage_any(ms_allocation_lineage(allocation), begin, end, MS_OF_OTHERS))
        return CUDA_SUCCESS;
    ms_lock_take(&ms_shard.lock);
    if (ms_shard.plan != NULL)
        publish_remote_reads_locked(allocation, begin, end);
    ms_lock_drop(&ms_shard.lock);
    return ms_shard_enforces() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

/* --- the tensors of a layout by size: the bytes that a rank keeps of any tensor of a size */

struct member {
    uint64_t bytes;
    size_t unit, tensor;
    size_t place; /* its index in `members` */
};

struct sizes {
    size_t count;
    struct member *members;  /* behind the entries: sorted by unit, then in the order of the list */
    struct member entries[]; /* all members again, sorted by size */
};

static int by_size(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return left->tensor < right->tensor ? -1 : left->tensor > right->tensor;
}

static int by_unit(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    if (left->unit != right->unit)
        return left->unit < right->unit ? -1 : 1;
    return left->tensor < right->tensor ? -1 : left->tensor > right->tensor;
}

/* Returns NULL if out of memory. The result is immutable, and freed with ms_heap_free; the layout
 * must outlive it. */
static struct sizes *sizes_create(const struct ms_layout *layout)
{
    const size_t count = layout->count;
    struct sizes *sizes = ms_heap_alloc(sizeof(*sizes) + 2 * count * sizeof(*sizes->entries));
    if (sizes == NULL)
        return NULL;
    sizes->count = count;
    sizes->members = sizes->entries + count;
    for (size_t i = 0; i < count; i++) {
        const struct ms_laid laid = ms_layout_at(layout, i);
        sizes->members[i] = (struct member){laid.tensor.bytes, laid.unit, i, 0};
    }
    qsort(sizes->members, count, sizeof(*sizes->members), by_unit);
    for (size_t i = 0; i < count; i++)
        sizes->members[i].place = i;
    memcpy(sizes->entries, sizes->members, count * sizeof(*sizes->entries));
    qsort(sizes->entries, count, sizeof(*sizes->entries), by_size);
    return sizes;
}

/* The index in `entries` of the first tensor of at least `bytes` bytes. */
static size_t find_size(const struct sizes *sizes, uint64_t bytes)
{
    return MS_ARRAY_FIND(at, sizes->count, sizes->entries[at].bytes < bytes);
}

static bool has_size(const struct sizes *sizes, uint64_t bytes)
{
    const size_t at = find_size(sizes, bytes);
    return at < sizes->count && sizes->entries[at].bytes == bytes;
}

static bool add_kept(const struct ms_placement *placement, size_t tensor, struct ms_ranges *ours)
{
    struct ms_cursor cursor;
    struct ms_range range;
    bool is_good = true;
    ms_placement_begin(&cursor, placement, tensor);
    while (is_good && ms_placement_next(&cursor, &range))
        is_good = ms_ranges_add(ours, range.begin, range.end);
    return is_good;
}

/* True if the members at `place` and `other` are in one unit. */
static bool is_together(const struct sizes *sizes, size_t place, size_t other)
{
    return other < sizes->count && sizes->members[other].unit == sizes->members[place].unit;
}

/* Counts a member's neighbours, to both sides, that have the sizes of the sequence. */
static size_t count_neighbours(const struct sizes *sizes, size_t place,
                               const struct ms_sequence *sequence)
{
    size_t before = 0, behind = 0;
    while (before < sequence->at && before < place &&
           is_together(sizes, place, place - before - 1) &&
           sizes->members[place - before - 1].bytes == sequence->bytes[sequence->at - before - 1])
        before++;
    while (sequence->at + behind + 1 < sequence->count &&
           is_together(sizes, place, place + behind + 1) &&
           sizes->members[place + behind + 1].bytes == sequence->bytes[sequence->at + behind + 1])
        behind++;
    return before + behind;
}

/* Adds, sorted, the bytes that the placement's rank keeps of any candidate. Candidates are the
 * tensors of the size with the most neighbours of the sequence, in their unit or, without a unit,
 * in the list. Returns false if out of memory. */
static bool add_ours(const struct sizes *sizes, const struct ms_placement *placement,
                     const struct ms_sequence *sequence, struct ms_ranges *ours_out)
{
    const uint64_t bytes = sequence->bytes[sequence->at];
    const size_t first = find_size(sizes, bytes);
    size_t most = 0;
    bool is_good = true;
    for (size_t i = first; i < sizes->count && sizes->entries[i].bytes == bytes; i++) {
        const size_t count = count_neighbours(sizes, sizes->entries[i].place, sequence);
        if (count > most)
            most = count;
    }
    for (size_t i = first; is_good && i < sizes->count && sizes->entries[i].bytes == bytes; i++) {
        if (count_neighbours(sizes, sizes->entries[i].place, sequence) == most)
            is_good = add_kept(placement, sizes->entries[i].tensor, ours_out);
    }
    ms_ranges_sort(ours_out);
    return is_good;
}

/*
 * --- by size alone: the bytes that a rank keeps of any tensor of a size that the plan declares, or
 * that an entry without a name and an order selects. Programs that receive their tensors from
 * another rank have no file to identify them.
 */

enum { MAX_KNOWN = 64 };

static struct {
    uint64_t version; /* of the sheet that all this is made from; 0: none */
    struct sizes *sizes;
    size_t count; /* sizes beyond MAX_KNOWN are found anew each time */
    struct {
        uint64_t bytes;
        struct ms_ranges remote;
    } known[MAX_KNOWN];
} sized MS_GUARDED_BY(ms_shard.lock);

MS_HOLDS(ms_shard.lock) static bool follow_sheet(void)
{
    if (sized.version == ms_shard.sheet.version)
        return true;
    while (sized.count > 0)
        ms_ranges_cleanup(&sized.known[--sized.count].remote);
    ms_heap_free(sized.sizes);
    sized.sizes = sizes_create(ms_shard.sheet.layout);
    sized.version = sized.sizes != NULL ? ms_shard.sheet.version : 0;
    return sized.sizes != NULL;
}

/* Adds the bytes of the sequence's tensor that the placement's rank keeps of no candidate. */
static bool add_rest(const struct sizes *sizes, const struct ms_placement *placement,
                     const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    struct ms_ranges all = {0}, ours = {0};
    const bool is_good = add_ours(sizes, placement, sequence, &ours) &&
                         ms_ranges_add(&all, 0, sequence->bytes[sequence->at]) &&
                         ms_ranges_subtract(&all, &ours, remote);
    ms_ranges_cleanup(&all);
    ms_ranges_cleanup(&ours);
    return is_good;
}

/* Returns NULL if the table is full, or out of memory. */
MS_HOLDS(ms_shard.lock) static const struct ms_ranges *find_known(uint64_t bytes)
{
    for (size_t i = 0; i < sized.count; i++) {
        if (sized.known[i].bytes == bytes)
            return &sized.known[i].remote;
    }
    if (sized.count == MAX_KNOWN)
        return NULL;
    const struct ms_sequence alone = {&bytes, 1, 0};
    struct ms_ranges remote = {0};
    if (!add_rest(sized.sizes, ms_shard.sheet.placement, &alone, &remote)) {
        ms_ranges_cleanup(&remote);
        return NULL;
    }
    sized.known[sized.count].bytes = bytes;
    sized.known[sized.count].remote = remote;
    return &sized.known[sized.count++].remote;
}

/* For a tensor that the plan does not declare, but that an entry may select by size. */
MS_HOLDS(ms_shard.lock) static bool add_by_entry(uint64_t bytes, struct ms_ranges *remote)
{
    const struct ms_sequence alone = {&bytes, 1, 0};
    struct ms_unnamed_block block = {.end = bytes};
    struct ms_sheet sheet;
    if (!ms_shard_select_locked(&block, &sheet))
        return false;
    struct sizes *sizes = sizes_create(sheet.layout);
    const bool is_good = sizes != NULL && add_rest(sizes, sheet.placement, &alone, remote);
    ms_heap_free(sizes);
    ms_shard_cleanup_sheet_locked(&sheet);
    return is_good;
}

MS_HOLDS(ms_shard.lock)
static bool add_sized_locked(const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    const uint64_t bytes = sequence->bytes[sequence->at];
    if (!ms_shard_has_sheet_locked() || !follow_sheet())
        return false;
    if (!has_size(sized.sizes, bytes))
        return add_by_entry(bytes, remote);
    /* The order of a longer sequence may tell which tensor of the size it is. */
    const struct ms_ranges *known = sequence->count == 1 ? find_known(bytes) : NULL;
    return known != NULL ? ms_ranges_add_all(remote, known)
                         : add_rest(sized.sizes, ms_shard.sheet.placement, sequence, remote);
}

/* --- by content */

/* True if a file's bytes continue outside the range, which is then not a tensor in its place. */
static bool is_cut(const struct ms_extent *extent, size_t begin, size_t end)
{
    return extent->content.kind == MS_SOURCE && (extent->begin < begin || extent->end > end);
}

/* Facts from the extents of a range about the tensor that will be received there. */
struct findings {
    bool is_cut;  /* the range is not a tensor in its place */
    bool is_open; /* the extents say nothing */
    struct ms_ranges remote, copies;
};

/* Received bytes say nothing: in reused memory they may be another tensor's. */
static bool is_known(const struct ms_content *content)
{
    return content->kind != MS_ABSENT && content->locality != MS_UNKNOWN;
}

/* Returns false if out of memory. */
static bool look_at(const struct ms_allocation *allocation, size_t begin, size_t end,
                    struct findings *found)
{
    bool is_good = true;
    *found = (struct findings){.is_open = true};
    struct ms_walk walk = {ms_allocation_lineage(allocation), begin, end};
    for (const struct ms_extent *extent; is_good && (extent = ms_lineage_walk(&walk)) != NULL;) {
        const struct ms_content *content = &extent->content;
        const size_t from = extent->begin > begin ? extent->begin : begin;
        const size_t to = extent->end < end ? extent->end : end;
        found->is_cut |= is_cut(extent, begin, end);
        found->is_open &= !is_known(content);
        if (content->is_remote_copy)
            is_good = ms_ranges_add(&found->copies, from, to);
        else if (is_known(content) && content->locality == MS_REMOTE)
            is_good = ms_ranges_add(&found->remote, from, to);
    }
    return is_good;
}

/*
 * Adds the bytes, from `begin` on, that are remote for the sequence's tensor. If that tensor may be
 * any of several in the plan, adds only bytes remote in all of them. Returns false if the active
 * plan has no tensor of that size, or out of memory.
 */
static bool list_sized(size_t begin, const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    const size_t first = remote->count;
    ms_lock_take(&ms_shard.lock);
    const bool is_good = add_sized_locked(sequence, remote);
    ms_lock_drop(&ms_shard.lock);
    for (size_t i = first; i < remote->count && is_good; i++) {
        remote->list[i].begin += begin;
        remote->list[i].end += begin;
    }
    return is_good;
}

/* Adds the bytes that are in both lists, which are sorted. */
static bool add_common(const struct ms_ranges *left, const struct ms_ranges *right,
                       struct ms_ranges *both)
{
    struct ms_ranges only = {0};
    const bool is_good =
        ms_ranges_subtract(left, right, &only) && ms_ranges_subtract(left, &only, both);
    ms_ranges_cleanup(&only);
    return is_good;
}

/*
 * Adds the bytes that are remote by the tensor's content, or by its size if the content says
 * nothing, and copies of remote bytes. Copies may be another tensor's that lay here before, so
 * beside the size only bytes that are remote by both are added.
 */
static bool add_found(size_t begin, const struct ms_sequence *sequence, struct findings *found,
                      struct ms_ranges *remote_parts)
{
    const bool is_sized = found->is_open && list_sized(begin, sequence, &found->remote);
    if (is_sized && found->copies.count > 0)
        return add_common(&found->remote, &found->copies, remote_parts);
    const bool is_good = ms_ranges_add_all(remote_parts, &found->remote) &&
                         ms_ranges_add_all(remote_parts, &found->copies);
    ms_ranges_sort(remote_parts);
    return is_good;
}

bool ms_placement_query_list_remote(struct ms_allocation *allocation, size_t begin, size_t bytes,
                                    const struct ms_sequence *sequence,
                                    struct ms_ranges *remote_parts)
{
    const struct ms_sequence alone = {.bytes = &bytes, .count = 1};
    const size_t end = begin + bytes;
    struct findings found = {0};
    if (!ms_config.receive_parts || !ms_shard_is_active())
        return true;
    ms_placement_query(allocation, begin, end);
    if (list_named(allocation, begin, end, remote_parts))
        return true;
    bool is_good = look_at(allocation, begin, end, &found);
    if (is_good && !found.is_cut)
        is_good = add_found(begin, sequence != NULL ? sequence : &alone, &found, remote_parts);
    ms_ranges_cleanup(&found.remote);
    ms_ranges_cleanup(&found.copies);
    return is_good;
}
