/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source_content.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/array.h"
#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/pages.h"
#include "runtime/driver/flags.h"
#include "runtime/source/mapping.h"
#include "runtime/source/source_compare.h"
#include "runtime/source/trust.h"

/* The format allows headers of 100 MB. */
enum { MAX_HEADER_BYTES = 100 * 1000 * 1000 };

struct tensor {
    uint64_t offset, bytes; /* its place in the file */
};

/* A file that is or was mapped. */
struct file {
    struct file *next;
    dev_t device;
    ino_t inode;
    bool is_mapped;           /* seen in the current walk */
    bool is_tried;            /* it looked like a checkpoint, and was opened */
    struct ms_source *source; /* NULL: not a checkpoint, or not trusted now */
    struct tensor *tensors;
    size_t count, capacity;
    size_t last; /* the tensor that matched last: usually its successor matches next */
};

static struct file *files; /* only the file thread uses it */

static bool peek(const struct file *file, uint64_t offset, void *buffer, size_t bytes)
{
    struct ms_source_failure failure;
    return ms_source_read_now(file->source, offset, buffer, bytes, &failure);
}

static uint64_t file_bytes(const struct file *file)
{
    return (uint64_t)ms_source_stat(file->source)->st_size;
}

static void destroy(struct file *file)
{
    if (file->source != NULL)
        ms_source_drop(file->source);
    ms_heap_free(file->tensors);
    ms_heap_free(file);
}

static const char *skip(const char *at, char wanted)
{
    while (isspace((unsigned char)*at))
        at++;
    return *at == wanted ? at + 1 : NULL;
}

/* Reads ":[begin,end]" after a key. Wrong numbers do no harm: the bytes there are compared. */
static bool read_offsets(const char *at, uint64_t *begin_out, uint64_t *end_out)
{
    char *end;
    at = skip(at, ':');
    at = at != NULL ? skip(at, '[') : NULL;
    if (at == NULL)
        return false;
    *begin_out = strtoull(at, &end, 10);
    at = skip(end, ',');
    if (at == NULL)
        return false;
    *end_out = strtoull(at, &end, 10);
    return skip(end, ']') != NULL;
}

static bool add_tensor(struct file *file, uint64_t offset, uint64_t bytes)
{
    if (!MS_ARRAY_GROW(file->tensors, file->count, file->capacity))
        return false;
    file->tensors[file->count++] = (struct tensor){.offset = offset, .bytes = bytes};
    return true;
}

static void read_header(struct file *file, const char *header, uint64_t data_at)
{
    static const char key[] = "\"data_offsets\"";
    const uint64_t all_bytes = file_bytes(file);
    for (const char *at = header; (at = strstr(at, key)) != NULL;) {
        uint64_t begin, end;
        at += strlen(key);
        if (read_offsets(at, &begin, &end) && begin < end && end <= all_bytes - data_at &&
            !add_tensor(file, data_at + begin, end - begin))
            return;
    }
}

/* 8 bytes of length, then a JSON object. */
enum { START_BYTES = 9 };

static bool is_start(const unsigned char *start, uint64_t *length_out)
{
    memcpy(length_out, start, sizeof(*length_out)); /* little-endian, like this machine */
    return start[8] == '{' && *length_out >= 2 && *length_out <= MAX_HEADER_BYTES;
}

/* Looks at the mapping, not the file, so a file that is not a checkpoint is never opened. */
static bool looks_like_checkpoint(const struct ms_mapping *mapping)
{
    unsigned char start[START_BYTES];
    uint64_t length;
    struct stat found;
    return stat(mapping->path, &found) == 0 && S_ISREG(found.st_mode) &&
           ms_mapping_peek((const void *)mapping->begin, start, sizeof(start)) &&
           is_start(start, &length);
}

static void read_file(struct file *file)
{
    unsigned char start[START_BYTES];
    uint64_t length;
    const uint64_t all_bytes = file_bytes(file);
    if (all_bytes < sizeof(start) || !peek(file, 0, start, sizeof(start)) ||
        !is_start(start, &length) || length > all_bytes - 8)
        return;
    struct ms_pages header = {0};
    if (!ms_pages_grow(&header, length + 1)) /* its end is a zero */
        return;
    if (peek(file, 8, header.memory, length))
        read_header(file, header.memory, 8 + length);
    ms_pages_cleanup(&header);
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
        read_file(file);
    if (file->source != NULL && file->count == 0) {
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

static bool holds(const struct file *file, const struct tensor *tensor, const void *address)
{
    return ms_source_compare(file->source, tensor->offset, address, tensor->bytes, false) &&
           ms_trust_is_sure(file->source);
}

/* Starts after the last match, and wraps around. */
static const struct tensor *find_tensor(struct file *file, const void *address, size_t bytes)
{
    for (size_t i = 1; i <= file->count; i++) {
        const size_t at = (file->last + i) % file->count;
        if (file->tensors[at].bytes != bytes || !holds(file, &file->tensors[at], address))
            continue;
        file->last = at;
        return &file->tensors[at];
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
        const struct tensor *tensor =
            file->source != NULL ? find_tensor(file, wanted->address, wanted->bytes) : NULL;
        if (tensor == NULL)
            continue;
        ms_counted_take(&file->source->counted);
        wanted->offset = tensor->offset;
        wanted->found = file->source;
    }
}
