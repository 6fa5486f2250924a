/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/schedule.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"

enum {
    MAX_PARTS =
        1024, /* in a batch: so many small reads in a row keep one thread busy long enough */
    MAX_ROW_GAP = 64 << 10 /* see ms_gather_rows */
};

/* While it is made. */
struct maker {
    struct ms_gather *gather;
    size_t part_capacity, batch_capacity, piece_capacity;
    size_t slot_bytes;
    size_t used; /* of the last batch's slot */
    bool out_of_memory;
};

/* Room for one more element behind `count`. */
static bool grow(struct maker *maker, void *array, size_t count, size_t *capacity, size_t element)
{
    if (count < *capacity)
        return true;
    void *old;
    memcpy(&old, array, sizeof(old));
    const size_t wanted = *capacity > 0 ? 2 * *capacity : 64;
    void *larger = ms_heap_realloc(old, wanted * element);
    if (larger == NULL) {
        maker->out_of_memory = true;
        return false;
    }
    memcpy(array, &larger, sizeof(larger));
    *capacity = wanted;
    return true;
}

static bool add_batch(struct maker *maker)
{
    struct ms_gather *gather = maker->gather;
    if (!grow(maker, &gather->batches, gather->batch_count, &maker->batch_capacity,
              sizeof(*gather->batches)))
        return false;
    gather->batches[gather->batch_count++] = (struct ms_read_batch){gather->part_count, 0};
    maker->used = 0;
    return true;
}

static bool add_part(struct maker *maker, const struct ms_read_part *part)
{
    struct ms_gather *gather = maker->gather;
    if (!grow(maker, &gather->parts, gather->part_count, &maker->part_capacity,
              sizeof(*gather->parts)))
        return false;
    gather->parts[gather->part_count++] = *part;
    gather->batches[gather->batch_count - 1].count++;
    return true;
}

static bool is_batch_open(const struct ms_gather *gather)
{
    return gather->batch_count > 0 && gather->batches[gather->batch_count - 1].count < MAX_PARTS;
}

/* [begin, end) of a file, cut where slots are full. */
static void add_range(struct maker *maker, const struct ms_source *source, uint64_t begin,
                      uint64_t end)
{
    while (begin < end) {
        if (!is_batch_open(maker->gather) && !add_batch(maker))
            return;
        struct ms_read_part part = {.source = source, .offset = begin};
        part.bytes = ms_reader_place(begin, (size_t)(end - begin), maker->slot_bytes, &maker->used,
                                     &part.place);
        if (part.bytes == 0 ? !add_batch(maker) : !add_part(maker, &part))
            return;
        begin += part.bytes;
    }
}

/* At most one whole block lies between them that neither touches. */
static bool are_close(uint64_t end, uint64_t begin)
{
    return begin / MS_READER_BLOCK <= (end - 1) / MS_READER_BLOCK + 2;
}

static void make_parts(struct maker *maker, const struct ms_run *runs, size_t count)
{
    const struct ms_source *source = runs[0].source;
    uint64_t begin = runs[0].offset;
    uint64_t end = begin + runs[0].bytes;
    for (size_t i = 1; i < count && !maker->out_of_memory; i++) {
        const uint64_t run_end = runs[i].offset + runs[i].bytes;
        if (runs[i].source != source || !are_close(end, runs[i].offset)) {
            add_range(maker, source, begin, end);
            source = runs[i].source;
            begin = runs[i].offset;
            end = run_end;
        } else if (run_end > end) {
            end = run_end;
        }
    }
    add_range(maker, source, begin, end);
}

/* What follows the batch's last piece on both sides is part of it. */
static void add_piece(struct maker *maker, size_t batch, const struct ms_piece *piece)
{
    struct ms_gather *gather = maker->gather;
    gather->wanted_bytes += piece->bytes;
    if (gather->piece_count > gather->first_piece[batch]) {
        struct ms_piece *last = &gather->pieces[gather->piece_count - 1];
        if (last->place + last->bytes == piece->place &&
            last->address + last->bytes == piece->address) {
            last->bytes += piece->bytes;
            return;
        }
    }
    if (grow(maker, &gather->pieces, gather->piece_count, &maker->piece_capacity,
             sizeof(*gather->pieces)))
        gather->pieces[gather->piece_count++] = *piece;
}

/* The part of run that lies in part. */
static struct ms_piece cut(const struct ms_run *run, const struct ms_read_part *part)
{
    const uint64_t run_end = run->offset + run->bytes;
    const uint64_t part_end = part->offset + part->bytes;
    const uint64_t begin = run->offset > part->offset ? run->offset : part->offset;
    const uint64_t end = run_end < part_end ? run_end : part_end;
    return (struct ms_piece){.place = part->place + (size_t)(begin - part->offset),
                             .bytes = (size_t)(end - begin),
                             .address = run->address + (begin - run->offset)};
}

/* The runs that reach into a part, as the parts are gone through in order. */
struct sweep {
    const struct ms_run *runs;
    size_t count;
    size_t next;    /* the first that no part has reached */
    size_t *active; /* began already, and are not at their end */
    size_t active_count;
};

static void add_pieces(struct maker *maker, struct sweep *sweep, size_t batch,
                       const struct ms_read_part *part)
{
    const uint64_t part_end = part->offset + part->bytes;
    while (sweep->next < sweep->count && sweep->runs[sweep->next].source == part->source &&
           sweep->runs[sweep->next].offset < part_end)
        sweep->active[sweep->active_count++] = sweep->next++;
    size_t kept = 0;
    for (size_t i = 0; i < sweep->active_count; i++) {
        const struct ms_run *run = &sweep->runs[sweep->active[i]];
        const struct ms_piece piece = cut(run, part);
        add_piece(maker, batch, &piece);
        if (run->offset + run->bytes > part_end)
            sweep->active[kept++] = sweep->active[i];
    }
    sweep->active_count = kept;
}

static void make_pieces(struct maker *maker, const struct ms_run *runs, size_t count)
{
    struct ms_gather *gather = maker->gather;
    struct sweep sweep = {.runs = runs, .count = count};
    sweep.active = ms_heap_alloc(count * sizeof(*sweep.active));
    gather->first_piece = ms_heap_alloc((gather->batch_count + 1) * sizeof(*gather->first_piece));
    maker->out_of_memory = sweep.active == NULL || gather->first_piece == NULL;
    for (size_t i = 0; i < gather->batch_count && !maker->out_of_memory; i++) {
        const struct ms_read_batch *batch = &gather->batches[i];
        gather->first_piece[i] = gather->piece_count;
        for (size_t j = 0; j < batch->count && !maker->out_of_memory; j++)
            add_pieces(maker, &sweep, i, &gather->parts[batch->first + j]);
    }
    if (!maker->out_of_memory)
        gather->first_piece[gather->batch_count] = gather->piece_count;
    ms_heap_free(sweep.active);
}

static int by_place_in_file(const void *a, const void *b)
{
    const struct ms_run *left = a;
    const struct ms_run *right = b;
    if (left->source != right->source)
        return (uintptr_t)left->source < (uintptr_t)right->source ? -1 : 1;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    return left->address < right->address ? -1 : left->address > right->address;
}

/* Mostly they are: then the program's heap, which qsort may use, is left alone. */
static bool are_sorted(const struct ms_run *runs, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (by_place_in_file(&runs[i - 1], &runs[i]) > 0)
            return false;
    }
    return true;
}

bool ms_gather_init(struct ms_gather *gather, struct ms_run *runs, size_t count, size_t slot_bytes)
{
    *gather = (struct ms_gather){0};
    struct maker maker = {.gather = gather, .slot_bytes = slot_bytes};
    if (!are_sorted(runs, count))
        qsort(runs, count, sizeof(*runs), by_place_in_file);
    make_parts(&maker, runs, count);
    if (!maker.out_of_memory)
        make_pieces(&maker, runs, count);
    if (maker.out_of_memory)
        ms_gather_cleanup(gather);
    return !maker.out_of_memory;
}

void ms_gather_cleanup(struct ms_gather *gather)
{
    ms_heap_free(gather->parts);
    ms_heap_free(gather->batches);
    ms_heap_free(gather->pieces);
    ms_heap_free(gather->first_piece);
}

/*
 * A copy of rows may be refused when memory is missing between them. It is not while the rows are
 * less than the smallest granule of a driver apart: then no granule lies between two of them.
 */
size_t ms_gather_rows(const struct ms_piece *pieces, size_t count)
{
    if (count < 2)
        return count;
    const size_t bytes = pieces[0].bytes;
    const size_t pitch = pieces[1].place - pieces[0].place;
    const CUdeviceptr distance = pieces[1].address - pieces[0].address;
    if (pieces[1].place < pieces[0].place + bytes ||
        pieces[1].address < pieces[0].address + bytes || pitch > INT32_MAX ||
        distance > INT32_MAX || distance - bytes >= MAX_ROW_GAP)
        return 1;
    size_t rows = 1;
    while (rows < count && pieces[rows].bytes == bytes &&
           pieces[rows].place == pieces[0].place + rows * pitch &&
           pieces[rows].address == pieces[0].address + rows * distance)
        rows++;
    return rows;
}
