/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump list: the processes that have a state page, the newest first. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "tools/dump/line.h"

/* "12 min": since the page was made. The buffer is one for all. */
static const char *age_text(const struct ms_snapshot *snapshot)
{
    static const struct {
        const char *name;
        uint64_t seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    static char text[24];
    struct timespec now;
    size_t unit = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t started = snapshot->process.started_ns / 1000000000;
    const uint64_t age = (uint64_t)now.tv_sec > started ? (uint64_t)now.tv_sec - started : 0;
    while (unit + 1 < sizeof(units) / sizeof(units[0]) && age < 2 * units[unit].seconds)
        unit++;
    snprintf(text, sizeof(text), "%" PRIu64 " %s", age / units[unit].seconds, units[unit].name);
    return text;
}

/* "job 4711: python train.py (/home/user)", cut in the middle to fit. */
static void describe(const struct ms_state_process *process, size_t room, char *text, size_t bytes)
{
    char job[sizeof(process->job) + 8] = "";
    if (process->job[0] != '\0')
        snprintf(job, sizeof(job), "job %s: ", process->job);
    const char *folder = text_end(process->folder, room / 2);
    const size_t taken = strlen(job) + text_length(folder) + strlen(" ()");
    snprintf(text, bytes, "%s%s (%s)", job,
             text_begin(process->command, room > taken ? room - taken : 1), folder);
}

enum { FIGURES_WIDTH = 80, INDENT = 11 };

/* Behind the figures there is no room for a command, so it is in a line of its own. */
static bool is_narrow(void)
{
    return line_is_narrow(FIGURES_WIDTH + 35);
}

static void show_row(const struct ms_snapshot *snapshot)
{
    char text[sizeof(struct ms_state_process)];
    const struct totals totals = totals_of(snapshot);
    const enum color color = life_color(snapshot, PLAIN);
    describe(&snapshot->process, line_room(is_narrow() ? INDENT : FIGURES_WIDTH), text,
             sizeof(text));
    line(color, "%9" PRIu64 " %5s %-7s %7s %10s %11s %11s %11s  %s", snapshot->process.pid,
         rank_text(snapshot, ""), life_name(snapshot), age_text(snapshot),
         time_text(snapshot->taken_ns), total_text(&totals, TOTAL_BACKED),
         total_text(&totals, TOTAL_BACKED_PEAK), total_text(&totals, TOTAL_LIVE_PEAK),
         is_narrow() ? "" : text);
    if (is_narrow())
        line(color, "%*s%s", INDENT, "", text);
}

static void show_rows(const struct view *view, const char *job)
{
    if (view->count == 0) {
        printf("no process%s%s has a state page in %s\n", job != NULL ? " of job " : "",
               job != NULL ? job : "", folders_text());
        return;
    }
    line(DIM, "%9s %5s %-7s %7s %10s %11s %11s %11s  %s", "pid", "rank", "state", "age", "ran",
         total_names[TOTAL_BACKED].term, total_names[TOTAL_BACKED_PEAK].term,
         total_names[TOTAL_LIVE_PEAK].term, is_narrow() ? "" : "job: command (folder)");
    for (size_t i = 0; i < view->count; i++)
        show_row(&view->processes[i]);
}

/* Reports pages that cannot be read, and shows the others. */
int run_list(const struct options *options)
{
    struct view view;
    if (!line_setup(options))
        return USAGE;
    const bool is_good = view_find(&view, options->job);
    if (options->json != NULL)
        write_list_json(stdout, &view);
    else
        show_rows(&view, options->job);
    view_close(&view);
    return is_good ? GOOD : BAD;
}
