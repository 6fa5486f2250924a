/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump show: the summary first, then the details. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/explain.h"
#include "tools/dump/line.h"
#include "tools/dump/merge.h"

enum { SHOWN_BLOCKS = 30, SHOWN_TENSORS = 30, SHOWN_CAUSES = 20, SHOWN_EVENTS = 20 };

/* --- summary */

static void show_title(const struct ms_snapshot *snapshot)
{
    const struct ms_state_process *process = &snapshot->process;
    line(life_color(snapshot, BOLD), "%s: %s %s", process_name(snapshot), life_words(snapshot),
         time_text(snapshot->taken_ns));
    line(PLAIN, "  %s", process->command);
    line(DIM, "  in %s on %s%s%s, MetaShard %s", process->folder, process->host,
         process->job[0] != '\0' ? ", job " : "", process->job, process->version);
}

/* Shows the saving, before all figures. `whose`: "", or of which process. */
static void show_headline(const struct totals *totals, const char *whose)
{
    const uint64_t without = totals->of[TOTAL_LIVE_PEAK], with = totals->of[TOTAL_BACKED_PEAK];
    if (without == 0)
        return;
    const double percent = 100.0 * ((double)with - (double)without) / (double)without;
    line(BOLD, "  peak %s instead of %s (%+.0f %%), of these allocations%s", bytes_text(with),
         bytes_text(without), percent, whose);
}

/* Loading and what follows are two things: only the first is less. */
static void show_loaded(const struct ms_snapshot *snapshot)
{
    const uint64_t with = ms_snapshot_figure(snapshot, "loaded_backed_bytes_peak");
    const uint64_t without = ms_snapshot_figure(snapshot, "loaded_live_bytes_peak");
    if (without > 0)
        line(BOLD, "  while it loaded: peak %s instead of %s", bytes_text(with),
             bytes_text(without));
}

static void show_totals(const struct totals *totals, uint64_t allocations)
{
    for (enum total i = 0; i < TOTAL_COUNT; i++) {
        char text[160];
        snprintf(text, sizeof(text), "%s", total_names[i].meaning);
        if (i == TOTAL_REQUESTED)
            snprintf(text, sizeof(text), "in %" PRIu64 " allocations; at most %s at a time, now %s",
                     allocations, total_text(totals, TOTAL_LIVE_PEAK),
                     total_text(totals, TOTAL_LIVE));
        if (i == TOTAL_BACKED)
            snprintf(text, sizeof(text), "%s; at most %s", total_names[i].meaning,
                     total_text(totals, TOTAL_BACKED_PEAK));
        if (i != TOTAL_LIVE && i != TOTAL_LIVE_PEAK && i != TOTAL_BACKED_PEAK)
            line(PLAIN, "  %-10s %12s   %s", total_names[i].term, total_text(totals, i), text);
    }
}

static void show_plan(const struct ms_state_plan *plan)
{
    if (plan->generation == 0)
        return;
    line(PLAIN, "  plan       %s: rank %" PRIu32 " of %" PRIu32 " keeps %s of %s, %s", plan->name,
         plan->rank, plan->world, bytes_text(plan->owned_bytes), bytes_text(plan->planned_bytes),
         plan->enforced != 0 ? "enforced" : "as advice");
}

static void show_self_checks(const struct ms_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->device_count; i++) {
        const struct ms_state_device *device = &snapshot->devices[i];
        const enum color color = device->unmet[0] != '\0' ? YELLOW : PLAIN;
        if (device->check == MS_CHECK_NONE)
            continue;
        line(color, "  self-check of device %zu: %s%s", i, ms_check_state_name(device->check),
             check_outcome(device));
        if (device->unmet[0] != '\0')
            paragraph(color, 4, device->unmet);
    }
}

/* Shows the bytes that were loaded when loading ended, with time and reason. */
static void show_settled(const struct ms_snapshot *snapshot)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < snapshot->cause_count; i++)
        bytes += snapshot->causes[i].kind == MS_EVENT_SETTLE ? snapshot->causes[i].bytes : 0;
    if (ms_snapshot_figure(snapshot, "settles") > 0)
        line(PLAIN, "  %-10s %12s   of %" PRIu64 " allocations, %" PRIu64 " times", "ending",
             bytes_text(bytes), ms_snapshot_figure(snapshot, "settled_allocations"),
             ms_snapshot_figure(snapshot, "settles"));
    for (size_t i = 0; i < snapshot->cause_count; i++) {
        const struct ms_state_cause *cause = &snapshot->causes[i];
        if (cause->kind == MS_EVENT_SETTLE)
            line(PLAIN, "  %-10s %12s   %safter %s: %s", "", bytes_text(cause->bytes),
                 cause->count > 1 ? "last " : "", time_text(cause->last_ns), cause->text);
    }
}

/* The kernel that ended loading, because it computes: its use counts as loading. NULL: it is
 * not known. */
static const struct ms_state_cause *find_ending(const struct ms_snapshot *snapshot)
{
    const uint64_t loaded_ns = ms_snapshot_figure(snapshot, "loaded_ns");
    const struct ms_state_cause *last = NULL;
    for (size_t i = 0; i < snapshot->cause_count && snapshot->plan.generation == 0; i++) {
        const struct ms_state_cause *cause = &snapshot->causes[i];
        if (cause->kind == MS_EVENT_FALLBACK && cause->reason == MS_REASON_NO_RULE &&
            cause->first_ns <= loaded_ns && (last == NULL || cause->first_ns > last->first_ns))
            last = cause;
    }
    return last != NULL && last->loaded_count == 1 ? last : NULL;
}

/* Those that are worth a look: the program's work, after it had loaded, needs its memory. */
static uint64_t count_fallbacks(const struct ms_snapshot *snapshot)
{
    enum { GRANULE = 2 << 20 };
    const struct ms_state_cause *ending = find_ending(snapshot);
    uint64_t count = 0;
    for (size_t i = 0; i < snapshot->cause_count; i++) {
        const struct ms_state_cause *cause = &snapshot->causes[i];
        if (cause->kind == MS_EVENT_FALLBACK && cause->loaded_bytes >= GRANULE && cause != ending)
            count += cause->loaded_count;
    }
    return count;
}

/* Notes on fallbacks, reads of remote bytes, and damage. */
static void show_notes(const struct ms_snapshot *snapshot)
{
    const uint64_t fallbacks = count_fallbacks(snapshot);
    const uint64_t outside = ms_snapshot_figure(snapshot, "remote_reads");
    if (fallbacks > 0)
        line(YELLOW, "  %" PRIu64 " %s brought in more than was read, while it loaded: see below",
             fallbacks, fallbacks == 1 ? "call" : "calls");
    if (outside > 0)
        line(YELLOW, "  %" PRIu64 " reads of bytes that the plan gives to other ranks", outside);
    if (snapshot->torn_records > 0)
        line(DIM, "  %zu records were being written when it was killed; they are left out",
             snapshot->torn_records);
}

/* --- details */

static void describe_source(const struct ms_state_block *block, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++) {
        if (block->kind_bytes[i] == 0 || used >= bytes)
            continue;
        const bool is_all = block->kind_bytes[i] == block->bytes;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s%s%s", used > 0 ? ", " : "",
                                 ms_state_kind_names[i], is_all ? "" : " ",
                                 is_all ? "" : bytes_text(block->kind_bytes[i]));
    }
}

/* The columns of address and device, for which a narrow terminal has no room. */
static bool has_place(void)
{
    return !line_is_narrow(110);
}

/* The buffer is one for all. */
static const char *place_text(const struct ms_state_block *block)
{
    static char text[48];
    snprintf(text, sizeof(text), " 0x%012" PRIx64 " %3" PRIu32, block->address, block->device);
    return has_place() ? text : "";
}

static void show_block(const struct ms_state_block *block)
{
    char source[256], cause[256] = "", start[128];
    const bool is_part = (block->flags & MS_BLOCK_PART) != 0;
    describe_source(block, source, sizeof(source));
    if (block->backed_bytes > 0 && !is_part)
        snprintf(cause, sizeof(cause), "  backed for %s%s%s",
                 block->backed_call[0] != '\0' ? block->backed_call : "no call",
                 block->backed_reason != MS_REASON_CALL ? ": " : "",
                 block->backed_reason != MS_REASON_CALL ? ms_reason_text(block->backed_reason)
                                                        : "");
    snprintf(start, sizeof(start), "  %s%-6" PRIu64 "%s %10s %10s %10s  %-8s  ", is_part ? " " : "",
             block->id, place_text(block), bytes_text(block->bytes),
             is_part ? "" : bytes_text(block->backed_bytes), bytes_text(block->deferred_bytes),
             block_state(block));
    /* The source is a few words; a narrow terminal has room for the name alone. */
    const size_t room = line_room(strlen(start)), kept = has_place() ? strlen(source) + 2 : 0;
    const char *name = text_end(block->name, room > 2 * kept ? room - kept : room / 2);
    const bool is_full = kept == 0 && text_length(name) + 2 >= room;
    line(PLAIN, "%s%s%s%s%s", start, name, name[0] != '\0' ? "  " : "", is_full ? "" : source,
         is_full ? "" : cause);
}

static void show_rest(size_t shown, size_t all)
{
    if (shown < all)
        line(DIM, "  and %zu more (--json has all)", all - shown);
}

static void show_blocks(const struct ms_snapshot *snapshot)
{
    const size_t count = snapshot->block_count;
    const uint64_t left_out = ms_snapshot_figure(snapshot, "blocks_left_out");
    if (count == 0)
        return;
    line(PLAIN, "%s", "");
    line(BOLD, "Blocks by size");
    line(DIM, "  %-6s%s %10s %10s %10s  %-8s  %s", "id", has_place() ? " address        dev" : "",
         "bytes", "backed", "deferred", "state",
         "tensor, where the bytes come from, why it has memory");
    for (size_t i = 0; i < count && i < SHOWN_BLOCKS; i++)
        show_block(&snapshot->blocks[i]);
    show_rest(SHOWN_BLOCKS, count);
    if (left_out > 0)
        line(YELLOW,
             "  %" PRIu64
             " smaller blocks do not fit in the page (METASHARD_STATE_BYTES), or in the "
             "128 MiB of them that are read",
             left_out);
}

static void show_tensors(const struct view *view)
{
    size_t count;
    struct tensor_row *rows = view_tensors(view, &count);
    if (rows != NULL && count > 0) {
        line(PLAIN, "%s", "");
        line(BOLD, "Tensors by name");
        line(DIM, "  %11s %11s %11s  %s", "bytes", "deferred", "in memory", "name");
    }
    for (size_t i = 0; i < count && i < SHOWN_TENSORS && rows != NULL; i++)
        line(PLAIN, "  %11s %11s %11s  %s", bytes_text(rows[i].bytes),
             bytes_text(rows[i].deferred_bytes), bytes_text(rows[i].present_bytes),
             text_end(rows[i].name, line_room(39)));
    show_rest(SHOWN_TENSORS, count);
    free(rows);
}

static enum color event_color(uint32_t kind)
{
    return kind == MS_EVENT_FAIL || kind == MS_EVENT_DIFFER ? RED
           : kind == MS_EVENT_FALLBACK || kind == MS_EVENT_REMOTE_READ || kind == MS_EVENT_PRESSURE
               ? YELLOW
           : kind == MS_EVENT_MATERIALISE || kind == MS_EVENT_SETTLE || kind == MS_EVENT_REPLAY
               ? CYAN
               : PLAIN;
}

/* Pinned to read files through. An allocation can be pinned, too. */
static bool is_host_memory(const struct ms_state_cause *cause)
{
    return cause->kind == MS_EVENT_PIN && strncmp(cause->text, "host memory", 11) == 0;
}

/* Not why bytes have memory: what was replayed or materialised for another row is a part of it, and
 * what was evicted has none; nor has what MetaShard did not see. */
static bool is_given(const struct ms_state_cause *cause)
{
    return cause->reason == MS_REASON_BYPASSED || cause->kind == MS_EVENT_REPLAY ||
           cause->kind == MS_EVENT_EVICT || is_host_memory(cause) ||
           (cause->kind == MS_EVENT_MATERIALISE &&
            ms_explain((enum ms_reason)cause->reason, NULL, NULL, NULL, 0));
}

/* Shows the cause with its sentence, if it is the first for that reason. Memory that kernels of the
 * program's work use needs no explanation. */
static void show_cause(const struct ms_state_cause *cause, enum chapter chapter, bool is_first)
{
    const bool is_work =
        chapter == WORK && cause->kind == MS_EVENT_FALLBACK && cause->reason == MS_REASON_NO_RULE;
    const bool is_plain =
        is_work || (cause->reason == MS_REASON_CALL && cause->kind != MS_EVENT_MATERIALISE);
    char text[1024];
    snprintf(text, sizeof(text), "  %11s %7" PRIu64 " %10s  %-16s %s%s%s%s%s",
             bytes_text(cause->bytes), cause->count,
             cause->duration_ns > 0 ? time_text(cause->duration_ns) : "",
             is_work ? "used" : ms_event_kind_name(cause->kind), cause->call,
             cause->call[0] != '\0' && cause->text[0] != '\0' ? ", " : "", cause->text,
             is_plain ? "" : ": ", is_plain ? "" : ms_reason_text(cause->reason));
    hanging(event_color(cause->kind), 34, text);
    if (is_first && !is_work && cause->sentence[0] != '\0')
        paragraph(DIM, 34, cause->sentence);
}

static bool is_first_for_reason(const struct ms_state_cause *causes, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (causes[i].reason == causes[at].reason && causes[i].sentence[0] != '\0')
            return false;
    }
    return true;
}

static void show_chapter_title(const struct view *view, const char *title)
{
    line(PLAIN, "%s", "");
    line(BOLD, "What brought bytes into memory%s", title);
    line(DIM, "  %11s %7s %10s  %-16s %s", "bytes", "times", view->count > 1 ? "longest" : "time",
         "kind", "call: why");
}

static void show_chapter(const struct ms_state_cause *causes, size_t count, enum chapter chapter)
{
    for (size_t i = 0; i < count && i < SHOWN_CAUSES; i++)
        show_cause(&causes[i], chapter, is_first_for_reason(causes, i));
    show_rest(SHOWN_CAUSES, count);
}

/* To be freed. */
static struct ms_state_cause *shown_causes(const struct view *view, enum chapter chapter,
                                           size_t *count_out)
{
    size_t count, kept = 0;
    struct ms_state_cause *causes = view_causes(view, chapter, &count);
    for (size_t i = 0; i < count; i++) {
        if (!is_given(&causes[i]))
            causes[kept++] = causes[i];
    }
    *count_out = kept;
    return causes;
}

static void show_causes(const struct view *view)
{
    size_t loading_count, work_count;
    struct ms_state_cause *loading = shown_causes(view, LOADING, &loading_count);
    struct ms_state_cause *work = shown_causes(view, WORK, &work_count);
    if (loading_count > 0)
        show_chapter_title(view, work_count > 0 ? " while it loaded" : "");
    show_chapter(loading, loading_count, LOADING);
    if (work_count > 0)
        show_chapter_title(view, " after it had loaded, for its work");
    show_chapter(work, work_count, WORK);
    free(loading);
    free(work);
}

static void show_event(const struct ms_snapshot *snapshot, const struct ms_state_event *event,
                       bool has_ranks)
{
    char rank[16] = "";
    if (has_ranks)
        snprintf(rank, sizeof(rank), "%5s ", rank_text(snapshot, "?"));
    char block[32] = "";
    if (event->block > 0)
        snprintf(block, sizeof(block), "%" PRIu64, event->block);
    /* Where there is no room for both, the kernel or tensor says more than the call. */
    const bool has_call =
        event->call[0] != '\0' && !(line_is_narrow(100) && event->text[0] != '\0');
    char start[192];
    snprintf(start, sizeof(start), "  %s%11.6f %-16s %10s %9s %5s  %s%s", rank,
             (double)event->time_ns / 1e9, ms_event_kind_name(event->kind),
             bytes_text(event->bytes), event->duration_ns > 0 ? time_text(event->duration_ns) : "",
             block, has_call ? event->call : "", has_call && event->text[0] != '\0' ? ", " : "");
    const size_t room = line_room(strlen(start));
    const bool is_tensor = event->kind == MS_EVENT_REMOTE_READ;
    const bool has_reason =
        event->reason != MS_REASON_CALL && !(is_tensor && text_length(event->text) >= room);
    line(event_color(event->kind), "%s%s%s%s", start,
         is_tensor ? text_end(event->text, room) : event->text, has_reason ? ": " : "",
         has_reason ? ms_reason_text(event->reason) : "");
}

static void show_events(const struct view *view, size_t most)
{
    for (size_t p = 0; p < view->count; p++) {
        const struct ms_snapshot *snapshot = &view->processes[p];
        const size_t count = snapshot->event_count;
        const size_t first = count > most ? count - most : 0;
        line(PLAIN, "%s", "");
        if (first > 0)
            line(BOLD, "The last %zu of %zu events of process %" PRIu64 " (--events: all)",
                 count - first, count, snapshot->process.pid);
        else
            line(BOLD, "The %zu events of process %" PRIu64, count, snapshot->process.pid);
        if (snapshot->events_lost > 0)
            line(DIM,
                 "  %" PRIu64 " older events do not fit in the page (METASHARD_STATE_BYTES), or in "
                 "the 64 MiB of them that are read",
                 snapshot->events_lost);
        line(DIM, "  %s%11s %-16s %10s %9s %5s  %s", view->count > 1 ? " rank " : "", "seconds",
             "kind", "bytes", "time", "block", "call, kernel or tensor: why");
        for (size_t i = first; i < count; i++)
            show_event(snapshot, &snapshot->events[i], view->count > 1);
    }
}

/* --- one, and several */

static void show_one(const struct view *view)
{
    const struct ms_snapshot *snapshot = &view->processes[0];
    const struct totals totals = totals_of(snapshot);
    show_title(snapshot);
    show_bypassed(view);
    line(PLAIN, "%s", "");
    show_headline(&totals, "");
    show_loaded(snapshot);
    show_totals(&totals, ms_snapshot_figure(snapshot, "deferred_allocations"));
    show_settled(snapshot);
    show_plan(&snapshot->plan);
    show_self_checks(snapshot);
    show_notes(snapshot);
    show_causes(view);
    show_blocks(snapshot);
    show_tensors(view);
}

/* A row of bytes of each kind, or their names if there are none; as many as fit. */
static void show_rank(enum color color, const char *rank, const char *pid, const char *state,
                      const struct totals *totals)
{
    char text[256];
    size_t used = (size_t)snprintf(text, sizeof(text), "  %5s %9s %-8s", rank, pid, state);
    for (size_t i = 0; i < PROCESS_TOTALS && line_room(used) >= 12; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, " %11s",
                                 totals != NULL ? total_text(totals, process_totals[i])
                                                : total_names[process_totals[i]].term);
    line(color, "%s", text);
}

/* How many they are, and what the one was worth that took the most. */
static void show_processes(const struct view *view)
{
    const size_t runs = view_runs(view);
    const struct ms_snapshot *worst = view_worst(view, "backed_bytes_peak");
    const struct totals totals = totals_of(worst);
    char of_runs[48] = "", whose[96];
    if (runs > 0)
        snprintf(of_runs, sizeof(of_runs), " of %zu run%s", runs, runs == 1 ? "" : "s");
    line(BOLD, "%zu processes%s", view->count, of_runs);
    show_missing(view);
    show_bypassed(view);
    snprintf(whose, sizeof(whose), ", in process %" PRIu64 ", the worst", worst->process.pid);
    show_headline(&totals, whose);
}

static void show_ranks(const struct view *view)
{
    const struct totals largest = view_largest(view);
    char pid[32];
    show_processes(view);
    show_rank(DIM, "rank", "pid", "state", NULL);
    for (size_t i = 0; i < view->count; i++) {
        const struct ms_snapshot *snapshot = &view->processes[i];
        const struct totals totals = totals_of(snapshot);
        snprintf(pid, sizeof(pid), "%" PRIu64, snapshot->process.pid);
        show_rank(life_color(snapshot, PLAIN) == RED ? RED : PLAIN, rank_text(snapshot, "?"), pid,
                  life_name(snapshot), &totals);
    }
    show_rank(BOLD, "most", "", "", &largest);
    show_causes(view);
}

static void show_text(const struct view *view, const struct options *options)
{
    if (options->brief != NULL) {
        show_brief(view);
        return;
    }
    if (options->events != NULL) {
        show_events(view, SIZE_MAX);
        return;
    }
    if (view->count == 1)
        show_one(view);
    else
        show_ranks(view);
    show_events(view, view->count == 1 ? SHOWN_EVENTS : SHOWN_EVENTS / 4);
}

static int run_outputs(const struct options *options, const struct view *view)
{
    const bool is_text = options->json != NULL || options->events != NULL || options->brief != NULL;
    if (is_standard(options->html) + is_standard(options->trace) + is_text > 1) {
        fputs("metashard-dump: standard output is given twice\n", stderr);
        return USAGE;
    }
    if (options->html != NULL && !write_html(options->html, view))
        return BAD;
    if (options->trace != NULL && !write_trace(options->trace, view))
        return BAD;
    return GOOD;
}

int run_show(const struct options *options)
{
    struct view view;
    if (!line_setup(options))
        return USAGE;
    if (options->job != NULL && options->words.file_count > 0)
        return usage_fault("show: expected processes or --job, found both");
    if (!view_open(&view, options, true))
        return BAD;
    const int status = run_outputs(options, &view);
    if (status == GOOD && options->json != NULL)
        write_json(stdout, &view, SIZE_MAX, SIZE_MAX);
    else if (status == GOOD && (options->events != NULL || options->brief != NULL ||
                                (options->html == NULL && options->trace == NULL)))
        show_text(&view, options);
    view_close(&view);
    return status;
}
