/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/file_compare.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/thread.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file.h"
#include "runtime/files/file_read.h"
#include "runtime/files/kept_threads.h"
#include "runtime/files/mapping.h"
#include "runtime/files/page_cache.h"
#include "runtime/files/sums.h"

/* Few bytes are compared first, because most wrong guesses differ at once. READ_BYTES stay in a
 * core's cache. */
enum {
    PART_BYTES = MS_SUMS_PART,
    PROBED_BYTES = 512,
    PIECE_BYTES = 2 << 20,
    READ_BYTES = 1 << 20,
    PEEKED_BYTES = 128 << 10,
    PAGE_BYTES = 4096,
    MOST_WORKERS = 16
};

/* A sample reads from the disk the first SAMPLED_BYTES of one part in SAMPLED_PARTS. */
enum { SAMPLED_PARTS = 16, SAMPLED_BYTES = 4 << 10 };

struct comparison {
    const struct ms_file *file;
    uint64_t offset; /* of the first byte, in the file */
    const char *address;
    size_t bytes;
    enum ms_comparing compared;
    size_t mappings;     /* of anonymous memory, which is compared in place; 0: other memory */
    size_t skew;         /* from the beginning of the first piece to the first byte */
    uint64_t *sums;      /* of parts that were only sampled, from the first byte's part on */
    bool *cached;        /* of these parts: the page cache had it before anything was read */
    _Atomic size_t next; /* the first piece that nobody compares yet */
    _Atomic bool differs;
    sem_t ended; /* each started worker posts it */
};

/* Each thread keeps its buffers. The file's bytes have the same offset in a page as in the file, so
 * that the kernel copies them faster. */
struct buffers {
    unsigned char copied[PEEKED_BYTES];
    unsigned char opened[READ_BYTES + 2 * PAGE_BYTES];
};

/* The file thread has one comparison at a time, and is the first worker. */
static struct worker {
    struct ms_kept_work work;
    struct comparison *comparison;
    unsigned char *copied, *opened; /* of the thread; NULL: out of memory */
} workers[MOST_WORKERS];

static bool take_buffers(struct worker *worker)
{
    struct buffers *buffers = ms_thread_memory(MS_THREAD_COMPARES, sizeof(*buffers));
    worker->copied = buffers != NULL ? buffers->copied : NULL;
    worker->opened =
        buffers != NULL ? buffers->opened + -(uintptr_t)buffers->opened % PAGE_BYTES : NULL;
    return buffers != NULL;
}

static const unsigned char *read_file(struct worker *worker, uint64_t offset, size_t bytes)
{
    struct ms_file_failure failure;
    unsigned char *opened = worker->opened + offset % PAGE_BYTES;
    return ms_file_read_now(worker->comparison->file, offset, opened, bytes, &failure) ? opened
                                                                                       : NULL;
}

/* Compares `bytes` of the worker's copy, from `from` on, with the file from offset + from on. */
static bool has_bytes(struct worker *worker, uint64_t offset, size_t from, size_t bytes)
{
    const unsigned char *opened = read_file(worker, offset + from, bytes);
    return opened != NULL && memcmp(worker->copied + from, opened, bytes) == 0;
}

/* A sample says little about a part whose bytes are nearly all the same. */
static bool is_plain(const unsigned char *part)
{
    enum { WORD = sizeof(uint64_t), WORDS = PART_BYTES / WORD };
    size_t changes = 0;
    uint64_t before = 0, word;
    for (size_t i = 0; i < WORDS; i++, before = word) {
        memcpy(&word, part + i * WORD, WORD);
        changes += word != before;
    }
    return changes < WORDS / 2;
}

/* Reads only the parts at the ends of a copy, and one in SAMPLED_PARTS between them. */
static bool has_sample(struct worker *worker, uint64_t number)
{
    const struct comparison *comparison = worker->comparison;
    const uint64_t begin = number * PART_BYTES;
    if (begin + 2 * PART_BYTES > comparison->offset + comparison->bytes)
        return has_bytes(worker, begin, PART_BYTES - SAMPLED_BYTES, SAMPLED_BYTES);
    const bool is_first = begin < comparison->offset + PART_BYTES;
    return (!is_first && number % SAMPLED_PARTS != 0) || has_bytes(worker, begin, 0, SAMPLED_BYTES);
}

/* A whole part that is not in the page cache. */
static bool has_part(struct worker *worker, uint64_t number)
{
    const struct comparison *comparison = worker->comparison;
    const uint64_t sum = ms_sums_make(worker->copied);
    bool is_seen;
    const uint64_t known = ms_sums_get(comparison->file, number, &is_seen);
    if (known != 0)
        return known == sum;
    if (is_plain(worker->copied))
        return has_bytes(worker, number * PART_BYTES, 0, PART_BYTES);
    comparison->sums[number - comparison->offset / PART_BYTES] = sum;
    return has_sample(worker, number);
}

/* Another copy may have left a sum for this part. If the file's bytes have another sum, each read
 * of the part fails (loading/source_read.c): so no copy may come from there. */
static bool is_refused(struct worker *worker, uint64_t number)
{
    const struct ms_file *file = worker->comparison->file;
    bool is_seen;
    const uint64_t known = ms_sums_get(file, number, &is_seen);
    if (known == 0 || is_seen)
        return false;
    const unsigned char *opened = read_file(worker, number * PART_BYTES, PART_BYTES);
    if (opened == NULL || ms_sums_make(opened) != known)
        return true;
    ms_sums_set_seen(file, number);
    return false;
}

static bool is_any_refused(struct worker *worker, uint64_t offset, size_t bytes)
{
    bool is_any = false;
    for (uint64_t number = offset / PART_BYTES; number * PART_BYTES < offset + bytes; number++)
        is_any = is_any || is_refused(worker, number);
    return is_any;
}

/* A processor that loads from several places at once waits less for memory. */
static bool is_equal_in_place(const char *address, const unsigned char *opened, size_t bytes)
{
    enum { PLACES = 4, STEP_BYTES = 512 };
    const size_t apart = bytes / PLACES / STEP_BYTES * STEP_BYTES, rest = PLACES * apart;
    bool is_equal = memcmp(address + rest, opened + rest, bytes - rest) == 0;
    for (size_t step = 0; step < apart && is_equal; step += STEP_BYTES) {
        for (size_t at = step; at < rest && is_equal; at += apart)
            is_equal = memcmp(address + at, opened + at, STEP_BYTES) == 0;
    }
    return is_equal;
}

/* The kernel copies PEEKED_BYTES at a time. */
static bool is_peeked_equal(struct worker *worker, const char *address, const unsigned char *opened,
                            size_t bytes)
{
    size_t now;
    for (size_t done = 0; done < bytes; done += now) {
        now = bytes - done < PEEKED_BYTES ? bytes - done : PEEKED_BYTES;
        if (!ms_mapping_peek(address + done, worker->copied, now) ||
            memcmp(worker->copied, opened + done, now) != 0)
            return false;
    }
    return true;
}

/* No handler of the program answers for this thread, so it touches memory only where the kernel has
 * just said that a load gets no signal. */
static bool is_same(struct worker *worker, size_t at, size_t bytes)
{
    const struct comparison *comparison = worker->comparison;
    const char *address = comparison->address + at;
    const uint64_t offset = comparison->offset + at;
    const bool is_in_place =
        comparison->mappings > 0 && ms_mapping_may_load(address, bytes, comparison->mappings == 1);
    for (size_t done = 0, now; done < bytes; done += now) {
        now = bytes - done < READ_BYTES ? bytes - done : READ_BYTES;
        const unsigned char *opened = read_file(worker, offset + done, now);
        if (opened == NULL || !(is_in_place ? is_equal_in_place(address + done, opened, now)
                                            : is_peeked_equal(worker, address + done, opened, now)))
            return false;
    }
    return !is_any_refused(worker, offset, bytes);
}

static bool is_cached(const struct comparison *comparison, size_t at, size_t bytes)
{
    const uint64_t offset = comparison->offset + at;
    return ms_page_cache_has(ms_file_descriptor(comparison->file), offset, offset + bytes);
}

static bool *part_at(const struct comparison *comparison, size_t at)
{
    return &comparison->cached[(at + comparison->skew) / PART_BYTES];
}

/* Where the part ends that has this byte. */
static size_t part_end(const struct comparison *comparison, size_t at)
{
    const size_t end = ((at + comparison->skew) / PART_BYTES + 1) * PART_BYTES - comparison->skew;
    return end < comparison->bytes ? end : comparison->bytes;
}

static size_t piece_end(const struct comparison *comparison, size_t number)
{
    const size_t end = (number + 1) * PIECE_BYTES - comparison->skew;
    return end < comparison->bytes ? end : comparison->bytes;
}

/* A read of cached bytes can make the kernel read the next parts ahead, whatever the advice. They
 * would be found in the page cache one after the other, up to the end of the file. */
static void find_cached(const struct comparison *comparison)
{
    const int descriptor = ms_file_descriptor(comparison->file);
    for (size_t at = 0, number = 0, end; at < comparison->bytes; number++) {
        end = piece_end(comparison, number);
        const bool is_any = ms_page_cache_count(descriptor, comparison->offset + at, end - at) != 0;
        const bool is_all = is_any && is_cached(comparison, at, end - at);
        for (size_t next; at < end; at = next) {
            next = part_end(comparison, at);
            *part_at(comparison, at) = is_all || (is_any && is_cached(comparison, at, next - at));
        }
    }
}

/* The end of the bytes from `at` on that are all compared, or are one part that is sampled. */
static size_t find_alike(const struct comparison *comparison, size_t at, size_t end,
                         bool *sampled_out)
{
    size_t next = part_end(comparison, at);
    *sampled_out = next - at == PART_BYTES && !*part_at(comparison, at);
    while (!*sampled_out && next < end && *part_at(comparison, next))
        next = part_end(comparison, next);
    return next;
}

static bool are_parts_same(struct worker *worker, size_t begin, size_t end)
{
    const struct comparison *comparison = worker->comparison;
    bool are_same = true, is_sampled;
    for (size_t at = begin, next; at < end && are_same; at = next) {
        next = find_alike(comparison, at, end, &is_sampled);
        are_same = is_sampled
                       ? ms_mapping_peek(comparison->address + at, worker->copied, PART_BYTES) &&
                             has_part(worker, (comparison->offset + at) / PART_BYTES)
                       : is_same(worker, at, next - at);
    }
    return are_same;
}

static void compare_piece(struct worker *worker, size_t number)
{
    struct comparison *comparison = worker->comparison;
    const size_t begin = number == 0 ? 0 : number * PIECE_BYTES - comparison->skew;
    const size_t end = piece_end(comparison, number);
    if (!(comparison->cached != NULL ? are_parts_same(worker, begin, end)
                                     : is_same(worker, begin, end - begin)))
        atomic_store(&comparison->differs, true);
}

static void compare_pieces(struct worker *worker)
{
    struct comparison *comparison = worker->comparison;
    const size_t bytes = comparison->bytes + comparison->skew;
    size_t piece;
    while (!atomic_load(&comparison->differs) &&
           (piece = atomic_fetch_add(&comparison->next, 1)) * PIECE_BYTES < bytes)
        compare_piece(worker, piece);
}

static void help(void *worker_)
{
    struct worker *worker = worker_;
    sem_t *ended = &worker->comparison->ended;
    if (take_buffers(worker)) /* else other workers compare the rest */
        compare_pieces(worker);
    sem_post(ended);
}

static bool start(struct worker *worker, struct comparison *comparison)
{
    worker->comparison = comparison;
    worker->work = (struct ms_kept_work){.run = help, .argument = worker};
    return ms_kept_threads_start(&worker->work);
}

/* One worker for each piece: less work would be done before another thread runs. */
static size_t count_workers(size_t bytes)
{
    static size_t allowed; /* for the file thread */
    if (allowed == 0)
        allowed = ms_kept_threads_cores();
    if (allowed > MOST_WORKERS)
        allowed = MOST_WORKERS;
    const size_t useful = bytes / PIECE_BYTES;
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

/* Keeps the sums only if nothing differs. */
static bool compare_sampled(struct comparison *comparison)
{
    const uint64_t first = comparison->offset / PART_BYTES;
    const size_t count =
        (size_t)((comparison->offset + comparison->bytes - 1) / PART_BYTES - first + 1);
    bool is_same = false;
    comparison->sums = ms_heap_zalloc(count * sizeof(*comparison->sums));
    comparison->cached = ms_heap_zalloc(count * sizeof(*comparison->cached));
    if (comparison->sums != NULL && comparison->cached != NULL) {
        find_cached(comparison);
        is_same = compare_together(comparison) &&
                  ms_sums_add((struct ms_file *)comparison->file, first, comparison->sums, count);
    }
    ms_heap_free(comparison->cached);
    ms_heap_free(comparison->sums);
    return is_same;
}

/* Asked before any byte is read, because a byte may have to come from a disk. */
static bool may_be_read(const struct comparison *comparison)
{
    return comparison->compared != MS_COMPARING_CACHED ||
           is_cached(comparison, 0, comparison->bytes);
}

bool ms_file_compare(const struct ms_file *file, uint64_t offset, const void *address, size_t bytes,
                     enum ms_comparing compared)
{
    struct comparison comparison = {
        .file = file, .offset = offset, .address = address, .bytes = bytes, .compared = compared};
    workers[0].comparison = &comparison;
    if (!take_buffers(&workers[0]) || !may_be_read(&comparison) ||
        !is_same(&workers[0], 0, bytes < PROBED_BYTES ? bytes : PROBED_BYTES))
        return false;
    if (bytes <= PROBED_BYTES)
        return true;
    comparison.mappings = ms_mapping_count_anonymous(address, bytes);
    if (compared != MS_COMPARING_SAMPLED)
        return compare_together(&comparison);
    comparison.skew = offset % PART_BYTES;
    return compare_sampled(&comparison);
}
