/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/lease.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/config/config.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file_thread.h"

static uint64_t break_ns; /* lease-break-time; only the file thread uses it. 0: not read yet */

static struct {
    struct ms_lock lock; /* guards what follows; a leaf */
    pthread_cond_t more;
    uint32_t count;
    bool is_woken;
} leases = {.lock = MS_LOCK_INIT(leases), .more = PTHREAD_COND_INITIALIZER};

static uint64_t read_break_ns(void)
{
    char text[32] = "";
    const int file = ms_descriptor_open("/proc/sys/fs/lease-break-time", O_RDONLY);
    const ssize_t got = file >= 0 ? ms_descriptor_read(file, text, sizeof(text) - 1, 0) : 0;
    if (file >= 0)
        ms_descriptor_close(file);
    return got > 0 ? strtoull(text, NULL, 10) * MS_NS_PER_S : 0;
}

static void count(int change)
{
    ms_lock_take(&leases.lock);
    leases.count += (uint32_t)change;
    leases.is_woken |= leases.count == 0; /* for what ends with the last lease */
    pthread_cond_signal(&leases.more);
    ms_lock_drop(&leases.lock);
}

/* F_SETOWN_EX sends the signal to this thread, which blocks it: unblocked, it ends the program. */
void ms_lease_take(struct ms_lease *lease, int descriptor)
{
    enum { LEAST_SECONDS = 5 }; /* for materialising the bytes */
    const struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
    if (break_ns == 0)
        break_ns = read_break_ns();
    if (!ms_config.leases || break_ns < LEAST_SECONDS * (uint64_t)MS_NS_PER_S ||
        syscall(SYS_fcntl, descriptor, F_SETOWN_EX, &owner) != 0)
        return;
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC);
    if (syscall(SYS_fcntl, descriptor, F_SETLEASE, F_RDLCK) != 0)
        return;
    atomic_store(&lease->held_ns, now);
    atomic_store(&lease->is_taken, true);
    count(1);
}

/* The kernel keeps a writer waiting for at least break_ns, so a lease that was held lately is held.
 * Not in the program's table: the program may have closed the descriptor, which drops the lease. */
static bool was_held(const struct ms_lease *lease, uint64_t now)
{
    return ms_file_thread_has_own_table() &&
           now + MS_NS_PER_S < atomic_load(&lease->held_ns) + break_ns;
}

static bool is_held(struct ms_lease *lease, int descriptor, uint64_t now)
{
    if (syscall(SYS_fcntl, descriptor, F_GETLEASE, 0L) != F_RDLCK)
        return false;
    atomic_store(&lease->held_ns, now);
    return true;
}

/* Asks the kernel only if the lease thread has not seen the lease a moment ago. */
bool ms_lease_is_intact(struct ms_lease *lease, int descriptor)
{
    if (!atomic_load(&lease->is_taken))
        return false;
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC);
    return was_held(lease, now) || is_held(lease, descriptor, now);
}

bool ms_lease_is_broken(struct ms_lease *lease, int descriptor)
{
    return atomic_load(&lease->is_taken) &&
           !is_held(lease, descriptor, ms_clock_ns(CLOCK_MONOTONIC));
}

void ms_lease_drop(struct ms_lease *lease, int descriptor)
{
    if (!atomic_exchange(&lease->is_taken, false))
        return;
    syscall(SYS_fcntl, descriptor, F_SETLEASE, F_UNLCK);
    count(-1);
}

bool ms_lease_any(void)
{
    ms_lock_take(&leases.lock);
    const bool any = leases.count > 0;
    ms_lock_drop(&leases.lock);
    return any;
}

void ms_lease_wake(void)
{
    ms_lock_take(&leases.lock);
    leases.is_woken = true;
    pthread_cond_signal(&leases.more);
    ms_lock_drop(&leases.lock);
}

void ms_lease_wait(void)
{
    ms_lock_take(&leases.lock);
    while (leases.count == 0 && !leases.is_woken)
        pthread_cond_wait(&leases.more, &leases.lock.mutex);
    leases.is_woken = false;
    ms_lock_drop(&leases.lock);
}
