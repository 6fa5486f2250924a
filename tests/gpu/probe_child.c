/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct text {
    char *bytes;
    size_t length, capacity;
};

static void text_reserve(struct text *text, size_t more)
{
    if (text->length + more < text->capacity)
        return;
    text->capacity = text->capacity * 2 + more;
    text->bytes = realloc(text->bytes, text->capacity);
    if (text->bytes == NULL)
        abort();
}

static void text_append(struct text *text, const char *more)
{
    const size_t length = strlen(more);
    text_reserve(text, length + 1);
    memcpy(text->bytes + text->length, more, length);
    text->length += length;
}

/* The child stopped after some whole value: closes the open lists and objects, and says why. */
static void text_repair(struct text *text, const char *error)
{
    char closers[64];
    int depth = 0;
    bool in_string = false;
    if (text->length == 0)
        text_append(text, "{");
    for (size_t i = 0; i < text->length && depth < 64; i++) {
        const char byte = text->bytes[i];
        if (in_string && byte == '\\')
            i++;
        else if (byte == '"')
            in_string = !in_string;
        else if (!in_string && (byte == '{' || byte == '['))
            closers[depth++] = byte == '{' ? '}' : ']';
        else if (!in_string && (byte == '}' || byte == ']'))
            depth--;
    }
    while (depth > 1) {
        const char closer[2] = {closers[--depth], '\0'};
        text_append(text, closer);
    }
    const bool empty = text->length == 1;
    text_append(text, empty ? "\n  \"error\": \"" : ",\n  \"error\": \"");
    text_append(text, error);
    text_append(text, "\"\n}");
}

static bool text_read(struct text *text, int descriptor)
{
    text_reserve(text, 8192);
    const ssize_t got =
        read(descriptor, text->bytes + text->length, text->capacity - text->length - 1);
    if (got <= 0)
        return got < 0 && errno == EINTR;
    text->length += (size_t)got;
    return true;
}

/* Reads to the end of the pipe; false when the deadline passed first. */
static bool text_collect(struct text *text, int descriptor, int64_t deadline_ns)
{
    for (;;) {
        const int64_t left_ns = deadline_ns - probe_clock_ns();
        if (left_ns <= 0)
            return false;
        struct pollfd wait = {.fd = descriptor, .events = POLLIN};
        const int ready = poll(&wait, 1, (int)(left_ns / 1000000) + 1);
        if (ready > 0 && !text_read(text, descriptor))
            return true;
    }
}

static _Noreturn void run_body(int descriptor, probe_body *body, size_t argument)
{
    /* A child must not outlive a probe that was stopped, and hold the device. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    js_begin(descriptor);
    body(argument);
    js_end();
    /* The driver's exit handlers can hang or crash after a sticky error. */
    _exit(0);
}

void probe_child(const char *key, int limit_seconds, probe_body *body, size_t argument)
{
    int ends[2];
    if (pipe(ends) != 0)
        probe_fail("pipe: %s", strerror(errno));
    /* What is not written yet would be written twice, should something call exit() in the child. */
    js_flush();
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        run_body(ends[1], body, argument);
    }
    close(ends[1]);
    struct text text = {.bytes = NULL};
    const int64_t deadline_ns = probe_clock_ns() + limit_seconds * INT64_C(1000000000);
    const bool ended = pid > 0 && text_collect(&text, ends[0], deadline_ns);
    close(ends[0]);
    int status = 0;
    if (pid > 0) {
        if (!ended)
            kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    char error[128] = "";
    if (pid < 0)
        snprintf(error, sizeof(error), "fork failed");
    else if (!ended)
        snprintf(error, sizeof(error), "no answer after %d s", limit_seconds);
    else if (WIFSIGNALED(status))
        snprintf(error, sizeof(error), "ended by signal %d", WTERMSIG(status));
    else if (status != 0)
        snprintf(error, sizeof(error), "exit status %d", WEXITSTATUS(status));
    else if (text.length < 2 || memcmp(text.bytes + text.length - 2, "}\n", 2) != 0)
        snprintf(error, sizeof(error), "something ended the process");
    if (error[0] != '\0')
        text_repair(&text, error);
    else
        text.length--; /* the last newline */
    text.bytes[text.length] = '\0';
    js_raw(key, text.bytes);
    free(text.bytes);
}
