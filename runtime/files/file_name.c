/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file_name.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/files/file_internal.h"

static void destroy_name(struct ms_counted *counted)
{
    ms_heap_free(counted);
}

static struct ms_source *create_name(const struct ms_source *file)
{
    const size_t head = offsetof(struct ms_source, descriptor) + sizeof(struct ms_named);
    struct ms_source *source = ms_heap_zalloc(head + strlen(file->path) + 1);
    if (source == NULL)
        return NULL;
    ms_counted_init(&source->counted, destroy_name);
    source->is_name = true;
    source->state = MS_FILE_IS_LOST;
    struct ms_named *named = ms_source_named(source);
    *named = (struct ms_named){file->mapped_device, file->mapped_inode, file->recorded.st_size,
                               file->recorded.st_mtim};
    strcpy(named->path, file->path);
    return source;
}

struct ms_source *ms_file_name_take(struct ms_source *file)
{
    struct ms_source *name = atomic_load(&file->name), *other = NULL;
    if (name == NULL) {
        name = create_name(file);
        if (name != NULL && !atomic_compare_exchange_strong(&file->name, &other, name)) {
            ms_source_drop(name);
            name = other;
        }
    }
    if (name != NULL)
        ms_counted_take(&name->counted);
    return name;
}

struct ms_named_file ms_file_name_get(const struct ms_source *source)
{
    const struct ms_named *named = ms_source_named(source);
    if (source->is_name)
        return (struct ms_named_file){named->device, named->inode, named->path};
    return (struct ms_named_file){source->mapped_device, source->mapped_inode, source->path};
}

bool ms_file_name_fits(const struct ms_source *file, const struct ms_source *name)
{
    const struct ms_named *named = ms_source_named(name);
    return file->recorded.st_size == named->bytes &&
           file->recorded.st_mtim.tv_sec == named->changed.tv_sec &&
           file->recorded.st_mtim.tv_nsec == named->changed.tv_nsec;
}
