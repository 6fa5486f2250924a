/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/origins.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"

/* A program that saves and loads for days has other files each time. */
enum { ORIGINS = 1 << 14, FILES = 1024 };
static const size_t min_bytes = (size_t)64 << 10;

static struct {
    struct ms_lock lock;
    struct ms_origin origins[ORIGINS];
    uint64_t count; /* since all were forgotten */
    struct ms_source_name files[FILES];
    size_t file_count;
} table = {.lock = MS_LOCK_INIT(origins)};

MS_HOLDS(table.lock) static void forget_all_locked(void)
{
    while (table.file_count > 0)
        ms_heap_free((char *)table.files[--table.file_count].path);
    table.count = 0;
}

/* Its path is the table's own. NULL: out of memory. */
static struct ms_source_name copy_name(const struct ms_source_name *name)
{
    const size_t bytes = strlen(name->path) + 1;
    char *path = ms_heap_alloc(bytes);
    if (path != NULL)
        memcpy(path, name->path, bytes);
    return (struct ms_source_name){name->device, name->inode, path};
}

static bool is_same(const struct ms_source_name *a, const struct ms_source_name *b)
{
    return a->inode == b->inode && a->device == b->device && strcmp(a->path, b->path) == 0;
}

/* Returns file_count if out of memory. The newest is mostly the one. */
MS_HOLDS(table.lock) static size_t find_file_locked(const struct ms_source *source)
{
    const struct ms_source_name name = ms_source_find_name(source);
    for (size_t at = table.file_count; at > 0; at--) {
        if (is_same(&name, &table.files[at - 1]))
            return at - 1;
    }
    if (table.file_count == FILES)
        forget_all_locked();
    const struct ms_source_name copy = copy_name(&name);
    if (copy.path == NULL)
        return table.file_count;
    table.files[table.file_count++] = copy;
    return table.file_count - 1;
}

void ms_origins_note(const struct ms_allocation *allocation, const struct ms_extent *extent)
{
    const struct ms_content *content = &extent->content;
    const uint64_t bytes = extent->end - extent->begin;
    if (bytes < min_bytes || content->kind != MS_SOURCE || !ms_source_is_file(content->source))
        return;
    ms_lock_take(&table.lock);
    const size_t file = find_file_locked(content->source);
    if (file < table.file_count)
        table.origins[table.count % ORIGINS] =
            (struct ms_origin){allocation->address + extent->begin, bytes, content->source_offset,
                               file, table.count};
    table.count += file < table.file_count;
    ms_lock_drop(&table.lock);
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
    const size_t count = table.count < ORIGINS ? (size_t)table.count : ORIGINS;
    *copy_out = (struct ms_origins){.list = ms_heap_alloc((count + 1) * sizeof(*copy_out->list)),
                                    .count = count,
                                    .files = ms_heap_zalloc((table.file_count + 1) *
                                                            sizeof(*copy_out->files)),
                                    .file_count = table.file_count};
    const bool is_good = copy_out->list != NULL && copy_out->files != NULL;
    if (is_good && count > 0) {
        memcpy(copy_out->list, table.origins, count * sizeof(*copy_out->list));
        for (size_t at = 0; at < table.file_count; at++)
            copy_out->files[at] = copy_name(&table.files[at]);
    }
    ms_lock_drop(&table.lock);
    if (is_good && count > 0)
        qsort(copy_out->list, count, sizeof(*copy_out->list), by_address);
    else
        ms_origins_cleanup(copy_out);
    return is_good && count > 0;
}

void ms_origins_cleanup(struct ms_origins *copy)
{
    for (size_t at = 0; copy->files != NULL && at < copy->file_count; at++)
        ms_heap_free((char *)copy->files[at].path);
    ms_heap_free(copy->list);
    ms_heap_free(copy->files);
    *copy = (struct ms_origins){0};
}

size_t ms_origins_find(const struct ms_origins *copy, CUdeviceptr address)
{
    return MS_ARRAY_FIND(at, copy->count, copy->list[at].address < address);
}
