/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static _Noreturn void run_body(probe_body *body, size_t argument)
{
    /* A child must not outlive a probe that was stopped, and hold the device. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(argument);
    /* The driver's exit handlers can hang or crash after a sticky error. */
    _exit(PROBE_SAID);
}

/* Its status; ends it when it takes longer. */
static bool wait_for(pid_t pid, int limit_seconds, int *status_out)
{
    const int64_t deadline_ns = probe_clock_ns() + limit_seconds * INT64_C(1000000000);
    const struct timespec pause = {.tv_nsec = 500000};
    while (waitpid(pid, status_out, WNOHANG) == 0) {
        if (probe_clock_ns() > deadline_ns) {
            kill(pid, SIGKILL);
            waitpid(pid, status_out, 0);
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

void probe_child(const char *key, int limit_seconds, probe_body *body, size_t argument)
{
    int status = 0;
    js_open(key);
    const int depth = js_depth();
    const pid_t pid = fork();
    if (pid == 0)
        run_body(body, argument);
    const bool ended = pid > 0 && wait_for(pid, limit_seconds, &status);
    js_close_to(depth); /* of a child that was stopped after some whole value */
    if (pid < 0)
        js_string("error", "fork failed");
    else if (!ended)
        js_format("error", "no answer after %d s", limit_seconds);
    else if (WIFSIGNALED(status))
        js_format("error", "ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == 0)
        js_string("error", "something ended the process");
    else if (WEXITSTATUS(status) != PROBE_SAID)
        js_format("error", "exit status %d", WEXITSTATUS(status));
    js_close();
}
