/* SPDX-License-Identifier: Apache-2.0 */
/* Writes that fail: no signal of theirs reaches the program, and none of the program's is lost. */
#include "runtime/base/quiet.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "tools/simcuda/harness/test.h"

static volatile sig_atomic_t caught;

static void note_signal(int signal)
{
    caught += signal != 0;
}

static void catch (int signal)
{
    const struct sigaction action = {.sa_handler = note_signal};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void block(int how, int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    CHECK(pthread_sigmask(how, &set, NULL) == 0);
}

static bool is_pending(int signal)
{
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, signal) == 1;
}

static int broken_pipe(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    close(ends[0]);
    return ends[1];
}

MS_TEST(a_line_to_a_pipe_that_nobody_reads_does_not_end_the_program)
{
    CHECK(dup2(broken_pipe(), STDERR_FILENO) == STDERR_FILENO);
    for (int i = 0; i < 3; i++)
        ms_log(MS_ERROR, "the number %d", i);
}

MS_TEST(the_programs_handler_is_not_called_and_its_mask_stays)
{
    sigset_t before, after;
    catch (SIGPIPE);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
    errno = 0;
    CHECK_EQ(ms_quiet_write(broken_pipe(), "x", 1), -1);
    CHECK_EQ(errno, EPIPE);
    CHECK_EQ(caught, 0);
    CHECK(!is_pending(SIGPIPE));
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
    CHECK_BYTES(&after, &before, 8); /* what the kernel has of it */
}

MS_TEST(a_blocked_signal_that_was_pending_stays_pending)
{
    catch (SIGPIPE);
    block(SIG_BLOCK, SIGPIPE);
    pthread_kill(pthread_self(), SIGPIPE);
    CHECK_EQ(ms_quiet_write(broken_pipe(), "x", 1), -1);
    CHECK(is_pending(SIGPIPE));
    block(SIG_UNBLOCK, SIGPIPE);
    CHECK_EQ(caught, 1);
}

MS_TEST(a_blocked_signal_that_was_not_pending_does_not_become_so)
{
    catch (SIGPIPE);
    block(SIG_BLOCK, SIGPIPE);
    CHECK_EQ(ms_quiet_write(broken_pipe(), "x", 1), -1);
    CHECK(!is_pending(SIGPIPE));
    signal(SIGPIPE, SIG_IGN);
    CHECK_EQ(ms_quiet_write(broken_pipe(), "x", 1), -1);
    CHECK(!is_pending(SIGPIPE));
}

MS_TEST(a_file_that_may_grow_no_more_does_not_end_the_program)
{
    char path[] = "/tmp/metashard-quiet-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    unlink(path);
    CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4, 4}) == 0);
    CHECK_EQ(ms_quiet_write(file, "12345678", 8), 4);
    CHECK_EQ(ms_quiet_write(file, "12345678", 8), -1);
    CHECK_EQ(errno, EFBIG);
}

/* A pipe that is full holds the writer up, and write is a point of cancellation. */
static void *write_and_note(void *descriptor)
{
    static char much[1 << 17];
    static bool done;
    ms_quiet_write(*(int *)descriptor, much, sizeof(much));
    done = true;
    pthread_testcancel();
    return &done;
}

MS_TEST(a_thread_that_is_cancelled_ends_its_write_first)
{
    int ends[2];
    static char some[1 << 17];
    pthread_t thread;
    void *result;
    CHECK(pipe(ends) == 0);
    alarm(20);
    CHECK(pthread_create(&thread, NULL, write_and_note, &ends[1]) == 0);
    for (int held = 0; held == 0; usleep(10000))
        CHECK(ioctl(ends[0], FIONREAD, &held) == 0);
    CHECK(pthread_cancel(thread) == 0);
    usleep(50000);
    size_t got = 0;
    for (ssize_t now; got < sizeof(some); got += (size_t)now) {
        now = read(ends[0], some, sizeof(some));
        CHECK(now > 0);
    }
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_EQ(got, sizeof(some));
}
