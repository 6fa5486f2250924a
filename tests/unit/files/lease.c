/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/config/config.h"
#include "runtime/files/file_thread.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/test.h"

static char path[] = "/tmp/metashard-lease-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

static int make_file(void)
{
    const int file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    close(file);
    return open(path, O_RDONLY);
}

MS_TEST(a_lease_is_taken_where_that_is_allowed_and_given_back)
{
    struct ms_lease lease = {false};
    const int file = make_file();
    ms_lease_take(&lease, file);
    CHECK(!atomic_load(&lease.is_taken) && !ms_lease_any());
    ms_config.leases = true;
    ms_lease_take(&lease, file);
    needs_lease(atomic_load(&lease.is_taken), path);
    CHECK(ms_lease_any());
    CHECK_EQ(fcntl(file, F_GETLEASE), F_RDLCK);
    CHECK(ms_lease_is_intact(&lease, file) && !ms_lease_is_broken(&lease, file));
    ms_lease_drop(&lease, file);
    CHECK(!ms_lease_any());
    CHECK_EQ(fcntl(file, F_GETLEASE), F_UNLCK);
    CHECK(!ms_lease_is_intact(&lease, file));
    ms_lease_drop(&lease, file); /* once is enough */
    CHECK(!ms_lease_any());
}

MS_TEST(a_file_that_is_open_for_writing_gets_none)
{
    struct ms_lease lease = {false};
    const int file = make_file(), writer = open(path, O_WRONLY);
    ms_config.leases = true;
    ms_lease_take(&lease, file);
    CHECK(!atomic_load(&lease.is_taken) && !ms_lease_any());
    close(writer);
}

/* --- a process that wants to write */

struct broken {
    bool is_taken, has_own_table, is_refused, is_broken;
    bool is_intact[3]; /* at once, shortly before the writer may go on, and when it may have */
};

static uint64_t break_ns(void)
{
    unsigned seconds = 0;
    FILE *file = fopen("/proc/sys/fs/lease-break-time", "r");
    CHECK(file != NULL && fscanf(file, "%u", &seconds) == 1);
    fclose(file);
    return (uint64_t)seconds * MS_NS_PER_S;
}

static void set_age(struct ms_lease *lease, uint64_t age_ns)
{
    atomic_store(&lease->held_ns, ms_clock_ns(CLOCK_MONOTONIC) - age_ns);
}

static void break_it(void *argument)
{
    struct broken *broken = argument;
    struct ms_lease lease = {false};
    const int file = open(path, O_RDONLY);
    ms_lease_take(&lease, file);
    broken->is_taken = atomic_load(&lease.is_taken);
    broken->has_own_table = ms_file_thread_has_own_table();
    if (broken->is_taken) {
        set_age(&lease, 0);
        broken->is_refused = open(path, O_WRONLY | O_NONBLOCK) < 0 && errno == EWOULDBLOCK;
        broken->is_intact[0] = ms_lease_is_intact(&lease, file);
        broken->is_broken = ms_lease_is_broken(&lease, file);
        set_age(&lease, break_ns() - 3 * (uint64_t)MS_NS_PER_S);
        broken->is_intact[1] = ms_lease_is_intact(&lease, file);
        set_age(&lease, break_ns() - MS_NS_PER_S / 2);
        broken->is_intact[2] = ms_lease_is_intact(&lease, file);
    }
    ms_lease_drop(&lease, file);
    close(file);
}

MS_TEST(a_lease_counts_for_as_long_as_the_writer_waits)
{
    struct broken broken = {false};
    close(make_file());
    ms_config.leases = true;
    CHECK(ms_file_thread_call(break_it, &broken));
    needs_lease(broken.is_taken, path);
    CHECK(broken.is_refused && broken.is_broken);
    CHECK_EQ(broken.is_intact[0], broken.has_own_table);
    CHECK_EQ(broken.is_intact[1], broken.has_own_table);
    CHECK(!broken.is_intact[2]);
}

/* A lease that is asked for long after it was last seen is seen now. */
MS_TEST(a_lease_that_is_seen_counts_anew)
{
    struct ms_lease lease = {false};
    const int file = make_file();
    ms_config.leases = true;
    ms_lease_take(&lease, file);
    needs_lease(atomic_load(&lease.is_taken), path);
    CHECK(ms_clock_ns(CLOCK_MONOTONIC) - atomic_load(&lease.held_ns) < MS_NS_PER_S);
    set_age(&lease, 2 * break_ns());
    CHECK(ms_lease_is_intact(&lease, file));
    CHECK(ms_clock_ns(CLOCK_MONOTONIC) - atomic_load(&lease.held_ns) < MS_NS_PER_S);
    ms_lease_drop(&lease, file);
}

/* --- who waits for leases */

static void *wait_in_thread(void *argument)
{
    ms_lease_wait();
    return argument;
}

static void begin_waiting(pthread_t *thread)
{
    CHECK_EQ(pthread_create(thread, NULL, wait_in_thread, NULL), 0);
}

/* Not for long; where it is slow this is true anyway. */
static bool still_waits(pthread_t thread)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 30 * 1000 * 1000;
    if (until.tv_nsec >= MS_NS_PER_S) {
        until.tv_nsec -= MS_NS_PER_S;
        until.tv_sec++;
    }
    return pthread_timedjoin_np(thread, NULL, &until) == ETIMEDOUT;
}

MS_TEST(a_wake_ends_one_wait_for_leases)
{
    pthread_t thread;
    ms_lease_wake();
    ms_lease_wait(); /* it was, before */
    begin_waiting(&thread);
    CHECK(still_waits(thread));
    ms_lease_wake();
    CHECK_EQ(pthread_join(thread, NULL), 0);
    begin_waiting(&thread);
    CHECK(still_waits(thread));
    ms_lease_wake();
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

MS_TEST(a_wait_for_leases_ends_with_the_first_and_the_last_lease)
{
    pthread_t thread;
    struct ms_lease lease = {false}, other = {false};
    const int file = make_file(), again = open(path, O_RDONLY);
    ms_config.leases = true;
    begin_waiting(&thread);
    ms_lease_take(&lease, file);
    if (!atomic_load(&lease.is_taken)) {
        ms_lease_wake();
        CHECK_EQ(pthread_join(thread, NULL), 0);
        needs_lease(false, path);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    ms_lease_wait();
    ms_lease_wait();
    ms_lease_take(&other, again);
    CHECK(atomic_load(&other.is_taken));
    ms_lease_drop(&lease, file);
    CHECK(ms_lease_any());
    ms_lease_wait();
    ms_lease_drop(&other, again);
    CHECK(!ms_lease_any());
    ms_lease_wait(); /* for what ends with the last one */
    begin_waiting(&thread);
    CHECK(still_waits(thread));
    ms_lease_wake();
    CHECK_EQ(pthread_join(thread, NULL), 0);
    close(again);
    close(file);
}
