/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/schedule.h"

#include <stdint.h>
#include <stdlib.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"

enum {
    MAX_RANGES = 1024,     /* in a batch: enough small reads to keep one thread busy */
    MAX_ROW_GAP = 64 << 10 /* see ms_schedule_rows */
};

/* A schedule in the making. */
struct maker {
    struct ms_schedule *schedule;
    size_t range_capacity, batch_capacity, copy_capacity;
    size_t slot_bytes;
    size_t used; /* of the last batch's slot */
    bool out_of_memory;
};

/* Room for one more. */
#define GROW(maker, array, count, capacity) \
    (MS_ARRAY_GROW(array, count, capacity) || ran_out(maker))

static bool ran_out(struct maker *maker)
{
    maker->out_of_memory = true;
    return false;
}

static bool add_batch(struct maker *maker)
{
    struct ms_schedule *schedule = maker->schedule;
    if (!GROW(maker, schedule->batches, schedule->batch_count, maker->batch_capacity))
        return false;
    schedule->batches[schedule->batch_count++] = (struct ms_read_batch){schedule->range_count, 0};
    maker->used = 0;
    return true;
}

static bool append_range(struct maker *maker, const struct ms_file_range *range)
{
    struct ms_schedule *schedule = maker->schedule;
    if (!GROW(maker, schedule->ranges, schedule->range_count, maker->range_capacity))
        return false;
    schedule->ranges[schedule->range_count++] = *range;
    schedule->batches[schedule->batch_count - 1].count++;
    return true;
}

static bool is_batch_open(const struct ms_schedule *schedule)
{
    return schedule->batch_count > 0 &&
           schedule->batches[schedule->batch_count - 1].count < MAX_RANGES;
}

/* Adds [begin, end) of a file, cut where slots are full. */
static void add_range(struct maker *maker, const struct ms_source *source, uint64_t begin,
                      uint64_t end)
{
    while (begin < end) {
        if (!is_batch_open(maker->schedule) && !add_batch(maker))
            return;
        struct ms_file_range range = {.source = source, .offset = begin};
        range.bytes = ms_reader_place(begin, (size_t)(end - begin), maker->slot_bytes, &maker->used,
                                      &range.place);
        if (range.bytes == 0 ? !add_batch(maker) : !append_range(maker, &range))
            return;
        begin += range.bytes;
    }
}

/* True if at most one whole block lies between them that neither touches. */
static bool are_close(uint64_t end, uint64_t begin)
{
    return begin / MS_READER_BLOCK <= (end - 1) / MS_READER_BLOCK + 2;
}

static void make_ranges(struct maker *maker, const struct ms_read_request *requests, size_t count)
{
    const struct ms_source *source = requests[0].source;
    uint64_t begin = requests[0].offset;
    uint64_t end = begin + requests[0].bytes;
    for (size_t i = 1; i < count && !maker->out_of_memory; i++) {
        const uint64_t request_end = requests[i].offset + requests[i].bytes;
        if (requests[i].source != source || !are_close(end, requests[i].offset)) {
            add_range(maker, source, begin, end);
            source = requests[i].source;
            begin = requests[i].offset;
            end = request_end;
        } else if (request_end > end) {
            end = request_end;
        }
    }
    add_range(maker, source, begin, end);
}

/* Extends the batch's last copy if this one follows it on both sides. */
static void add_copy(struct maker *maker, size_t batch, const struct ms_slot_copy *copy)
{
    struct ms_schedule *schedule = maker->schedule;
    schedule->wanted_bytes += copy->bytes;
    if (schedule->copy_count > schedule->first_copy[batch]) {
        struct ms_slot_copy *last = &schedule->copies[schedule->copy_count - 1];
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
static struct ms_slot_copy cut(const struct ms_read_request *request,
                               const struct ms_file_range *range)
{
    const uint64_t request_end = request->offset + request->bytes;
    const uint64_t range_end = range->offset + range->bytes;
    const uint64_t begin = request->offset > range->offset ? request->offset : range->offset;
    const uint64_t end = request_end < range_end ? request_end : range_end;
    return (struct ms_slot_copy){.place = range->place + (size_t)(begin - range->offset),
                                 .bytes = (size_t)(end - begin),
                                 .address = request->address + (begin - request->offset)};
}

/* The requests that reach into a range, while ranges are visited in order. */
struct sweep {
    const struct ms_read_request *requests;
    size_t count;
    size_t next;    /* the first that no range has reached */
    size_t *active; /* those that have begun and not ended */
    size_t active_count;
};

static void add_copies(struct maker *maker, struct sweep *sweep, size_t batch,
                       const struct ms_file_range *range)
{
    const uint64_t range_end = range->offset + range->bytes;
    while (sweep->next < sweep->count && sweep->requests[sweep->next].source == range->source &&
           sweep->requests[sweep->next].offset < range_end)
        sweep->active[sweep->active_count++] = sweep->next++;
    size_t kept = 0;
    for (size_t i = 0; i < sweep->active_count; i++) {
        const struct ms_read_request *request = &sweep->requests[sweep->active[i]];
        const struct ms_slot_copy copy = cut(request, range);
        add_copy(maker, batch, &copy);
        if (request->offset + request->bytes > range_end)
            sweep->active[kept++] = sweep->active[i];
    }
    sweep->active_count = kept;
}

static void make_copies(struct maker *maker, const struct ms_read_request *requests, size_t count)
{
    struct ms_schedule *schedule = maker->schedule;
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
    if (left->source != right->source)
        return (uintptr_t)left->source < (uintptr_t)right->source ? -1 : 1;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    return left->address < right->address ? -1 : left->address > right->address;
}

/* They usually are. This avoids qsort, which may use the program's heap. */
static bool are_sorted(const struct ms_read_request *requests, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (by_place_in_file(&requests[i - 1], &requests[i]) > 0)
            return false;
    }
    return true;
}

bool ms_schedule_init(struct ms_schedule *schedule, struct ms_read_request *requests, size_t count,
                      size_t slot_bytes)
{
    *schedule = (struct ms_schedule){0};
    struct maker maker = {.schedule = schedule, .slot_bytes = slot_bytes};
    if (!are_sorted(requests, count))
        qsort(requests, count, sizeof(*requests), by_place_in_file);
    make_ranges(&maker, requests, count);
    if (!maker.out_of_memory)
        make_copies(&maker, requests, count);
    if (maker.out_of_memory)
        ms_schedule_cleanup(schedule);
    return !maker.out_of_memory;
}

void ms_schedule_cleanup(struct ms_schedule *schedule)
{
    ms_heap_free(schedule->ranges);
    ms_heap_free(schedule->batches);
    ms_heap_free(schedule->copies);
    ms_heap_free(schedule->first_copy);
}

/*
 * A driver may refuse a copy of rows if memory is missing between them. It accepts rows that are
 * less than its smallest granule apart, since no granule lies between two of them.
 */
size_t ms_schedule_rows(const struct ms_slot_copy *copies, size_t count)
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
