/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump list: the processes that have a state page, the newest first. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/state/page.h"
#include "tools/dump/line.h"

struct found {
    struct ms_snapshot *snapshots;
    size_t count;
    bool is_good; /* what could not be read was reported */
};

/* Ignores a page that was removed meanwhile. */
static void add_page(struct found *found, const char *folder, const char *name)
{
    char path[MS_PATH_BYTES + NAME_MAX + 2];
    struct ms_fault fault;
    struct ms_snapshot *grown = realloc(found->snapshots, (found->count + 1) * sizeof(*grown));
    if (grown == NULL) {
        found->is_good = false;
        return;
    }
    found->snapshots = grown;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (ms_snapshot_read(path, &grown[found->count], &fault)) {
        found->count++;
    } else if (access(path, F_OK) == 0) {
        fprintf(stderr, "%s\n", fault.text);
        found->is_good = false;
    }
}

/* A folder that does not exist has no pages. */
static void add_folder(struct found *found, const char *folder)
{
    DIR *entries = opendir(folder);
    if (entries == NULL && errno != ENOENT && errno != ENOTDIR) {
        fprintf(stderr, "metashard-dump: %s: %s\n", folder, strerror(errno));
        found->is_good = false;
    }
    for (const struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (ms_state_is_page(entry->d_name))
            add_page(found, folder, entry->d_name);
    }
    if (entries != NULL)
        closedir(entries);
}

static void find_all(struct found *found)
{
    struct ms_config config;
    char folder[MS_PATH_BYTES], last[MS_PATH_BYTES] = "";
    ms_config_read_quietly(&config, environ);
    for (unsigned i = 0; ms_state_folder(&config, i, folder); i++) {
        if (strcmp(folder, last) != 0)
            add_folder(found, folder);
        strcpy(last, folder);
    }
}

static int newest_first(const void *a, const void *b)
{
    const struct ms_snapshot *left = a, *right = b;
    const uint64_t left_ns = left->process.started_ns, right_ns = right->process.started_ns;
    return left_ns < right_ns ? 1 : left_ns > right_ns ? -1 : 0;
}

static void show_row(const struct ms_snapshot *snapshot)
{
    const struct totals totals = totals_of(snapshot);
    line(life_color(snapshot, PLAIN), "%9" PRIu64 " %5s %-8s %10s %11s %11s %11s %11s  %s",
         snapshot->process.pid, rank_text(snapshot, ""), life_name(snapshot),
         time_text(snapshot->taken_ns), total_text(&totals, TOTAL_REQUESTED),
         total_text(&totals, TOTAL_DEFERRED), total_text(&totals, TOTAL_BACKED),
         total_text(&totals, TOTAL_BACKED_PEAK), snapshot->process.command);
}

static void show_rows(struct ms_snapshot *snapshots, size_t count)
{
    if (count == 0) {
        line(PLAIN, "no process has a state page");
        return;
    }
    qsort(snapshots, count, sizeof(*snapshots), newest_first);
    line(DIM, "%9s %5s %-8s %10s %11s %11s %11s %11s  %s", "pid", "rank", "state", "for",
         "requested", "deferred", "backed", "at most", "command");
    for (size_t i = 0; i < count; i++)
        show_row(&snapshots[i]);
}

/* Reports pages that cannot be read, and shows the others. */
int run_list(const struct options *options)
{
    struct found found = {.is_good = true};
    if (!line_setup(options))
        return USAGE;
    find_all(&found);
    show_rows(found.snapshots, found.count);
    for (size_t i = 0; i < found.count; i++)
        ms_snapshot_cleanup(&found.snapshots[i]);
    free(found.snapshots);
    return found.is_good ? GOOD : BAD;
}
