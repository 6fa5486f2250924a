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
#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/mapping.h"
#include "runtime/source/trust.h"
#include "runtime/source/writers.h"

struct ms_source {
    _Atomic uint32_t references;
    bool is_file;

    /* file */
    int descriptor;
    bool hides_stores; /* ms_trust_hides_stores; then it is watched, for closed writers */
    int watch;         /* -1: it cannot be */
    bool was_writable; /* since it was recorded, for somebody; guarded by files_lock */
    struct stat recorded;
    struct stat *last, own_last; /* as it was at the last look, which files_lock guards */
    char path[MS_PATH_BYTES];
    struct ms_source *next; /* in the list of open files, guarded by files_lock */

    /* snapshot */
    size_t bytes;
    unsigned char data[];
};

/* Guards the list of open files and the last drop of a file source. Held across nothing that waits. */
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ms_source *files;

static _Atomic uint64_t snapshot_bytes;
static _Atomic uint64_t snapshot_limit = UINT64_MAX;

static struct ms_source *find_file_locked(const struct stat *stat)
{
    for (struct ms_source *file = files; file != NULL; file = file->next) {
        if (ms_trust_is_unchanged(file->last, stat))
            return ms_source_take(file);
    }
    return NULL;
}

static struct ms_source *find_file(const struct stat *stat)
{
    pthread_mutex_lock(&files_lock);
    struct ms_source *file = find_file_locked(stat);
    pthread_mutex_unlock(&files_lock);
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
    pthread_mutex_lock(&files_lock);
    file->watch = file->hides_stores ? ms_writers_watch(descriptor) : -1;
    file->next = files;
    files = file;
    pthread_mutex_unlock(&files_lock);
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

struct ms_source *ms_source_from_mapping(const void *address, size_t bytes, uint64_t *offset_out)
{
    struct wanted_range wanted = {.address = address, .bytes = bytes};
    ms_file_thread_call(find_by_range, &wanted);
    *offset_out = wanted.offset;
    return wanted.found;
}

struct ms_source *ms_source_from_memory(const void *address, size_t bytes)
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
    const struct ms_source *other = files;
    while (other != NULL && (other == file || other->watch != file->watch))
        other = other->next;
    return other != NULL;
}

static void close_file(void *argument)
{
    const struct ms_source *file = argument;
    pthread_mutex_lock(&files_lock);
    if (file->watch >= 0 && !is_watched_for_another_locked(file))
        ms_writers_unwatch(file->watch);
    pthread_mutex_unlock(&files_lock);
    ms_trust_close(file->descriptor);
}

static void drop_file(struct ms_source *file)
{
    pthread_mutex_lock(&files_lock);
    const bool last = atomic_fetch_sub(&file->references, 1) == 1;
    if (last) {
        struct ms_source **link = &files;
        while (*link != file)
            link = &(*link)->next;
        *link = file->next;
    }
    pthread_mutex_unlock(&files_lock);
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

/* --- reading, in the file thread and in the reader's */

/* A new change time for a new link count is innocent once; the next one must have a reason of its own. */
static bool is_unchanged(const struct ms_source *file, const struct stat *now)
{
    pthread_mutex_lock(&files_lock);
    const bool is_same = ms_trust_is_unchanged(file->last, now);
    if (is_same)
        *file->last = *now;
    pthread_mutex_unlock(&files_lock);
    return is_same;
}

static void note_closed_writer(int watch)
{
    for (struct ms_source *file = files; file != NULL; file = file->next) {
        if (file->hides_stores && (file->watch == watch || watch < 0))
            file->was_writable = true;
    }
}

/* By who has gone again, or is still there. */
static bool could_be_stored_to(const struct ms_source *file)
{
    pthread_mutex_lock(&files_lock);
    ms_writers_look(note_closed_writer);
    const bool was_writable = file->was_writable;
    pthread_mutex_unlock(&files_lock);
    return was_writable || ms_trust_has_writer(file->descriptor);
}

bool ms_source_check(const struct ms_source *file, struct ms_source_failure *failure_out)
{
    *failure_out = (struct ms_source_failure){.file = file, .kind = MS_SOURCE_LOST};
    if (!ms_file_stat(file->descriptor, &failure_out->now)) {
        failure_out->error = errno;
        return false;
    }
    failure_out->kind = MS_SOURCE_CHANGED;
    if (!is_unchanged(file, &failure_out->now))
        return false;
    failure_out->kind = MS_SOURCE_WRITTEN;
    return !file->hides_stores || !could_be_stored_to(file);
}

bool ms_source_read_now(const struct ms_source *file, uint64_t offset, void *buffer, size_t bytes,
                        struct ms_source_failure *failure_out)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = ms_file_read(file->descriptor, (unsigned char *)buffer + done,
                                         bytes - done, offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            *failure_out = (struct ms_source_failure){.file = file,
                                                      .kind = MS_SOURCE_UNREADABLE,
                                                      .offset = offset + done,
                                                      .bytes = bytes - done,
                                                      .error = got < 0 ? errno : 0};
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

void ms_source_log_failure(const struct ms_source_failure *failure)
{
    const struct ms_source *file = failure->file;
    switch (failure->kind) {
    case MS_SOURCE_LOST:
        ms_log(MS_ERROR, "%s: the descriptor kept for it is gone (%s); its bytes are still needed",
               file->path, strerror(failure->error));
        return;
    case MS_SOURCE_CHANGED:
        ms_log(MS_ERROR,
               "%s: changed after the program copied it to the device and before it was needed "
               "(size %lld, was %lld); the copied bytes are lost",
               file->path, (long long)failure->now.st_size, (long long)file->recorded.st_size);
        return;
    case MS_SOURCE_WRITTEN:
        ms_log(MS_ERROR,
               "%s: open for writing somewhere, in memory, where a store does not show, after the "
               "program copied it "
               "to the device and before it was needed; the copied bytes may be lost",
               file->path);
        return;
    case MS_SOURCE_UNREADABLE:
        ms_log(MS_ERROR, "%s: cannot read %zu bytes at %llu: %s", file->path, failure->bytes,
               (unsigned long long)failure->offset,
               failure->error != 0 ? strerror(failure->error) : "the file ends before them");
        return;
    }
}

struct wanted_bytes {
    const struct ms_source *file;
    uint64_t offset;
    void *buffer;
    size_t bytes;
    bool is_read;
    struct ms_source_failure failure;
};

/* Checked after the read: what was written before it shows in the times. */
static void read_bytes(void *argument)
{
    struct wanted_bytes *wanted = argument;
    wanted->is_read = ms_source_read_now(wanted->file, wanted->offset, wanted->buffer,
                                         wanted->bytes, &wanted->failure) &&
                      ms_source_check(wanted->file, &wanted->failure);
}

static CUresult read_file(const struct ms_source *file, uint64_t offset, void *buffer, size_t bytes)
{
    struct wanted_bytes wanted = {.file = file, .offset = offset, .buffer = buffer, .bytes = bytes};
    wanted.failure = (struct ms_source_failure){.file = file, .kind = MS_SOURCE_LOST};
    ms_file_thread_call(read_bytes, &wanted);
    if (!wanted.is_read) {
        ms_source_log_failure(&wanted.failure);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    ms_count(MS_COUNT_FILE_READ_BYTES, bytes);
    return CUDA_SUCCESS;
}

CUresult ms_source_read(const struct ms_source *source, uint64_t offset, void *buffer, size_t bytes,
                        const void **bytes_out)
{
    if (!source->is_file) {
        *bytes_out = source->data + offset;
        return CUDA_SUCCESS;
    }
    *bytes_out = buffer;
    return read_file(source, offset, buffer, bytes);
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

struct question {
    const struct ms_source *file;
    bool is_current;
};

static void look_whether_current(void *argument)
{
    struct question *question = argument;
    struct ms_source_failure failure;
    question->is_current = ms_source_check(question->file, &failure);
}

bool ms_source_is_current(const struct ms_source *source)
{
    struct question question = {.file = source, .is_current = false};
    if (!source->is_file)
        return true;
    ms_file_thread_call(look_whether_current, &question);
    return question.is_current;
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
