/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the file that is mapped at an address, and deciding whether to trust it. */
#include <string.h>
#include <unistd.h>

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

/* Takes the descriptor, also if it fails. Only this thread adds files. */
static struct ms_source *take_file(int descriptor, const char *path, uint64_t end)
{
    struct stat stat;
    struct ms_source *file = NULL;
    bool known = false;
    if (ms_file_stat(descriptor, &stat) && (uint64_t)stat.st_size >= end &&
        ms_trust_wait(descriptor, &stat)) {
        file = find_file(&stat);
        known = file != NULL;
        if (!known && !ms_trust_is_in_use(descriptor, &stat))
            file = ms_source_create_file(descriptor, &stat, path);
    }
    if (known || file == NULL)
        ms_trust_close(descriptor);
    else if (ms_trust_is_local(descriptor))
        ms_lease_take(&file->lease, descriptor);
    /* This also finds writers that could store before the file was watched. */
    if (file != NULL && (known || file->hides_stores) && !ms_source_is_current(file)) {
        ms_source_drop(file);
        file = NULL;
    }
    return file;
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
        wanted->found = take_file(descriptor, wanted->mapping->path, wanted->end);
}

struct ms_source *ms_source_from_file(const struct ms_mapping *mapping, uint64_t end)
{
    struct wanted_file wanted = {.mapping = mapping, .end = end};
    ms_file_thread_call(find_by_mapping, &wanted);
    return wanted.found;
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
    return !ms_trust_may_be_copy(file->descriptor, &file->recorded) || has_same_bytes(file, wanted);
}

static void find_by_range(void *argument)
{
    struct ms_wanted_source *wanted = argument;
    struct ms_mapping mapping;
    if (!ms_mapping_find(wanted->address, wanted->bytes, &mapping))
        return;
    wanted->offset = mapping.file_offset;
    wanted->found = ms_source_from_file(&mapping, mapping.file_offset + wanted->bytes);
    if (wanted->found != NULL && !is_mapped(wanted->found, wanted)) {
        ms_source_drop(wanted->found);
        wanted->found = NULL;
    }
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
    ms_lease_serve();
    if (file == NULL || atomic_load(&file->is_unwritten) || atomic_load(&file->lease.is_taken))
        return file;
    struct writers writers = {.thread = gettid(), .file = &file->recorded, .are_there = true};
    ms_file_thread_call(look_for_writers, &writers);
    if (!writers.are_there) {
        atomic_store(&file->is_unwritten, true);
        return file;
    }
    ms_source_drop(file);
    return NULL;
}

struct ms_source *ms_source_find(void (*find)(void *wanted), const void *address, size_t bytes,
                                 uint64_t *offset_out)
{
    struct ms_wanted_source wanted = {.address = address, .bytes = bytes};
    ms_file_thread_call(find, &wanted);
    *offset_out = wanted.offset;
    return ms_source_unless_written(wanted.found);
}

struct ms_source *ms_source_from_mapping(const void *address, size_t bytes, uint64_t *offset_out)
{
    return ms_source_find(find_by_range, address, bytes, offset_out);
}
