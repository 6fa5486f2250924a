/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/kept_threads.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/file_thread.h"
#include "tools/simcuda/harness/test.h"

enum { THREADS = 3 };

static struct piece {
    struct ms_kept_work work;
    sem_t may_end;
    pid_t thread;
    _Atomic bool has_begun;
} pieces[THREADS];

static void work_on(void *argument)
{
    struct piece *piece = argument;
    piece->thread = gettid();
    atomic_store(&piece->has_begun, true);
    while (sem_wait(&piece->may_end) != 0)
        ;
}

static void start(void *argument)
{
    struct piece *piece = argument;
    piece->work = (struct ms_kept_work){.run = work_on, .argument = piece};
    CHECK(ms_kept_threads_start(&piece->work));
}

static void wait_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

static void start_pieces(int count)
{
    for (int i = 0; i < count; i++) {
        sem_init(&pieces[i].may_end, 0, 0);
        atomic_store(&pieces[i].has_begun, false);
        CHECK(ms_file_thread_call(start, &pieces[i]));
    }
    for (int i = 0; i < count; i++) {
        while (!atomic_load(&pieces[i].has_begun))
            wait_a_moment();
    }
}

static void end_pieces(int count)
{
    for (int i = 0; i < count; i++)
        sem_post(&pieces[i].may_end);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL); /* most are idle then */
}

static bool is_one_of(pid_t thread, const pid_t *threads)
{
    bool is_found = false;
    for (int i = 0; i < THREADS; i++)
        is_found = is_found || threads[i] == thread;
    return is_found;
}

/* Remembers who does the pieces. True if that was so of each before. */
static bool are_the_same(pid_t threads[THREADS])
{
    pid_t now[THREADS];
    bool are_same = true;
    for (int i = 0; i < THREADS; i++) {
        now[i] = pieces[i].thread;
        are_same = are_same && is_one_of(now[i], threads);
    }
    memcpy(threads, now, sizeof(now));
    return are_same;
}

/* On a busy machine some may not be idle in time. */
MS_TEST(work_at_once_has_threads_of_its_own_and_the_next_has_the_same)
{
    pid_t threads[THREADS] = {0};
    bool are_same = false;
    for (int round = 0; round < 50 && !are_same; round++) {
        start_pieces(THREADS);
        are_same = are_the_same(threads);
        CHECK(threads[0] != threads[1] && threads[1] != threads[2] && threads[0] != threads[2]);
        end_pieces(THREADS);
    }
    CHECK(are_same);
}

static long ask_for(pid_t thread)
{
    return syscall(SYS_tgkill, getpid(), thread, 0);
}

MS_TEST(a_thread_without_work_ends)
{
    start_pieces(1);
    end_pieces(1);
    for (int i = 0; i < 10000 && ask_for(pieces[0].thread) == 0; i++)
        wait_a_moment();
    CHECK(ask_for(pieces[0].thread) != 0);
    start_pieces(1);
    end_pieces(1);
}
