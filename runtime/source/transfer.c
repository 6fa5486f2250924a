/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/transfer.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/source/pinned_pool.h"
#include "runtime/source/reader.h"
#include "runtime/source/schedule.h"
#include "runtime/state/counters.h"

#define SECOND_NS UINT64_C(1000000000)

static const size_t min_slot_bytes = (size_t)256 << 10;
/* Larger slots are not read faster, but leave the caches before they are copied. */
static const size_t max_slot_bytes = (size_t)2 << 20;
/* Less than this is read before threads have started. */
static const size_t min_threaded_bytes = (size_t)4 << 20;
static const uint64_t report_ns = 2 * SECOND_NS;

static _Atomic bool is_cancelled;
static const _Atomic bool is_never; /* for the program's threads, which are never cancelled */
static _Thread_local bool may_be_cancelled __attribute__((tls_model("initial-exec")));

static const _Atomic bool *cancel_flag(void)
{
    return may_be_cancelled ? &is_cancelled : &is_never;
}

struct transfer {
    struct ms_schedule schedule;
    struct ms_reader *reader;
    CUstream stream;

    struct ms_pinned_area staging;
    size_t slot_bytes, slot_count;
    CUevent *events; /* one for each slot: complete when its bytes are copied */
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
    const double seconds = (double)(now - transfer->began_ns) / (double)SECOND_NS;
    ms_log(MS_INFO, "filling device memory from files: %zu of %zu bytes, %.2f GiB/s",
           transfer->bytes_done, transfer->schedule.wanted_bytes,
           (double)transfer->bytes_done / (double)(1 << 30) / seconds);
}

/* --- staging */

static size_t sum_bytes(const struct ms_read_request *requests, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += requests[i].bytes;
    return bytes;
}

static unsigned count_cores(void)
{
    cpu_set_t cores;
    /* The call fails if there are more than a set holds. */
    return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? (unsigned)CPU_COUNT(&cores)
                                                            : sizeof(cores) * 8;
}

/* More threads than cores would take turns, and the slots that they fill would leave the caches. */
static unsigned choose_threads(size_t bytes)
{
    const unsigned count = count_cores();
    if (ms_config.read_threads <= 1 || bytes < min_threaded_bytes || count <= 1)
        return 0;
    return ms_config.read_threads < count ? (unsigned)ms_config.read_threads : count;
}

/* For each thread a slot that it fills and one that is copied, and two more between them. Does not
 * depend on the transfer, so a kept area fits the next one. */
static size_t choose_staging_bytes(void)
{
    const size_t enough = (2 * (size_t)choose_threads(SIZE_MAX) + 2) * max_slot_bytes;
    const size_t bytes = (size_t)ms_config.staging_bytes / min_slot_bytes * min_slot_bytes;
    if (bytes < min_slot_bytes)
        return min_slot_bytes;
    return bytes < enough ? bytes : enough;
}

/* Makes several slots, so that there is always one to read into and one to copy from. */
static size_t choose_slot_bytes(size_t bytes)
{
    const size_t limit = choose_staging_bytes() / 6;
    size_t slot = bytes / 8;
    if (slot > limit)
        slot = limit;
    if (slot > max_slot_bytes)
        slot = max_slot_bytes;
    if (slot < min_slot_bytes)
        slot = min_slot_bytes;
    return slot / min_slot_bytes * min_slot_bytes;
}

static CUresult take_staging(struct transfer *transfer, CUcontext context)
{
    CUresult result = ms_pinned_pool_take(context, choose_staging_bytes(), &transfer->staging);
    if (result != CUDA_SUCCESS)
        return result;
    transfer->slot_count = transfer->staging.bytes / transfer->slot_bytes;
    if (transfer->slot_count > transfer->schedule.batch_count)
        transfer->slot_count = transfer->schedule.batch_count;
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
        .busy_threads = count_cores() - 1, /* one core for the program's thread, which copies */
        .cancelled = cancel_flag(),
    };
    transfer->reader = ms_reader_create(&reading);
    return transfer->reader != NULL;
}

/* --- copying */

static CUresult copy_rows(const struct transfer *transfer, const struct ms_slot_copy *copies,
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
    const struct ms_slot_copy *copies = transfer->schedule.copies;
    const size_t end = transfer->schedule.first_copy[batch + 1];
    CUresult result = CUDA_SUCCESS;
    size_t rows;
    for (size_t i = transfer->schedule.first_copy[batch]; i < end && result == CUDA_SUCCESS;
         i += rows) {
        rows = ms_schedule_rows(&copies[i], end - i);
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

/* Without a slot to read into, waits for a copy. */
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
        const uint64_t wait_ns = transfer->queued_count > 0 ? SECOND_NS / 10000 : SECOND_NS / 20;
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

/* --- all of it */

static CUresult carry_out(struct transfer *transfer, CUcontext context)
{
    CUresult result = take_staging(transfer, context);
    if (result == CUDA_SUCCESS && !start_reading(transfer))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        result = move_batches(transfer);
        if (result == CUDA_SUCCESS)
            result = ms_reader_check(transfer->reader);
        ms_reader_destroy(transfer->reader);
    }
    /* Also after a failure: queued copies must not outlive staging. */
    const CUresult waited = ms_driver_wait(transfer->stream);
    drop_staging(transfer);
    return result != CUDA_SUCCESS ? result : waited;
}

static size_t drop_empty(struct ms_read_request *requests, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
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
    count = drop_empty(requests, count);
    if (count == 0)
        return CUDA_SUCCESS;
    struct transfer transfer = {.stream = stream, .began_ns = ms_clock_ns(CLOCK_MONOTONIC)};
    transfer.reported_ns = transfer.began_ns;
    transfer.slot_bytes = choose_slot_bytes(sum_bytes(requests, count));
    if (!ms_schedule_init(&transfer.schedule, requests, count, transfer.slot_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = carry_out(&transfer, context);
    ms_schedule_cleanup(&transfer.schedule);
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
