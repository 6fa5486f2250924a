/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for state pages that goes with the test, and a page in it. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/state/snapshot.h"
#include "runtime/state/state.h"
#include "tools/simcuda/harness/test.h"

static char page_folder[64];

static inline void page_folder_remove(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", page_folder);
    if (system(command) != 0)
        perror(page_folder);
}

/* Only the process that made it removes it: children leave by _exit. */
static inline const char *page_folder_make(void)
{
    strcpy(page_folder, "/tmp/metashard-state-XXXXXX");
    CHECK(mkdtemp(page_folder) != NULL);
    atexit(page_folder_remove);
    return page_folder;
}

static inline struct ms_config page_config(uint64_t bytes)
{
    struct ms_config config = {
        .state_bytes = bytes, .state_kept_bytes = 256 << 20, .state_command = true, .mode = MS_ON};
    snprintf(config.state_dir, sizeof(config.state_dir), "%s", page_folder);
    return config;
}

static inline void page_start(uint64_t bytes)
{
    const struct ms_config config = page_config(bytes);
    ms_state_prepare(&config);
    ms_state_open();
}

static inline const char *page_path(pid_t pid)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/metashard-%d.state", page_folder, (int)pid);
    return path;
}

static inline struct ms_snapshot page_read(pid_t pid)
{
    struct ms_snapshot snapshot;
    struct ms_fault fault;
    if (!ms_snapshot_read(page_path(pid), &snapshot, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    return snapshot;
}

static inline size_t page_count(void)
{
    DIR *list = opendir(page_folder);
    size_t count = 0;
    CHECK(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}
