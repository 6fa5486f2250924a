/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first row that ends after `address`. */
static size_t first_ending_after(const struct sim_table *table, uint64_t address)
{
    size_t low = 0;
    size_t high = table->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct sim_region *row = table->rows[middle];
        /* The last byte, not the end: a region may reach the top of the address space. */
        if (row->begin + (row->bytes - 1) < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void sim_table_add(struct sim_table *table, struct sim_region *row)
{
    if (table->count == table->room) {
        const size_t room = table->room == 0 ? 64 : table->room * 2;
        struct sim_region **rows = sim_zalloc(room * sizeof(rows[0]));
        if (table->count > 0)
            memcpy(rows, table->rows, table->count * sizeof(rows[0]));
        free(table->rows);
        table->rows = rows;
        table->room = room;
    }
    const size_t at = first_ending_after(table, row->begin);
    memmove(&table->rows[at + 1], &table->rows[at], (table->count - at) * sizeof(row));
    table->rows[at] = row;
    table->count++;
}

void sim_table_remove(struct sim_table *table, struct sim_region *row)
{
    const size_t at = first_ending_after(table, row->begin);
    if (at == table->count || table->rows[at] != row)
        return;
    table->count--;
    memmove(&table->rows[at], &table->rows[at + 1], (table->count - at) * sizeof(row));
}

struct sim_region *sim_table_at_or_after(const struct sim_table *table, uint64_t address)
{
    const size_t at = first_ending_after(table, address);
    return at < table->count ? table->rows[at] : NULL;
}

struct sim_region *sim_table_find(const struct sim_table *table, uint64_t address)
{
    struct sim_region *row = sim_table_at_or_after(table, address);
    return row != NULL && row->begin <= address ? row : NULL;
}

bool sim_table_overlaps(const struct sim_table *table, uint64_t begin, size_t bytes)
{
    const struct sim_region *row = sim_table_at_or_after(table, begin);
    return bytes > 0 && row != NULL && (row->begin <= begin || row->begin - begin < bytes);
}

static void insert_extent(struct sim_extents *extents, size_t at, uint64_t begin, size_t bytes)
{
    if (extents->count == extents->room) {
        const size_t room = extents->room == 0 ? 8 : extents->room * 2;
        struct sim_range *rows = sim_zalloc(room * sizeof(rows[0]));
        if (extents->count > 0)
            memcpy(rows, extents->rows, extents->count * sizeof(rows[0]));
        free(extents->rows);
        extents->rows = rows;
        extents->room = room;
    }
    memmove(&extents->rows[at + 1], &extents->rows[at],
            (extents->count - at) * sizeof(extents->rows[0]));
    extents->rows[at] = (struct sim_range){begin, bytes};
    extents->count++;
}

static void delete_extent(struct sim_extents *extents, size_t at)
{
    extents->count--;
    memmove(&extents->rows[at], &extents->rows[at + 1],
            (extents->count - at) * sizeof(extents->rows[0]));
}

/* Cuts [begin, begin + bytes) out of row `at`, which contains it. */
static void cut_extent(struct sim_extents *extents, size_t at, uint64_t begin, size_t bytes)
{
    struct sim_range *row = &extents->rows[at];
    const size_t before = begin - row->begin;
    const size_t after = row->bytes - before - bytes;
    if (before == 0 && after == 0) {
        delete_extent(extents, at);
    } else if (before == 0) {
        row->begin += bytes;
        row->bytes = after;
    } else {
        row->bytes = before;
        if (after > 0)
            insert_extent(extents, at + 1, begin + bytes, after);
    }
}

bool sim_extents_take(struct sim_extents *extents, size_t bytes, size_t alignment,
                      uint64_t *begin_out)
{
    for (size_t i = 0; i < extents->count; i++) {
        const struct sim_range *row = &extents->rows[i];
        const uint64_t begin = sim_round_up(row->begin, alignment);
        const size_t skipped = begin - row->begin;
        if (row->bytes >= skipped && row->bytes - skipped >= bytes) {
            cut_extent(extents, i, begin, bytes);
            *begin_out = begin;
            return true;
        }
    }
    return false;
}

bool sim_extents_take_at(struct sim_extents *extents, uint64_t begin, size_t bytes)
{
    for (size_t i = 0; i < extents->count; i++) {
        const struct sim_range *row = &extents->rows[i];
        if (row->begin > begin || begin - row->begin >= row->bytes)
            continue;
        if (row->bytes - (begin - row->begin) < bytes)
            return false;
        cut_extent(extents, i, begin, bytes);
        return true;
    }
    return false;
}

void sim_extents_give(struct sim_extents *extents, uint64_t begin, size_t bytes)
{
    size_t at = 0;
    while (at < extents->count && extents->rows[at].begin < begin)
        at++;
    const bool joins_left =
        at > 0 && extents->rows[at - 1].begin + extents->rows[at - 1].bytes == begin;
    const bool joins_right = at < extents->count && begin + bytes == extents->rows[at].begin;
    if (joins_left && joins_right) {
        extents->rows[at - 1].bytes += bytes + extents->rows[at].bytes;
        delete_extent(extents, at);
    } else if (joins_left) {
        extents->rows[at - 1].bytes += bytes;
    } else if (joins_right) {
        extents->rows[at].begin = begin;
        extents->rows[at].bytes += bytes;
    } else {
        insert_extent(extents, at, begin, bytes);
    }
}

void sim_extents_cleanup(struct sim_extents *extents)
{
    free(extents->rows);
    *extents = (struct sim_extents){0};
}
