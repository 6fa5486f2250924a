/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump list: the processes that have a state page, the newest first. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/state/page.h"
#include "tools/dump/line.h"

/* Paths of pages, which the list owns. */
struct paths {
    char **list;
    size_t count;
};

static bool add_path(struct paths *paths, const char *folder, const char *name)
{
    char **grown = realloc(paths->list, (paths->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return false;
    paths->list = grown;
    return asprintf(&grown[paths->count], "%s/%s", folder, name) >= 0 && ++paths->count > 0;
}

/* A folder that does not exist has no pages. */
static bool add_folder(struct paths *paths, const char *folder)
{
    DIR *entries = opendir(folder);
    if (entries == NULL && (errno == ENOENT || errno == ENOTDIR))
        return true;
    if (entries == NULL) {
        fprintf(stderr, "metashard-dump: %s: %s\n", folder, strerror(errno));
        return false;
    }
    bool is_good = true;
    for (const struct dirent *entry; is_good && (entry = readdir(entries)) != NULL;) {
        if (ms_state_is_page(entry->d_name))
            is_good = add_path(paths, folder, entry->d_name);
    }
    closedir(entries);
    return is_good;
}

static bool find_all(struct paths *paths)
{
    struct ms_config config;
    char folder[MS_PATH_BYTES], last[MS_PATH_BYTES] = "";
    bool is_good = true;
    ms_config_read_quietly(&config, environ);
    for (unsigned i = 0; ms_state_folder(&config, i, folder); i++) {
        if (strcmp(folder, last) != 0)
            is_good = add_folder(paths, folder) && is_good;
        strcpy(last, folder);
    }
    return is_good;
}

static void close_paths(struct paths *paths)
{
    for (size_t i = 0; i < paths->count; i++)
        free(paths->list[i]);
    free(paths->list);
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

/* Ignores pages removed meanwhile. Reports those that cannot be read, and shows the others. */
int run_list(const struct options *options)
{
    struct paths paths = {0};
    struct ms_fault fault;
    if (!line_setup(options))
        return USAGE;
    bool is_good = find_all(&paths);
    struct ms_snapshot *snapshots = calloc(paths.count + 1, sizeof(*snapshots));
    size_t count = 0;
    for (size_t i = 0; i < paths.count && snapshots != NULL; i++) {
        if (ms_snapshot_read(paths.list[i], &snapshots[count], &fault)) {
            count++;
        } else if (access(paths.list[i], F_OK) == 0) {
            fprintf(stderr, "%s\n", fault.text);
            is_good = false;
        }
    }
    if (snapshots != NULL)
        show_rows(snapshots, count);
    for (size_t i = 0; i < count; i++)
        ms_snapshot_cleanup(&snapshots[i]);
    is_good = is_good && snapshots != NULL;
    free(snapshots);
    close_paths(&paths);
    return is_good ? GOOD : BAD;
}
