/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file_thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/descriptor.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

/* close_range(2), on all machines. */
enum { CLOSE_RANGE = 436 };

static char path[] = "/tmp/metashard-file-thread-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

static int make_file(void)
{
    const int file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    CHECK_EQ(write(file, "checkpoint", 10), 10);
    return file;
}

/* Valgrind has some of its own behind the limit that it tells, and closes none of these. */
static int count_descriptors(const char *folder)
{
    struct rlimit limit;
    DIR *all = opendir(folder);
    int count = 0;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (struct dirent *one; (one = readdir(all)) != NULL;)
        count += one->d_name[0] != '.' && strtoull(one->d_name, NULL, 10) < limit.rlim_cur;
    closedir(all);
    return count - 1; /* of which one is that of the folder */
}

struct look {
    int descriptor;
    int count;
    bool has_own_table;
};

static void look_inside(void *argument)
{
    struct look *look = argument;
    look->has_own_table = ms_file_thread_has_own_table();
    look->count = count_descriptors("/proc/thread-self/fd");
}

static bool has_own_table(void)
{
    struct look look = {0};
    CHECK(ms_file_thread_call(look_inside, &look));
    return look.has_own_table;
}

static void open_inside(void *argument)
{
    *(int *)argument = ms_descriptor_open(path, O_RDONLY);
}

static void close_inside(void *argument)
{
    ms_descriptor_close(*(int *)argument);
}

static void call_again(void *argument)
{
    struct look look = {0};
    *(bool *)argument = ms_file_thread_call(look_inside, &look) && look.count > 0;
}

MS_TEST(a_call_within_the_file_thread_is_served_at_once)
{
    bool is_served = false;
    CHECK(ms_file_thread_call(call_again, &is_served));
    CHECK(is_served);
}

/* --- the table */

static void check_own_table(void)
{
    make_file();
    const int before = count_descriptors("/proc/self/fd");
    int descriptor;
    CHECK(has_own_table());
    CHECK(ms_file_thread_call(open_inside, &descriptor));
    CHECK(descriptor >= 3);
    CHECK_EQ(count_descriptors("/proc/self/fd"), before);
    struct look look;
    CHECK(ms_file_thread_call(look_inside, &look));
    CHECK_EQ(look.count, 4); /* three places of standard streams, and the file */
    ms_file_thread_call(close_inside, &descriptor);
}

STORY_ALONE(the_file_thread_shares_no_descriptors_with_the_program,
            needs_own_table(has_own_table()), check_own_table())

STORY_ALONE(the_file_thread_shares_no_descriptors_before_linux_5_9, deny(CLOSE_RANGE, ENOSYS),
            needs_own_table(has_own_table()), check_own_table())

MS_TEST(the_file_thread_works_without_a_table_of_its_own)
{
    const int before = count_descriptors("/proc/self/fd");
    deny(CLOSE_RANGE, EPERM);
    deny(SYS_unshare, EPERM);
    CHECK(!has_own_table());
    CHECK_EQ(count_descriptors("/proc/self/fd"), before);
}

static bool can_others_lock(int file)
{
    const pid_t child = fork();
    if (child == 0) {
        struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(file, F_SETLK, &wanted) == 0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) != 0;
}

MS_TEST(locks_of_the_program_stay)
{
    const int file = make_file();
    struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int descriptor;
    needs_own_table(has_own_table());
    CHECK_EQ(fcntl(file, F_SETLK, &wanted), 0);
    CHECK(ms_file_thread_call(open_inside, &descriptor));
    ms_file_thread_call(close_inside, &descriptor);
    CHECK(!can_others_lock(file));
}

/* A pipe with the highest number, behind so many others; the lowest one is free. */
static void check_pipe_is_not_held(size_t others)
{
    int ends[2];
    const int lowest = dup(STDOUT_FILENO);
    for (size_t i = 0; i < others; i++)
        CHECK(dup(STDOUT_FILENO) >= 0);
    CHECK_EQ(pipe(ends), 0);
    close(lowest);
    needs_own_table(has_own_table());
    close(ends[1]);
    struct pollfd end = {.fd = ends[0], .events = POLLIN};
    CHECK_EQ(poll(&end, 1, 10000), 1);
    CHECK((end.revents & POLLHUP) != 0);
}

MS_TEST(pipes_of_the_program_are_not_held_open)
{
    check_pipe_is_not_held(0);
}

STORY_ALONE(pipes_of_the_program_are_not_held_open_before_linux_5_9, deny(CLOSE_RANGE, ENOSYS),
            check_pipe_is_not_held(0))

/* More than the kernel lists at once. */
STORY_ALONE(the_last_of_many_pipes_is_not_held_open_before_linux_5_9, deny(CLOSE_RANGE, ENOSYS),
            check_pipe_is_not_held(300))

static void *open_in_thread(void *argument)
{
    ms_file_thread_call(open_inside, argument); /* in place */
    return NULL;
}

MS_TEST(threads_of_the_file_thread_share_its_table)
{
    make_file();
    int descriptor = -1, same;
    pthread_t thread;
    CHECK_EQ(ms_file_thread_create(&thread, open_in_thread, &descriptor), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(descriptor >= 0);
    ms_file_thread_call(close_inside, &descriptor);
    ms_file_thread_call(open_inside, &same);
    CHECK_EQ(same, descriptor);
}

/* --- calls */

static _Atomic int inside, calls;

static void count_call(void *argument)
{
    CHECK_EQ(atomic_fetch_add(&inside, 1), 0);
    ++*(int *)argument;
    atomic_fetch_add(&calls, 1);
    atomic_fetch_sub(&inside, 1);
}

static void *call_often(__attribute__((unused)) void *argument)
{
    int own = 0;
    for (int i = 1; i <= 2000; i++) {
        CHECK(ms_file_thread_call(count_call, &own));
        CHECK_EQ(own, i);
    }
    return NULL;
}

MS_TEST(calls_of_many_threads_run_one_at_a_time)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, call_often, NULL), 0);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(calls, 8 * 2000);
}

static _Atomic bool is_slow_call_begun, is_slow_call_over, goes_on;

static void take_long(__attribute__((unused)) void *argument)
{
    atomic_store(&is_slow_call_begun, true);
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    atomic_store(&is_slow_call_over, true);
}

static void *wait_for_slow_call(void *argument)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    ms_file_thread_call(take_long, NULL);
    CHECK(atomic_load(&is_slow_call_over));
    pthread_testcancel();
    atomic_store(&goes_on, true);
    return argument;
}

MS_TEST(a_waiting_thread_is_cancelled_when_its_call_is_done)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_slow_call, NULL), 0);
    while (!atomic_load(&is_slow_call_begun))
        sched_yield();
    CHECK_EQ(pthread_cancel(thread), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!atomic_load(&goes_on));
    CHECK(atomic_load(&is_slow_call_over));
    int own = 0;
    CHECK(ms_file_thread_call(count_call, &own)); /* the next call is served */
}

/* The fork may come while a call is served, and its lock held. */
MS_TEST(a_forked_child_has_no_file_thread)
{
    pthread_t thread;
    int own = 0;
    CHECK_EQ(pthread_create(&thread, NULL, call_often, NULL), 0);
    CHECK(ms_file_thread_call(count_call, &own));
    for (int i = 0; i < 100; i++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0)
            _exit(ms_file_thread_call(count_call, &own) ? 1 : 0);
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

MS_TEST(the_process_may_end_while_a_call_waits)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, wait_for_slow_call, NULL);
        pthread_detach(thread);
        while (!atomic_load(&is_slow_call_begun))
            sched_yield();
        exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

MS_TEST(a_call_is_refused_where_no_thread_can_be_made)
{
    int own = 0;
    deny(SYS_clone, EAGAIN);
    deny(435, EAGAIN); /* clone3 */
    CHECK(!ms_file_thread_call(count_call, &own));
    CHECK_EQ(own, 0);
}
