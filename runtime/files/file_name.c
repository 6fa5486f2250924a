/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file_name.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/files/file_internal.h"

struct ms_file_name {
    struct ms_source source; /* must be first: ms_file_name_source */
    dev_t device;
    ino_t inode;
    off_t bytes; /* this and the time are from when the name was made */
    struct timespec changed;
    char path[];
};

_Static_assert(offsetof(struct ms_file_name, source) == 0, "ms_file_name_source casts");

static void destroy_name(struct ms_counted *counted)
{
    ms_heap_free(counted);
}

static struct ms_file_name *create_name(const struct ms_file *file)
{
    struct ms_file_name *name = ms_heap_zalloc(sizeof(*name) + strlen(file->path) + 1);
    if (name == NULL)
        return NULL;
    ms_counted_init(&name->source.counted, destroy_name);
    name->source.kind = MS_SOURCE_NAME;
    name->device = file->mapped_device;
    name->inode = file->mapped_inode;
    name->bytes = file->recorded.st_size;
    name->changed = file->recorded.st_mtim;
    strcpy(name->path, file->path);
    return name;
}

struct ms_file_name *ms_file_name_take(struct ms_file *file)
{
    struct ms_file_name *name = atomic_load(&file->name), *other = NULL;
    if (name == NULL) {
        name = create_name(file);
        if (name != NULL && !atomic_compare_exchange_strong(&file->name, &other, name)) {
            ms_file_name_drop(name);
            name = other;
        }
    }
    if (name != NULL)
        ms_source_take(&name->source);
    return name;
}

struct ms_named_file ms_file_name_get(const struct ms_file_name *name)
{
    return (struct ms_named_file){name->device, name->inode, name->path};
}

bool ms_file_name_fits(const struct ms_file_name *name, const struct ms_file *file)
{
    return file->recorded.st_size == name->bytes &&
           file->recorded.st_mtim.tv_sec == name->changed.tv_sec &&
           file->recorded.st_mtim.tv_nsec == name->changed.tv_nsec;
}
