/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes have a state page. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/state/page.h"
#include "tools/dump/dump.h"

struct found {
    struct ms_snapshot *snapshots;
    size_t count;
    const char *job; /* NULL: all */
    bool is_good;    /* what could not be read was reported */
    size_t faults;   /* pages that could not be read */
};

enum { SHOWN_FAULTS = 3 }; /* of another version of MetaShard there may be very many */

/* The page has a job's name as far as it fits. */
static bool is_of_job(const struct ms_snapshot *snapshot, const char *job)
{
    return job == NULL ||
           strncmp(snapshot->process.job, job, sizeof(snapshot->process.job) - 1) == 0;
}

static void close_one(struct ms_snapshot *snapshot)
{
    free((char *)snapshot->path);
    ms_snapshot_cleanup(snapshot);
}

/* Keeps a page that is of the job. */
static void keep_page(struct found *found, struct ms_snapshot *snapshot, const char *path)
{
    snapshot->path = strdup(path);
    found->is_good &= snapshot->path != NULL;
    if (snapshot->path != NULL && is_of_job(snapshot, found->job))
        found->count++;
    else
        close_one(snapshot);
}

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
        keep_page(found, &grown[found->count], path);
    } else if (access(path, F_OK) == 0) {
        if (found->faults++ < SHOWN_FAULTS)
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
        if (ms_page_is_name(entry->d_name))
            add_page(found, folder, entry->d_name);
    }
    if (entries != NULL)
        closedir(entries);
}

static void add_folders(struct found *found)
{
    struct ms_config config;
    char folder[MS_PATH_BYTES], last[MS_PATH_BYTES] = "";
    ms_config_read_quietly(&config, environ);
    for (unsigned i = 0; ms_page_folder(&config, i, folder); i++) {
        if (strcmp(folder, last) != 0)
            add_folder(found, folder);
        strcpy(last, folder);
    }
    if (found->faults > SHOWN_FAULTS)
        fprintf(stderr, "and %zu more pages cannot be read\n", found->faults - SHOWN_FAULTS);
}

static int newest_first(const void *a, const void *b)
{
    const struct ms_snapshot *left = a, *right = b;
    const uint64_t left_ns = left->process.started_ns, right_ns = right->process.started_ns;
    return left_ns < right_ns ? 1 : left_ns > right_ns ? -1 : 0;
}

bool view_find(struct view *view, const char *job)
{
    struct found found = {.job = job, .is_good = true};
    add_folders(&found);
    if (found.count > 0)
        qsort(found.snapshots, found.count, sizeof(*found.snapshots), newest_first);
    *view = (struct view){found.snapshots, found.count};
    return found.is_good;
}

/* One job may have run several times: each rank is there once. */
static bool is_of_run(const struct view *run, const struct ms_state_process *other)
{
    const struct ms_state_process *newest = &run->processes[0].process;
    const bool is_rank = other->rank != MS_STATE_NO_RANK;
    bool is_of_it = strcmp(newest->job, other->job) == 0 && newest->world == other->world &&
                    (newest->job[0] != '\0' || is_rank);
    for (size_t i = 0; i < run->count; i++)
        is_of_it &= !is_rank || run->processes[i].process.rank != other->rank;
    return is_of_it;
}

void view_keep_newest(struct view *view)
{
    struct ms_snapshot *all = (struct ms_snapshot *)view->processes;
    const size_t count = view->count;
    view->count = count > 0;
    for (size_t i = 1; i < count; i++) {
        if (is_of_run(view, &all[i].process))
            all[view->count++] = all[i];
        else
            close_one(&all[i]);
    }
}
