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

struct ms_source {
    _Atomic uint32_t references;
    bool is_file;

    /* file */
    int descriptor;
    struct stat recorded;
    char path[MS_PATH_BYTES];
    struct ms_source *next; /* in the list of open files, guarded by files_lock */

    /* snapshot */
    size_t bytes;
    unsigned char data[];
};

/* Guards the list of open files and the last drop of a file source. Held over open and close only. */
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ms_source *files;

static _Atomic uint64_t snapshot_bytes;
static _Atomic uint64_t snapshot_limit = UINT64_MAX;

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/*
 * True when the file's content cannot have changed since `then`, as far as the file system tells.
 * The change time catches a modification time that was set back; a new link count (unlink) is the
 * one innocent reason for a new change time.
 */
static bool is_unchanged(const struct stat *then, const struct stat *now)
{
    return then->st_dev == now->st_dev && then->st_ino == now->st_ino &&
           then->st_size == now->st_size && same_time(then->st_mtim, now->st_mtim) &&
           (same_time(then->st_ctim, now->st_ctim) || then->st_nlink != now->st_nlink);
}

/*
 * File times may come from a coarse clock. A file written within its last tick could be written
 * again without a visible change, so wait until a later write must show. A time far in the future
 * (a copied file, another machine's clock) is as good as one in the past.
 */
static bool wait_for_distinct_time(int descriptor, struct stat *seen)
{
    enum { TICK_NS = 20 * 1000 * 1000 };
    for (int attempt = 0; attempt < 5; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        const long long age_ns = (now.tv_sec - seen->st_mtim.tv_sec) * 1000000000LL +
                                 (now.tv_nsec - seen->st_mtim.tv_nsec);
        if (age_ns > TICK_NS || age_ns < -10LL * TICK_NS)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
        if (!ms_file_stat(descriptor, seen))
            return false;
    }
    return false;
}

static struct ms_source *find_file_locked(const struct stat *stat)
{
    for (struct ms_source *file = files; file != NULL; file = file->next) {
        if (is_unchanged(&file->recorded, stat))
            return ms_source_take(file);
    }
    return NULL;
}

static struct ms_source *create_file_locked(int descriptor, const struct stat *stat,
                                            const char *path)
{
    struct ms_source *file = ms_heap_zalloc(sizeof(*file));
    if (file == NULL)
        return NULL;
    atomic_init(&file->references, 1);
    file->is_file = true;
    file->descriptor = descriptor;
    file->recorded = *stat;
    snprintf(file->path, sizeof(file->path), "%s", path);
    file->next = files;
    files = file;
    return file;
}

/* Takes the descriptor, also when it fails. */
static struct ms_source *take_file(int descriptor, const char *path, uint64_t end)
{
    struct stat stat;
    struct ms_source *file = NULL;
    bool known = false;
    if (ms_file_stat(descriptor, &stat) && (uint64_t)stat.st_size >= end &&
        wait_for_distinct_time(descriptor, &stat)) {
        pthread_mutex_lock(&files_lock);
        file = find_file_locked(&stat);
        known = file != NULL;
        if (!known)
            file = create_file_locked(descriptor, &stat, path);
        pthread_mutex_unlock(&files_lock);
    }
    if (known || file == NULL)
        ms_file_close(descriptor);
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

static void find_by_range(void *argument)
{
    struct wanted_range *wanted = argument;
    struct ms_mapping mapping;
    if (!ms_mapping_find(wanted->address, wanted->bytes, &mapping))
        return;
    wanted->offset = mapping.file_offset;
    wanted->found = ms_source_from_file(&mapping, mapping.file_offset + wanted->bytes);
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

static void close_file(void *argument)
{
    struct ms_source *file = argument;
    ms_file_close(file->descriptor);
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

bool ms_source_check(const struct ms_source *file, struct ms_source_failure *failure_out)
{
    *failure_out = (struct ms_source_failure){.file = file, .kind = MS_SOURCE_LOST};
    if (!ms_file_stat(file->descriptor, &failure_out->now)) {
        failure_out->error = errno;
        return false;
    }
    failure_out->kind = MS_SOURCE_CHANGED;
    return is_unchanged(&file->recorded, &failure_out->now);
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
