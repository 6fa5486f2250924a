/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan send: a plan to a process that listens for one on a UNIX socket. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/document/json.h"
#include "tools/json_writer.h"
#include "tools/plan/commands.h"

enum { ANSWER_MAX_BYTES = 1 << 16, PATIENCE_S = 600, PATIENCE_MAX_S = 1000000 };

static bool say(const char *file, const char *what, int error)
{
    if (error != 0)
        fprintf(stderr, "%s: %s: %s\n", file, what, strerror(error));
    else
        fprintf(stderr, "%s: %s\n", file, what);
    return false;
}

/* Reads the plan as "plan BYTES\n" and its text; ms_heap_free(). Checks the same bytes that are
 * sent, because the file may change meanwhile. */
static char *read_message(const char *path, size_t *bytes_out)
{
    struct ms_plan *plan;
    struct ms_fault fault;
    struct ms_pages text;
    char *message;
    size_t bytes;
    if (!ms_json_read_file(path, MS_JSON_MAX_BYTES, &text, &bytes, &fault)) {
        fprintf(stderr, "%s\n", fault.text);
        return NULL;
    }
    message = ms_heap_alloc(bytes + 32);
    if (message == NULL) {
        fputs("metashard-plan: out of memory\n", stderr);
    } else if (!ms_plan_parse(text.memory, bytes, path, &plan, &fault)) {
        fprintf(stderr, "%s\n", fault.text);
        ms_heap_free(message);
        message = NULL;
    } else {
        const size_t head = (size_t)sprintf(message, "plan %zu\n", bytes);
        memcpy(message + head, text.memory, bytes);
        *bytes_out = head + bytes;
        ms_plan_destroy(plan);
    }
    ms_pages_cleanup(&text);
    return message;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A connection to a socket whose queue is full waits as a send does. */
static int connect_to(const char *path, uint64_t seconds)
{
    const struct timeval limit = {.tv_sec = (time_t)seconds};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) {
        say(path, "the path is too long for a socket", 0);
        return -1;
    }
    strcpy(address.sun_path, path);
    const int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (peer >= 0 && setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
        connect(peer, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return peer;
    if (errno == EAGAIN)
        say(path, "too many clients wait there", 0);
    else
        say(path, "cannot be connected to", errno);
    if (peer >= 0)
        close(peer);
    return -1;
}

/* False: the other side is silent, which was said. */
static bool wait_until(int64_t until_ms, struct pollfd *ready, const char *path)
{
    const int64_t left = until_ms - now_ms();
    const int count = left > 0 ? poll(ready, 1, (int)left) : 0;
    if (count < 0)
        return say(path, "cannot wait for the answer", errno);
    return count > 0 || say(path, "no answer within --timeout; the plan may still be taken", 0);
}

/* Sends, and reads one line without its end. If the other side answers and closes before it has
 * read all, the rest is not sent. */
static bool exchange(int peer, int64_t until_ms, const char *path, const char *message,
                     size_t bytes, char answer[ANSWER_MAX_BYTES])
{
    size_t sent = 0, got = 0;
    while (got < ANSWER_MAX_BYTES) {
        struct pollfd ready = {.fd = peer, .events = POLLIN};
        if (sent < bytes)
            ready.events |= POLLOUT;
        if (!wait_until(until_ms, &ready, path))
            return false;
        if ((ready.revents & POLLOUT) != 0) {
            const ssize_t some =
                send(peer, message + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (some > 0)
                sent += (size_t)some;
            else if (errno != EAGAIN && errno != EINTR)
                sent = bytes;
        }
        if ((ready.revents & ~POLLOUT) == 0)
            continue;
        const ssize_t some = recv(peer, answer + got, ANSWER_MAX_BYTES - got, MSG_DONTWAIT);
        if (some < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (some <= 0)
            return say(path, "closed without an answer", some < 0 ? errno : 0);
        char *end = memchr(answer + got, '\n', (size_t)some);
        if (end != NULL) {
            *end = '\0';
            return true;
        }
        got += (size_t)some;
    }
    return say(path, "expected an answer of one line", 0);
}

static bool begins(const char *answer, const char *word)
{
    const size_t length = strlen(word);
    return strncmp(answer, word, length) == 0 && (answer[length] == '\0' || answer[length] == ' ');
}

static int report(const char *path, const char *answer, bool is_quiet)
{
    if (!begins(answer, "ok") && !begins(answer, "error")) {
        say(path, "expected ok or error as answer", 0);
        return BAD;
    }
    const bool is_good = begins(answer, "ok");
    FILE *out = is_quiet && !is_good ? stderr : stdout;
    put_escaped(out, answer, "");
    fputc('\n', out);
    return is_good ? GOOD : BAD;
}

int run_send(const struct options *options)
{
    static char answer[ANSWER_MAX_BYTES];
    size_t bytes;
    uint64_t seconds = PATIENCE_S;
    int status = BAD;
    if (options->to == NULL)
        return usage_fault("--to: expected the socket of METASHARD_CONTROL, found none");
    if (options->timeout != NULL &&
        (!read_count(options->timeout, PATIENCE_MAX_S, &seconds) || seconds == 0))
        return usage_fault("--timeout: expected seconds, 1 to %d", PATIENCE_MAX_S);
    const int64_t until_ms = now_ms() + (int64_t)seconds * 1000;
    char *message = read_message(options->words.files[0], &bytes);
    const int peer = message != NULL ? connect_to(options->to, seconds) : -1;
    if (peer >= 0 && exchange(peer, until_ms, options->to, message, bytes, answer))
        status = report(options->to, answer, options->quiet != NULL);
    if (peer >= 0)
        close(peer);
    ms_heap_free(message);
    return status;
}
