/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source_compare.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/config/config.h"
#include "runtime/source/descriptor.h"
#include "runtime/source/kept_threads.h"
#include "runtime/source/mapping.h"
#include "runtime/source/reader.h"
#include "runtime/source/source_internal.h"
#include "runtime/source/source_sums.h"

/* The first comparison is short: most guesses differ at once. Steps are parts of the file. */
enum {
    STEP_BYTES = MS_SOURCE_SUMS_PART,
    PROBED_BYTES = 512,
    PIECE_BYTES = 1 << 20,
    MOST_WORKERS = 16
};

/* Of what is sampled, the first bytes of one part of so many are read from the disk. */
enum { SAMPLED_PARTS = 16, SAMPLED_BYTES = 4 << 10 };

struct comparison {
    const struct ms_source *file;
    uint64_t offset; /* of the first byte, in the file */
    const char *address;
    size_t bytes;
    enum ms_comparing compared;
    uint64_t *sums;      /* of parts that were not compared, from the one of the first byte on */
    _Atomic size_t next; /* the first piece that nobody compares yet */
    _Atomic bool differs;
    sem_t ended; /* one for each worker that was started */
};

/* The file thread has one comparison at a time, and is the first worker. */
static struct worker {
    struct ms_kept_work work;
    struct comparison *comparison;
    unsigned char copied[STEP_BYTES], opened[STEP_BYTES];
} workers[MOST_WORKERS];

/* Compares `bytes` of what the worker has copied, which is of the file from `offset` on: behind the
 * first `from`. */
static bool has_bytes(struct worker *worker, uint64_t offset, size_t from, size_t bytes)
{
    struct ms_source_failure failure;
    return ms_source_read_now(worker->comparison->file, offset + from, worker->opened, bytes,
                              &failure) &&
           memcmp(worker->copied + from, worker->opened, bytes) == 0;
}

/* A sample says little of bytes that are nearly all the same. */
static bool is_plain(const unsigned char *part)
{
    enum { WORD = sizeof(uint64_t), WORDS = STEP_BYTES / WORD };
    size_t changes = 0;
    uint64_t before = 0, word;
    for (size_t i = 0; i < WORDS; i++, before = word) {
        memcpy(&word, part + i * WORD, WORD);
        changes += word != before;
    }
    return changes < WORDS / 2;
}

/* The ends of a copy, and one part of so many between. */
static bool has_sample(struct worker *worker, uint64_t number)
{
    const struct comparison *comparison = worker->comparison;
    const uint64_t begin = number * STEP_BYTES;
    if (begin + 2 * STEP_BYTES > comparison->offset + comparison->bytes)
        return has_bytes(worker, begin, STEP_BYTES - SAMPLED_BYTES, SAMPLED_BYTES);
    const bool is_first = begin < comparison->offset + STEP_BYTES;
    return (!is_first && number % SAMPLED_PARTS != 0) || has_bytes(worker, begin, 0, SAMPLED_BYTES);
}

/* A whole part that is not in the page cache. */
static bool has_part(struct worker *worker, uint64_t number)
{
    const struct comparison *comparison = worker->comparison;
    const uint64_t sum = ms_source_sums_make(worker->copied);
    bool is_seen;
    const uint64_t known = ms_source_sums_get(comparison->file, number, &is_seen);
    if (known != 0)
        return known == sum;
    if (is_plain(worker->copied))
        return has_bytes(worker, number * STEP_BYTES, 0, STEP_BYTES);
    comparison->sums[number - comparison->offset / STEP_BYTES] = sum;
    return has_sample(worker, number);
}

/*
 * A sum that was kept of another copy decides what reads of the part deliver (source_read.c): where
 * the file has another one, they fail, whoever wants the bytes. So the part is no place for a copy.
 */
static bool is_refused(struct worker *worker, uint64_t number)
{
    const struct ms_source *file = worker->comparison->file;
    struct ms_source_failure failure;
    bool is_seen;
    const uint64_t known = ms_source_sums_get(file, number, &is_seen);
    if (known == 0 || is_seen)
        return false;
    if (!ms_source_read_now(file, number * STEP_BYTES, worker->opened, STEP_BYTES, &failure) ||
        ms_source_sums_make(worker->opened) != known)
        return true;
    ms_source_sums_set_seen(file, number);
    return false;
}

/* No handler of the program answers for this thread, so its memory is copied, not touched. */
static bool is_same(struct worker *worker, size_t at, size_t bytes)
{
    const struct comparison *comparison = worker->comparison;
    const uint64_t offset = comparison->offset + at;
    const bool is_whole = bytes == STEP_BYTES && offset % STEP_BYTES == 0;
    const bool is_asked = comparison->compared == MS_COMPARING_CACHED ||
                          (comparison->compared == MS_COMPARING_SAMPLED && is_whole);
    const bool is_cached =
        !is_asked || ms_reader_is_cached(comparison->file->descriptor, offset, offset + bytes);
    if ((!is_cached && comparison->compared == MS_COMPARING_CACHED) ||
        !ms_mapping_peek(comparison->address + at, worker->copied, bytes))
        return false;
    if (!is_cached)
        return has_part(worker, offset / STEP_BYTES);
    return has_bytes(worker, offset, 0, bytes) && !is_refused(worker, offset / STEP_BYTES);
}

/* A piece is so many steps; the file's parts, not the first byte, say where they are. */
static void compare_piece(struct worker *worker, size_t number)
{
    struct comparison *comparison = worker->comparison;
    const size_t skew = comparison->offset % STEP_BYTES;
    for (size_t i = 0; i < PIECE_BYTES / STEP_BYTES; i++) {
        const size_t step = number * PIECE_BYTES + i * STEP_BYTES;
        const size_t begin = step > skew ? step - skew : 0;
        const size_t end = step + STEP_BYTES - skew;
        if (begin >= comparison->bytes || atomic_load(&comparison->differs))
            return;
        if (!is_same(worker, begin, (end < comparison->bytes ? end : comparison->bytes) - begin))
            atomic_store(&comparison->differs, true);
    }
}

static void compare_pieces(struct worker *worker)
{
    struct comparison *comparison = worker->comparison;
    const size_t bytes = comparison->bytes + comparison->offset % STEP_BYTES;
    size_t piece;
    while (!atomic_load(&comparison->differs) &&
           (piece = atomic_fetch_add(&comparison->next, 1)) * PIECE_BYTES < bytes)
        compare_piece(worker, piece);
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

/* The sums are only kept if all is the same. */
static bool compare_sampled(struct comparison *comparison)
{
    const uint64_t first = comparison->offset / STEP_BYTES;
    const size_t count =
        (size_t)((comparison->offset + comparison->bytes - 1) / STEP_BYTES - first + 1);
    comparison->sums = ms_heap_zalloc(count * sizeof(*comparison->sums));
    const bool is_same =
        comparison->sums != NULL && compare_together(comparison) &&
        ms_source_sums_add((struct ms_source *)comparison->file, first, comparison->sums, count);
    ms_heap_free(comparison->sums);
    return is_same;
}

bool ms_source_compare(const struct ms_source *file, uint64_t offset, const void *address,
                       size_t bytes, enum ms_comparing compared)
{
    struct comparison comparison = {
        .file = file, .offset = offset, .address = address, .bytes = bytes, .compared = compared};
    workers[0].comparison = &comparison;
    if (!is_same(&workers[0], 0, bytes < PROBED_BYTES ? bytes : PROBED_BYTES))
        return false;
    if (bytes <= PROBED_BYTES)
        return true;
    return compared == MS_COMPARING_SAMPLED ? compare_sampled(&comparison)
                                            : compare_together(&comparison);
}
