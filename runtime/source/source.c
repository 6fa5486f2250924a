/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/diag/counters.h"
#include "runtime/hot.h"
#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/lease.h"
#include "runtime/source/mapping.h"
#include "runtime/source/source_internal.h"
#include "runtime/source/trust.h"
#include "runtime/source/writers.h"

struct ms_files ms_files = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* How many sources have an inode of this hash. */
static _Atomic uint32_t by_inode[1024];

static _Atomic uint32_t *count_of(dev_t device, ino_t inode)
{
    const uint64_t mixed =
        ((uint64_t)inode ^ (uint64_t)device << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &by_inode[mixed >> 54];
}

static _Atomic uint64_t snapshot_bytes;
static _Atomic uint64_t snapshot_limit = UINT64_MAX;

static struct ms_source *find_file_locked(const struct stat *stat)
{
    for (struct ms_source *file = ms_files.first; file != NULL; file = file->next) {
        if (ms_trust_is_unchanged(file->last, stat) &&
            atomic_load(&file->state) == MS_SOURCE_IS_OPEN)
            return ms_source_take(file);
    }
    return NULL;
}

static struct ms_source *find_file(const struct stat *stat)
{
    pthread_mutex_lock(&ms_files.lock);
    struct ms_source *file = find_file_locked(stat);
    pthread_mutex_unlock(&ms_files.lock);
    return file;
}

static struct ms_source *create_file(int descriptor, const struct stat *stat, const char *path)
{
    struct ms_source *file = ms_heap_zalloc(sizeof(*file));
    if (file == NULL)
        return NULL;
    atomic_init(&file->references, 1);
    file->is_file = true;
    file->descriptor = descriptor;
    file->recorded = *stat;
    file->own_last = *stat;
    file->last = &file->own_last;
    file->hides_stores = ms_trust_hides_stores(descriptor);
    snprintf(file->path, sizeof(file->path), "%s", path);
    pthread_mutex_lock(&ms_files.lock);
    file->watch = file->hides_stores ? ms_writers_watch(descriptor) : -1;
    file->next = ms_files.first;
    ms_files.first = file;
    atomic_fetch_add(count_of(stat->st_dev, stat->st_ino), 1);
    atomic_fetch_add(&ms_hot.files, 1);
    pthread_mutex_unlock(&ms_files.lock);
    return file;
}

/* Takes the descriptor, also when it fails. Files are only added in this thread. */
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
            file = create_file(descriptor, &stat, path);
    }
    if (known || file == NULL)
        ms_trust_close(descriptor);
    else if (ms_trust_is_local(descriptor))
        ms_lease_take(&file->lease, descriptor);
    /* Whoever could store to it before it was watched shows here. */
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

struct wanted_range {
    const void *address;
    size_t bytes;
    uint64_t offset;
    struct ms_source *found;
};

enum { COMPARED_BYTES = 64 << 10 };

/* Through the mapping, and by the descriptor. */
static bool has_same_bytes(const struct ms_source *file, const struct wanted_range *wanted)
{
    static unsigned char mapped[COMPARED_BYTES], opened[COMPARED_BYTES]; /* the file thread's own */
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

/* What lies at the mapped address is what the descriptor reads. */
static bool is_mapped(const struct ms_source *file, const struct wanted_range *wanted)
{
    return !ms_trust_may_be_copy(file->descriptor, &file->recorded) || has_same_bytes(file, wanted);
}

static void find_by_range(void *argument)
{
    struct wanted_range *wanted = argument;
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

/* Only now: whoever opens the file from here on is seen (machine/file_writes.h). */
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

struct ms_source *ms_source_from_mapping(const void *address, size_t bytes, uint64_t *offset_out)
{
    struct wanted_range wanted = {.address = address, .bytes = bytes};
    ms_file_thread_call(find_by_range, &wanted);
    *offset_out = wanted.offset;
    return ms_source_unless_written(wanted.found);
}

struct ms_source *ms_source_create_snapshot(size_t bytes)
{
    const uint64_t before = atomic_fetch_add(&snapshot_bytes, bytes);
    struct ms_source *snapshot = NULL;
    if (before + bytes <= atomic_load(&snapshot_limit))
        snapshot = ms_heap_alloc(sizeof(*snapshot) + bytes);
    if (snapshot == NULL) {
        atomic_fetch_sub(&snapshot_bytes, bytes);
        return NULL;
    }
    memset(snapshot, 0, sizeof(*snapshot));
    atomic_init(&snapshot->references, 1);
    snapshot->bytes = bytes;
    ms_gauge_add(MS_GAUGE_SNAPSHOT, (int64_t)bytes);
    return snapshot;
}

struct ms_source *ms_source_from_memory(const void *address, size_t bytes)
{
    struct ms_source *snapshot = ms_source_create_snapshot(bytes);
    if (snapshot != NULL)
        memcpy(snapshot->data, address, bytes);
    return snapshot;
}

struct ms_source *ms_source_take(struct ms_source *source)
{
    atomic_fetch_add_explicit(&source->references, 1, memory_order_relaxed);
    return source;
}

static bool is_watched_for_another_locked(const struct ms_source *file)
{
    const struct ms_source *other = ms_files.first;
    while (other != NULL && (other == file || other->watch != file->watch))
        other = other->next;
    return other != NULL;
}

static void close_file(void *argument)
{
    struct ms_source *file = argument;
    pthread_mutex_lock(&ms_files.lock);
    if (file->watch >= 0 && !is_watched_for_another_locked(file))
        ms_writers_unwatch(file->watch);
    pthread_mutex_unlock(&ms_files.lock);
    ms_lease_drop(&file->lease, file->descriptor);
    ms_trust_close(file->descriptor);
}

static void drop_file(struct ms_source *file)
{
    pthread_mutex_lock(&ms_files.lock);
    const bool last = atomic_fetch_sub(&file->references, 1) == 1;
    if (last) {
        struct ms_source **link = &ms_files.first;
        while (*link != file)
            link = &(*link)->next;
        *link = file->next;
        atomic_fetch_sub(count_of(file->recorded.st_dev, file->recorded.st_ino), 1);
        atomic_fetch_sub(&ms_hot.files, 1);
    }
    pthread_mutex_unlock(&ms_files.lock);
    if (last) {
        ms_file_thread_call(close_file, file);
        ms_heap_free(file);
    }
}

void ms_source_drop(struct ms_source *source)
{
    if (source->is_file) {
        drop_file(source);
    } else if (atomic_fetch_sub(&source->references, 1) == 1) {
        atomic_fetch_sub(&snapshot_bytes, source->bytes);
        ms_gauge_add(MS_GAUGE_SNAPSHOT, -(int64_t)source->bytes);
        ms_heap_free(source);
    }
}

uint64_t ms_source_file_bytes(const struct ms_source *file)
{
    return (uint64_t)file->recorded.st_size;
}

const struct stat *ms_source_stat(const struct ms_source *file)
{
    return &file->recorded;
}

int ms_source_descriptor(const struct ms_source *file)
{
    return file->descriptor;
}

bool ms_source_is_file(const struct ms_source *source)
{
    return source->is_file;
}

bool ms_source_may_be_of(dev_t device, ino_t inode)
{
    return atomic_load(count_of(device, inode)) != 0;
}

static struct timespec started; /* written once, before any source exists */

void ms_source_start(void)
{
    clock_gettime(CLOCK_REALTIME_COARSE, &started);
}

bool ms_source_is_older(const struct ms_source *source)
{
    const struct timespec changed = source->recorded.st_ctim;
    return changed.tv_sec < started.tv_sec;
}

const char *ms_source_path(const struct ms_source *source)
{
    return source->path;
}

uint64_t ms_source_snapshot_bytes(void)
{
    return atomic_load(&snapshot_bytes);
}

void ms_source_set_snapshot_limit(uint64_t bytes)
{
    atomic_store(&snapshot_limit, bytes);
}
