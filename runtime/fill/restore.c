/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/restore.h"

#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/driver/driver.h"
#include "runtime/files/file.h"
#include "runtime/files/file_name.h"
#include "runtime/files/source.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/finding/find.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/loading/source_read.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/shard/shard.h"

enum { COMPARED_BYTES = 1 << 20 };

/* --- opening the files of origins again */

static bool is_same_name(const struct ms_file_name *one, const struct ms_file_name *other)
{
    const struct ms_named_file a = ms_file_name_get(one), b = ms_file_name_get(other);
    return one == other ||
           (a.inode == b.inode && a.device == b.device && strcmp(a.path, b.path) == 0);
}

/* The file with this name. NULL: the file is gone. Searches from the newest entry on, which mostly
 * matches. */
static struct ms_file *open_named(struct ms_restoring *restoring, struct ms_file_name *name)
{
    for (size_t at = restoring->file_count; at > 0; at--) {
        if (is_same_name(restoring->files[at - 1].name, name))
            return restoring->files[at - 1].file;
    }
    if (!MS_ARRAY_GROW(restoring->files, restoring->file_count, restoring->file_capacity))
        return NULL;
    const struct ms_named_file found = ms_file_name_get(name);
    struct ms_file *file = ms_find_again(&found);
    ms_source_take(ms_file_name_source(name));
    restoring->files[restoring->file_count++] = (struct ms_reopened){name, file};
    return file;
}

/* For the files that a launch has read. NULL if the file looks different now: the launch is not
 * even run then. */
static struct ms_source *reopen(struct ms_source *source, void *restoring)
{
    struct ms_file_name *name = ms_source_name(source);
    struct ms_file *file = open_named(restoring, name);
    if (file == NULL || !ms_file_name_fits(name, file))
        return NULL;
    ms_file_take(file);
    return ms_file_source(file);
}

/* Puts files in place of the names in the origin's content, or sets its bytes to 0 if that
 * fails. */
static void reopen_origin(struct ms_origin *origin, struct ms_restoring *restoring)
{
    const struct ms_content named = origin->content;
    struct ms_content *content = &origin->content;
    content->owned = NULL;
    if (named.kind == MS_LAUNCHED && restoring->with_launches) {
        content->recorded = ms_recorded_launch_copy(named.recorded, reopen, restoring);
    } else if (named.kind == MS_SOURCE) {
        content->source = ms_file_source(open_named(restoring, ms_source_name(named.source)));
        if (content->source != NULL)
            ms_counted_take(content->owned);
    }
    if (content->owned == NULL)
        origin->bytes = 0;
    ms_counted_drop(named.owned);
}

bool ms_restore_begin(struct ms_restoring *restoring, bool with_launches)
{
    *restoring = (struct ms_restoring){.with_launches = with_launches};
    if (!ms_origins_copy(&restoring->origins))
        return false;
    for (size_t i = 0; i < restoring->origins.count; i++)
        reopen_origin(&restoring->origins.list[i], restoring);
    return true;
}

void ms_restore_end(struct ms_restoring *restoring)
{
    ms_origins_cleanup(&restoring->origins);
    for (size_t i = 0; i < restoring->file_count; i++) {
        ms_file_name_drop(restoring->files[i].name);
        if (restoring->files[i].file != NULL)
            ms_file_drop(restoring->files[i].file);
    }
    ms_heap_free(restoring->files);
}

/* --- comparing one allocation with its origins */

/* The comparison of one origin with resident bytes. */
struct comparison {
    struct ms_allocation *allocation;
    const struct ms_content *content; /* of the origin */
    size_t begin;                     /* in the allocation: where the content begins */
    CUstream stream;
    const struct ms_pinned_area *area;
    struct ms_restoring *restoring;
    bool has_compared, has_found;
};

/* False if a file is about to change: the thread that closes the file may have passed this
 * allocation already. A thread that closes a file from now on waits for the claim. */
static bool may_be_set(const struct comparison *comparison)
{
    const struct ms_restoring *restoring = comparison->restoring;
    if (comparison->content->kind == MS_SOURCE)
        return ms_file_state(ms_content_file(comparison->content)) == MS_FILE_IS_OPEN;
    bool are_open = true;
    for (size_t i = 0; are_open && i < restoring->file_count; i++)
        are_open = restoring->files[i].file == NULL ||
                   ms_file_state(restoring->files[i].file) == MS_FILE_IS_OPEN;
    return are_open;
}

static uint64_t offset_of(const struct comparison *comparison, size_t at)
{
    return comparison->content->source_offset + (at - comparison->begin);
}

/* The bytes of the range are equal to the origin's: gives them its lineage. */
static void set_lineage(struct comparison *comparison, struct ms_range range)
{
    struct ms_allocation *allocation = comparison->allocation;
    struct ms_content content = *comparison->content;
    content.cached = true;
    content.source_offset = offset_of(comparison, range.begin);
    if (!may_be_set(comparison) ||
        ms_bytes_set(allocation, range.begin, range.end, &content) != CUDA_SUCCESS)
        return;
    if (content.kind == MS_SOURCE && ms_shard_is_active())
        ms_shard_add_copy(content.source, content.source_offset, range.end - range.begin);
    allocation->notes.was_resident = true;
    comparison->restoring->bytes += range.end - range.begin;
    comparison->has_found = true;
}

/* True if the range, at most COMPARED_BYTES, holds the bytes of the file. */
static bool is_of_file(const struct comparison *comparison, struct ms_range range)
{
    const size_t bytes = range.end - range.begin;
    unsigned char *const of_device = comparison->area->memory;
    unsigned char *const of_file = of_device + COMPARED_BYTES;
    CUresult result =
        ms_driver.memcpy_dtoh_async(of_device, comparison->allocation->address + range.begin, bytes,
                                    comparison->stream);
    result = ms_replay_end(comparison->stream, result);
    if (result == CUDA_SUCCESS)
        result = ms_source_read(comparison->content->source, offset_of(comparison, range.begin),
                                of_file, bytes, NULL);
    return result == CUDA_SUCCESS && memcmp(of_device, of_file, bytes) == 0;
}

/* The next piece of [at, end), which never lies in two granules. False: the piece is pinned, so its
 * memory cannot go. */
static bool next_piece(const struct comparison *comparison, size_t at, size_t end,
                       struct ms_range *piece_out)
{
    const struct ms_allocation *allocation = comparison->allocation;
    const size_t granule = allocation->granule;
    const size_t step = granule < COMPARED_BYTES ? granule : COMPARED_BYTES;
    const size_t next = (at / step + 1) * step;
    *piece_out = (struct ms_range){at, next < end ? next : end};
    return !ms_evict_is_pinned(ms_allocation_backing(allocation), at, &piece_out->end);
}

static void compare_with_file(struct comparison *comparison, struct ms_range range)
{
    struct ms_range piece;
    for (size_t at = range.begin; at < range.end; at = piece.end) {
        if (!next_piece(comparison, at, range.end, &piece))
            continue;
        comparison->has_compared = true;
        if (is_of_file(comparison, piece))
            set_lineage(comparison, piece);
    }
}

/* Compares a part of a launch's result that lies in scratch memory. */
static CUresult compare_made(CUdeviceptr made, size_t offset, size_t bytes, CUstream stream,
                             void *argument)
{
    struct comparison *comparison = argument;
    const struct ms_allocation *allocation = comparison->allocation;
    const size_t begin = offset - comparison->content->source_offset + comparison->begin;
    struct ms_range piece;
    for (size_t at = begin; at < begin + bytes; at = piece.end) {
        if (!next_piece(comparison, at, begin + bytes, &piece))
            continue;
        comparison->has_compared = true;
        if (ms_compare_is_equal(made + (at - begin), allocation->address + at, piece.end - at,
                                allocation->context, stream))
            set_lineage(comparison, piece);
    }
    return CUDA_SUCCESS;
}

/* The bytes count as different if there is no memory to run the launch. */
static void compare_with_launch(struct comparison *comparison, struct ms_range range)
{
    ms_replay_in_scratch(comparison->content->recorded, offset_of(comparison, range.begin),
                         range.end - range.begin, comparison->stream, compare_made, comparison);
}

static void restore_origin(struct comparison *comparison, const struct ms_origin *origin)
{
    struct ms_allocation *allocation = comparison->allocation;
    const size_t begin = origin->address - allocation->address, most = allocation->bytes - begin;
    const size_t end = begin + (origin->bytes < most ? origin->bytes : most);
    struct ms_extent extent;
    comparison->content = &origin->content;
    comparison->begin = begin;
    comparison->has_compared = comparison->has_found = false;
    for (size_t at = begin;
         ms_lineage_next(ms_allocation_lineage(allocation), &at, end, &extent);) {
        const struct ms_range range = {extent.begin, extent.end};
        if (extent.content.kind != MS_RESIDENT)
            continue;
        if (origin->content.kind == MS_SOURCE)
            compare_with_file(comparison, range);
        else if (origin->content.kind == MS_LAUNCHED &&
                 origin->content.recorded->context == allocation->context)
            compare_with_launch(comparison, range);
    }
    if (comparison->has_compared && !comparison->has_found)
        ms_origins_forget(origin);
}

static bool is_repeated(const struct ms_origin *origin)
{
    const struct ms_origin *before = origin - 1;
    return before->address == origin->address && before->bytes == origin->bytes &&
           before->content.source_offset == origin->content.source_offset &&
           before->content.owned == origin->content.owned;
}

void ms_restore(struct ms_allocation *allocation, struct ms_restoring *restoring)
{
    const struct ms_origin *list = restoring->origins.list;
    struct ms_driver_scope scope;
    struct ms_pinned_area area;
    struct comparison comparison = {.allocation = allocation,
                                    .area = &area,
                                    .restoring = restoring};
    size_t at = ms_origins_find(&restoring->origins, allocation->address);
    const CUdeviceptr end = allocation->address + allocation->bytes;
    if (at == restoring->origins.count || list[at].address >= end ||
        ms_driver_enter(allocation->context, &scope) != CUDA_SUCCESS)
        return;
    if (ms_replay_stream(allocation->context, &comparison.stream) == CUDA_SUCCESS &&
        ms_pinned_pool_take(allocation->context, (size_t)2 * COMPARED_BYTES,
                            (size_t)2 * COMPARED_BYTES, &area) == CUDA_SUCCESS) {
        const size_t first = at;
        for (; at < restoring->origins.count && list[at].address < end; at++) {
            if (at == first || !is_repeated(&list[at]))
                restore_origin(&comparison, &list[at]);
        }
        ms_pinned_pool_drop(&area);
    }
    ms_driver_leave(&scope);
}

/* --- all allocations */

static size_t restore(struct ms_allocation *allocation, void *restoring)
{
    ms_restore(allocation, restoring);
    return 0;
}

static bool may_be_restored(const struct ms_allocation *allocation)
{
    return ms_lineage_any(ms_allocation_lineage(allocation), 0, allocation->bytes,
                          MS_OF_KIND(MS_RESIDENT)) &&
           !allocation->notes.keeps_dead;
}

size_t ms_restore_all(void)
{
    struct ms_restoring restoring;
    if (!ms_restore_begin(&restoring, false))
        return 0;
    ms_evict_all(may_be_restored, restore, &restoring);
    ms_restore_end(&restoring);
    return restoring.bytes;
}

/* Leaves bytes that were never written without memory. */
static CUresult keep(struct ms_allocation *allocation)
{
    const size_t end = allocation->bytes;
    CUresult result = CUDA_SUCCESS;
    struct ms_extent extent;
    for (size_t at = 0, stop = 0; at < end && result == CUDA_SUCCESS; at = stop) {
        size_t next = at;
        while (ms_lineage_next(ms_allocation_lineage(allocation), &next, end, &extent) &&
               !ms_content_is_nothing(&extent.content))
            stop = extent.end;
        if (stop > at)
            result = ms_materialise(allocation, at, stop, MS_NEED_KEEP);
        else
            stop = extent.end;
    }
    return result;
}

CUresult ms_restore_keep(void)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL) {
        if (!allocation->notes.was_resident)
            continue;
        const CUresult kept = keep(allocation);
        allocation->notes.was_resident = kept != CUDA_SUCCESS;
        result = result == CUDA_SUCCESS ? kept : result;
    }
    return result;
}
