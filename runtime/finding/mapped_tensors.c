/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/mapped_tensors.h"

#include <stdatomic.h>
#include <sys/stat.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/regular_file.h"
#include "runtime/driver/flags.h"
#include "runtime/files/file.h"
#include "runtime/files/kept_files.h"
#include "runtime/files/mapping.h"
#include "runtime/files/trust.h"
#include "runtime/finding/file_compare.h"
#include "runtime/finding/tensor_places.h"

/* A file that is or was mapped. */
struct file {
    struct file *next;
    dev_t device;
    ino_t inode;
    bool is_mapped;           /* seen in the current walk */
    bool is_tried;            /* the file looked like a checkpoint, and was opened */
    struct ms_mapping *place; /* its mapping, if the file was tried; else NULL */
    struct ms_kept_file kept; /* its source */
    struct stat seen;         /* the file's attributes when its header was read */
    struct ms_tensor_places header;
    size_t last; /* the tensor that matched last: usually its successor matches next */
};

static struct file *files; /* only the file thread uses the list */

static void destroy(struct file *file)
{
    ms_kept_files_set(&file->kept, NULL);
    ms_tensor_places_cleanup(&file->header);
    ms_heap_free(file->place);
    ms_heap_free(file);
}

/* Looks at the mapping, not the file, so a file that is not a checkpoint is never opened. */
static bool looks_like_checkpoint(const struct ms_mapping *mapping)
{
    unsigned char start[MS_TENSOR_PLACES_START];
    uint64_t length;
    struct stat found;
    return stat(mapping->path, &found) == 0 && S_ISREG(found.st_mode) &&
           ms_mapping_peek((const void *)mapping->begin, start, sizeof(start)) &&
           ms_tensor_places_is_start(start, &length);
}

/* Opens the file and reads its header. */
static void read_header(struct file *file, const struct ms_mapping *mapping)
{
    struct ms_file *source = NULL;
    file->place = ms_heap_alloc(sizeof(*file->place));
    if (file->place != NULL) {
        *file->place = *mapping;
        source = ms_trust_open(file->place, 0);
    }
    ms_kept_files_set(&file->kept, source);
    if (source == NULL)
        return;
    ms_tensor_places_read(source, &file->header);
    file->seen = *ms_file_stat(source);
    file->last = file->header.count - 1; /* the search begins with the first tensor */
    if (file->header.count > 0)
        return;
    ms_kept_files_set(&file->kept, NULL);
    file->is_tried = false;
}

/* Opens a file again that was let go. True if it is unchanged since its header was read. */
static bool is_held(struct file *file)
{
    if (file->header.count == 0)
        return false;
    if (file->kept.file == NULL)
        ms_kept_files_set(&file->kept, ms_trust_open(file->place, 0));
    ms_kept_files_use(&file->kept);
    return file->kept.file != NULL &&
           ms_regular_file_is_same(ms_file_stat(file->kept.file), &file->seen);
}

static struct file *add_file(const struct ms_mapping *mapping)
{
    struct file *file = ms_heap_zalloc(sizeof(*file));
    if (file == NULL)
        return NULL;
    file->device = mapping->device;
    file->inode = mapping->inode;
    file->is_tried = looks_like_checkpoint(mapping);
    if (file->is_tried)
        read_header(file, mapping);
    file->next = files;
    files = file;
    return file;
}

/* False: the file has changed, or could not be a source then (perhaps too new), and is read
 * again. */
static bool is_as_before(const struct file *file)
{
    struct ms_file_failure failure;
    struct stat now;
    if (file->kept.file != NULL)
        return ms_trust_check(file->kept.file, &failure);
    return file->header.count > 0
               ? stat(file->place->path, &now) == 0 && ms_regular_file_is_same(&now, &file->seen)
               : !file->is_tried;
}

static void visit(__attribute__((unused)) void *context, const struct ms_mapping *mapping)
{
    struct file **link = &files;
    while (*link != NULL &&
           ((*link)->device != mapping->device || (*link)->inode != mapping->inode))
        link = &(*link)->next;
    struct file *file = *link;
    if (file != NULL && !file->is_mapped && !is_as_before(file)) {
        *link = file->next;
        destroy(file);
        file = NULL;
    }
    if (file == NULL)
        file = add_file(mapping);
    if (file != NULL)
        file->is_mapped = true;
}

static void forget_unmapped(void)
{
    for (struct file **link = &files; *link != NULL;) {
        struct file *file = *link;
        if (file->is_mapped) {
            file->is_mapped = false;
            link = &file->next;
        } else {
            *link = file->next;
            destroy(file);
        }
    }
}

static bool holds(struct file *file, const struct ms_tensor_place *tensor, const void *address)
{
    return is_held(file) &&
           ms_file_compare(file->kept.file, tensor->offset, address, tensor->bytes,
                           MS_COMPARING_ALL) &&
           ms_trust_is_sure(file->kept.file);
}

/* Starts after the last match, and wraps around. */
static const struct ms_tensor_place *find_tensor(struct file *file, const void *address,
                                                 size_t bytes)
{
    for (size_t i = 1; i <= file->header.count; i++) {
        const size_t at = (file->last + i) % file->header.count;
        if (file->header.tensors[at].bytes != bytes ||
            !holds(file, &file->header.tensors[at], address))
            continue;
        file->last = at;
        return &file->header.tensors[at];
    }
    return NULL;
}

/* The last visit of the mappings. The file thread writes, and any thread reads. */
static struct {
    _Atomic uint32_t mapped;  /* ms_hot.mapped before the visit */
    _Atomic uint64_t next_ns; /* when all are to be visited again; 0: no visit yet */
    _Atomic bool found_any;   /* some file is a checkpoint */
} last_visit;

/*
 * A process may have many mappings, so they are not all visited for each copy, nor for each file.
 * The shim sees which files the program maps by libc (ms_hot.mapped), and where
 * (ms_mapping_note_new). Other changes are noticed a little later: until then a file is not found,
 * or its bytes differ.
 */
static bool is_all_due(void)
{
    return ms_clock_ns(CLOCK_MONOTONIC) >= atomic_load(&last_visit.next_ns);
}

static bool is_visit_due(void)
{
    return atomic_load(&last_visit.mapped) != atomic_load(&ms_hot.mapped) || is_all_due();
}

static void set_found(uint32_t mapped)
{
    bool found_any = false;
    for (const struct file *file = files; file != NULL; file = file->next)
        found_any |= file->header.count > 0;
    atomic_store(&last_visit.found_any, found_any);
    atomic_store(&last_visit.mapped, mapped);
}

/* Visits only files mapped since the last visit. False if the place of one is not known, or all
 * mappings are due. */
static bool visit_new(uint32_t mapped)
{
    uintptr_t places[MS_MAPPING_NEW];
    size_t count;
    struct ms_mapping mapping;
    const uint32_t noted = (uint32_t)ms_mapping_take_new(places, &count);
    if (atomic_load(&last_visit.mapped) + noted != mapped || is_all_due())
        return false;
    for (size_t i = 0; i < count; i++) {
        if (ms_mapping_find_at(places[i], &mapping) && mapping.begin == places[i] &&
            mapping.file_offset == 0)
            visit(NULL, &mapping);
    }
    for (struct file *file = files; file != NULL; file = file->next)
        file->is_mapped = false;
    set_found(mapped);
    return true;
}

static void look_for_files(void)
{
    enum { SHARE = 100 }; /* visits take at most 1 / SHARE of the time */
    const uint32_t mapped = atomic_load(&ms_hot.mapped);
    const uint64_t began = ms_clock_ns(CLOCK_MONOTONIC);
    if (!is_visit_due() || visit_new(mapped) || !ms_mapping_visit(visit, NULL))
        return;
    forget_unmapped();
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC);
    const uint64_t pause = (now - began) * SHARE;
    atomic_store(&last_visit.next_ns, now + (pause > MS_NS_PER_S ? pause : MS_NS_PER_S));
    set_found(mapped);
}

void ms_mapped_tensors_find(struct ms_wanted_source *wanted)
{
    if (!atomic_load(&last_visit.found_any) && !is_visit_due())
        return;
    look_for_files();
    for (struct file *file = files; file != NULL && wanted->found == NULL; file = file->next) {
        const struct ms_tensor_place *tensor = find_tensor(file, wanted->address, wanted->bytes);
        if (tensor == NULL)
            continue;
        ms_file_take(file->kept.file);
        wanted->offset = tensor->offset;
        wanted->found = file->kept.file;
    }
}
