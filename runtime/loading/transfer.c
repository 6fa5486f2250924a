/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/base/array.h"
#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/number.h"
#include "runtime/config/config.h"
#include "runtime/files/kept_threads.h"
#include "runtime/files/sums.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/loading/reader.h"
#include "runtime/state/counters.h"

static const size_t min_slot_bytes = (size_t)256 << 10;
/* Larger slots are not read faster, but leave the caches before they are copied. */
static const size_t max_slot_bytes = (size_t)2 << 20;
/* Less than this is read before another thread runs. */
static const size_t min_thread_bytes = (size_t)512 << 10;
static const uint64_t report_ns = UINT64_C(2) * MS_NS_PER_S;

static _Atomic bool is_cancelled;
static const _Atomic bool is_never; /* for the program's threads, which are never cancelled */
static _Thread_local bool may_be_cancelled __attribute__((tls_model("initial-exec")));

static const _Atomic bool *cancel_flag(void)
{
    return may_be_cancelled ? &is_cancelled : &is_never;
}

/* --- the schedule */

/*
 * A schedule has what to read for a transfer, and where to. Requests that overlap or nearly touch
 * in their file become one range to read. Ranges fill batches, one slot each. Copies go from the
 * slots to device memory:
 *
 *     requests   | A            |     | C     |            of one file
 *                 | B    |
 *     ranges     | 1            :  gap :   || 2   |        cut where a slot is full
 *     copies     A, B of range 1 ...
 *
 * Each wanted byte is in exactly one range, and in one copy for each request that wants it.
 */

/* Bytes of a slot, and their destination. */
struct slot_copy {
    size_t place, bytes;
    CUdeviceptr address;
};

/* Constant once the schedule is made. */
struct schedule {
    struct ms_file_range *ranges;
    struct ms_read_batch *batches;
    struct slot_copy *copies;
    size_t *first_copy; /* of each batch, and the end of the last batch's */
    size_t range_count, batch_count, copy_count;
    size_t wanted_bytes; /* of all copies */
};

enum {
    MAX_RANGES = 1024,     /* in a batch: enough small reads to keep one thread busy */
    MAX_ROW_GAP = 64 << 10 /* see count_rows */
};

/* A schedule in the making. */
struct maker {
    struct schedule *schedule;
    size_t range_capacity, batch_capacity, copy_capacity;
    size_t slot_bytes;
    size_t used; /* of the last batch's slot */
    bool out_of_memory;
};

/* Makes room for one more element. */
#define GROW(maker, array, count, capacity) \
    (MS_ARRAY_GROW(array, count, capacity) || ran_out(maker))

static bool ran_out(struct maker *maker)
{
    maker->out_of_memory = true;
    return false;
}

static bool add_batch(struct maker *maker)
{
    struct schedule *schedule = maker->schedule;
    if (!GROW(maker, schedule->batches, schedule->batch_count, maker->batch_capacity))
        return false;
    schedule->batches[schedule->batch_count++] = (struct ms_read_batch){schedule->range_count, 0};
    maker->used = 0;
    return true;
}

static bool append_range(struct maker *maker, const struct ms_file_range *range)
{
    struct schedule *schedule = maker->schedule;
    if (!GROW(maker, schedule->ranges, schedule->range_count, maker->range_capacity))
        return false;
    schedule->ranges[schedule->range_count++] = *range;
    schedule->batches[schedule->batch_count - 1].count++;
    return true;
}

static bool is_batch_open(const struct schedule *schedule)
{
    return schedule->batch_count > 0 &&
           schedule->batches[schedule->batch_count - 1].count < MAX_RANGES;
}

/* Cuts a range where a part that may have a checksum ends: else each piece of the part would read
 * the rest of it (files/sums.h). */
static size_t cut_behind_part(uint64_t begin, size_t bytes, uint64_t end)
{
    const size_t beyond = (begin + bytes) % MS_SUMS_PART;
    return begin + bytes < end && beyond < bytes ? bytes - beyond : bytes;
}

/* Adds [begin, end) of a file, cut where slots are full. */
static void add_range(struct maker *maker, const struct ms_file *file, uint64_t begin, uint64_t end)
{
    while (begin < end) {
        if (!is_batch_open(maker->schedule) && !add_batch(maker))
            return;
        struct ms_file_range range = {.file = file, .offset = begin};
        range.bytes = ms_reader_place(begin, (size_t)(end - begin), maker->slot_bytes, &maker->used,
                                      &range.place);
        range.bytes = cut_behind_part(begin, range.bytes, end);
        if (range.bytes == 0 ? !add_batch(maker) : !append_range(maker, &range))
            return;
        begin += range.bytes;
    }
}

/* True if at most one whole block lies untouched between `end` and `begin`. */
static bool are_close(uint64_t end, uint64_t begin)
{
    return begin / MS_READER_BLOCK <= (end - 1) / MS_READER_BLOCK + 2;
}

static void make_ranges(struct maker *maker, const struct ms_read_request *requests, size_t count)
{
    const struct ms_file *file = requests[0].file;
    uint64_t begin = requests[0].offset;
    uint64_t end = begin + requests[0].bytes;
    for (size_t i = 1; i < count && !maker->out_of_memory; i++) {
        const uint64_t request_end = requests[i].offset + requests[i].bytes;
        if (requests[i].file != file || !are_close(end, requests[i].offset)) {
            add_range(maker, file, begin, end);
            file = requests[i].file;
            begin = requests[i].offset;
            end = request_end;
        } else if (request_end > end) {
            end = request_end;
        }
    }
    add_range(maker, file, begin, end);
}

/* Extends the batch's last copy if the new copy follows it on both sides. */
static void add_copy(struct maker *maker, size_t batch, const struct slot_copy *copy)
{
    struct schedule *schedule = maker->schedule;
    schedule->wanted_bytes += copy->bytes;
    if (schedule->copy_count > schedule->first_copy[batch]) {
        struct slot_copy *last = &schedule->copies[schedule->copy_count - 1];
        if (last->place + last->bytes == copy->place &&
            last->address + last->bytes == copy->address) {
            last->bytes += copy->bytes;
            return;
        }
    }
    if (GROW(maker, schedule->copies, schedule->copy_count, maker->copy_capacity))
        schedule->copies[schedule->copy_count++] = *copy;
}

/* The part of the request that lies in the range. */
static struct slot_copy cut(const struct ms_read_request *request,
                            const struct ms_file_range *range)
{
    const uint64_t begin = request->offset > range->offset ? request->offset : range->offset;
    const uint64_t end = ms_least(request->offset + request->bytes, range->offset + range->bytes);
    return (struct slot_copy){.place = range->place + (size_t)(begin - range->offset),
                              .bytes = (size_t)(end - begin),
                              .address = request->address + (begin - request->offset)};
}

/* The requests that reach into a range, while ranges are visited in order. */
struct sweep {
    const struct ms_read_request *requests;
    size_t count;
    size_t next;    /* the first that no range has reached */
    size_t *active; /* requests that have begun and not ended */
    size_t active_count;
};

static void add_copies(struct maker *maker, struct sweep *sweep, size_t batch,
                       const struct ms_file_range *range)
{
    const uint64_t range_end = range->offset + range->bytes;
    while (sweep->next < sweep->count && sweep->requests[sweep->next].file == range->file &&
           sweep->requests[sweep->next].offset < range_end)
        sweep->active[sweep->active_count++] = sweep->next++;
    size_t kept = 0;
    for (size_t i = 0; i < sweep->active_count; i++) {
        const struct ms_read_request *request = &sweep->requests[sweep->active[i]];
        const struct slot_copy copy = cut(request, range);
        add_copy(maker, batch, &copy);
        if (request->offset + request->bytes > range_end)
            sweep->active[kept++] = sweep->active[i];
    }
    sweep->active_count = kept;
}

static void make_copies(struct maker *maker, const struct ms_read_request *requests, size_t count)
{
    struct schedule *schedule = maker->schedule;
    struct sweep sweep = {.requests = requests, .count = count};
    sweep.active = ms_heap_alloc(count * sizeof(*sweep.active));
    schedule->first_copy =
        ms_heap_alloc((schedule->batch_count + 1) * sizeof(*schedule->first_copy));
    maker->out_of_memory = sweep.active == NULL || schedule->first_copy == NULL;
    for (size_t i = 0; i < schedule->batch_count && !maker->out_of_memory; i++) {
        const struct ms_read_batch *batch = &schedule->batches[i];
        schedule->first_copy[i] = schedule->copy_count;
        for (size_t j = 0; j < batch->count && !maker->out_of_memory; j++)
            add_copies(maker, &sweep, i, &schedule->ranges[batch->first + j]);
    }
    if (!maker->out_of_memory)
        schedule->first_copy[schedule->batch_count] = schedule->copy_count;
    ms_heap_free(sweep.active);
}

static int by_place_in_file(const void *a, const void *b)
{
    const struct ms_read_request *left = a;
    const struct ms_read_request *right = b;
    if (left->file != right->file)
        return (uintptr_t)left->file < (uintptr_t)right->file ? -1 : 1;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    return left->address < right->address ? -1 : left->address > right->address;
}

/* Requests usually are sorted. This avoids qsort, which may use the program's heap. */
static bool are_sorted(const struct ms_read_request *requests, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (by_place_in_file(&requests[i - 1], &requests[i]) > 0)
            return false;
    }
    return true;
}

static void free_schedule(struct schedule *schedule)
{
    ms_heap_free(schedule->ranges);
    ms_heap_free(schedule->batches);
    ms_heap_free(schedule->copies);
    ms_heap_free(schedule->first_copy);
}

/* Sorts the requests; none is empty. If out of memory, returns false and needs no cleanup. */
static bool make_schedule(struct schedule *schedule, struct ms_read_request *requests, size_t count,
                          size_t slot_bytes)
{
    *schedule = (struct schedule){0};
    struct maker maker = {.schedule = schedule, .slot_bytes = slot_bytes};
    if (!are_sorted(requests, count))
        qsort(requests, count, sizeof(*requests), by_place_in_file);
    make_ranges(&maker, requests, count);
    if (!maker.out_of_memory)
        make_copies(&maker, requests, count);
    if (maker.out_of_memory)
        free_schedule(schedule);
    return !maker.out_of_memory;
}

/*
 * Returns how many of `count` copies of one batch, from copies[0], lie at equal distances on both
 * sides, so that they are one copy of rows: at least 1. A driver may refuse a copy of rows if
 * memory is missing between them. It accepts rows that are less than its smallest granule apart,
 * since no granule lies between two of them.
 */
static size_t count_rows(const struct slot_copy *copies, size_t count)
{
    if (count < 2)
        return count;
    const size_t bytes = copies[0].bytes;
    const size_t pitch = copies[1].place - copies[0].place;
    const CUdeviceptr distance = copies[1].address - copies[0].address;
    if (copies[1].place < copies[0].place + bytes ||
        copies[1].address < copies[0].address + bytes || pitch > INT32_MAX ||
        distance > INT32_MAX || distance - bytes >= MAX_ROW_GAP)
        return 1;
    size_t rows = 1;
    while (rows < count && copies[rows].bytes == bytes &&
           copies[rows].place == copies[0].place + rows * pitch &&
           copies[rows].address == copies[0].address + rows * distance)
        rows++;
    return rows;
}

/* --- a transfer */

struct transfer {
    struct schedule schedule;
    struct ms_reader *reader;
    CUstream stream;

    struct ms_pinned_area staging;
    size_t slot_bytes, slot_count;
    CUevent
        *events; /* one for each slot that is filled again: complete when its bytes are copied */
    size_t event_count;
    size_t *queued; /* a ring of the slots that are being copied, the oldest first */
    size_t oldest, queued_count;

    size_t bytes_done;
    uint64_t began_ns, reported_ns;
};

static void report(struct transfer *transfer)
{
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC);
    if (now - transfer->reported_ns < report_ns)
        return;
    transfer->reported_ns = now;
    const double seconds = (double)(now - transfer->began_ns) / (double)MS_NS_PER_S;
    ms_log(MS_INFO, "filling device memory from files: %zu of %zu bytes, %.2f GiB/s",
           transfer->bytes_done, transfer->schedule.wanted_bytes,
           (double)transfer->bytes_done / (double)(1 << 30) / seconds);
}

/* --- staging */

/* More threads than cores would take turns, and the slots that they fill would leave the caches. */
static unsigned choose_threads(size_t bytes)
{
    uint64_t count = ms_least(bytes / min_thread_bytes, ms_config.read_threads);
    if (count > 1)
        count = ms_least(count, ms_kept_threads_cores());
    return count > 1 ? (unsigned)count : 0;
}

/* Gives each thread a slot that it fills and a slot that is copied, and two more for all. Does not
 * depend on the transfer, so a kept area fits the next one. */
static size_t choose_staging_bytes(void)
{
    const size_t enough = (2 * (size_t)choose_threads(SIZE_MAX) + 2) * max_slot_bytes;
    const size_t bytes = ms_round_down(ms_config.staging_bytes, min_slot_bytes);
    return bytes < min_slot_bytes ? min_slot_bytes : ms_least(bytes, enough);
}

/* Makes several slots, so that there is always one to read into and one to copy from. */
static size_t choose_slot_bytes(size_t bytes)
{
    const size_t most = ms_least(choose_staging_bytes() / 6, max_slot_bytes);
    const size_t slot = ms_round_down(ms_least(bytes / 8, most), min_slot_bytes);
    return slot > 0 ? slot : min_slot_bytes;
}

/* No events are needed where each batch has a slot of its own: nobody waits for a slot. */
static CUresult make_events(struct transfer *transfer)
{
    CUresult result = CUDA_SUCCESS;
    if (transfer->slot_count == transfer->schedule.batch_count)
        return CUDA_SUCCESS;
    transfer->queued = ms_heap_alloc(transfer->slot_count * sizeof(*transfer->queued));
    transfer->events = ms_heap_alloc(transfer->slot_count * sizeof(*transfer->events));
    if (transfer->queued == NULL || transfer->events == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    while (transfer->event_count < transfer->slot_count && result == CUDA_SUCCESS) {
        /* A waiting thread leaves its core to readers. */
        result = ms_driver.event_create(&transfer->events[transfer->event_count],
                                        CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
        transfer->event_count += result == CUDA_SUCCESS;
    }
    return result;
}

static CUresult take_staging(struct transfer *transfer, CUcontext context)
{
    const CUresult result = ms_pinned_pool_take(context, transfer->slot_bytes,
                                                choose_staging_bytes(), &transfer->staging);
    if (result != CUDA_SUCCESS)
        return result;
    transfer->slot_count =
        ms_least(transfer->staging.bytes / transfer->slot_bytes, transfer->schedule.batch_count);
    return make_events(transfer);
}

static void drop_staging(struct transfer *transfer)
{
    for (size_t i = 0; i < transfer->event_count; i++)
        ms_driver.event_destroy(transfer->events[i]);
    ms_heap_free(transfer->events);
    ms_heap_free(transfer->queued);
    if (transfer->staging.memory != NULL)
        ms_pinned_pool_drop(&transfer->staging);
}

static bool start_reading(struct transfer *transfer)
{
    const unsigned threads = choose_threads(transfer->schedule.wanted_bytes);
    const struct ms_reading reading = {
        .ranges = transfer->schedule.ranges,
        .batches = transfer->schedule.batches,
        .batch_count = transfer->schedule.batch_count,
        .slots = transfer->staging.memory,
        .slot_bytes = transfer->slot_bytes,
        .slot_count = transfer->slot_count,
        .threads = threads < transfer->slot_count ? threads : (unsigned)transfer->slot_count,
        .busy_threads =
            ms_kept_threads_cores() - 1, /* one core for the program's thread, which copies */
        .cancelled = cancel_flag(),
    };
    transfer->reader = ms_reader_create(&reading);
    return transfer->reader != NULL;
}

/* --- copying */

static CUresult copy_rows(const struct transfer *transfer, const struct slot_copy *copies,
                          size_t rows, const unsigned char *slot)
{
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = slot + copies[0].place,
        .srcPitch = copies[1].place - copies[0].place,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = copies[0].address,
        .dstPitch = (size_t)(copies[1].address - copies[0].address),
        .WidthInBytes = copies[0].bytes,
        .Height = rows,
    };
    return ms_driver.memcpy_2d_async(&copy, transfer->stream);
}

static CUresult copy_pieces(struct transfer *transfer, size_t batch, const unsigned char *slot)
{
    const struct slot_copy *copies = transfer->schedule.copies;
    const size_t end = transfer->schedule.first_copy[batch + 1];
    CUresult result = CUDA_SUCCESS;
    size_t rows;
    for (size_t i = transfer->schedule.first_copy[batch]; i < end && result == CUDA_SUCCESS;
         i += rows) {
        rows = count_rows(&copies[i], end - i);
        result = rows > 1 ? copy_rows(transfer, &copies[i], rows, slot)
                          : ms_driver.memcpy_htod_async(copies[i].address, slot + copies[i].place,
                                                        copies[i].bytes, transfer->stream);
        if (result == CUDA_SUCCESS) {
            ms_counter_add(MS_COUNT_H2D_BYTES, rows * copies[i].bytes);
            transfer->bytes_done += rows * copies[i].bytes;
        }
    }
    return result;
}

/* There is a slot: take_staging got at least one, and there is something to read.
 * NOLINTBEGIN(clang-analyzer-core.DivideZero) */
static CUresult queue(struct transfer *transfer, const struct ms_read_done *done)
{
    CUresult result = copy_pieces(transfer, done->batch,
                                  transfer->staging.memory + done->slot * transfer->slot_bytes);
    if (transfer->event_count == 0)
        return result;
    if (result == CUDA_SUCCESS)
        result = ms_driver.event_record(transfer->events[done->slot], transfer->stream);
    const size_t at = transfer->oldest + transfer->queued_count;
    transfer->queued[at % transfer->slot_count] = done->slot;
    transfer->queued_count++;
    return result;
}

static void give_back_oldest(struct transfer *transfer)
{
    ms_reader_give_back(transfer->reader, transfer->queued[transfer->oldest]);
    transfer->oldest = (transfer->oldest + 1) % transfer->slot_count;
    transfer->queued_count--;
}
/* NOLINTEND(clang-analyzer-core.DivideZero) */

static CUresult give_back_copied(struct transfer *transfer)
{
    CUresult result = CUDA_SUCCESS;
    while (transfer->queued_count > 0 && result == CUDA_SUCCESS) {
        result = ms_driver.event_query(transfer->events[transfer->queued[transfer->oldest]]);
        if (result == CUDA_SUCCESS)
            give_back_oldest(transfer);
    }
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

/* Waits for the oldest copy if there is no slot to read into. */
static CUresult wait_for_slot(struct transfer *transfer)
{
    if (transfer->queued_count < transfer->slot_count)
        return CUDA_SUCCESS;
    const CUresult result =
        ms_driver.event_synchronize(transfer->events[transfer->queued[transfer->oldest]]);
    if (result == CUDA_SUCCESS)
        give_back_oldest(transfer);
    return result;
}

static CUresult move_batches(struct transfer *transfer)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t moved = 0; moved < transfer->schedule.batch_count && result == CUDA_SUCCESS;) {
        if (atomic_load(cancel_flag()))
            return CUDA_ERROR_DEINITIALIZED;
        report(transfer);
        result = give_back_copied(transfer);
        if (result != CUDA_SUCCESS)
            break;
        struct ms_read_done done;
        const uint64_t wait_ns =
            transfer->queued_count > 0 ? MS_NS_PER_S / 10000 : MS_NS_PER_S / 20;
        result = wait_for_slot(transfer);
        if (result != CUDA_SUCCESS)
            break;
        result = ms_reader_next(transfer->reader, wait_ns, &done);
        if (result == CUDA_ERROR_NOT_READY) {
            result = CUDA_SUCCESS;
        } else if (result == CUDA_SUCCESS) {
            result = queue(transfer, &done);
            moved++;
        }
    }
    return result;
}

/* --- the whole transfer */

static CUresult carry_out(struct transfer *transfer, CUcontext context)
{
    CUresult result = take_staging(transfer, context);
    if (result == CUDA_SUCCESS && !start_reading(transfer))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        result = move_batches(transfer);
        ms_reader_destroy(transfer->reader);
    }
    /* Also after a failure: queued copies must not outlive staging. */
    const CUresult waited = ms_driver_wait(transfer->stream);
    drop_staging(transfer);
    return result != CUDA_SUCCESS ? result : waited;
}

/* Returns how many requests are left, and their bytes. */
static size_t drop_empty(struct ms_read_request *requests, size_t count, size_t *bytes_out)
{
    size_t kept = 0;
    *bytes_out = 0;
    for (size_t i = 0; i < count; i++) {
        *bytes_out += requests[i].bytes;
        if (requests[i].bytes > 0)
            requests[kept++] = requests[i];
    }
    return kept;
}

static CUresult transfer_runs(struct ms_read_request *requests, size_t count, CUcontext context,
                              CUstream stream)
{
    if (atomic_load(cancel_flag()))
        return CUDA_ERROR_DEINITIALIZED;
    size_t bytes;
    count = drop_empty(requests, count, &bytes);
    if (count == 0)
        return CUDA_SUCCESS;
    struct transfer transfer = {.stream = stream, .began_ns = ms_clock_ns(CLOCK_MONOTONIC)};
    transfer.reported_ns = transfer.began_ns;
    transfer.slot_bytes = choose_slot_bytes(bytes);
    if (!make_schedule(&transfer.schedule, requests, count, transfer.slot_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = carry_out(&transfer, context);
    free_schedule(&transfer.schedule);
    return result;
}

CUresult ms_transfer(struct ms_read_request *requests, size_t count, CUcontext context,
                     CUstream stream)
{
    const int saved_errno = errno;
    int cancel_state;
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    /* The reading threads must not be left behind. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    result = transfer_runs(requests, count, context, stream);
    pthread_setcancelstate(cancel_state, NULL);
    ms_driver_leave(&scope);
    errno = saved_errno;
    return result;
}

void ms_transfer_let_cancel(void)
{
    may_be_cancelled = true;
}

void ms_transfer_cancel(void)
{
    atomic_store(&is_cancelled, true);
}
