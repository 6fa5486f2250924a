/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file_thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "runtime/base/lock.h"
#include "runtime/base/thread.h"
#include "runtime/files/descriptor.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* since Linux 5.9; the same number everywhere */
#endif
enum { UNSHARE = 1 << 1 }; /* CLOSE_RANGE_UNSHARE */

/* Sanitizers report to descriptor 2, from any thread. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif
enum { FIRST_CLOSED = SANITIZED ? 3 : 0 };

struct request {
    struct request *next;
    ms_file_call *call;
    void *argument;
    bool is_done;
    pthread_cond_t done;
};

static struct {
    /* guards what follows up to `last`; held across nothing but the thread's start */
    struct ms_lock lock;
    pthread_cond_t more; /* there is a request */
    bool is_running;
    _Atomic pid_t process; /* in which the thread runs: a forked child has no copy of it */
    struct request *first, **last;

    /* Only the file thread uses this. */
    bool has_own_table; /* immutable once the thread serves */
} server = {.lock = MS_LOCK_INIT(file_thread), .last = &server.first};

/* True in the file thread and in the threads that it starts. */
static _Thread_local bool is_inside __attribute__((tls_model("initial-exec")));

/* --- the file thread's own table */

/* Without opendir, which uses the program's heap. */
static bool close_all_copies(void)
{
    char entries[2048];
    const int folder = ms_descriptor_open("/proc/thread-self/fd", O_RDONLY | O_DIRECTORY);
    if (folder < 0)
        return false;
    long got;
    while ((got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
            const int descriptor =
                entry->d_name[0] == '.' ? -1 : (int)strtoull(entry->d_name, NULL, 10);
            if (descriptor >= FIRST_CLOSED && descriptor != folder)
                syscall(SYS_close, descriptor);
            at += entry->d_reclen;
        }
    }
    syscall(SYS_close, folder);
    return got == 0;
}

/* Since Linux 5.9 the kernel does not copy descriptors that close_range closes. Older kernels copy
 * all, and the copies are closed, because they would hold the program's pipes and sockets open. A
 * copy that cannot be closed does no other harm. */
static bool take_own_table(void)
{
    if (syscall(SYS_close_range, (unsigned)FIRST_CLOSED, ~0U, (unsigned)UNSHARE) == 0)
        return true;
    if (syscall(SYS_unshare, CLONE_FILES) != 0)
        return false;
    close_all_copies();
    return true;
}

/* Fills descriptors 0 to 2, so that libc's messages about a broken heap, to descriptor 2, go to no
 * file of ours. */
static void fill_standard_places(void)
{
    int descriptor = FIRST_CLOSED;
    while (descriptor >= 0 && descriptor < 3)
        descriptor = ms_descriptor_open("/dev/null", O_RDONLY);
    if (descriptor >= 3)
        syscall(SYS_close, descriptor);
}

/* --- the thread */

/*
 * The request is its caller's again, and may be gone, once the lock is released after is_done. The
 * caller waits, and may hold locks that rank below this one. So the call takes only locks that rank
 * above, as if it held this lock.
 */
MS_HOLDS(server.lock) static void serve_first_locked(void)
{
    struct request *request = server.first;
    server.first = request->next;
    if (server.first == NULL)
        server.last = &server.first;
    ms_lock_drop(&server.lock);
    ms_lock_add(&server.lock);
    request->call(request->argument);
    ms_lock_remove(&server.lock);
    ms_lock_take(&server.lock);
    request->is_done = true;
    pthread_cond_signal(&request->done);
}

static void *serve(__attribute__((unused)) void *argument)
{
    pthread_setname_np(pthread_self(), "metashard-file");
    is_inside = true;
    server.has_own_table = take_own_table();
    if (server.has_own_table)
        fill_standard_places();
    ms_lock_take(&server.lock);
    for (;;) {
        if (server.first != NULL)
            serve_first_locked();
        else
            pthread_cond_wait(&server.more, &server.lock.mutex);
    }
    return NULL;
}

MS_HOLDS(server.lock) static bool start_locked(void)
{
    pthread_t thread;
    if (!server.is_running && ms_thread_create(&thread, serve, NULL) == 0) {
        pthread_detach(thread);
        server.is_running = true;
        atomic_store_explicit(&server.process, getpid(), memory_order_relaxed);
    }
    return server.is_running;
}

bool ms_file_thread_is_of_parent(void)
{
    const pid_t process = atomic_load_explicit(&server.process, memory_order_relaxed);
    return process != 0 && process != getpid();
}

bool ms_file_thread_call(ms_file_call *call, void *argument)
{
    struct request request = {.call = call, .argument = argument, .done = PTHREAD_COND_INITIALIZER};
    int cancellable;
    if (is_inside) {
        call(argument);
        return true;
    }
    /* The lock may stay locked for ever in a forked child. The shim is inert there, but the
     * program's exit handlers may get here. */
    if (ms_file_thread_is_of_parent())
        return false;
    /* The request is on this stack: cancelling would leave it to the file thread. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable);
    ms_lock_take(&server.lock);
    const bool is_served = start_locked();
    if (is_served) {
        *server.last = &request;
        server.last = &request.next;
        pthread_cond_signal(&server.more);
        while (!request.is_done)
            pthread_cond_wait(&request.done, &server.lock.mutex);
    }
    ms_lock_drop(&server.lock);
    pthread_cond_destroy(&request.done);
    pthread_setcancelstate(cancellable, NULL);
    return is_served;
}

/* --- threads that share the file thread's table */

struct start {
    pthread_t *thread_out;
    void *(*run)(void *);
    void *argument;
    int error;
    sem_t taken; /* the new thread has copied its arguments */
};

static void *run_inside(void *argument)
{
    struct start *start = argument;
    void *(*run)(void *) = start->run;
    void *its_argument = start->argument;
    sem_post(&start->taken);
    is_inside = true;
    return run(its_argument);
}

static void start_inside(void *argument)
{
    struct start *start = argument;
    start->error = ms_thread_create(start->thread_out, run_inside, start);
    while (start->error == 0 && sem_wait(&start->taken) != 0)
        ;
}

int ms_file_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument)
{
    struct start start = {.thread_out = thread_out, .run = run, .argument = argument, .error = -1};
    sem_init(&start.taken, 0, 0);
    ms_file_thread_call(start_inside, &start);
    sem_destroy(&start.taken);
    return start.error;
}

bool ms_file_thread_has_own_table(void)
{
    return server.has_own_table;
}
