/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/driver/flags.h"
#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/lease.h"
#include "runtime/source/mapping.h"
#include "runtime/source/source_internal.h"
#include "runtime/source/trust.h"
#include "runtime/source/writers.h"
#include "runtime/state/counters.h"

_Static_assert(offsetof(struct ms_source, counted) == 0, "as lineage wants it");

struct ms_files ms_files = {.lock = MS_LOCK_INIT(files)};

/* The number of sources whose inode has this hash. */
static _Atomic uint32_t by_inode[1024];

static _Atomic uint32_t *count_of(dev_t device, ino_t inode)
{
    const uint64_t mixed =
        ((uint64_t)inode ^ (uint64_t)device << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &by_inode[mixed >> 54];
}

static _Atomic uint64_t snapshot_bytes;
static _Atomic uint64_t snapshot_limit = UINT64_MAX;

bool ms_snapshot_take(size_t bytes)
{
    const bool is_allowed =
        atomic_fetch_add(&snapshot_bytes, bytes) + bytes <= atomic_load(&snapshot_limit);
    if (is_allowed)
        ms_counter_move(MS_GAUGE_SNAPSHOT, (int64_t)bytes);
    else
        atomic_fetch_sub(&snapshot_bytes, bytes);
    return is_allowed;
}

void ms_snapshot_return(size_t bytes)
{
    atomic_fetch_sub(&snapshot_bytes, bytes);
    ms_counter_move(MS_GAUGE_SNAPSHOT, -(int64_t)bytes);
}

MS_HOLDS(ms_files.lock) static bool is_watched_for_another_locked(const struct ms_source *file)
{
    const struct ms_source *other = ms_files.first;
    while (other != NULL && (other == file || other->watch != file->watch))
        other = other->next;
    return other != NULL;
}

/* The file system may take long to free the bytes of a deleted file: no lock is held meanwhile. */
void ms_source_let_go(struct ms_source *file)
{
    ms_lock_take(&ms_files.lock);
    const bool is_done = file->is_let_go;
    if (!is_done && file->watch >= 0 && !is_watched_for_another_locked(file))
        ms_writers_unwatch(file->watch);
    ms_lock_drop(&ms_files.lock);
    if (is_done)
        return;
    if (file->stays_open) { /* else ms_source_end_use closes it */
        ms_lease_drop(&file->lease, file->descriptor);
        ms_trust_close(file->descriptor);
    }
    ms_lock_take(&ms_files.lock);
    file->is_let_go = true;
    file->watch = -1;
    atomic_fetch_sub(&ms_hot.files, 1);
    ms_lock_drop(&ms_files.lock);
}

static void close_file(void *argument)
{
    struct ms_source *file = argument;
    ms_source_let_go(file);
    if (atomic_load(&file->copy) >= 0) {
        ms_file_close(atomic_load(&file->copy));
        ms_snapshot_return((size_t)file->recorded.st_size);
    }
}

static void destroy_file(struct ms_counted *counted)
{
    struct ms_source *file = (struct ms_source *)counted;
    ms_lock_take(&ms_files.lock);
    struct ms_source **link = &ms_files.first;
    while (*link != file)
        link = &(*link)->next;
    *link = file->next;
    atomic_fetch_sub(count_of(file->recorded.st_dev, file->recorded.st_ino), 1);
    ms_lock_drop(&ms_files.lock);
    ms_file_thread_call(close_file, file);
    ms_heap_free(file);
}

/* Half of the limit is for what is open for a short time. A file that cannot be opened again, by
 * its path, is kept all the same. */
static bool stays_open(int descriptor, const char *path, const struct stat *stat)
{
    struct stat now;
    if (!ms_file_thread_has_own_table() || ms_file_leaves_room(descriptor, 2))
        return true;
    const int again = ms_mapping_open_again(path, stat, &now);
    if (again >= 0)
        ms_file_close(again);
    return again < 0;
}

struct ms_source *ms_source_create_file(int descriptor, const struct stat *stat,
                                        const struct ms_mapping *mapping)
{
    struct ms_source *file = ms_heap_zalloc(sizeof(*file));
    if (file == NULL)
        return NULL;
    ms_counted_init(&file->counted, destroy_file);
    file->is_file = true;
    file->descriptor = descriptor;
    file->copy = -1;
    file->stays_open = stays_open(descriptor, mapping->path, stat);
    file->users = 1;
    file->recorded = *stat;
    file->own_last = *stat;
    file->last = &file->own_last;
    file->is_in_memory = ms_trust_is_in_memory(descriptor);
    file->hides_stores = ms_trust_hides_stores(descriptor);
    file->mapped_device = mapping->device;
    file->mapped_inode = mapping->inode;
    snprintf(file->path, sizeof(file->path), "%s", mapping->path);
    ms_lock_take(&ms_files.lock);
    file->watch = file->hides_stores ? ms_writers_watch(descriptor) : -1;
    file->next = ms_files.first;
    ms_files.first = file;
    atomic_fetch_add(count_of(stat->st_dev, stat->st_ino), 1);
    atomic_fetch_add(&ms_hot.files, 1);
    ms_lock_drop(&ms_files.lock);
    return file;
}

static void destroy_snapshot(struct ms_counted *counted)
{
    struct ms_source *snapshot = (struct ms_source *)counted;
    ms_snapshot_return(snapshot->bytes);
    ms_heap_free(snapshot);
}

/*
 * New memory is filled with zeros before it is copied to, and in pages of 4 KiB most of that time
 * goes into faults. So a large snapshot gets huge pages where the system has them. Of the heap,
 * which gives the same memory to the next one.
 */
static void use_huge_pages(const struct ms_source *snapshot)
{
    enum { HUGE_PAGE_BYTES = 2 << 20 };
    const uintptr_t end = (uintptr_t)ms_snapshot_bytes(snapshot) + snapshot->bytes;
    const uintptr_t first = ((uintptr_t)ms_snapshot_bytes(snapshot) + HUGE_PAGE_BYTES - 1) /
                            HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    const uintptr_t last = end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (first < last)
        madvise((void *)first, last - first, MADV_HUGEPAGE);
}

/* The bytes are taken from what snapshots may have. */
static struct ms_source *create_snapshot(size_t bytes)
{
    const size_t head = offsetof(struct ms_source, descriptor);
    struct ms_source *snapshot = ms_heap_alloc(head + bytes);
    if (snapshot == NULL) {
        ms_snapshot_return(bytes);
        return NULL;
    }
    memset(snapshot, 0, head);
    ms_counted_init(&snapshot->counted, destroy_snapshot);
    snapshot->bytes = bytes;
    use_huge_pages(snapshot);
    return snapshot;
}

struct ms_source *ms_source_create_snapshot(size_t bytes)
{
    return ms_snapshot_take(bytes) ? create_snapshot(bytes) : NULL;
}

struct ms_source *ms_source_create_only_copy(size_t bytes)
{
    atomic_fetch_add(&snapshot_bytes, bytes);
    ms_counter_move(MS_GAUGE_SNAPSHOT, (int64_t)bytes);
    return create_snapshot(bytes);
}

void *ms_source_data(struct ms_source *snapshot)
{
    return ms_snapshot_bytes(snapshot);
}

struct ms_source *ms_source_take(struct ms_source *source)
{
    ms_counted_take(&source->counted);
    return source;
}

void ms_source_drop(struct ms_source *source)
{
    ms_counted_drop(&source->counted);
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
    if (atomic_load(count_of(device, inode)) == 0)
        return false;
    ms_lock_take(&ms_files.lock);
    const struct ms_source *file = ms_files.first;
    while (file != NULL &&
           (file->recorded.st_dev != device || file->recorded.st_ino != inode || file->is_let_go))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    return file != NULL;
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
    return source->is_file ? source->path : "";
}

void ms_source_set_snapshot_limit(uint64_t bytes)
{
    atomic_store(&snapshot_limit, bytes);
}
