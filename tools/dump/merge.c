/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/merge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t view_start_ns(const struct view *view)
{
    uint64_t start = UINT64_MAX;
    for (size_t i = 0; i < view->count; i++) {
        const uint64_t own = view->processes[i].process.started_ns;
        start = own < start ? own : start;
    }
    return start;
}

uint64_t view_shift_ns(const struct view *view, const struct ms_snapshot *snapshot)
{
    return snapshot->process.started_ns - view_start_ns(view);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct totals view_largest(const struct view *view)
{
    struct totals largest = {0};
    for (size_t p = 0; p < view->count; p++) {
        const struct totals own = totals_of(&view->processes[p]);
        for (int i = 0; i < TOTAL_COUNT; i++)
            largest.of[i] = larger(largest.of[i], own.of[i]);
    }
    return largest;
}

const struct ms_snapshot *view_worst(const struct view *view, const char *figure)
{
    const struct ms_snapshot *worst = &view->processes[0];
    for (size_t i = 1; i < view->count; i++) {
        if (ms_snapshot_figure(&view->processes[i], figure) > ms_snapshot_figure(worst, figure))
            worst = &view->processes[i];
    }
    return worst;
}

static bool is_first_of_job(const struct view *view, size_t process)
{
    const char *job = view->processes[process].process.job;
    for (size_t p = 0; p < process; p++)
        if (strcmp(view->processes[p].process.job, job) == 0)
            return false;
    return job[0] != '\0';
}

size_t view_runs(const struct view *view)
{
    size_t count = 0;
    for (size_t p = 0; p < view->count; p++)
        count += is_first_of_job(view, p);
    return count;
}

static bool is_there(const struct view *view, uint32_t rank)
{
    for (size_t i = 0; i < view->count; i++) {
        if (view->processes[i].process.rank == rank)
            return true;
    }
    return false;
}

/* The number of ranks, if all processes are of one job and have the same number; else 0. A launcher
 * has no rank. A page may be damaged, so the number has a bound. */
static uint32_t world_of(const struct view *view)
{
    enum { WORLD_MAX = 65536 };
    uint32_t world = 0;
    for (size_t i = 0; i < view->count; i++) {
        const struct ms_state_process *own = &view->processes[i].process;
        if (own->rank == MS_STATE_NO_RANK)
            continue;
        if (strcmp(own->job, view->processes[0].process.job) != 0 ||
            (world > 0 && own->world != world) || own->world > WORLD_MAX)
            return 0;
        world = own->world;
    }
    return world;
}

const char *view_missing_ranks(const struct view *view)
{
    enum { NAMED = 4 };
    static char text[96];
    /* One page alone may be what was asked for. */
    const uint32_t world = view->count > 1 ? world_of(view) : 0;
    uint32_t missing = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t rank = 0; rank < world; rank++) {
        if (is_there(view, rank))
            continue;
        if (missing < NAMED)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%" PRIu32,
                                     missing > 0 ? ", " : "", rank);
        missing++;
    }
    if (missing > NAMED)
        snprintf(text + used, sizeof(text) - used, " and %" PRIu32 " more", missing - NAMED);
    return text;
}

/* --- causes */

static int same_first(const void *a, const void *b)
{
    const struct ms_state_cause *left = a, *right = b;
    if (left->kind != right->kind)
        return left->kind < right->kind ? -1 : 1;
    if (left->reason != right->reason)
        return left->reason < right->reason ? -1 : 1;
    const int order = strcmp(left->call, right->call);
    return order != 0 ? order : strcmp(left->text, right->text);
}

static int most_bytes_first(const void *a, const void *b)
{
    const struct ms_state_cause *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes > right->bytes ? -1 : 1;
    if (left->count != right->count)
        return left->count > right->count ? -1 : 1;
    return same_first(a, b);
}

static void add_cause(struct ms_state_cause *cause, const struct ms_state_cause *added)
{
    cause->count += added->count;
    cause->bytes += added->bytes;
    cause->loaded_count += added->loaded_count;
    cause->loaded_bytes += added->loaded_bytes;
    cause->loaded_duration_ns = larger(cause->loaded_duration_ns, added->loaded_duration_ns);
    cause->duration_ns = larger(cause->duration_ns, added->duration_ns);
    cause->first_ns = added->first_ns < cause->first_ns ? added->first_ns : cause->first_ns;
    cause->last_ns = larger(cause->last_ns, added->last_ns);
}

/* Leaves the sums of a chapter. */
static void cut_cause(struct ms_state_cause *cause, enum chapter chapter)
{
    const bool loads = chapter == LOADING;
    if (chapter == WHOLE_RUN)
        return;
    cause->count = loads ? cause->loaded_count : cause->count - cause->loaded_count;
    cause->bytes = loads ? cause->loaded_bytes : cause->bytes - cause->loaded_bytes;
    cause->duration_ns =
        loads ? cause->loaded_duration_ns : cause->duration_ns - cause->loaded_duration_ns;
}

/* All of them, on the view's clock. */
static size_t gather_causes(const struct view *view, enum chapter chapter,
                            struct ms_state_cause *causes)
{
    size_t count = 0;
    for (size_t p = 0; p < view->count; p++) {
        const struct ms_snapshot *snapshot = &view->processes[p];
        const uint64_t shift = view_shift_ns(view, snapshot);
        for (size_t i = 0; i < snapshot->cause_count; i++) {
            causes[count] = snapshot->causes[i];
            causes[count].first_ns += shift;
            causes[count].last_ns += shift;
            cut_cause(&causes[count], chapter);
            count += causes[count].count > 0;
        }
    }
    return count;
}

struct ms_state_cause *view_causes(const struct view *view, enum chapter chapter, size_t *count_out)
{
    size_t count = 0, kept = 0;
    for (size_t p = 0; p < view->count; p++)
        count += view->processes[p].cause_count;
    struct ms_state_cause *causes = calloc(count + 1, sizeof(*causes));
    *count_out = 0;
    if (causes == NULL)
        return NULL;
    count = gather_causes(view, chapter, causes);
    qsort(causes, count, sizeof(*causes), same_first);
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && same_first(&causes[kept - 1], &causes[i]) == 0)
            add_cause(&causes[kept - 1], &causes[i]);
        else
            causes[kept++] = causes[i];
    }
    qsort(causes, kept, sizeof(*causes), most_bytes_first);
    *count_out = kept;
    return causes;
}

/* --- tensors */

static int by_name(const void *a, const void *b)
{
    const struct tensor_row *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static int by_size(const void *a, const void *b)
{
    const struct tensor_row *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes > right->bytes ? -1 : 1;
    return by_name(a, b);
}

static bool is_named(const struct ms_state_block *block)
{
    return block->name[0] != '\0' && (block->flags & MS_BLOCK_CARVED) == 0;
}

static struct tensor_row row_of(const struct ms_state_block *block)
{
    const uint64_t present = block->cached_bytes + block->kind_bytes[MS_BYTES_RESIDENT];
    return (struct tensor_row){block->name,
                               block->bytes,
                               block->deferred_bytes,
                               present,
                               block->kind_bytes[MS_BYTES_FILE],
                               1};
}

static void add_tensor(struct tensor_row *row, const struct tensor_row *added)
{
    row->bytes += added->bytes;
    row->deferred_bytes += added->deferred_bytes;
    row->present_bytes += added->present_bytes;
    row->file_bytes += added->file_bytes;
    row->blocks += added->blocks;
}

static void take_larger_tensor(struct tensor_row *row, const struct tensor_row *other)
{
    row->bytes = larger(row->bytes, other->bytes);
    row->deferred_bytes = larger(row->deferred_bytes, other->deferred_bytes);
    row->present_bytes = larger(row->present_bytes, other->present_bytes);
    row->file_bytes = larger(row->file_bytes, other->file_bytes);
    row->blocks = larger(row->blocks, other->blocks);
}

/* Leaves one row of each name. Returns how many are left. */
static size_t merge_rows(struct tensor_row *rows, size_t count,
                         void (*merge)(struct tensor_row *, const struct tensor_row *))
{
    size_t kept = 0;
    qsort(rows, count, sizeof(*rows), by_name);
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && by_name(&rows[kept - 1], &rows[i]) == 0)
            merge(&rows[kept - 1], &rows[i]);
        else
            rows[kept++] = rows[i];
    }
    return kept;
}

/* Adds the rows of one process, with blocks of one name added up. */
static size_t add_rows_of(const struct ms_snapshot *snapshot, struct tensor_row *rows)
{
    size_t count = 0;
    for (size_t i = 0; i < snapshot->block_count; i++) {
        if (is_named(&snapshot->blocks[i]))
            rows[count++] = row_of(&snapshot->blocks[i]);
    }
    return merge_rows(rows, count, add_tensor);
}

struct tensor_row *view_tensors(const struct view *view, size_t *count_out)
{
    size_t count = 0;
    for (size_t p = 0; p < view->count; p++)
        count += view->processes[p].block_count;
    struct tensor_row *rows = calloc(count + 1, sizeof(*rows));
    *count_out = count = 0;
    for (size_t p = 0; p < view->count && rows != NULL; p++)
        count += add_rows_of(&view->processes[p], rows + count);
    if (count == 0)
        return rows;
    *count_out = merge_rows(rows, count, take_larger_tensor);
    qsort(rows, *count_out, sizeof(*rows), by_size);
    return rows;
}

/* --- memory over time */

static size_t thin_out(struct moment *moments, size_t count, size_t most)
{
    if (count <= most)
        return count;
    const uint64_t first = moments[0].time_ns;
    const uint64_t span = (moments[count - 1].time_ns - first) / (most - 1) + 1;
    const struct moment last = moments[count - 1];
    size_t kept = 0;
    uint64_t in_span = UINT64_MAX;
    for (size_t i = 0; i + 1 < count; i++) {
        const uint64_t number = (moments[i].time_ns - first) / span;
        if (number != in_span)
            moments[kept++] = moments[i];
        else if (moments[i].backed_bytes > moments[kept - 1].backed_bytes)
            moments[kept - 1] = moments[i];
        in_span = number;
    }
    moments[kept++] = last;
    return kept;
}

struct moment *moments_of(const struct ms_snapshot *snapshot, size_t most, size_t *count_out)
{
    struct moment *moments = calloc(snapshot->sample_count + 1, sizeof(*moments));
    *count_out = 0;
    if (moments == NULL)
        return NULL;
    for (size_t i = 0; i < snapshot->sample_count; i++) {
        const struct ms_state_sample *now = &snapshot->samples[i];
        moments[i] = (struct moment){now->time_ns, now->live_bytes, now->deferred_bytes,
                                     now->backed_bytes, now->h2d_bytes};
    }
    *count_out = thin_out(moments, snapshot->sample_count, most);
    return moments;
}
