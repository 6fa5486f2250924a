/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard-dump show --watch: prints the summary twice a second, until no process runs or a signal
 * interrupts it. It redraws a terminal, with as much as fits; the last picture stays. Elsewhere it
 * prints a line for each process whose figures have changed.
 */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/state/explain.h"
#include "tools/dump/line.h"
#include "tools/dump/merge.h"
#include "tools/dump/output_file.h"

enum { PAUSE_MS = 500, CAUSES = 6, LINES_UNKNOWN = 24, BUFFER_BYTES = 64 << 10 };

static volatile sig_atomic_t is_over;

static void end_watch(int number)
{
    (void)number;
    is_over = 1;
}

static void wake_up(int number)
{
    (void)number;
}

/* Signals arrive only during the wait, so none is missed. */
static void catch_signals(sigset_t *waiting_out)
{
    const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t caught;
    struct sigaction action = {.sa_handler = end_watch};
    sigemptyset(&caught);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        sigaction(ends[i], &action, NULL);
        sigaddset(&caught, ends[i]);
    }
    action.sa_handler = wake_up;
    sigaction(SIGWINCH, &action, NULL);
    sigaddset(&caught, SIGWINCH);
    sigprocmask(SIG_BLOCK, &caught, waiting_out);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        sigdelset(waiting_out, ends[i]);
    sigdelset(waiting_out, SIGWINCH);
}

static bool any_runs(const struct view *view)
{
    bool runs = false;
    for (size_t i = 0; i < view->count; i++) {
        const char *life = life_name(&view->processes[i]);
        runs = runs || strcmp(life, "running") == 0 || strcmp(life, "unknown") == 0;
    }
    return runs;
}

static void rank_text(const struct ms_snapshot *snapshot, char *text, size_t bytes)
{
    if (has_rank(snapshot))
        snprintf(text, bytes, "%" PRIu32, snapshot->process.rank);
    else
        snprintf(text, bytes, "-");
}

/* --- a terminal */

static size_t lines_left;

static bool has_line(void)
{
    if (lines_left == 0)
        return false;
    lines_left--;
    return true;
}

static size_t terminal_lines(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 2)
        return LINES_UNKNOWN - 1;
    return size.ws_row - 1U; /* one is for the cursor */
}

static void draw_totals(const char *rank, const char *pid, const char *life,
                        const struct totals *totals, enum color color)
{
    if (has_line())
        line(color, "%5s %9s %-8s %10s %10s %10s %10s %10s %10s %10s %10s", rank, pid, life,
             bytes_text(totals->requested), bytes_text(totals->deferred),
             bytes_text(totals->backed), bytes_text(totals->backed_peak), bytes_text(totals->saved),
             bytes_text(totals->skipped), bytes_text(totals->h2d),
             time_text(totals->materialise_ns));
}

static void draw_processes(const struct view *view)
{
    const struct group group = {view->processes, view->count};
    if (has_line())
        line(DIM, "%5s %9s %-8s %10s %10s %10s %10s %10s %10s %10s %10s", "rank", "pid", "state",
             "requested", "deferred", "backed", "at most", "saved", "skipped", "copied", "time");
    for (size_t i = 0; i < view->count; i++) {
        const struct ms_snapshot *snapshot = &view->processes[i];
        const struct totals totals = totals_of(snapshot);
        const char *life = life_name(snapshot);
        char rank[16], pid[24];
        rank_text(snapshot, rank, sizeof(rank));
        snprintf(pid, sizeof(pid), "%" PRIu64, snapshot->process.pid);
        draw_totals(rank, pid, life, &totals, strcmp(life, "killed") == 0 ? RED : PLAIN);
    }
    if (view->count > 1) {
        const struct totals sum = group_totals(&group);
        draw_totals("all", "", "", &sum, BOLD);
    }
}

static void draw_causes(const struct view *view)
{
    const struct group group = {view->processes, view->count};
    size_t count;
    struct ms_state_cause *causes = group_causes(&group, &count);
    if (causes != NULL && count > 0 && lines_left > 2) {
        lines_left -= 2;
        line(PLAIN, "%s", "");
        line(BOLD, "Causes by bytes");
    }
    for (size_t i = 0; causes != NULL && i < count && i < CAUSES && has_line(); i++) {
        const struct ms_state_cause *cause = &causes[i];
        line(PLAIN, "  %11s %7" PRIu64 " %10s  %-16s %s%s%s", bytes_text(cause->bytes),
             cause->count, cause->duration_ns > 0 ? time_text(cause->duration_ns) : "",
             ms_event_kind_name(cause->kind), cause->call, cause->text[0] != '\0' ? ", " : "",
             cause->text);
    }
    free(causes);
}

/* Draws the events that fit, of the process with the latest event. */
static void draw_events(const struct view *view)
{
    const struct ms_snapshot *latest = NULL;
    uint64_t latest_ns = 0;
    for (size_t i = 0; i < view->count; i++) {
        const struct ms_snapshot *snapshot = &view->processes[i];
        const size_t count = snapshot->event_count;
        const uint64_t time_ns =
            count > 0 ? snapshot->process.started_ns + snapshot->events[count - 1].time_ns : 0;
        if (count > 0 && (latest == NULL || time_ns > latest_ns)) {
            latest = snapshot;
            latest_ns = time_ns;
        }
    }
    if (latest == NULL || lines_left < 3)
        return;
    lines_left -= 2;
    line(PLAIN, "%s", "");
    line(BOLD, "The last events of process %" PRIu64, latest->process.pid);
    const size_t count = latest->event_count;
    for (size_t i = count > lines_left ? count - lines_left : 0; i < count; i++) {
        const struct ms_state_event *event = &latest->events[i];
        line(PLAIN, "  %12.6f %-16s %11s  %s%s%s", (double)event->time_ns / 1e9,
             ms_event_kind_name(event->kind), bytes_text(event->bytes), event->call,
             event->text[0] != '\0' ? ", " : "", event->text);
    }
}

static void draw(const struct view *view)
{
    fputs("\033[H\033[J", stdout);
    lines_left = terminal_lines();
    draw_processes(view);
    draw_causes(view);
    draw_events(view);
}

/* --- a pipe or a file */

/* What was printed for a process. */
struct told {
    uint64_t pid, started_ns;
    struct totals totals;
    const char *life;
};

static void tell(const struct view *view, struct told *told)
{
    for (size_t i = 0; i < view->count; i++) {
        const struct ms_snapshot *snapshot = &view->processes[i];
        const struct told now = {snapshot->process.pid, snapshot->process.started_ns,
                                 totals_of(snapshot), life_name(snapshot)};
        char rank[16];
        if (told[i].pid == now.pid && told[i].started_ns == now.started_ns &&
            told[i].life == now.life &&
            memcmp(&told[i].totals, &now.totals, sizeof(now.totals)) == 0)
            continue;
        told[i] = now;
        rank_text(snapshot, rank, sizeof(rank));
        line(PLAIN,
             "%.3f s, rank %s, process %" PRIu64
             " %s: requested %s, deferred %s, backed %s, at most %s, copied %s",
             (double)snapshot->taken_ns / 1e9, rank, now.pid, now.life,
             bytes_text(now.totals.requested), bytes_text(now.totals.deferred),
             bytes_text(now.totals.backed), bytes_text(now.totals.backed_peak),
             bytes_text(now.totals.h2d));
    }
}

/* --- again and again */

/* Draws one picture. Returns false at the end. */
static bool watch_once(const struct options *options, bool is_terminal, struct told *told,
                       int *status)
{
    struct view view;
    /* The terminal may have another width now. */
    *status = !line_setup(options) ? USAGE : !view_open(&view, options) ? BAD : GOOD;
    if (*status != GOOD)
        return false;
    if (is_terminal)
        draw(&view);
    else
        tell(&view, told);
    const bool goes_on = any_runs(&view);
    view_close(&view);
    if (fflush(stdout) != 0 || ferror(stdout))
        return false; /* main reports it */
    return goes_on;
}

static bool is_alone(const struct options *options)
{
    if (options->json == NULL && options->events == NULL && options->html == NULL &&
        options->trace == NULL)
        return true;
    fputs("metashard-dump: --watch takes no other output\n", stderr);
    return false;
}

int run_watch(const struct options *options)
{
    static const struct timespec pause = {0, PAUSE_MS * 1000000L};
    const bool is_terminal = isatty(STDOUT_FILENO) != 0;
    int status = GOOD;
    sigset_t waiting;
    if (!is_alone(options))
        return USAGE;
    struct told *told = calloc(options->file_count, sizeof(*told));
    if (told == NULL)
        return BAD;
    /* Writes a whole picture at a time. */
    setvbuf(stdout, NULL, _IOFBF, BUFFER_BYTES);
    catch_signals(&waiting);
    if (is_terminal)
        fputs("\033[?25l\033[2J", stdout);
    while (watch_once(options, is_terminal, told, &status) && !is_over)
        ppoll(NULL, 0, &pause, &waiting);
    if (is_terminal)
        fputs("\033[?25h", stdout);
    free(told);
    return status;
}
