/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing but a regular file is opened, not even for a moment. */
#include "runtime/base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

static char folder[64];

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        perror(folder);
}

static const char *make_folder(void)
{
    strcpy(folder, "/tmp/metashard-unit-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    return folder;
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Opens the path, and counts how often the file there was opened meanwhile. */
static int open_watched(const char *path, int *opened_out)
{
    char events[4096];
    struct stat stat_of;
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    CHECK(watch >= 0 && inotify_add_watch(watch, path, IN_OPEN) >= 0);
    errno = 1;
    const int file = ms_regular_file_open(path, &stat_of);
    const int error = errno;
    const ssize_t bytes = read(watch, events, sizeof(events));
    *opened_out = bytes > 0 ? (int)(bytes / (ssize_t)sizeof(struct inotify_event)) : 0;
    close(watch);
    errno = error;
    return file;
}

MS_TEST(a_file_is_opened_and_described)
{
    struct stat stat_of;
    char byte;
    int opened;
    make_folder();
    const int made = open(path_of("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK_EQ(write(made, "abc", 3), 3);
    close(made);
    CHECK_EQ(symlink("file", path_of("link")), 0);
    errno = EINVAL;
    const int file = ms_regular_file_open(path_of("link"), &stat_of);
    CHECK(file >= 0);
    CHECK_EQ(errno, 0);
    CHECK_EQ(stat_of.st_size, 3);
    CHECK_EQ(pread(file, &byte, 1, 2), 1);
    CHECK_EQ(byte, 'c');
    close(file);
    close(open_watched(path_of("file"), &opened));
    CHECK_EQ(opened, 1); /* so the watch would see it */
}

MS_TEST(an_open_that_fails_sets_errno)
{
    struct stat stat_of;
    make_folder();
    const int made = open(path_of("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)made + 2; /* one more */
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQ(ms_regular_file_open(path_of("file"), &stat_of), -1);
    CHECK_EQ(errno, EMFILE);
    CHECK_EQ(ms_regular_file_open(path_of("none"), &stat_of), -1);
    CHECK_EQ(errno, ENOENT);
    close(made);
}

MS_TEST(a_pipe_a_folder_and_a_device_are_not_opened)
{
    struct stat stat_of;
    int opened;
    make_folder();
    CHECK_EQ(mkfifo(path_of("pipe"), 0600), 0);
    CHECK_EQ(mkdir(path_of("folder"), 0700), 0);
    CHECK_EQ(symlink("/dev/ptmx", path_of("device")), 0);
    const char *const names[] = {"pipe", "folder", "device"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const int file = open_watched(path_of(names[i]), &opened);
        CHECK_EQ(errno, 0);
        CHECK_EQ(file, -1);
        CHECK_EQ(opened, 0);
    }
    CHECK_EQ(ms_regular_file_open(path_of("nothing"), &stat_of), -1);
    CHECK_EQ(errno, ENOENT);
}
