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
#include "runtime/source/trust.h"
#include "runtime/source/writers.h"

/* A file that this process changes: before, while what comes from it is brought in, and from then on. */
enum state { IS_OPEN, IS_CLOSED, IS_LOST };

struct ms_source {
    _Atomic uint32_t references;
    bool is_file;
    _Atomic(enum state) state; /* changed under files_lock */

    /* file */
    int descriptor;
    bool hides_stores; /* ms_trust_hides_stores; then it is watched, for closed writers */
    int watch;         /* -1: it cannot be */
    bool was_writable; /* since it was recorded, for somebody; guarded by files_lock */
    struct ms_lease lease;
    _Atomic bool
        is_unwritten; /* since it can be found by its inode, nobody here has had it open for writing unseen */
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
    for (struct ms_source *file = files; file != NULL; file = file->next) {
        if (ms_trust_is_unchanged(file->last, stat) && atomic_load(&file->state) == IS_OPEN)
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
    atomic_fetch_add(count_of(stat->st_dev, stat->st_ino), 1);
    atomic_fetch_add(&ms_hot.files, 1);
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
    else
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

static struct ms_source *create_snapshot(size_t bytes)
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
    struct ms_source *snapshot = create_snapshot(bytes);
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
    const struct ms_source *other = files;
    while (other != NULL && (other == file || other->watch != file->watch))
        other = other->next;
    return other != NULL;
}

static void close_file(void *argument)
{
    struct ms_source *file = argument;
    pthread_mutex_lock(&files_lock);
    if (file->watch >= 0 && !is_watched_for_another_locked(file))
        ms_writers_unwatch(file->watch);
    pthread_mutex_unlock(&files_lock);
    ms_lease_drop(&file->lease, file->descriptor);
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
        atomic_fetch_sub(count_of(file->recorded.st_dev, file->recorded.st_ino), 1);
        atomic_fetch_sub(&ms_hot.files, 1);
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

static void set_last(const struct ms_source *file, const struct stat *now)
{
    pthread_mutex_lock(&files_lock);
    *file->last = *now;
    pthread_mutex_unlock(&files_lock);
}

/* While the lease was held nobody has changed a byte: new times have other reasons, and are what the next look compares with. */
static bool is_held(const struct ms_source *file, const struct stat *now)
{
    /* No source is const; to look at its lease changes nothing that others see. */
    if (!ms_lease_is_intact((struct ms_lease *)&file->lease, file->descriptor))
        return false;
    set_last(file, now);
    return true;
}

/* After the read of which it speaks: what was written before it shows in the times. */
bool ms_source_check(const struct ms_source *file, struct ms_source_failure *failure_out)
{
    *failure_out = (struct ms_source_failure){.file = file, .kind = MS_SOURCE_LOST};
    if (!ms_file_stat(file->descriptor, &failure_out->now)) {
        failure_out->error = errno;
        return false;
    }
    if (atomic_load(&file->state) == IS_LOST) {
        failure_out->kind = MS_SOURCE_GIVEN_UP;
        return false;
    }
    failure_out->kind = MS_SOURCE_CHANGED;
    if (is_held(file, &failure_out->now))
        return true;
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

static int format_time(char *text, size_t bytes, const char *what, struct timespec now,
                       struct timespec then)
{
    return now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec
               ? 0
               : snprintf(text, bytes, ", %s %lld.%09ld, was %lld.%09ld", what,
                          (long long)now.tv_sec, now.tv_nsec, (long long)then.tv_sec, then.tv_nsec);
}

static int format_number(char *text, size_t bytes, const char *what, uint64_t now, uint64_t then)
{
    return now == then ? 0
                       : snprintf(text, bytes, ", %s %llu, was %llu", what, (unsigned long long)now,
                                  (unsigned long long)then);
}

static void log_change(const struct ms_source *file, const struct stat *now)
{
    const struct stat *then = &file->recorded;
    char text[320] = "";
    const size_t bytes = sizeof(text) / 4; /* for each */
    char *end = text;
    end += format_number(end, bytes, "size", (uint64_t)now->st_size, (uint64_t)then->st_size);
    end += format_number(end, bytes, "links", now->st_nlink, then->st_nlink);
    end += format_time(end, bytes, "mtime", now->st_mtim, then->st_mtim);
    format_time(end, bytes, "ctime", now->st_ctim, then->st_ctim);
    ms_log(MS_ERROR,
           "%s: changed after the program copied it to the device and before it was needed (%s); "
           "the copied bytes are lost: write another file and rename it over this one, or call "
           "metashard_materialise() before it changes",
           file->path, text[0] != '\0' ? text + 2 : "another file");
}

void ms_source_log_failure(const struct ms_source_failure *failure)
{
    const struct ms_source *file = failure->file;
    switch (failure->kind) {
    case MS_SOURCE_GIVEN_UP:
        ms_log(MS_ERROR,
               "%s: it was opened for writing since the program copied it to the device; the bytes "
               "that were not brought in then, because the plan gives them to other ranks, are "
               "lost",
               file->path);
        return;
    case MS_SOURCE_LOST:
        ms_log(MS_ERROR, "%s: the descriptor kept for it is gone (%s); its bytes are still needed",
               file->path, strerror(failure->error));
        return;
    case MS_SOURCE_CHANGED:
        log_change(file, &failure->now);
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

CUresult ms_source_copy(const struct ms_source *file, uint64_t offset, size_t bytes,
                        struct ms_source **copy_out)
{
    struct ms_source *copy = create_snapshot(bytes);
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = read_file(file, offset, copy->data, bytes);
    if (result == CUDA_SUCCESS)
        *copy_out = copy;
    else
        ms_source_drop(copy);
    return result;
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

/* --- files that this process is about to change */

bool ms_source_may_be_of(dev_t device, ino_t inode)
{
    return atomic_load(count_of(device, inode)) != 0;
}

/* The sources of that file that are in one state get into another. The path of one of them, where wanted. */
static bool change_state(dev_t device, ino_t inode, enum state from, enum state to, char *path_out)
{
    bool found = false;
    pthread_mutex_lock(&files_lock);
    for (struct ms_source *file = files; file != NULL; file = file->next) {
        if (file->recorded.st_dev != device || file->recorded.st_ino != inode ||
            atomic_load(&file->state) != from)
            continue;
        atomic_store(&file->state, to);
        if (path_out != NULL)
            memcpy(path_out, file->path, sizeof(file->path));
        found = true;
    }
    pthread_mutex_unlock(&files_lock);
    return found;
}

/* --- leases: looked at in the file thread, and answered in the lease thread */

struct leases {
    bool of_all, is_found;
    dev_t device;
    ino_t inode;
};

static void find_broken(void *argument)
{
    struct leases *leases = argument;
    pthread_mutex_lock(&files_lock);
    for (struct ms_source *file = files; file != NULL && !leases->is_found; file = file->next) {
        leases->is_found = ms_lease_is_broken(&file->lease, file->descriptor);
        leases->device = file->recorded.st_dev;
        leases->inode = file->recorded.st_ino;
    }
    pthread_mutex_unlock(&files_lock);
}

bool ms_source_find_broken(dev_t *device_out, ino_t *inode_out)
{
    struct leases leases = {.is_found = false};
    ms_file_thread_call(find_broken, &leases);
    *device_out = leases.device;
    *inode_out = leases.inode;
    return leases.is_found;
}

static void drop_leases(void *argument)
{
    const struct leases *leases = argument;
    pthread_mutex_lock(&files_lock);
    for (struct ms_source *file = files; file != NULL; file = file->next) {
        if (leases->of_all ||
            (file->recorded.st_dev == leases->device && file->recorded.st_ino == leases->inode))
            ms_lease_drop(&file->lease, file->descriptor);
    }
    pthread_mutex_unlock(&files_lock);
}

void ms_source_drop_leases_of(dev_t device, ino_t inode)
{
    struct leases leases = {.device = device, .inode = inode};
    ms_file_thread_call(drop_leases, &leases);
}

void ms_source_drop_leases(void)
{
    struct leases leases = {.of_all = true};
    ms_file_thread_call(drop_leases, &leases);
}

bool ms_source_close(dev_t device, ino_t inode, char *path_out)
{
    return change_state(device, inode, IS_OPEN, IS_CLOSED, path_out);
}

bool ms_source_is_closed(const struct ms_source *source)
{
    return atomic_load_explicit(&source->state, memory_order_relaxed) == IS_CLOSED;
}

void ms_source_end_close(dev_t device, ino_t inode, bool is_lost)
{
    change_state(device, inode, IS_CLOSED, is_lost ? IS_LOST : IS_OPEN, NULL);
    if (is_lost)
        ms_source_drop_leases_of(device, inode);
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
