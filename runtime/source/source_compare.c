/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source_compare.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/config/config.h"
#include "runtime/source/kept_threads.h"
#include "runtime/source/mapping.h"
#include "runtime/source/reader.h"
#include "runtime/source/source_internal.h"

/* The first comparison is short: most guesses differ at once. */
enum { STEP_BYTES = 64 << 10, PROBED_BYTES = 512, PIECE_BYTES = 1 << 20, MOST_WORKERS = 16 };

struct comparison {
    const struct ms_source *file;
    uint64_t offset; /* of the first byte, in the file */
    const char *address;
    size_t bytes;
    bool only_cached;
    _Atomic size_t next; /* the first byte that nobody compares yet */
    _Atomic bool differs;
    sem_t ended; /* one for each worker that was started */
};

/* The file thread has one comparison at a time, and is the first worker. */
static struct worker {
    struct ms_kept_work work;
    struct comparison *comparison;
    unsigned char copied[STEP_BYTES], opened[STEP_BYTES];
} workers[MOST_WORKERS];

/* No handler of the program answers for this thread, so its memory is copied, not touched. */
static bool is_same(struct worker *worker, size_t at, size_t bytes)
{
    const struct comparison *comparison = worker->comparison;
    const struct ms_source *file = comparison->file;
    const uint64_t offset = comparison->offset + at;
    struct ms_source_failure failure;
    return (!comparison->only_cached ||
            ms_reader_is_cached(file->descriptor, offset, offset + bytes)) &&
           ms_mapping_peek(comparison->address + at, worker->copied, bytes) &&
           ms_source_read_now(file, offset, worker->opened, bytes, &failure) &&
           memcmp(worker->copied, worker->opened, bytes) == 0;
}

static void compare_piece(struct worker *worker, size_t begin)
{
    struct comparison *comparison = worker->comparison;
    const size_t left = comparison->bytes - begin;
    const size_t end = begin + (left < PIECE_BYTES ? left : PIECE_BYTES);
    for (size_t at = begin; at < end && !atomic_load(&comparison->differs); at += STEP_BYTES)
        if (!is_same(worker, at, end - at < STEP_BYTES ? end - at : STEP_BYTES))
            atomic_store(&comparison->differs, true);
}

static void compare_pieces(struct worker *worker)
{
    struct comparison *comparison = worker->comparison;
    size_t at;
    while (!atomic_load(&comparison->differs) &&
           (at = atomic_fetch_add(&comparison->next, PIECE_BYTES)) < comparison->bytes)
        compare_piece(worker, at);
}

static void help(void *worker_)
{
    struct worker *worker = worker_;
    sem_t *ended = &worker->comparison->ended;
    compare_pieces(worker);
    sem_post(ended);
}

static bool start(struct worker *worker, struct comparison *comparison)
{
    worker->comparison = comparison;
    worker->work = (struct ms_kept_work){.run = help, .argument = worker};
    return ms_kept_threads_start(&worker->work);
}

/* One for each two pieces: with less to do, it is done before another thread runs. */
static size_t count_workers(size_t bytes)
{
    const size_t useful = bytes / 2 / PIECE_BYTES;
    const size_t allowed =
        ms_config.read_threads < MOST_WORKERS ? ms_config.read_threads : MOST_WORKERS;
    return useful < allowed ? useful : allowed;
}

static bool compare_together(struct comparison *comparison)
{
    const size_t wanted = count_workers(comparison->bytes);
    size_t started = 0;
    sem_init(&comparison->ended, 0, 0);
    while (started + 1 < wanted && start(&workers[started + 1], comparison))
        started++;
    compare_pieces(&workers[0]);
    while (started > 0)
        started -= sem_wait(&comparison->ended) == 0; /* else a signal came: EINTR */
    sem_destroy(&comparison->ended);
    return !atomic_load(&comparison->differs);
}

bool ms_source_compare(const struct ms_source *file, uint64_t offset, const void *address,
                       size_t bytes, bool only_cached)
{
    struct comparison comparison = {.file = file,
                                    .offset = offset,
                                    .address = address,
                                    .bytes = bytes,
                                    .only_cached = only_cached};
    workers[0].comparison = &comparison;
    return is_same(&workers[0], 0, bytes < PROBED_BYTES ? bytes : PROBED_BYTES) &&
           (bytes <= PROBED_BYTES || compare_together(&comparison));
}
