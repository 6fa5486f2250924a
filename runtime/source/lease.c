/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/lease.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/base/thread.h"
#include "runtime/source/descriptor.h"
#include "runtime/source/source.h"

enum { PERIOD_NS = 50 * 1000 * 1000 };
static const uint64_t second_ns = UINT64_C(1000000000);

static ms_lease_breaker *breaker; /* immutable after ms_lease_start */
static uint64_t break_ns;         /* lease-break-time; the file thread's own. 0: not asked yet */

static struct {
    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t more;
    uint32_t count; /* leases */
    bool is_running;
} thread = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

void ms_lease_start(ms_lease_breaker *breaker_)
{
    breaker = breaker_;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

static uint64_t read_break_ns(void)
{
    char text[32] = "";
    const int file = ms_file_open("/proc/sys/fs/lease-break-time", O_RDONLY);
    const ssize_t got = file >= 0 ? ms_file_read(file, text, sizeof(text) - 1, 0) : 0;
    if (file >= 0)
        ms_file_close(file);
    return got > 0 ? strtoull(text, NULL, 10) * second_ns : 0;
}

static void count(int change)
{
    pthread_mutex_lock(&thread.lock);
    thread.count += (uint32_t)change;
    pthread_cond_signal(&thread.more);
    pthread_mutex_unlock(&thread.lock);
}

/* The signal goes to this thread alone, where all are blocked; without that, it would end the program. */
void ms_lease_take(struct ms_lease *lease, int descriptor)
{
    enum { LEAST_SECONDS = 5 }; /* to bring bytes in */
    const struct f_owner_ex owner = {F_OWNER_TID, gettid()};
    if (break_ns == 0)
        break_ns = read_break_ns();
    if (breaker == NULL || break_ns < LEAST_SECONDS * second_ns ||
        syscall(SYS_fcntl, descriptor, F_SETOWN_EX, &owner) != 0)
        return;
    const uint64_t now = now_ns();
    if (syscall(SYS_fcntl, descriptor, F_SETLEASE, F_RDLCK) != 0)
        return;
    atomic_store(&lease->held_ns, now);
    atomic_store(&lease->is_taken, true);
    count(1);
}

/* The kernel lets nobody in before break_ns have gone by since somebody came. */
bool ms_lease_is_intact(struct ms_lease *lease, int descriptor)
{
    if (!atomic_load(&lease->is_taken))
        return false;
    const uint64_t now = now_ns();
    if (syscall(SYS_fcntl, descriptor, F_GETLEASE, 0) == F_RDLCK) {
        atomic_store(&lease->held_ns, now);
        return true;
    }
    return now + second_ns < atomic_load(&lease->held_ns) + break_ns;
}

bool ms_lease_is_broken(const struct ms_lease *lease, int descriptor)
{
    return atomic_load(&lease->is_taken) &&
           syscall(SYS_fcntl, descriptor, F_GETLEASE, 0) != F_RDLCK;
}

void ms_lease_drop(struct ms_lease *lease, int descriptor)
{
    if (!atomic_exchange(&lease->is_taken, false))
        return;
    syscall(SYS_fcntl, descriptor, F_SETLEASE, F_UNLCK);
    count(-1);
}

/* --- the lease thread */

static void wait_for_leases(void)
{
    pthread_mutex_lock(&thread.lock);
    while (thread.count == 0)
        pthread_cond_wait(&thread.more, &thread.lock);
    pthread_mutex_unlock(&thread.lock);
    nanosleep(&(struct timespec){.tv_nsec = PERIOD_NS}, NULL);
}

static void *serve(__attribute__((unused)) void *argument)
{
    dev_t device;
    ino_t inode;
    pthread_setname_np(pthread_self(), "metashard-lease");
    for (;;) {
        wait_for_leases();
        while (ms_source_find_broken(&device, &inode))
            breaker(device, inode);
    }
    return NULL;
}

void ms_lease_serve(void)
{
    bool is_served = true;
    pthread_mutex_lock(&thread.lock);
    if (thread.count > 0 && !thread.is_running) {
        pthread_t created;
        is_served = ms_thread_create(&created, serve, NULL) == 0;
        if (is_served)
            pthread_detach(created);
        thread.is_running = is_served;
    }
    pthread_mutex_unlock(&thread.lock);
    if (!is_served)
        ms_source_drop_leases();
}
