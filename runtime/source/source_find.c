/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the file that is mapped at an address, and deciding whether to trust it. */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/mapping.h"
#include "runtime/source/source_internal.h"
#include "runtime/source/trust.h"
#include "runtime/source/writers.h"

MS_HOLDS(ms_files.lock) static struct ms_source *find_file_locked(const struct stat *stat)
{
    for (struct ms_source *file = ms_files.first; file != NULL; file = file->next) {
        if (ms_trust_is_unchanged(file->last, stat) &&
            atomic_load(&file->state) == MS_SOURCE_IS_OPEN && ms_counted_try_take(&file->counted))
            return file;
    }
    return NULL;
}

static struct ms_source *find_file(const struct stat *stat)
{
    ms_lock_take(&ms_files.lock);
    struct ms_source *file = find_file_locked(stat);
    ms_lock_drop(&ms_files.lock);
    return file;
}

/*
 * Whom it asks:
 *
 *     while the file has a lease      nobody: no descriptor is open for writing, nor mapped
 *     else                            the kernel, for writers
 *     if it does not know of them     the mappings of this process, of which there may be 65,530
 *
 * An overlay maps the file of a layer, whose mappings its lease and its writers do not include. But
 * under a lease nobody gets a descriptor for a new one.
 *
 * So mappings are looked at when the file becomes a source, and again when bytes were read
 * (ms_source_check_mappings). A mapping that is made in between changes the file's times when it is
 * first stored to; where it might not, every copy looks.
 */
static bool may_be_stored_to(struct ms_source *file, bool is_new)
{
    const bool is_leased = ms_lease_is_intact(&file->lease, file->descriptor);
    const bool is_overlay = ms_trust_is_overlay(file->descriptor);
    if (is_leased && !is_overlay)
        return false;
    const enum ms_writers writers =
        is_leased ? MS_WRITERS_UNKNOWN : ms_trust_ask_for_writers(file->descriptor);
    if (writers != MS_WRITERS_UNKNOWN)
        return writers == MS_WRITER;
    const bool may_hide = file->hides_stores || is_overlay;
    if (!is_new && !file->looks_again && (is_leased || !may_hide))
        return false;
    bool lasts;
    if (ms_mapping_is_stored_to(file->mapped_device, file->mapped_inode, &lasts))
        return true;
    file->looks_again = !lasts;
    return false;
}

bool ms_source_may_be_stored_to(struct ms_source *file, bool is_new)
{
    struct ms_source_failure failure;
    if (!ms_source_begin_use(file, &failure))
        return true;
    const bool may_be = may_be_stored_to(file, is_new);
    ms_source_end_use(file);
    return may_be;
}

/* Takes the descriptor, also if it fails. Only this thread adds files. */
static struct ms_source *take_file(int descriptor, const struct ms_mapping *mapping, uint64_t end)
{
    struct stat stat;
    struct ms_source *file = NULL;
    bool known = false, is_new = false;
    if (ms_trust_look(descriptor, &stat) && (uint64_t)stat.st_size >= end &&
        ms_trust_wait(descriptor, &stat)) {
        file = find_file(&stat);
        known = file != NULL;
        if (!known && !ms_trust_is_in_use(descriptor, &stat))
            file = ms_source_create_file(descriptor, &stat, mapping);
        is_new = file != NULL && !known;
    }
    if (known || file == NULL)
        ms_trust_close(descriptor);
    else if (file->stays_open && ms_trust_is_local(descriptor))
        ms_lease_take(&file->lease, descriptor);
    /* This also finds writers that could store before the file was watched. */
    const bool is_bad =
        file != NULL && (((known || file->hides_stores) && !ms_source_is_current(file)) ||
                         ms_source_may_be_stored_to(file, is_new));
    if (is_new)
        ms_source_end_use(file);
    if (is_bad)
        ms_source_drop(file);
    return is_bad ? NULL : file;
}

struct wanted_file {
    const struct ms_mapping *mapping;
    uint64_t end;
    struct ms_source *found;
};

static void find_by_mapping(void *argument)
{
    struct wanted_file *wanted = argument;
    const int descriptor = ms_mapping_open(wanted->mapping);
    if (descriptor >= 0)
        wanted->found = take_file(descriptor, wanted->mapping, wanted->end);
}

struct ms_source *ms_source_from_file(const struct ms_mapping *mapping, uint64_t end)
{
    struct wanted_file wanted = {.mapping = mapping, .end = end};
    ms_file_thread_call(find_by_mapping, &wanted);
    return wanted.found;
}

/* As the kernel lists its mappings. */
struct ms_source_name {
    dev_t device;
    ino_t inode;
    char path[];
};

struct ms_source_name *ms_source_make_name(const struct ms_source *file)
{
    const size_t length = strlen(file->path);
    struct ms_source_name *name = ms_heap_alloc(sizeof(*name) + length + 1);
    if (name == NULL)
        return NULL;
    name->device = file->mapped_device;
    name->inode = file->mapped_inode;
    memcpy(name->path, file->path, length + 1);
    return name;
}

struct ms_source_name *ms_source_copy_name(const struct ms_source_name *name)
{
    const size_t bytes = sizeof(*name) + strlen(name->path) + 1;
    struct ms_source_name *copy = ms_heap_alloc(bytes);
    return copy != NULL ? memcpy(copy, name, bytes) : NULL;
}

bool ms_source_has_name(const struct ms_source *file, const struct ms_source_name *name)
{
    return file->mapped_inode == name->inode && file->mapped_device == name->device &&
           strcmp(file->path, name->path) == 0;
}

struct ms_source *ms_source_by_name(const struct ms_source_name *name)
{
    struct ms_mapping mapping = {.device = name->device, .inode = name->inode};
    memcpy(mapping.path, name->path, strlen(name->path) + 1);
    return ms_source_unless_written(ms_source_from_file(&mapping, 0));
}

enum { COMPARED_BYTES = 64 << 10 };

/* Compares bytes of the mapping with those of the descriptor. */
static bool has_same_bytes(const struct ms_source *file, const struct ms_wanted_source *wanted)
{
    static unsigned char mapped[COMPARED_BYTES], opened[COMPARED_BYTES]; /* for the file thread */
    struct ms_source_failure failure;
    for (size_t done = 0; done < wanted->bytes;) {
        const size_t left = wanted->bytes - done;
        const size_t now = left < sizeof(mapped) ? left : sizeof(mapped);
        if (!ms_mapping_peek((const char *)wanted->address + done, mapped, now) ||
            !ms_source_read_now(file, wanted->offset + done, opened, now, &failure) ||
            memcmp(mapped, opened, now) != 0)
            return false;
        done += now;
    }
    return ms_source_check(file, &failure);
}

/* True if the descriptor reads what lies at the mapped address. */
static bool is_mapped(const struct ms_source *file, const struct ms_wanted_source *wanted)
{
    struct ms_source_failure failure;
    if (!ms_source_begin_use(file, &failure))
        return false;
    const bool is_same =
        !ms_trust_may_be_copy(file->descriptor, &file->recorded) || has_same_bytes(file, wanted);
    ms_source_end_use(file);
    return is_same;
}

/*
 * Places where files were mapped, for kernels that leave a list to read (mapping.h). They are no
 * more than a guess, since anything may be mapped there by now. But if the copied bytes are those
 * of the file, it does not matter what is mapped: they are compared, where that is less work than
 * the list, even if they come from a disk.
 */
enum { PLACES = 16, BYTES_FOR_LINE = 512 };
static struct place {
    uintptr_t begin, end;
    uint64_t file_offset; /* of begin */
    dev_t device;         /* of the file */
    ino_t inode;
    size_t lines; /* that were read to find it */
} places[PLACES];
static size_t next_place;

static void add_place(const struct ms_mapping *mapping, uintptr_t address, size_t lines,
                      const struct ms_source *file)
{
    places[next_place++ % PLACES] = (struct place){
        .begin = mapping->begin,
        .end = mapping->end,
        .file_offset = mapping->file_offset - (address - mapping->begin),
        .device = file->recorded.st_dev,
        .inode = file->recorded.st_ino,
        .lines = lines,
    };
}

static struct ms_source *find_open_file(dev_t device, ino_t inode)
{
    ms_lock_take(&ms_files.lock);
    struct ms_source *file = ms_files.first;
    while (file != NULL &&
           (file->recorded.st_dev != device || file->recorded.st_ino != inode ||
            atomic_load(&file->state) != MS_SOURCE_IS_OPEN || !ms_counted_try_take(&file->counted)))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    return file;
}

static bool find_by_place(struct ms_wanted_source *wanted, const struct place *place)
{
    const uintptr_t begin = (uintptr_t)wanted->address;
    if (begin < place->begin || begin + wanted->bytes > place->end ||
        wanted->bytes > place->lines * BYTES_FOR_LINE)
        return false;
    wanted->offset = place->file_offset + (begin - place->begin);
    wanted->found = find_open_file(place->device, place->inode);
    if (wanted->found == NULL)
        return false;
    if (has_same_bytes(wanted->found, wanted) && !ms_source_may_be_stored_to(wanted->found, false))
        return true;
    ms_source_drop(wanted->found);
    wanted->found = NULL;
    return false;
}

static void find_by_range(void *argument)
{
    struct ms_wanted_source *wanted = argument;
    struct ms_mapping mapping;
    for (size_t i = 0; i < PLACES; i++) {
        if (find_by_place(wanted, &places[i]))
            return;
    }
    if (!ms_mapping_find(wanted->address, wanted->bytes, &mapping))
        return;
    const size_t lines = ms_mapping_lines_read();
    wanted->offset = mapping.file_offset;
    wanted->found = ms_source_from_file(&mapping, mapping.file_offset + wanted->bytes);
    if (wanted->found == NULL)
        return;
    wanted->is_absent = wanted->found->is_in_memory && !mapping.shared && !mapping.is_present;
    if (!wanted->is_absent && is_mapped(wanted->found, wanted)) {
        if (lines > 0)
            add_place(&mapping, (uintptr_t)wanted->address, lines, wanted->found);
        return;
    }
    ms_source_drop(wanted->found);
    wanted->found = NULL;
}

struct writers {
    pid_t thread;
    const struct stat *file;
    bool are_there;
};

static void look_for_writers(void *argument)
{
    struct writers *writers = argument;
    writers->are_there =
        ms_is_open_for_writing(writers->thread, writers->file->st_dev, writers->file->st_ino);
}

/* Looks only now, since later opens for writing are intercepted (calls/file_writes.h). */
struct ms_source *ms_source_unless_written(struct ms_source *file)
{
    if (file != NULL || ms_lease_any())
        ms_lease_serve();
    if (file == NULL || atomic_load(&file->is_unwritten) || atomic_load(&file->lease.is_taken))
        return file;
    struct writers writers = {.thread = (pid_t)syscall(SYS_gettid),
                              .file = &file->recorded,
                              .are_there = true};
    ms_file_thread_call(look_for_writers, &writers);
    if (!writers.are_there) {
        atomic_store(&file->is_unwritten, true);
        return file;
    }
    ms_source_drop(file);
    return NULL;
}

struct search {
    void (*find)(void *wanted);
    struct ms_wanted_source *wanted;
};

static void search(void *argument)
{
    const struct search *search = argument;
    ms_file_was_short();
    search->find(search->wanted);
    search->wanted->was_short = ms_file_was_short();
}

/* Once, since all later copies have the same cause. */
static void log_shortage(size_t bytes)
{
    static _Atomic bool is_logged;
    if (!atomic_exchange(&is_logged, true))
        ms_log(
            MS_WARN,
            "no descriptor is free to look whether a copy of %zu bytes is of a file (limit of open "
            "files): this copy, and others like it, are kept in host memory; raise the limit "
            "(ulimit -n)",
            bytes);
}

/* A file system of other machines cannot be asked. Once. */
static void log_old_attributes(void)
{
    static _Atomic bool is_logged;
    if (!atomic_exchange(&is_logged, true))
        ms_log(
            MS_WARN,
            "statx is not there, or a sandbox denies it, so changes of files on network file "
            "systems and FUSE would not be seen: copies from such files are kept in host memory; "
            "allow statx, or copy the checkpoint to a local disk");
}

struct ms_source *ms_source_find(void (*find)(void *wanted), struct ms_wanted_source *wanted)
{
    struct search there = {find, wanted};
    ms_file_thread_call(search, &there);
    if (wanted->found == NULL && wanted->was_short)
        log_shortage(wanted->bytes);
    if (wanted->found == NULL && ms_trust_was_not_asked())
        log_old_attributes();
    return ms_source_unless_written(wanted->found);
}

struct ms_source *ms_source_from_mapping(const void *address, size_t bytes, uint64_t *offset_out)
{
    struct ms_wanted_source wanted = {.address = address, .bytes = bytes};
    struct ms_source *file = ms_source_find(find_by_range, &wanted);
    if (wanted.is_absent && ms_mapping_touch(address, bytes)) {
        wanted.is_absent = false;
        file = ms_source_find(find_by_range, &wanted);
    }
    *offset_out = wanted.offset;
    return file;
}
