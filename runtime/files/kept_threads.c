/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/kept_threads.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/files/file_thread.h"

static struct {
    struct ms_lock lock;
    pthread_cond_t more;        /* there is work */
    struct ms_kept_work *first; /* for idle threads: never more work than these */
    unsigned idle, waiting;     /* threads without work; and work without a thread */
} kept = {.lock = MS_LOCK_INIT(kept_threads), .more = PTHREAD_COND_INITIALIZER};

/* NULL: there was no work for MS_KEPT_THREADS_NS. Setting the clock changes that time, once. */
static struct ms_kept_work *wait_for_work(void)
{
    const struct timespec end = ms_clock_after(CLOCK_REALTIME, MS_KEPT_THREADS_NS);
    int waited = 0;
    ms_lock_take(&kept.lock);
    kept.idle++;
    while (kept.first == NULL && waited == 0)
        waited = pthread_cond_timedwait(&kept.more, &kept.lock.mutex, &end);
    struct ms_kept_work *work = kept.first;
    if (work != NULL) {
        kept.first = work->next;
        kept.waiting--;
    }
    kept.idle--;
    ms_lock_drop(&kept.lock);
    return work;
}

static void *serve(void *argument)
{
    pthread_setname_np(pthread_self(), "metashard-read");
    for (struct ms_kept_work *work = argument; work != NULL; work = wait_for_work()) {
        void (*run)(void *) = work->run;
        run(work->argument);
    }
    return NULL;
}

static bool hand_over(struct ms_kept_work *work)
{
    ms_lock_take(&kept.lock);
    const bool is_anybody = kept.waiting < kept.idle;
    if (is_anybody) {
        work->next = kept.first;
        kept.first = work;
        kept.waiting++;
        pthread_cond_signal(&kept.more);
    }
    ms_lock_drop(&kept.lock);
    return is_anybody;
}

bool ms_kept_threads_start(struct ms_kept_work *work)
{
    pthread_t thread;
    if (hand_over(work))
        return true;
    if (ms_file_thread_create(&thread, serve, work) != 0)
        return false;
    pthread_detach(thread);
    return true;
}
