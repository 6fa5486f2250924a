/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/pages.h"
#include "runtime/base/peer.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/thread.h"
#include "runtime/config/config.h"
#include "runtime/control/control_internal.h"
#include "runtime/control/suspension.h"
#include "runtime/document/json.h"
#include "runtime/driver/quiesce.h"
#include "runtime/fill/prefetch.h"
#include "runtime/fill/settle.h"
#include "runtime/fill/suspend.h"
#include "runtime/loading/transfer.h"
#include "runtime/plan/plan.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

/* --- plans that arrive */

static bool put_in_force(struct ms_plan *plan, const char *name, struct ms_fault *fault)
{
    const bool is_first = !ms_shard_is_active();
    if (!ms_shard_set(plan, name, fault))
        return false;
    ms_prefetch_arrive(is_first, !ms_suspend_is_active());
    return true;
}

bool ms_control_text(const char *text, size_t bytes, const char *name, struct ms_fault *fault)
{
    struct ms_plan *plan;
    return ms_plan_parse(text, bytes, name, &plan, fault) && put_in_force(plan, name, fault);
}

bool ms_control_file(const char *path, struct ms_fault *fault)
{
    struct ms_plan *plan;
    return ms_plan_read(path, &plan, fault) && put_in_force(plan, path, fault);
}

size_t ms_control_status(char *text, size_t bytes)
{
    struct ms_state_plan facts;
    ms_shard_describe(&facts);
    const int length = snprintf(
        text, bytes,
        "{\"pid\": %d, \"plans\": %" PRIu64 ", \"mode\": \"%s\", \"rank\": %" PRIu32
        ", \"world_size\": %" PRIu32 ", \"tensors\": %" PRIu64 ", \"planned_bytes\": %" PRIu64
        ", \"owned_bytes\": %" PRIu64 ", \"remote_reads\": %" PRIu64
        ", \"remote_read_bytes\": %" PRIu64 ", \"requested_bytes\": %" PRIu64
        ", \"backed_bytes\": %" PRIu64 ", \"plan_freed_bytes\": %" PRIu64 ", \"suspended\": %s}",
        (int)getpid(), facts.generation, ms_config.plan_mode == MS_ENFORCE ? "enforce" : "advise",
        facts.rank, facts.world, facts.tensors, facts.planned_bytes, facts.owned_bytes,
        ms_counter_get(MS_COUNT_REMOTE_READS), ms_counter_get(MS_COUNT_REMOTE_READ_BYTES),
        ms_counter_get(MS_COUNT_REQUESTED_BYTES), ms_counter_get(MS_GAUGE_BACKED),
        ms_counter_get(MS_COUNT_PLAN_FREED_BYTES), ms_suspend_is_active() ? "true" : "false");
    return length > 0 ? (size_t)length : 0;
}

/* --- the socket */

enum {
    LINE_BYTES = MS_PATH_BYTES + 64,
    ANSWER_BYTES = 2048,
    PATIENCE_S = 10,
    LOOK_MS = 250,
    BACKLOG = 128
};

struct client {
    int descriptor;    /* -1: none */
    uint64_t heard_ns; /* when the client last sent data or got an answer */
    char line[LINE_BYTES];
    size_t line_length;
    struct ms_pages plan; /* empty unless a plan is being received */
    size_t plan_bytes, plan_length;
};

static struct {
    int listener; /* -1: none */
    struct sockaddr_un address;
    ino_t inode;
    struct client clients[MS_CONTROL_CLIENTS]; /* in the order in which they connected */
} server = {.listener = -1, .clients = {[0 ... MS_CONTROL_CLIENTS - 1] = {.descriptor = -1}}};

/* --- opening */

/* Returns true if the name is free: unused, or, until now, a socket that no process serves. */
static bool make_room(void)
{
    struct stat there;
    if (lstat(server.address.sun_path, &there) != 0)
        return errno == ENOENT;
    if (!S_ISSOCK(there.st_mode)) {
        errno = EEXIST;
        return false;
    }
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return false;
    const bool is_served =
        connect(probe, (struct sockaddr *)&server.address, sizeof(server.address)) == 0 ||
        errno != ECONNREFUSED;
    close(probe);
    errno = EADDRINUSE;
    return !is_served && unlink(server.address.sun_path) == 0;
}

/* Sets the mode before the name exists; the umask can only restrict the mode. */
static bool open_listener(void)
{
    struct stat made;
    server.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server.listener < 0)
        return false;
    const bool is_bound =
        fchmod(server.listener, 0600) == 0 && make_room() &&
        bind(server.listener, (struct sockaddr *)&server.address, sizeof(server.address)) == 0;
    if (is_bound && listen(server.listener, BACKLOG) == 0 &&
        lstat(server.address.sun_path, &made) == 0) {
        server.inode = made.st_ino;
        return true;
    }
    const int error = errno;
    if (is_bound)
        unlink(server.address.sun_path);
    close(server.listener);
    server.listener = -1;
    errno = error;
    return false;
}

bool ms_control_open(const char *path)
{
    server.address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof(server.address.sun_path)) {
        ms_log(MS_WARN, "METASHARD_CONTROL: expected a path of less than %zu bytes, found %s",
               sizeof(server.address.sun_path), path);
        return false;
    }
    strcpy(server.address.sun_path, path);
    if (open_listener())
        return true;
    ms_log(MS_WARN, "METASHARD_CONTROL: cannot make the socket %s: %s", path, strerror(errno));
    return false;
}

/* --- clients */

static void drop(struct client *client)
{
    if (client->descriptor >= 0)
        close(client->descriptor);
    ms_pages_cleanup(&client->plan);
    *client = (struct client){.descriptor = -1};
}

void ms_control_close(void)
{
    struct stat there;
    if (server.listener < 0)
        return;
    for (int i = 0; i < MS_CONTROL_CLIENTS; i++)
        drop(&server.clients[i]);
    close(server.listener);
    server.listener = -1;
    if (lstat(server.address.sun_path, &there) == 0 && there.st_ino == server.inode)
        unlink(server.address.sun_path);
}

/* Does not wait: a peer that does not read loses its answer. */
static void answer(struct client *client, const char *word, const char *text)
{
    char line[ANSWER_BYTES];
    const int length = snprintf(line, sizeof(line) - 1, "%s %s", word, text);
    size_t bytes = (size_t)length < sizeof(line) - 1 ? (size_t)length : sizeof(line) - 2;
    line[bytes++] = '\n';
    if (send(client->descriptor, line, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes)
        ms_log(MS_DEBUG, "the control socket's peer did not take its answer");
}

/* Sleeps: a connection that cannot be accepted stays pending, and makes poll return at once. */
static void wait_for_descriptor(void)
{
    static bool is_given;
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
        return;
    if (!is_given)
        ms_log(MS_WARN, "METASHARD_CONTROL: cannot accept a connection, which has to wait: %s",
               strerror(errno));
    is_given = true;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

/* Moves all clients to the front. Returns their number. */
static int close_gaps(void)
{
    int kept = 0;
    for (int i = 0; i < MS_CONTROL_CLIENTS; i++) {
        const struct client client = server.clients[i];
        server.clients[i] = (struct client){.descriptor = -1};
        if (client.descriptor >= 0)
            server.clients[kept++] = client;
    }
    return kept;
}

static void accept_client(void)
{
    const int descriptor = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0) {
        wait_for_descriptor();
        return;
    }
    struct client client = {.descriptor = descriptor,
                            .heard_ns = ms_clock_ns(CLOCK_MONOTONIC_COARSE)};
    const int at = close_gaps();
    const bool has_room = at < MS_CONTROL_CLIENTS;
    if (has_room && ms_peer_is_own_user(descriptor)) {
        server.clients[at] = client;
        return;
    }
    answer(&client, "error", has_room ? "not the same user" : "too many connections");
    drop(&client);
}

/* --- requests */

static void take_plan(struct client *client)
{
    struct ms_fault fault;
    const bool is_good =
        ms_control_text(client->plan.memory, client->plan_bytes, "the control socket", &fault);
    answer(client, is_good ? "ok" : "error", is_good ? "the plan is active" : fault.text);
    ms_pages_cleanup(&client->plan);
}

static void begin_plan(struct client *client, const char *number)
{
    char *end;
    const unsigned long long bytes = strtoull(number, &end, 10);
    if (number[0] < '0' || number[0] > '9' || *end != '\0' || bytes == 0 ||
        bytes > MS_JSON_MAX_BYTES) {
        answer(client, "error", "expected plan and a number of bytes, at most 268435456");
        drop(client);
        return;
    }
    client->plan_bytes = bytes;
    client->plan_length = 0;
    if (ms_pages_grow(&client->plan, bytes))
        return;
    answer(client, "error", "out of memory");
    drop(client);
}

static void begin_suspension(struct client *client, const char *folder)
{
    struct ms_fault fault;
    char told[ANSWER_BYTES - 8];
    const bool is_good = ms_suspension_begin(folder, told, sizeof(told), &fault);
    answer(client, is_good ? "ok" : "error", is_good ? told : fault.text);
}

static void end_suspension(struct client *client)
{
    struct ms_fault fault;
    const bool is_good = ms_suspension_end(&fault);
    answer(client, is_good ? "ok" : "error", is_good ? "everything is back" : fault.text);
}

static void refuse_line(struct client *client)
{
    answer(client, "error", "expected plan BYTES, materialise, suspend, resume or status");
    drop(client);
}

static void obey(struct client *client)
{
    char status[ANSWER_BYTES - 8];
    if (strncmp(client->line, "plan ", 5) == 0) {
        begin_plan(client, client->line + 5);
    } else if (strcmp(client->line, "materialise") == 0) {
        ms_settle_now("the control socket asked for it");
        answer(client, "ok", "everything that can be materialised is in memory");
    } else if (strcmp(client->line, "suspend") == 0) {
        begin_suspension(client, NULL);
    } else if (strncmp(client->line, "suspend ", 8) == 0 && client->line[8] != '\0') {
        begin_suspension(client, client->line + 8);
    } else if (strcmp(client->line, "resume") == 0) {
        end_suspension(client);
    } else if (strcmp(client->line, "status") == 0) {
        ms_control_status(status, sizeof(status));
        answer(client, "ok", status);
    } else {
        refuse_line(client);
    }
}

/* --- the signal */

/* The handler writes to a descriptor, and the thread does the rest. */
static struct {
    int descriptor; /* -1: none */
    pid_t pid;      /* the process that runs the thread */
} signalled = {.descriptor = -1};

/* A forked child inherits the handler, but not the thread. So the handler restores the program's
 * disposition, which was the default; the raised signal meets it when the handler returns. */
static void hand_back(int number)
{
    const struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(number, &action, NULL);
    raise(number);
}

static void note(int number)
{
    const int error = errno;
    const uint64_t one = 1;
    if (getpid() != signalled.pid)
        hand_back(number);
    else if (write(signalled.descriptor, &one, sizeof(one)) < 0)
        errno = error; /* the counter is full: enough signals have come */
}

/* Returns why a signal must not be used, or NULL. When a handler returns, a fault repeats, and a
 * program that calls abort() goes on. The kernel sends CHLD and CONT by itself. */
static const char *reason_against(int number)
{
    switch (number) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
        return "faults of the program raise it";
    case SIGCHLD:
    case SIGCONT:
        return "the kernel sends it to programs that have children or are stopped";
    default:
        return NULL;
    }
}

/* Installs the handler. Returns NULL, or why not: a signal that the program handles or ignores
 * stays the program's. */
static const char *take_signal(int number)
{
    struct sigaction before, action = {.sa_handler = note, .sa_flags = SA_RESTART};
    const char *why = reason_against(number);
    if (why != NULL)
        return why;
    if (sigaction(number, NULL, &before) != 0)
        return "there is no such signal";
    if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL)
        return "the program handles it itself";
    return sigaction(number, &action, NULL) == 0 ? NULL : "no process can handle it";
}

static void open_signal(void)
{
    const uint64_t number = ms_config.suspend_signal;
    if (number == 0)
        return;
    signalled.descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    signalled.pid = getpid();
    if (signalled.descriptor < 0) {
        ms_log(MS_WARN, "METASHARD_SUSPEND_SIGNAL: %s", strerror(errno));
        return;
    }
    const int known = number < INT_MAX ? (int)number : INT_MAX;
    const char *why = take_signal(known);
    if (why == NULL)
        return;
    ms_log(MS_WARN, "METASHARD_SUSPEND_SIGNAL: %d: %s; use another signal", known, why);
    close(signalled.descriptor);
    signalled.descriptor = -1;
}

/* All signals since the last call count as one. */
static void obey_signal(void)
{
    struct ms_fault fault;
    char told[ANSWER_BYTES];
    uint64_t count;
    if (read(signalled.descriptor, &count, sizeof(count)) != sizeof(count))
        return;
    const bool ends = ms_suspend_is_active();
    const bool is_good =
        ends ? ms_suspension_end(&fault) : ms_suspension_begin(NULL, told, sizeof(told), &fault);
    if (!is_good)
        ms_log(MS_WARN, "METASHARD_SUSPEND_SIGNAL: the process is not %s: %s",
               ends ? "resumed" : "suspended", fault.text);
}

/* --- lines */

static void take_line(struct client *client, const char **at, size_t *left)
{
    while (*left > 0 && **at != '\n' && client->line_length < LINE_BYTES - 1) {
        client->line[client->line_length++] = *(*at)++;
        --*left;
    }
    client->line[client->line_length] = '\0';
    if (*left == 0)
        return;
    const bool is_line = **at == '\n';
    if (is_line) {
        ++*at;
        --*left;
    }
    const bool is_text = strlen(client->line) == client->line_length;
    client->line_length = 0;
    if (is_line && is_text)
        obey(client);
    else /* a truncated line, or the part before a NUL, would be another request */
        refuse_line(client);
}

static void take_bytes(struct client *client, const char **at, size_t *left)
{
    const size_t wanted = client->plan_bytes - client->plan_length;
    const size_t now = *left < wanted ? *left : wanted;
    memcpy((char *)client->plan.memory + client->plan_length, *at, now);
    client->plan_length += now;
    *at += now;
    *left -= now;
    if (client->plan_length == client->plan_bytes)
        take_plan(client);
}

static void serve_client(struct client *client)
{
    char buffer[65536];
    const ssize_t got = recv(client->descriptor, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        drop(client);
        return;
    }
    const char *at = buffer;
    size_t left = (size_t)got;
    while (left > 0 && client->descriptor >= 0) {
        if (client->plan.memory != NULL)
            take_bytes(client, &at, &left);
        else
            take_line(client, &at, &left);
    }
    /* The client's silence begins with the answer: the request may have taken minutes. */
    client->heard_ns = ms_clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* now_ns: the time of the poll. Silence is measured up to then: a client that sends while another
 * client's request is served is ready at the next poll. polled[i] is client i's: only the caller
 * accepts clients or closes gaps, before the poll and after this call. */
static void serve_ready(const struct pollfd *polled, int count, uint64_t now_ns)
{
    for (int i = 0; i < count; i++) {
        struct client *client = &server.clients[i];
        if (polled[i].revents != 0)
            serve_client(client);
        else if (now_ns > client->heard_ns + PATIENCE_S * UINT64_C(1000000000))
            drop(client);
    }
}

bool ms_control_serve(int wake, int patience_ms)
{
    enum { WAKE, SIGNAL, LISTENER, CLIENTS };
    struct pollfd polled[CLIENTS + MS_CONTROL_CLIENTS];
    const int clients = close_gaps();
    const nfds_t count = server.listener >= 0 ? CLIENTS + (nfds_t)clients : LISTENER;
    polled[WAKE] = (struct pollfd){.fd = wake, .events = POLLIN};
    polled[SIGNAL] = (struct pollfd){.fd = signalled.descriptor, .events = POLLIN};
    polled[LISTENER] = (struct pollfd){.fd = server.listener, .events = POLLIN};
    for (int i = 0; i < clients; i++)
        polled[CLIENTS + i] = (struct pollfd){.fd = server.clients[i].descriptor, .events = POLLIN};
    /* Silent clients are dropped. */
    poll(polled, count, clients > 0 && patience_ms < 0 ? LOOK_MS : patience_ms);
    const uint64_t now_ns = ms_clock_ns(CLOCK_MONOTONIC_COARSE);
    if (polled[WAKE].revents != 0)
        return false;
    if (polled[SIGNAL].revents != 0)
        obey_signal();
    serve_ready(polled + CLIENTS, clients, now_ns);
    if (polled[LISTENER].revents != 0)
        accept_client();
    return true;
}

/* --- the thread */

/* Looks, 5 s in all: how long a writer may pause within a plan. */
enum { PATIENCE = 20 };

/* Used by the thread alone while it runs. */
static struct {
    pthread_t thread;
    pid_t pid;                    /* the process that runs the thread; a forked child has none */
    int wake;                     /* an eventfd, set when the process ends */
    char path[2 * MS_PATH_BYTES]; /* the plan's file, absolute; "": none */
    struct stat read;             /* the file as it was read last; st_ino 0: never */
    struct stat seen;             /* the file as it was at the last look */
    int quiet;                    /* looks since the file changed */
} control = {.wake = -1};

/* If the plan has a fault, the file is read again later, unless is_final. */
static void read_plan(const struct stat *now, bool is_final)
{
    struct ms_fault fault;
    const bool is_read = ms_control_file(control.path, &fault);
    if (!is_read && is_final)
        ms_log(MS_ERROR, "METASHARD_PLAN: %s", fault.text);
    if (is_read || is_final)
        control.read = *now;
}

/* Reads the file only when two looks find it unchanged: it may be half written. A plan with a fault
 * may still be, if its writer is slow, so it is refused only after PATIENCE looks. */
static void look_at_plan(void)
{
    struct stat now;
    if (control.path[0] == '\0' || stat(control.path, &now) != 0)
        return;
    control.quiet = ms_regular_file_is_same(&now, &control.seen) ? control.quiet + 1 : 0;
    control.seen = now;
    if ((control.quiet == 1 || control.quiet == PATIENCE) &&
        !ms_regular_file_is_same(&now, &control.read))
        read_plan(&now, control.quiet == PATIENCE);
}

static void *serve(__attribute__((unused)) void *unused)
{
    ms_transfer_let_cancel();
    while (ms_control_serve(control.wake, control.path[0] != '\0' ? LOOK_MS : -1))
        look_at_plan();
    return NULL;
}

/* Waits at most 5 s: the thread may wait for an allocation whose claim is held for ever, by a
 * thread in a collective whose peer has died. Returns false if the thread did not end. */
static bool join_soon(void)
{
    enum { JOIN_S = 5 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += JOIN_S;
    return pthread_timedjoin_np(control.thread, NULL, &until) == 0;
}

/* Without this warning, a missing plan would look like a plan that is followed. */
static void warn_if_unread(void)
{
    struct stat now;
    if (control.path[0] == '\0' || control.read.st_ino != 0)
        return;
    const char *why = stat(control.path, &now) != 0 ? strerror(errno) : "it came too late";
    ms_log(MS_WARN, "METASHARD_PLAN: no plan was read from %s before the process ended: %s",
           control.path, why);
}

/* Registered last, so it runs before libcuda's exit handlers. Cancels the thread's fill. */
static void finish(void)
{
    if (getpid() != control.pid)
        return;
    const uint64_t one = 1;
    ms_transfer_cancel();
    if (write(control.wake, &one, sizeof(one)) != sizeof(one) || join_soon())
        ms_control_close();
    else /* the socket stays too; the next process that wants its name replaces it */
        ms_log(MS_WARN, "the thread for plans waits for another thread of the program, and is left "
                        "behind");
    warn_if_unread();
}

static void start_thread(void)
{
    control.wake = eventfd(0, EFD_CLOEXEC);
    control.pid = getpid();
    const int error = control.wake >= 0 ? ms_thread_create(&control.thread, serve, NULL) : errno;
    if (error != 0) {
        ms_log(MS_WARN, "cannot start the thread for later plans: %s", strerror(error));
        if (control.wake >= 0)
            close(control.wake);
        ms_control_close(); /* no thread would answer */
    } else if (atexit(finish) != 0) {
        ms_log(MS_WARN, "the thread for later plans does not run: no atexit function can end it");
        finish();
    }
}

/* The program may change its working directory. */
static void make_absolute(const char *path)
{
    char folder[MS_PATH_BYTES] = "";
    if (path[0] != '/' && getcwd(folder, sizeof(folder) - 1) != NULL)
        strcat(folder, "/");
    snprintf(control.path, sizeof(control.path), "%s%s", folder, path);
}

void ms_control_start(void)
{
    if (ms_config.plan_path[0] != '\0')
        make_absolute(ms_config.plan_path);
    if (control.path[0] != '\0' && stat(control.path, &control.seen) == 0)
        read_plan(&control.seen, true);
    const bool has_socket =
        ms_config.control_path[0] != '\0' && ms_control_open(ms_config.control_path);
    open_signal();
    if (has_socket || signalled.descriptor >= 0 ||
        (control.path[0] != '\0' && ms_config.plan_mode == MS_ENFORCE))
        ms_quiesce_start();
    if (control.path[0] != '\0' || has_socket || signalled.descriptor >= 0)
        start_thread();
}
