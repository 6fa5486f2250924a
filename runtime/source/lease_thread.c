/* SPDX-License-Identifier: Apache-2.0 */
/* The lease thread, which gives leases back when another process waits for them, and lets deleted
 * files go. */
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "runtime/base/lock.h"
#include "runtime/base/thread.h"
#include "runtime/source/lease.h"
#include "runtime/source/source.h"

enum { PERIOD_NS = 50 * 1000 * 1000 };

static ms_lease_breaker *breaker, *deleted;              /* immutable after ms_lease_start */
static struct ms_lock lock = MS_LOCK_INIT(lease_thread); /* guards what follows */
static bool is_running MS_GUARDED_BY(lock);

void ms_lease_start(bool are_allowed, ms_lease_breaker *breaker_, ms_lease_breaker *deleted_)
{
    breaker = breaker_;
    deleted = deleted_;
    if (are_allowed)
        ms_lease_allow();
}

static void *serve(__attribute__((unused)) void *argument)
{
    dev_t device;
    ino_t inode;
    pthread_setname_np(pthread_self(), "metashard-lease");
    for (;;) {
        ms_lease_wait();
        nanosleep(&(struct timespec){.tv_nsec = PERIOD_NS}, NULL);
        while (ms_source_find_broken(&device, &inode))
            breaker(device, inode);
        while (ms_source_find_deleted(&device, &inode))
            deleted(device, inode);
    }
    return NULL;
}

void ms_lease_serve(void)
{
    bool is_served = true;
    ms_lock_take(&lock);
    if (!is_running && deleted != NULL) {
        pthread_t created;
        is_served = ms_thread_create(&created, serve, NULL) == 0;
        if (is_served)
            pthread_detach(created);
        is_running = is_served;
    }
    ms_lock_drop(&lock);
    if (!is_served)
        ms_source_drop_leases();
}
