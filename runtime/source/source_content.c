/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source_content.h"

#include <stdatomic.h>
#include <sys/stat.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/driver/flags.h"
#include "runtime/source/mapping.h"
#include "runtime/source/source_compare.h"
#include "runtime/source/source_header.h"
#include "runtime/source/trust.h"

/* A file that is or was mapped. */
struct file {
    struct file *next;
    dev_t device;
    ino_t inode;
    bool is_mapped;           /* seen in the current walk */
    bool is_tried;            /* it looked like a checkpoint, and was opened */
    struct ms_source *source; /* NULL: not a checkpoint, or not trusted now */
    struct ms_source_header header;
    size_t last; /* the tensor that matched last: usually its successor matches next */
};

static struct file *files; /* only the file thread uses it */

static void destroy(struct file *file)
{
    if (file->source != NULL)
        ms_source_drop(file->source);
    ms_source_header_cleanup(&file->header);
    ms_heap_free(file);
}

/* Looks at the mapping, not the file, so a file that is not a checkpoint is never opened. */
static bool looks_like_checkpoint(const struct ms_mapping *mapping)
{
    unsigned char start[MS_SOURCE_HEADER_START];
    uint64_t length;
    struct stat found;
    return stat(mapping->path, &found) == 0 && S_ISREG(found.st_mode) &&
           ms_mapping_peek((const void *)mapping->begin, start, sizeof(start)) &&
           ms_source_header_is_start(start, &length);
}

static struct file *add_file(const struct ms_mapping *mapping)
{
    struct ms_mapping wanted = *mapping;
    struct file *file = ms_heap_zalloc(sizeof(*file));
    if (file == NULL)
        return NULL;
    file->device = mapping->device;
    file->inode = mapping->inode;
    file->is_tried = looks_like_checkpoint(mapping);
    file->source = file->is_tried ? ms_trust_open(&wanted, 0) : NULL;
    if (file->source != NULL)
        ms_source_header_read(file->source, &file->header);
    if (file->source != NULL && file->header.count == 0) {
        ms_source_drop(file->source);
        file->source = NULL;
        file->is_tried = false;
    }
    file->next = files;
    files = file;
    return file;
}

/* Otherwise it is read again: it has changed, or could not be a source then, perhaps too new. */
static bool is_as_before(const struct file *file)
{
    struct ms_source_failure failure;
    return file->source != NULL ? ms_trust_check(file->source, &failure) : !file->is_tried;
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

static bool holds(const struct file *file, const struct ms_tensor_place *tensor,
                  const void *address)
{
    return ms_source_compare(file->source, tensor->offset, address, tensor->bytes,
                             MS_COMPARING_ALL) &&
           ms_trust_is_sure(file->source);
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

/* What the last visit has found. Set in the file thread, read in any. */
static struct {
    _Atomic uint32_t mapped;  /* ms_hot.mapped before it */
    _Atomic uint64_t next_ns; /* when the next one is due; 0: there was none */
    _Atomic bool found_any;   /* a checkpoint */
} last_visit;

/*
 * Visiting takes longer the more mappings there are, so it is not done for each copy: the shim sees
 * what the program maps by libc (ms_hot.mapped). What else changes is noticed a little later; until
 * then a file is not found, or its bytes do not compare.
 */
static bool is_visit_due(void)
{
    return atomic_load(&last_visit.mapped) != atomic_load(&ms_hot.mapped) ||
           ms_clock_ns(CLOCK_MONOTONIC) >= atomic_load(&last_visit.next_ns);
}

static void look_for_files(void)
{
    static const uint64_t least_ns = UINT64_C(1000000000);
    enum { SHARE = 100 }; /* one part of so many of the time, at most */
    const uint32_t mapped = atomic_load(&ms_hot.mapped);
    const uint64_t began = ms_clock_ns(CLOCK_MONOTONIC);
    if (!is_visit_due() || !ms_mapping_visit(visit, NULL))
        return;
    forget_unmapped();
    bool found_any = false;
    for (const struct file *file = files; file != NULL; file = file->next)
        found_any |= file->source != NULL;
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC);
    const uint64_t pause = (now - began) * SHARE;
    atomic_store(&last_visit.found_any, found_any);
    atomic_store(&last_visit.next_ns, now + (pause > least_ns ? pause : least_ns));
    atomic_store(&last_visit.mapped, mapped);
}

void ms_source_content_find(struct ms_wanted_source *wanted)
{
    if (!atomic_load(&last_visit.found_any) && !is_visit_due())
        return;
    look_for_files();
    for (struct file *file = files; file != NULL && wanted->found == NULL; file = file->next) {
        const struct ms_tensor_place *tensor =
            file->source != NULL ? find_tensor(file, wanted->address, wanted->bytes) : NULL;
        if (tensor == NULL)
            continue;
        ms_counted_take(&file->source->counted);
        wanted->offset = tensor->offset;
        wanted->found = file->source;
    }
}
