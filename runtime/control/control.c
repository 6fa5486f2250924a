/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/control/control.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/config/config.h"
#include "runtime/control/arrive.h"
#include "runtime/control/socket.h"
#include "runtime/source/transfer.h"

enum {
    LOOK_MS = 250,
    PATIENCE = 20 /* looks, 5 s: how long a writer may pause within a plan */
};

/* Used by the thread alone, except where a comment says otherwise. */
static struct {
    pthread_t thread;
    pid_t pid;                    /* of the process that has the thread; a child has none */
    int wake;                     /* an eventfd, set when the process ends */
    char path[2 * MS_PATH_BYTES]; /* of the plan, absolute; "": none */
    struct stat read;             /* the file as it was read last; st_ino 0: never */
    struct stat seen;             /* as it was at the last look */
    int quiet;                    /* looks since it changed */
} control = {.wake = -1};

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool read_plan(const struct stat *now, struct ms_fault *fault)
{
    if (!ms_arrive_file(control.path, fault))
        return false;
    control.read = *now;
    return true;
}

static void refuse(const struct stat *now, const struct ms_fault *fault)
{
    ms_log(MS_ERROR, "METASHARD_PLAN: %s", fault->text);
    control.read = *now;
}

/* A file that is being written is read only when two looks find it the same. A plan with a fault
 * may still be half written, by a writer that was held up: it is refused only if it stays so. */
static void look_at_plan(void)
{
    struct stat now;
    struct ms_fault fault;
    if (control.path[0] == '\0' || stat(control.path, &now) != 0)
        return;
    control.quiet = is_same(&now, &control.seen) ? control.quiet + 1 : 0;
    control.seen = now;
    if ((control.quiet != 1 && control.quiet != PATIENCE) || is_same(&now, &control.read))
        return;
    if (!read_plan(&now, &fault) && control.quiet == PATIENCE)
        refuse(&now, &fault);
}

static void *serve(__attribute__((unused)) void *unused)
{
    ms_transfer_let_cancel();
    while (ms_socket_serve(control.wake, control.path[0] != '\0' ? LOOK_MS : -1))
        look_at_plan();
    return NULL;
}

/* The thread may wait for an allocation that another thread holds for ever: one that waits for a
 * collective whose peer has died. Returns false if it did not end. */
static bool join_soon(void)
{
    enum { PATIENCE_S = 5 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    return pthread_timedjoin_np(control.thread, NULL, &until) == 0;
}

/* Without this warning, a plan that was never there would look like one that is followed. */
static void warn_if_unread(void)
{
    struct stat now;
    if (control.path[0] == '\0' || control.read.st_ino != 0)
        return;
    const char *why = stat(control.path, &now) != 0 ? strerror(errno) : "it came too late";
    ms_log(MS_WARN, "METASHARD_PLAN: no plan was read from %s before the process ended: %s",
           control.path, why);
}

/* Runs before libcuda ends, as it is registered last. Gives up what the thread is filling. */
static void finish(void)
{
    if (getpid() != control.pid)
        return;
    const uint64_t one = 1;
    ms_transfer_cancel();
    if (write(control.wake, &one, sizeof(one)) != sizeof(one) || join_soon())
        ms_socket_close();
    else /* with its socket, which the next process that wants the name replaces */
        ms_log(MS_WARN, "the thread for plans waits for another thread of the program, and is left "
                        "behind");
    warn_if_unread();
}

static void start_thread(void)
{
    control.wake = eventfd(0, EFD_CLOEXEC);
    control.pid = getpid();
    const int error = control.wake >= 0 ? ms_thread_create(&control.thread, serve, NULL) : errno;
    if (error != 0) {
        ms_log(MS_WARN, "cannot start the thread for later plans: %s", strerror(error));
        if (control.wake >= 0)
            close(control.wake);
        ms_socket_close(); /* there is no thread to answer */
    } else if (atexit(finish) != 0) {
        ms_log(MS_WARN, "the thread for later plans does not run: no atexit function can end it");
        finish();
    }
}

/* Because the program may change its working directory. */
static void make_absolute(const char *path)
{
    char folder[MS_PATH_BYTES] = "";
    if (path[0] != '/' && path[0] != '\0' && getcwd(folder, sizeof(folder) - 1) != NULL)
        strcat(folder, "/");
    snprintf(control.path, sizeof(control.path), "%s%s", folder, path);
}

void ms_control_start(void)
{
    make_absolute(ms_config.plan_path);
    struct ms_fault fault;
    if (control.path[0] != '\0' && stat(control.path, &control.seen) == 0 &&
        !read_plan(&control.seen, &fault))
        refuse(&control.seen, &fault);
    const bool has_socket =
        ms_config.control_path[0] != '\0' && ms_socket_open(ms_config.control_path);
    if (control.path[0] != '\0' || has_socket)
        start_thread();
}
