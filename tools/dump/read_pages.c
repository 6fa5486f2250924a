/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and reads state pages, and derives values from their figures. */
#include "tools/dump/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/state/kernel_name.h"
#include "runtime/state/page.h"

static bool is_number(const char *text)
{
    return text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
}

const char *folders_text(void)
{
    enum { MOST_FOLDERS = 3 };
    static char text[MOST_FOLDERS * (MS_PATH_BYTES + 8)];
    struct ms_config config;
    char folder[MS_PATH_BYTES], last[MS_PATH_BYTES] = "";
    size_t used = 0;
    ms_config_read_quietly(&config, environ);
    for (unsigned i = 0; ms_page_folder(&config, i, folder) && used < sizeof(text); i++) {
        if (strcmp(folder, last) != 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
                                     used > 0 ? " or " : "", folder);
        strcpy(last, folder);
    }
    if (used == 0)
        strcpy(text, "METASHARD_STATE_DIR, which is empty");
    return text;
}

/* The page of a process id, in the first folder that has one. */
static bool find_page(const char *pid, char path_out[MS_PATH_BYTES + 64])
{
    struct ms_config config;
    char folder[MS_PATH_BYTES];
    ms_config_read_quietly(&config, environ);
    for (unsigned i = 0; ms_page_folder(&config, i, folder); i++) {
        snprintf(path_out, MS_PATH_BYTES + 64, "%s/" MS_STATE_PREFIX "%s" MS_STATE_SUFFIX, folder,
                 pid);
        if (access(path_out, F_OK) == 0)
            return true;
    }
    fprintf(stderr, "metashard-dump: process %s has no state page in %s\n", pid, folders_text());
    return false;
}

static bool open_one(struct ms_snapshot *snapshot, const char *name)
{
    char found[MS_PATH_BYTES + 64];
    struct ms_fault fault;
    const bool is_pid = is_number(name) && access(name, F_OK) != 0;
    if (is_pid && !find_page(name, found))
        return false;
    char *path = strdup(is_pid ? found : name);
    if (path == NULL || !ms_snapshot_read(path, snapshot, &fault)) {
        fprintf(stderr, "%s\n", path != NULL ? fault.text : "metashard-dump: out of memory");
        free(path);
        return false;
    }
    /* view_close frees the path. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    name_blocks(snapshot);
    return true;
}

/* Not for programs, which want what METASHARD_KERNEL_RULES can name. */
static void shorten_kernels(struct ms_snapshot *snapshot)
{
    char text[sizeof(snapshot->causes->text)];
    for (size_t i = 0; i < snapshot->cause_count; i++) {
        ms_kernel_name_shorten(snapshot->causes[i].text, text, sizeof(text));
        strcpy(snapshot->causes[i].text, text);
    }
    for (size_t i = 0; i < snapshot->event_count; i++) {
        ms_kernel_name_shorten(snapshot->events[i].text, text, sizeof(snapshot->events[i].text));
        strcpy(snapshot->events[i].text, text);
    }
    for (size_t i = 0; i < snapshot->block_count; i++) {
        ms_kernel_name_shorten(snapshot->blocks[i].backed_call, text,
                               sizeof(snapshot->blocks[i].backed_call));
        strcpy(snapshot->blocks[i].backed_call, text);
    }
}

static bool open_last(struct view *view, const char *job)
{
    view_find(view, job);
    if (view->count == 0)
        fprintf(stderr, "metashard-dump: no process%s%s has a state page in %s\n",
                job != NULL ? " of job " : "", job != NULL ? job : "", folders_text());
    else if (job == NULL)
        view_keep_newest(view);
    for (size_t i = 0; i < view->count; i++)
        name_blocks((struct ms_snapshot *)&view->processes[i]);
    return view->count > 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct ms_state_process *left = &((const struct ms_snapshot *)a)->process;
    const struct ms_state_process *right = &((const struct ms_snapshot *)b)->process;
    if (left->rank != right->rank)
        return left->rank < right->rank ? -1 : 1;
    return left->pid < right->pid ? -1 : left->pid > right->pid;
}

static bool open_all(struct view *view, const struct words *words)
{
    struct ms_snapshot *processes = calloc(words->file_count, sizeof(*processes));
    *view = (struct view){processes, 0};
    for (size_t i = 0; i < words->file_count; i++) {
        if (processes == NULL || !open_one(&processes[i], words->files[i]))
            return false;
        view->count++;
    }
    return true;
}

bool view_open(struct view *view, const struct options *options, bool is_by_rank)
{
    const bool is_open = options->words.file_count > 0 ? open_all(view, &options->words)
                                                       : open_last(view, options->job);
    struct ms_snapshot *processes = (struct ms_snapshot *)view->processes;
    if (!is_open) {
        view_close(view);
        return false;
    }
    if (is_by_rank && view->count > 1)
        qsort(processes, view->count, sizeof(*processes), by_rank);
    for (size_t i = 0; i < view->count && options->json == NULL; i++)
        shorten_kernels(&processes[i]);
    return true;
}

void view_close(struct view *view)
{
    struct ms_snapshot *processes = (struct ms_snapshot *)view->processes;
    for (size_t i = 0; i < view->count; i++) {
        free((char *)processes[i].path);
        ms_snapshot_cleanup(&processes[i]);
    }
    free(processes);
    *view = (struct view){0};
}

static uint64_t less(uint64_t whole, uint64_t part)
{
    return whole > part ? whole - part : 0;
}

const struct total_name total_names[TOTAL_COUNT] = {
    [TOTAL_REQUESTED] = {"requested_bytes", "requested",
                         "by all allocations together, freed ones too"},
    [TOTAL_LIVE_PEAK] = {"live_bytes_peak", "without",
                         "peak that there would be without MetaShard"},
    [TOTAL_LIVE] = {"live_bytes", "now", "requested, and not freed"},
    [TOTAL_DEFERRED] = {"deferred_bytes", "deferred", "now: not in device memory"},
    [TOTAL_BACKED] = {"backed_bytes", "backed", "now: in device memory"},
    [TOTAL_BACKED_PEAK] = {"backed_bytes_peak", "peak", "of device memory"},
    [TOTAL_SAVED] = {"saved_bytes", "saved", "peak without MetaShard less the peak with it"},
    [TOTAL_SKIPPED] = {"skipped_bytes", "skipped", "written, and never copied to the device"},
    [TOTAL_COPIED] = {"h2d_bytes", "copied", "to the device, by MetaShard"},
    [TOTAL_TIME] = {"materialise_ns", "time", "spent on loading bytes into memory"},
};

const enum total process_totals[PROCESS_TOTALS] = {TOTAL_BACKED_PEAK, TOTAL_LIVE_PEAK,
                                                   TOTAL_SAVED,       TOTAL_BACKED,
                                                   TOTAL_DEFERRED,    TOTAL_SKIPPED,
                                                   TOTAL_COPIED};

struct totals totals_of(const struct ms_snapshot *snapshot)
{
    struct totals totals;
    for (int i = 0; i < TOTAL_COUNT; i++)
        totals.of[i] = ms_snapshot_figure(snapshot, total_names[i].figure);
    totals.of[TOTAL_SAVED] = less(totals.of[TOTAL_LIVE_PEAK], totals.of[TOTAL_BACKED_PEAK]);
    totals.of[TOTAL_SKIPPED] = less(ms_snapshot_figure(snapshot, "recorded_file_bytes") +
                                        ms_snapshot_figure(snapshot, "recorded_snapshot_bytes"),
                                    totals.of[TOTAL_COPIED]);
    return totals;
}

static const char *const lives[][2] = {
    [MS_LIFE_ALIVE] = {"running", "running for"},
    [MS_LIFE_GONE] = {"killed", "killed, last change after"},
    [MS_LIFE_UNKNOWN] = {"unknown", "perhaps running, last seen after"},
};

const char *life_name(const struct ms_snapshot *snapshot)
{
    return snapshot->process.ended_ns > 0 ? "ended" : lives[snapshot->life][0];
}

const char *life_words(const struct ms_snapshot *snapshot)
{
    return snapshot->process.ended_ns > 0 ? "ended after" : lives[snapshot->life][1];
}

const char *check_outcome(const struct ms_state_device *device)
{
    return device->steps_aside != 0   ? ", and nothing is deferred there"
           : device->unmet[0] != '\0' ? ", and some facts do not hold"
           : device->check == MS_CHECK_RUN || device->check == MS_CHECK_KEPT ? ", all facts hold"
                                                                             : "";
}

const char *block_state(const struct ms_state_block *block)
{
    const uint64_t resident = block->kind_bytes[MS_BYTES_RESIDENT];
    if (block->deferred_bytes > 0)
        return resident + block->cached_bytes > 0 ? "partly" : "deferred";
    if (block->cached_bytes > 0)
        return "cached";
    return resident > 0 ? "resident" : "dead";
}

bool has_rank(const struct ms_snapshot *snapshot)
{
    return snapshot->process.rank != MS_STATE_NO_RANK;
}

const char *rank_text(const struct ms_snapshot *snapshot, const char *unknown)
{
    static char text[16];
    snprintf(text, sizeof(text), "%" PRIu32, snapshot->process.rank);
    return has_rank(snapshot) ? text : unknown;
}

const char *process_name(const struct ms_snapshot *snapshot)
{
    static char text[96];
    const struct ms_state_process *process = &snapshot->process;
    int used = snprintf(text, sizeof(text), "process %" PRIu64, process->pid);
    if (has_rank(snapshot))
        used += snprintf(text + used, 32, ", rank %" PRIu32, process->rank);
    if (has_rank(snapshot) && process->world != MS_STATE_NO_RANK)
        snprintf(text + used, 32, " of %" PRIu32, process->world);
    return text;
}
