/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/origins.h"

#include <stdlib.h>

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/files/file_name.h"
#include "runtime/memory/recorded_launch.h"

enum { ORIGINS = 1 << 14 };
static const size_t min_file_bytes = (size_t)64 << 10, min_launched_bytes = (size_t)1 << 20;

static struct {
    struct ms_lock lock;
    struct ms_origin origins[ORIGINS]; /* of 0 bytes: empty or forgotten */
    uint64_t count;                    /* of origins ever noted */
} table = {.lock = MS_LOCK_INIT(origins)};

static struct ms_source *name_of(struct ms_source *source, void *argument)
{
    (void)argument;
    struct ms_file *file = ms_source_file(source);
    return file != NULL ? ms_file_name_source(ms_file_name_take(file)) : NULL;
}

/* The newest origin's copy if it is of the same launch: a launch comes into memory piece by
 * piece. */
static struct ms_recorded_launch *share_newest(const struct ms_recorded_launch *recorded)
{
    struct ms_recorded_launch *shared = NULL;
    ms_lock_take(&table.lock);
    const struct ms_content *newest =
        table.count > 0 ? &table.origins[(table.count - 1) % ORIGINS].content : NULL;
    if (newest != NULL && newest->kind == MS_LAUNCHED &&
        newest->recorded->launch == recorded->launch) {
        shared = newest->recorded;
        ms_counted_take(&shared->counted);
    }
    ms_lock_drop(&table.lock);
    return shared;
}

/* Makes the origin's content, with a reference. False: the extent is left out. */
static bool make_origin(const struct ms_extent *extent, struct ms_content *content_out)
{
    const struct ms_content *content = &extent->content;
    const uint64_t bytes = extent->end - extent->begin;
    *content_out =
        (struct ms_content){.kind = content->kind, .source_offset = content->source_offset};
    if (content->kind == MS_SOURCE && bytes >= min_file_bytes) {
        content_out->source = name_of(content->source, NULL);
        return content_out->source != NULL;
    }
    if (content->kind != MS_LAUNCHED || bytes < min_launched_bytes)
        return false;
    content_out->recorded = share_newest(content->recorded);
    if (content_out->recorded == NULL)
        content_out->recorded = ms_recorded_launch_copy(content->recorded, name_of, NULL);
    return content_out->recorded != NULL;
}

static void drop(const struct ms_origin *origin)
{
    if (origin->bytes > 0)
        ms_counted_drop(origin->content.owned);
}

void ms_origins_note(const struct ms_allocation *allocation, const struct ms_extent *extent)
{
    struct ms_origin origin = {.address = allocation->address + extent->begin,
                               .bytes = extent->end - extent->begin};
    if (!make_origin(extent, &origin.content))
        return;
    ms_lock_take(&table.lock);
    origin.time = table.count++;
    struct ms_origin *place = &table.origins[origin.time % ORIGINS];
    const struct ms_origin oldest = *place;
    *place = origin;
    ms_lock_drop(&table.lock);
    drop(&oldest);
}

void ms_origins_forget(const struct ms_origin *origin)
{
    ms_lock_take(&table.lock);
    struct ms_origin *place = &table.origins[origin->time % ORIGINS];
    const struct ms_origin forgotten = place->time == origin->time ? *place : (struct ms_origin){0};
    if (place->time == origin->time)
        *place = (struct ms_origin){0};
    ms_lock_drop(&table.lock);
    drop(&forgotten);
}

static int by_address(const void *a, const void *b)
{
    const struct ms_origin *left = a, *right = b;
    if (left->address != right->address)
        return left->address < right->address ? -1 : 1;
    return left->time > right->time ? -1 : left->time < right->time;
}

bool ms_origins_copy(struct ms_origins *copy_out)
{
    ms_lock_take(&table.lock);
    const size_t most = table.count < ORIGINS ? (size_t)table.count : ORIGINS;
    *copy_out = (struct ms_origins){.list = ms_heap_alloc((most + 1) * sizeof(*copy_out->list))};
    for (size_t at = 0; copy_out->list != NULL && at < most; at++) {
        if (table.origins[at].bytes == 0)
            continue;
        copy_out->list[copy_out->count++] = table.origins[at];
        ms_counted_take(table.origins[at].content.owned);
    }
    ms_lock_drop(&table.lock);
    if (copy_out->count > 0)
        qsort(copy_out->list, copy_out->count, sizeof(*copy_out->list), by_address);
    else
        ms_origins_cleanup(copy_out);
    return copy_out->count > 0;
}

void ms_origins_cleanup(struct ms_origins *copy)
{
    for (size_t at = 0; at < copy->count; at++)
        drop(&copy->list[at]);
    ms_heap_free(copy->list);
    *copy = (struct ms_origins){0};
}
