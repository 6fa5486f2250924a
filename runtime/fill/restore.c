/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/restore.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/driver/driver.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/origins.h"
#include "runtime/fill/replay.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/space.h"
#include "runtime/shard/shard.h"
#include "runtime/source/pinned_pool.h"
#include "runtime/source/source.h"

enum { COMPARED_BYTES = 1 << 20 };

void ms_restore_mark(struct ms_allocation *allocation)
{
    allocation->was_resident = true;
}

bool ms_restore_is_due(const struct ms_allocation *allocation)
{
    return allocation->was_resident;
}

/* Compares [begin, end) of the allocation, at most COMPARED_BYTES, with bytes of the file. */
static bool is_equal(const struct ms_allocation *allocation, struct ms_range range,
                     const struct ms_source *source, uint64_t offset, CUstream stream,
                     const struct ms_pinned_area *area)
{
    const size_t bytes = range.end - range.begin;
    unsigned char *const of_file = area->memory + COMPARED_BYTES;
    CUresult result =
        ms_driver.memcpy_dtoh_async(area->memory, allocation->address + range.begin, bytes, stream);
    const CUresult waited = ms_driver_wait(stream);
    if (result == CUDA_SUCCESS && waited == CUDA_SUCCESS)
        result = ms_source_read(source, offset, of_file, bytes, NULL);
    return result == CUDA_SUCCESS && waited == CUDA_SUCCESS &&
           memcmp(area->memory, of_file, bytes) == 0;
}

/* Not of a file that is about to change: who closes it may have looked here already. From now on
 * it waits for the claim. */
static void set_source(struct ms_allocation *allocation, struct ms_range range,
                       struct ms_source *source, uint64_t offset, struct ms_restoring *restoring)
{
    if (ms_source_state(source) != MS_SOURCE_IS_OPEN)
        return;
    const struct ms_content content = {
        .kind = MS_SOURCE, .cached = true, .source = source, .source_offset = offset};
    if (ms_bytes_set(allocation, range.begin, range.end, &content) != CUDA_SUCCESS)
        return;
    if (ms_shard_is_active())
        ms_shard_add_copy(source, offset, range.end - range.begin);
    ms_restore_mark(allocation);
    restoring->bytes += range.end - range.begin;
}

/* Piece by piece; no piece lies in two granules. */
static void restore_range(struct ms_allocation *allocation, struct ms_range range,
                          const struct ms_origin *origin, CUstream stream,
                          const struct ms_pinned_area *area, struct ms_restoring *restoring)
{
    const size_t granule = allocation->granule;
    const size_t step = granule < COMPARED_BYTES ? granule : COMPARED_BYTES;
    struct ms_source *source = restoring->sources[origin->file];
    for (size_t at = range.begin; at < range.end;) {
        const size_t next = (at / step + 1) * step;
        struct ms_range piece = {at, next < range.end ? next : range.end};
        const uint64_t offset = origin->offset + (allocation->address + at - origin->address);
        if (!ms_backing_is_pinned(&allocation->backing, at, &piece.end) &&
            is_equal(allocation, piece, source, offset, stream, area))
            set_source(allocation, piece, source, offset, restoring);
        at = piece.end;
    }
}

static void restore_origin(struct ms_allocation *allocation, const struct ms_origin *origin,
                           CUstream stream, const struct ms_pinned_area *area,
                           struct ms_restoring *restoring)
{
    const size_t begin = origin->address - allocation->address, most = allocation->bytes - begin;
    const size_t end = begin + (origin->bytes < most ? origin->bytes : most);
    struct ms_extent extent;
    if (restoring->sources[origin->file] == NULL)
        return;
    for (size_t at = begin; ms_lineage_next(&allocation->lineage, &at, end, &extent);) {
        if (extent.content.kind == MS_RESIDENT)
            restore_range(allocation, (struct ms_range){extent.begin, extent.end}, origin, stream,
                          area, restoring);
    }
}

static bool is_repeated(const struct ms_origin *origin)
{
    const struct ms_origin *before = origin - 1;
    return before->address == origin->address && before->bytes == origin->bytes &&
           before->offset == origin->offset && before->file == origin->file;
}

void ms_restore(struct ms_allocation *allocation, struct ms_restoring *restoring)
{
    const struct ms_origin *list = restoring->origins.list;
    struct ms_driver_scope scope;
    struct ms_pinned_area area;
    CUstream stream;
    size_t at = ms_origins_find(&restoring->origins, allocation->address);
    const CUdeviceptr end = allocation->address + allocation->bytes;
    if (at == restoring->origins.count || list[at].address >= end ||
        ms_driver_enter(allocation->context, &scope) != CUDA_SUCCESS)
        return;
    if (ms_replay_stream(allocation->context, &stream) == CUDA_SUCCESS &&
        ms_pinned_pool_take(allocation->context, (size_t)2 * COMPARED_BYTES, &area) ==
            CUDA_SUCCESS) {
        const size_t first = at;
        for (; at < restoring->origins.count && list[at].address < end; at++) {
            if (at == first || !is_repeated(&list[at]))
                restore_origin(allocation, &list[at], stream, &area, restoring);
        }
        ms_pinned_pool_drop(&area);
    }
    ms_driver_leave(&scope);
}

static size_t restore(struct ms_allocation *allocation, void *restoring)
{
    ms_restore(allocation, restoring);
    return 0;
}

static bool may_be_restored(const struct ms_allocation *allocation)
{
    return ms_lineage_any(&allocation->lineage, 0, allocation->bytes, MS_OF_KIND(MS_RESIDENT)) &&
           !allocation->keeps_dead;
}

bool ms_restore_begin(struct ms_restoring *restoring)
{
    *restoring = (struct ms_restoring){0};
    if (!ms_origins_copy(&restoring->origins))
        return false;
    const size_t count = restoring->origins.file_count;
    restoring->sources = ms_heap_zalloc(count * sizeof(*restoring->sources));
    for (size_t i = 0; restoring->sources != NULL && i < count; i++)
        restoring->sources[i] = restoring->origins.files[i].path != NULL
                                    ? ms_source_find_again(&restoring->origins.files[i])
                                    : NULL;
    if (restoring->sources == NULL)
        ms_origins_cleanup(&restoring->origins);
    return restoring->sources != NULL;
}

void ms_restore_end(struct ms_restoring *restoring)
{
    for (size_t i = 0; i < restoring->origins.file_count; i++) {
        if (restoring->sources[i] != NULL)
            ms_source_drop(restoring->sources[i]);
    }
    ms_heap_free(restoring->sources);
    ms_origins_cleanup(&restoring->origins);
}

size_t ms_restore_all(void)
{
    struct ms_restoring restoring;
    if (!ms_restore_begin(&restoring))
        return 0;
    ms_evict_all(may_be_restored, restore, &restoring);
    ms_restore_end(&restoring);
    return restoring.bytes;
}

/* The next run of extents that hold something. What was never written stays without memory. */
static bool next_written(const struct ms_allocation *allocation, struct ms_range *run)
{
    struct ms_extent extent;
    size_t at = run->end;
    *run = (struct ms_range){0, 0};
    while (ms_lineage_next(&allocation->lineage, &at, allocation->bytes, &extent)) {
        const bool is_written = !ms_content_is_nothing(&extent.content);
        if (!is_written && run->end > 0)
            break;
        if (is_written)
            *run = (struct ms_range){run->end > 0 ? run->begin : extent.begin, extent.end};
    }
    return run->end > 0;
}

static CUresult keep(struct ms_allocation *allocation)
{
    struct ms_range run = {0, 0};
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && next_written(allocation, &run))
        result = ms_materialise(allocation, run.begin, run.end, MS_NEED_KEEP);
    return result;
}

CUresult ms_restore_keep(void)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL) {
        if (!ms_restore_is_due(allocation))
            continue;
        const CUresult kept = keep(allocation);
        allocation->was_resident = kept != CUDA_SUCCESS;
        result = result == CUDA_SUCCESS ? kept : result;
    }
    return result;
}
