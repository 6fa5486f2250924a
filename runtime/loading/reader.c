/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/reader.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/number.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/direct.h"
#include "runtime/files/file.h"
#include "runtime/files/file_read.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/kept_threads.h"
#include "runtime/files/page_cache.h"
#include "runtime/files/trust.h"
#include "runtime/loading/source_read.h"
#include "runtime/state/counters.h"

enum {
    BLOCK = MS_READER_BLOCK,
    /* A range of this size gets blocks of its own, and is looked up in the page cache. */
    LARGE_BYTES = 64 << 10,
    /* The unit of lookups in the page cache. */
    STRETCH_BYTES = 1 << 20,
    MAX_THREADS = 64
};

/* A descriptor that reads past the page cache; opened at its first use, and left to the file. */
struct direct_file {
    const struct ms_file *file;
    int was_left; /* the file's, from a reader before */
    _Atomic int descriptor;
};

struct ms_reader {
    struct ms_reading what; /* immutable, as are files and file_count */
    struct direct_file *files;
    size_t file_count;

    struct ms_kept_work work[MAX_THREADS];
    unsigned thread_count;  /* immutable after ms_reader_create */
    sem_t cores;            /* free cores for reading cached bytes */
    struct ms_lock opening; /* held by the thread that opens a file, for all of them */

    struct ms_lock lock;      /* guards what follows; held across nothing */
    pthread_cond_t more_room; /* a slot is free, or the reader is destroyed */
    pthread_cond_t more_done; /* a batch is ready, is_over, or a thread has gone */
    unsigned gone_count;      /* threads that have nothing to do with the reader any more */
    size_t next_batch;        /* the first that no thread reads yet */
    size_t *free_slots;
    size_t free_count;
    struct ms_read_done *done;
    size_t done_count;
    size_t delivered; /* only the thread that uses the reader counts */
    CUresult failed;  /* CUDA_SUCCESS: no failure */
    struct ms_file_failure failure;
    bool is_given; /* the failure was logged */
    bool is_over;  /* no more reads */
};

/* --- the place of a range */

/* Gives a large range blocks of its own. Bytes have the same offset in a block as in the file. */
size_t ms_reader_place(uint64_t offset, size_t bytes, size_t slot_bytes, size_t *used,
                       size_t *place_out)
{
    if (bytes < LARGE_BYTES) {
        if (slot_bytes - *used < bytes)
            return 0;
        *place_out = *used;
        *used += bytes;
        return bytes;
    }
    const size_t head = offset % BLOCK;
    const size_t begin = (size_t)ms_round_up(*used, BLOCK);
    const size_t gaps = begin < slot_bytes ? slot_bytes - begin : 0;
    if (*used > 0 && gaps < 2 * (size_t)LARGE_BYTES)
        return 0;
    bytes = ms_least(bytes, gaps - head);
    *place_out = begin + head;
    *used = (size_t)ms_round_up(begin + head + bytes, BLOCK);
    return bytes;
}

/* --- past the page cache */

static struct direct_file *find_file(struct ms_reader *reader, const struct ms_file *file)
{
    struct direct_file *direct = reader->files;
    while (direct->file != file)
        direct++;
    return direct;
}

static int get_direct(struct ms_reader *reader, struct direct_file *direct)
{
    if (atomic_load(&direct->descriptor) == MS_DIRECT_NOT_OPENED) {
        ms_lock_take(&reader->opening);
        if (atomic_load(&direct->descriptor) == MS_DIRECT_NOT_OPENED)
            atomic_store(&direct->descriptor, ms_direct_open(direct->file));
        ms_lock_drop(&reader->opening);
    }
    return atomic_load(&direct->descriptor);
}

/*
 * Reads [begin, end) to `to`, with the whole blocks around it. Returns where it stopped: the caller
 * reads the rest through the page cache, which reports errors.
 */
static uint64_t read_direct(struct ms_reader *reader, struct direct_file *direct, uint64_t begin,
                            uint64_t end, unsigned char *to)
{
    const int descriptor = get_direct(reader, direct);
    const uint64_t stop = ms_round_up(end, BLOCK);
    to -= begin - ms_round_down(begin, BLOCK);
    uint64_t at = ms_round_down(begin, BLOCK);
    while (descriptor >= 0 && at < end) {
        const ssize_t got = ms_file_read_by(direct->file, descriptor, to, (size_t)(stop - at), at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        to += got;
        at += (uint64_t)got;
        if (at % BLOCK != 0) /* the end of the file, which may have become shorter */
            break;
    }
    if (at < begin)
        return begin;
    return at < end ? at : end;
}

/* --- a range, a batch */

static uint64_t stretch_end(const struct ms_file_range *range, uint64_t begin)
{
    const uint64_t end = range->offset + range->bytes;
    const uint64_t stop = (begin / STRETCH_BYTES + 1) * STRETCH_BYTES;
    return stop < end ? stop : end;
}

/* Returns the end of the stretches from `begin` that are all cached, or all not, judged by their
 * ends. Missing pages between the ends are read all the same, but more slowly. */
static uint64_t find_alike(const struct ms_file_range *range, uint64_t begin, bool *cached_out)
{
    const int descriptor = ms_file_descriptor(range->file);
    const uint64_t end = range->offset + range->bytes;
    uint64_t at = stretch_end(range, begin);
    *cached_out = ms_page_cache_has_ends(descriptor, begin, at);
    while (at < end) {
        const uint64_t next = stretch_end(range, at);
        if (ms_page_cache_has_ends(descriptor, at, next) != *cached_out)
            break;
        at = next;
    }
    return at;
}

static bool read_large(struct ms_reader *reader, const struct ms_file_range *range,
                       unsigned char *to, struct ms_file_failure *failure_out)
{
    struct direct_file *direct = find_file(reader, range->file);
    const uint64_t end = range->offset + range->bytes;
    bool is_read = true;
    for (uint64_t at = range->offset; at < end && is_read;) {
        bool cached = true;
        const uint64_t stop = atomic_load(&direct->descriptor) >= MS_DIRECT_NOT_OPENED
                                  ? find_alike(range, at, &cached)
                                  : end;
        const uint64_t done =
            cached ? at : read_direct(reader, direct, at, stop, to + (at - range->offset));
        while (sem_wait(&reader->cores) != 0) /* EINTR */
            ;
        is_read = ms_file_read_now(range->file, done, to + (done - range->offset),
                                   (size_t)(stop - done), failure_out);
        sem_post(&reader->cores);
        at = stop;
    }
    return is_read;
}

static bool check(const struct ms_file *file, struct ms_file_failure *failure_out)
{
    /* Checks twice, because one failed check may not mean that the file has changed. */
    return ms_trust_check(file, failure_out) || ms_trust_check(file, failure_out);
}

static bool read_range(struct ms_reader *reader, const struct ms_file_range *range,
                       unsigned char *to, struct ms_file_failure *failure_out)
{
    if (!ms_file_begin_use(range->file, failure_out))
        return false;
    const bool is_read =
        (range->bytes < LARGE_BYTES
             ? ms_file_read_now(range->file, range->offset, to, range->bytes, failure_out)
             : read_large(reader, range, to, failure_out)) &&
        ms_source_read_check(range->file, range->offset, to, range->bytes, failure_out);
    ms_file_end_use(range->file);
    return is_read;
}

static CUresult read_batch(struct ms_reader *reader, size_t number, size_t slot,
                           struct ms_file_failure *failure_out)
{
    const struct ms_read_batch *batch = &reader->what.batches[number];
    const struct ms_file_range *range = &reader->what.ranges[batch->first];
    unsigned char *memory = reader->what.slots + slot * reader->what.slot_bytes;
    size_t bytes = 0;
    bool is_read = true;
    for (size_t i = 0; i < batch->count && is_read; i++, range++) {
        if (atomic_load_explicit(reader->what.cancelled, memory_order_relaxed))
            return CUDA_ERROR_DEINITIALIZED;
        is_read = read_range(reader, range, memory + range->place, failure_out);
        /* Checked after the read: a write before it shows in the times. */
        const bool is_last = i + 1 == batch->count || range[1].file != range->file;
        if (is_read && is_last)
            is_read = check(range->file, failure_out);
        bytes += range->bytes;
    }
    if (is_read)
        ms_counter_add(MS_COUNT_FILE_READ_BYTES, bytes);
    return is_read ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* --- threads */

/* Takes a batch and a slot, reads, and adds it to `done`. False if there is nothing to read now. */
static bool read_next_locked(struct ms_reader *reader) MS_HOLDS(reader->lock);
static bool read_next_locked(struct ms_reader *reader)
{
    if (reader->is_over || reader->next_batch == reader->what.batch_count ||
        reader->free_count == 0)
        return false;
    const struct ms_read_done done = {reader->next_batch++,
                                      reader->free_slots[--reader->free_count]};
    struct ms_file_failure failure = {0};
    ms_lock_drop(&reader->lock);
    const CUresult result = read_batch(reader, done.batch, done.slot, &failure);
    ms_lock_take(&reader->lock);
    if (result == CUDA_SUCCESS) {
        reader->done[reader->done_count++] = done;
    } else {
        if (reader->failed == CUDA_SUCCESS) {
            reader->failed = result;
            reader->failure = failure;
        }
        reader->is_over = true;
    }
    pthread_cond_signal(&reader->more_done);
    return true;
}

static void read_many(void *argument)
{
    struct ms_reader *reader = argument;
    ms_lock_take(&reader->lock);
    while (!reader->is_over && reader->next_batch < reader->what.batch_count) {
        if (!read_next_locked(reader))
            pthread_cond_wait(&reader->more_room, &reader->lock.mutex);
    }
    reader->gone_count++;
    pthread_cond_signal(&reader->more_done);
    ms_lock_drop(&reader->lock);
}

/* A single thread that reads from the page cache gains nothing over the caller. Needs cachestat:
 * other checks may start a read of more than they look at. */
static bool is_for_caller(const struct ms_reading *what)
{
    const struct ms_read_batch *last = &what->batches[what->batch_count - 1];
    const struct ms_file_range *first_part = &what->ranges[what->batches[0].first];
    const struct ms_file_range *last_part = &what->ranges[last->first + last->count - 1];
    return what->busy_threads <= 1 &&
           ms_page_cache_count(ms_file_descriptor(first_part->file), first_part->offset, 1) > 0 &&
           ms_page_cache_count(ms_file_descriptor(last_part->file),
                               last_part->offset + last_part->bytes - 1, 1) > 0;
}

static void start_threads(void *argument)
{
    struct ms_reader *reader = argument;
    if (is_for_caller(&reader->what))
        return;
    while (reader->thread_count < reader->what.threads && reader->thread_count < MAX_THREADS) {
        struct ms_kept_work *work = &reader->work[reader->thread_count];
        *work = (struct ms_kept_work){.run = read_many, .argument = reader};
        if (!ms_kept_threads_start(work))
            return;
        reader->thread_count++;
    }
}

/* --- the life of a reader */

/* Ranges of a file are neighbours. If not, the file gets a second entry, which is not used. */
static bool list_files(struct ms_reader *reader)
{
    const struct ms_reading *what = &reader->what;
    const struct ms_read_batch *last = &what->batches[what->batch_count - 1];
    const size_t count = last->first + last->count;
    size_t changes = 1;
    for (size_t i = 1; i < count; i++)
        changes += what->ranges[i].file != what->ranges[i - 1].file;
    reader->files = ms_heap_alloc(changes * sizeof(*reader->files));
    if (reader->files == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && what->ranges[i].file == what->ranges[i - 1].file)
            continue;
        struct direct_file *direct = &reader->files[reader->file_count++];
        direct->file = what->ranges[i].file;
        direct->was_left = ms_direct_left(direct->file);
        atomic_init(&direct->descriptor, direct->was_left);
    }
    return true;
}

static void leave_or_close(void *argument)
{
    const struct ms_reader *reader = argument;
    for (size_t i = 0; i < reader->file_count; i++) {
        const struct direct_file *direct = &reader->files[i];
        const int descriptor = atomic_load(&direct->descriptor);
        const bool is_files = descriptor == direct->was_left;
        if (!is_files && descriptor != MS_DIRECT_NO_ROOM &&
            !ms_direct_leave(direct->file, descriptor) && descriptor >= 0)
            ms_descriptor_close(descriptor);
    }
}

/* Usually false: nothing was opened, or the descriptor is the file's already. */
static bool has_opened(const struct ms_reader *reader)
{
    bool has = false;
    for (size_t i = 0; i < reader->file_count; i++)
        has |= atomic_load(&reader->files[i].descriptor) != reader->files[i].was_left;
    return has;
}

static void free_reader(struct ms_reader *reader)
{
    if (has_opened(reader))
        ms_file_thread_call(leave_or_close, reader);
    sem_destroy(&reader->cores);
    pthread_cond_destroy(&reader->more_done);
    pthread_cond_destroy(&reader->more_room);
    ms_heap_free(reader->files);
    ms_heap_free(reader->free_slots);
    ms_heap_free(reader->done);
    ms_heap_free(reader);
}

static void init_lock(struct ms_reader *reader)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    reader->lock = (struct ms_lock)MS_LOCK_INIT(reader);
    reader->opening = (struct ms_lock)MS_LOCK_INIT(opening);
    pthread_cond_init(&reader->more_room, &attributes);
    pthread_cond_init(&reader->more_done, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct ms_reader *ms_reader_create(const struct ms_reading *reading)
{
    struct ms_reader *reader = ms_heap_zalloc(sizeof(*reader));
    if (reader == NULL)
        return NULL;
    init_lock(reader);
    sem_init(&reader->cores, 0, reading->busy_threads > 0 ? reading->busy_threads : 1);
    reader->what = *reading;
    reader->free_slots = ms_heap_alloc(reading->slot_count * sizeof(*reader->free_slots));
    reader->done = ms_heap_alloc(reading->slot_count * sizeof(*reader->done));
    if (reader->free_slots == NULL || reader->done == NULL || !list_files(reader)) {
        free_reader(reader);
        return NULL;
    }
    while (reader->free_count < reading->slot_count) {
        reader->free_slots[reader->free_count] = reading->slot_count - 1 - reader->free_count;
        reader->free_count++;
    }
    if (reading->threads > 0)
        ms_file_thread_call(start_threads, reader);
    return reader;
}

static void read_here(void *argument)
{
    struct ms_reader *reader = argument;
    ms_lock_take(&reader->lock);
    read_next_locked(reader);
    ms_lock_drop(&reader->lock);
}

/* Logs one line for all failures: later failures usually have the same cause. */
static void log_failure(struct ms_reader *reader)
{
    if (reader->failed == CUDA_ERROR_OPERATING_SYSTEM && !reader->is_given)
        ms_source_read_log_failure(&reader->failure);
    reader->is_given = true;
}

/* Checks once, when all is read, for stores that the check of a batch does not show. */
static void check_mappings(void *argument)
{
    struct ms_reader *reader = argument;
    struct ms_file_failure failure;
    bool is_good = true;
    for (size_t i = 0; i < reader->file_count && is_good; i++)
        is_good = ms_trust_check_mappings(reader->files[i].file, &failure);
    if (!is_good) {
        reader->failed = CUDA_ERROR_OPERATING_SYSTEM;
        reader->failure = failure;
    }
}

CUresult ms_reader_next(struct ms_reader *reader, uint64_t wait_ns, struct ms_read_done *done_out)
{
    const struct timespec deadline = ms_clock_after(CLOCK_MONOTONIC, wait_ns);
    CUresult result;
    int waited = 0;
    if (reader->thread_count == 0 && reader->done_count == 0)
        ms_file_thread_call(read_here, reader);
    ms_lock_take(&reader->lock);
    /* Without threads there is nothing to wait for. */
    while (waited == 0 && reader->failed == CUDA_SUCCESS && reader->done_count == 0 &&
           reader->thread_count > 0)
        waited = pthread_cond_timedwait(&reader->more_done, &reader->lock.mutex, &deadline);
    result = reader->failed;
    if (result == CUDA_SUCCESS && reader->done_count > 0)
        *done_out = reader->done[--reader->done_count];
    else if (result == CUDA_SUCCESS)
        result = CUDA_ERROR_NOT_READY;
    ms_lock_drop(&reader->lock);
    if (result == CUDA_SUCCESS && ++reader->delivered == reader->what.batch_count) {
        ms_file_thread_call(check_mappings, reader);
        result = reader->failed; /* nobody reads any more */
    }
    if (result == CUDA_ERROR_OPERATING_SYSTEM)
        log_failure(reader);
    return result;
}

void ms_reader_give_back(struct ms_reader *reader, size_t slot)
{
    ms_lock_take(&reader->lock);
    reader->free_slots[reader->free_count++] = slot;
    pthread_cond_signal(&reader->more_room);
    ms_lock_drop(&reader->lock);
}

void ms_reader_destroy(struct ms_reader *reader)
{
    ms_lock_take(&reader->lock);
    reader->is_over = true;
    pthread_cond_broadcast(&reader->more_room);
    while (reader->gone_count < reader->thread_count)
        pthread_cond_wait(&reader->more_done, &reader->lock.mutex);
    ms_lock_drop(&reader->lock);
    free_reader(reader);
}
