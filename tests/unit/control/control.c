/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"
#include "runtime/control/control.h"
#include "runtime/control/control_internal.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/pages.h"
#include "runtime/base/thread.h"
#include "runtime/control/suspension.h"
#include "runtime/driver/quiesce.h"
#include "runtime/fill/prefetch.h"
#include "runtime/fill/settle.h"
#include "runtime/fill/suspend.h"
#include "runtime/loading/transfer.h"
#include "tests/unit/between.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/logged.h"
#include "tests/unit/use_plan.h"

static char folder[] = "/tmp/metashard-socket-XXXXXX";
static char path[64], moved[64];

static void remove_folder(void)
{
    unlink(path);
    unlink(moved);
    rmdir(folder);
}

static void make_folder(void)
{
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/control", folder);
    snprintf(moved, sizeof(moved), "%s/moved", folder);
    atexit(remove_folder);
}

static void start(void)
{
    make_folder();
    CHECK(ms_control_open(path));
}

static ino_t inode_of(const char *name)
{
    struct stat stat;
    return lstat(name, &stat) == 0 ? stat.st_ino : 0;
}

static struct sockaddr_un address_of(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", name);
    return address;
}

/* A socket of somebody else. */
static int serve(const char *name)
{
    const struct sockaddr_un address = address_of(name);
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_EQ(bind(listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQ(listen(listener, 1), 0);
    return listener;
}

/* --- what the shim calls, as the linker lets it be seen (meson.build) */

enum fails { FAIL_SOCKET = 1, FAIL_SECOND_SOCKET, FAIL_MODE, FAIL_LISTEN, FAIL_LISTEN_AND_GO };
static enum fails fails;
static int sockets, connect_error, accept_error, receive_error;
static unsigned naps, accepted, received;

WRAPS(socket, fchmod, listen, connect, accept4, recv);
WRAPS(nanosleep, poll, ms_pages_grow, ms_pages_cleanup, ms_suspension_begin, ms_suspension_end);
WRAPS(ms_settle_now, ms_prefetch_arrive, ms_plan_read, ms_shard_describe, ms_quiesce_start);
WRAPS(ms_transfer_cancel, ms_transfer_let_cancel, clock_gettime, ms_thread_create, atexit, eventfd);
WRAPS(pthread_timedjoin_np);
int __wrap_socket(int family, int type, int protocol)
{
    /* The shim's own do not block. */
    errno = ENOBUFS;
    if ((type & SOCK_NONBLOCK) != 0 &&
        (fails == FAIL_SOCKET || (fails == FAIL_SECOND_SOCKET && sockets++ % 2 == 1)))
        return -1;
    return __real_socket(family, type, protocol);
}

int __wrap_fchmod(int file, mode_t mode)
{
    errno = ENOBUFS;
    return fails == FAIL_MODE ? -1 : __real_fchmod(file, mode);
}

int __wrap_listen(int socket, int backlog)
{
    if (fails != FAIL_LISTEN && fails != FAIL_LISTEN_AND_GO)
        return __real_listen(socket, backlog);
    if (fails == FAIL_LISTEN_AND_GO)
        unlink(path);
    errno = ENOBUFS;
    return -1;
}

int __wrap_connect(int socket, const struct sockaddr *address, socklen_t bytes)
{
    if (connect_error == 0)
        return __real_connect(socket, address, bytes);
    errno = connect_error;
    return -1;
}

int __wrap_accept4(int socket, struct sockaddr *address, socklen_t *bytes, int flags)
{
    accepted++;
    if (accept_error == 0)
        return __real_accept4(socket, address, bytes, flags);
    errno = accept_error;
    return -1;
}

/* The next one that the shim makes fails. */
ssize_t __wrap_recv(int socket, void *buffer, size_t bytes, int flags)
{
    received++;
    if (receive_error == 0)
        return __real_recv(socket, buffer, bytes, flags);
    errno = receive_error;
    receive_error = 0;
    return -1;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    CHECK(left == NULL && time->tv_sec == 0 && time->tv_nsec == 50000000);
    naps++;
    return 0;
}

/* Waits for nothing: says what the shim waits for, and how long. With looks_left, the last one
 * finds that the process ends. */
static int waited_ms, looks_left = INT_MAX;
static nfds_t waited_count;
static void (*on_look)(int left);
int __wrap_poll(struct pollfd *polled, nfds_t count, int ms)
{
    waited_ms = ms;
    waited_count = count;
    const int ready = __real_poll(polled, count, ms == 10000 ? ms : 0);
    if (looks_left != INT_MAX && looks_left-- == 0)
        polled[0].revents = POLLIN;
    else if (looks_left != INT_MAX && on_look != NULL)
        on_look(looks_left);
    return ready;
}

/* A line was logged, with both. */
static void must_say(const char *begin, const char *part)
{
    if (lines == 0 || strncmp(logged, begin, strlen(begin)) != 0 || strstr(logged, part) == NULL)
        ms_test_fail(__FILE__, __LINE__, "said: %s, expected %s ... %s", logged, begin, part);
    lines = 0;
}

/* A plan has as many bytes as are watched. */
static bool pages_fail;
static size_t watched_bytes;
static void *watched;
static unsigned plans_given_back;
bool __wrap_ms_pages_grow(struct ms_pages *pages, size_t bytes)
{
    if (pages_fail || !__real_ms_pages_grow(pages, bytes))
        return false;
    if (bytes == watched_bytes)
        watched = pages->memory;
    return true;
}

void __wrap_ms_pages_cleanup(struct ms_pages *pages)
{
    plans_given_back += pages->memory != NULL && pages->memory == watched;
    __real_ms_pages_cleanup(pages);
}

static time_t ahead_s; /* of the clock that the shim sees */
static unsigned begun, ended, settled, quiesced, cancelled, let_cancel, arrived;
static bool is_faked, is_refused, arrived_first, arrived_fetches;
static char begun_folder[MS_PATH_BYTES + 64], begun_order[64];
static time_t suspending_s; /* how long a suspension takes */
bool __wrap_ms_suspension_begin(const char *to, char *text, size_t bytes, struct ms_fault *fault)
{
    begun++;
    ahead_s += suspending_s;
    strncat(begun_order, to != NULL ? to : "", sizeof(begun_order) - strlen(begun_order) - 1);
    snprintf(begun_folder, sizeof(begun_folder), "%s", to != NULL ? to : "none");
    if (!is_faked)
        return __real_ms_suspension_begin(to, text, bytes, fault);
    snprintf(text, bytes, "told");
    return is_refused ? ms_fault_set(fault, "begin is refused") : true;
}

bool __wrap_ms_suspension_end(struct ms_fault *fault)
{
    ended++;
    if (!is_faked)
        return __real_ms_suspension_end(fault);
    return is_refused ? ms_fault_set(fault, "end is refused") : true;
}

void __wrap_ms_settle_now(const char *why)
{
    CHECK(strcmp(why, "the control socket asked for it") == 0);
    settled++;
}

void __wrap_ms_prefetch_arrive(bool is_first, bool fetches)
{
    arrived++;
    arrived_first = is_first;
    arrived_fetches = fetches;
}

static unsigned reads; /* of the plan's file */
bool __wrap_ms_plan_read(const char *name, struct ms_plan **plan_out, struct ms_fault *fault)
{
    reads++;
    return __real_ms_plan_read(name, plan_out, fault);
}

static const struct ms_state_plan *described; /* NULL: what there is */
void __wrap_ms_shard_describe(struct ms_state_plan *facts_out)
{
    __real_ms_shard_describe(facts_out);
    if (described != NULL)
        *facts_out = *described;
}

void __wrap_ms_quiesce_start(void)
{
    quiesced++;
}

void __wrap_ms_transfer_cancel(void)
{
    cancelled++;
}

void __wrap_ms_transfer_let_cancel(void)
{
    let_cancel++;
}

static const struct timespec *stopped; /* where the clock stands that the shim sees */
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = __real_clock_gettime(clock, now);
    if (stopped != NULL)
        *now = *stopped;
    now->tv_sec += ahead_s;
    return result;
}

static int connect_client(void)
{
    const struct sockaddr_un address = address_of(path);
    const int client = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_EQ(connect(client, (const struct sockaddr *)&address, sizeof(address)), 0);
    return client;
}

/* Serves what is ready. */
static void serve_ready(void)
{
    for (int i = 0; i < 4; i++)
        CHECK(ms_control_serve(-1, 0));
}

static char answer[4096]; /* the last one */

static const char *ask(int client, const char *request)
{
    CHECK_EQ(send(client, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    serve_ready();
    const ssize_t got = recv(client, answer, sizeof(answer) - 1, MSG_DONTWAIT);
    answer[got > 0 ? got : 0] = '\0';
    return answer;
}

static void must_answer(int client, const char *request, const char *expected)
{
    if (strcmp(ask(client, request), expected) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s: %s, expected %s", request, answer, expected);
}

/* The shim has closed the connection. */
static bool is_dropped(int client)
{
    char byte;
    return recv(client, &byte, 1, MSG_DONTWAIT) == 0;
}

static int lowest_descriptor(void)
{
    const int lowest = dup(STDOUT_FILENO);
    close(lowest);
    return lowest;
}

/* --- the name */

MS_TEST_AFTER(start, a_close_removes_the_name_of_the_socket)
{
    CHECK(inode_of(path) != 0);
    ms_control_close();
    CHECK_EQ(inode_of(path), 0);
}

MS_TEST_AFTER(start, a_name_that_is_another_sockets_by_now_stays)
{
    CHECK_EQ(rename(path, moved), 0); /* it lives, so the other one has another inode */
    serve(path);
    const ino_t other = inode_of(path);
    ms_control_close();
    CHECK_EQ(inode_of(path), other);
}

MS_TEST_AFTER(start, a_name_is_given_up_once)
{
    CHECK_EQ(link(path, moved), 0);
    ms_control_close();
    CHECK_EQ(inode_of(path), 0);
    CHECK_EQ(rename(moved, path), 0); /* even where the inode is the same */
    ms_control_close();
    CHECK(inode_of(path) != 0);
}

MS_TEST(a_file_that_is_no_socket_keeps_its_name)
{
    make_folder();
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    const ino_t inode = inode_of(path);
    const int open_before = open_descriptors();
    CHECK(!ms_control_open(path));
    must_say("METASHARD_CONTROL: cannot make the socket", "File exists");
    CHECK_EQ(inode_of(path), inode);
    CHECK_EQ(open_descriptors(), open_before); /* nothing stays open */
    close(file);
}

MS_TEST(a_socket_that_somebody_serves_keeps_its_name)
{
    make_folder();
    const int listener = serve(path);
    const ino_t inode = inode_of(path);
    const int open_before = open_descriptors();
    for (int is_full = 0; is_full < 2; is_full++) {
        connect_error = is_full ? EAGAIN : 0;
        CHECK(!ms_control_open(path));
        must_say("METASHARD_CONTROL: cannot make the socket", "Address already in use");
        CHECK_EQ(inode_of(path), inode);
        CHECK_EQ(open_descriptors(), open_before);
    }
    connect_error = 0;
    close(listener);
    fails = FAIL_SECOND_SOCKET;
    CHECK(!ms_control_open(path));
    must_say("METASHARD_CONTROL: cannot make the socket", strerror(ENOBUFS));
    CHECK_EQ(inode_of(path), inode);
    fails = 0;
    CHECK(ms_control_open(path)); /* nobody does any more */
    ms_control_close();
    CHECK_EQ(lowest_descriptor(), listener);
}

MS_TEST(a_socket_that_cannot_be_made_leaves_nothing)
{
    make_folder();
    const int lowest = lowest_descriptor();
    for (fails = FAIL_SOCKET; fails <= FAIL_LISTEN_AND_GO; fails++) {
        if (fails == FAIL_SECOND_SOCKET)
            continue; /* there is none */
        CHECK(!ms_control_open(path));
        must_say("METASHARD_CONTROL: cannot make the socket", strerror(ENOBUFS));
        CHECK_EQ(inode_of(path), 0);
        CHECK_EQ(dup(STDOUT_FILENO), lowest);
        ms_control_close(); /* there is nothing to close */
        CHECK_EQ(close(lowest), 0);
    }
}

MS_TEST(a_name_has_a_length_at_most)
{
    struct sockaddr_un address;
    char name[sizeof(address.sun_path) + 1];
    make_folder();
    for (size_t more = 0; more < 2; more++) {
        const size_t length = sizeof(address.sun_path) - 1 + more;
        snprintf(name, sizeof(name), "%s/", folder);
        memset(name + strlen(name), 'x', sizeof(name) - strlen(name));
        name[length] = '\0';
        CHECK_EQ(ms_control_open(name), more == 0);
        CHECK_EQ(inode_of(name) != 0, more == 0);
        ms_control_close();
    }
    must_say("METASHARD_CONTROL: expected a path of less than 108 bytes, found", name);
}

MS_TEST_AFTER(start, all_ends_with_the_socket)
{
    const int client = connect_client();
    serve_ready();
    ms_control_close();
    CHECK(is_dropped(client));
    const int lowest = lowest_descriptor();
    CHECK(lowest < client);
    const int mine = dup(STDOUT_FILENO); /* has the listener's number by now */
    ms_control_close();
    CHECK(fcntl(mine, F_GETFD) >= 0);
    close(client);
}

/* --- clients */

MS_TEST(a_plan_has_a_size_at_most)
{
    static const char *const bad[] = {
        "plan 268435457\n",           "plan 0\n", "plan -1\n", "plan 1x\n", "plan \n", "plan  1\n",
        "plan 99999999999999999999\n"};
    start();
    watched_bytes = 268435457;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const int client = connect_client();
        CHECK(strstr(ask(client, bad[i]), "error expected plan and a number") != NULL);
        CHECK(is_dropped(client));
        close(client);
    }
    CHECK(watched == NULL); /* there is no room for any */
    static const char *const good[] = {"plan 268435456\n", "plan 9\n", "plan 05\n"};
    for (int i = 0; i < 3; i++) {
        const int client = connect_client();
        must_answer(client, good[i], ""); /* its bytes are waited for */
        CHECK(recv(client, answer, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    }
    ms_control_close();
}

MS_TEST_AFTER(start, a_line_has_a_length_at_most)
{
    char line[MS_PATH_BYTES + 64];
    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    const int client = connect_client();
    CHECK_EQ(strcmp(ask(client, line), ""), 0); /* it may be a long one */
    CHECK(strstr(ask(client, "x"), "error expected plan BYTES") != NULL);
    CHECK(is_dropped(client));
    ms_control_close();
}

MS_TEST_AFTER(start, a_process_without_memory_is_suspended_at_once)
{
    const int client = connect_client();
    CHECK(strstr(ask(client, "suspend\n"), "ok {\"freed_bytes\": 0") != NULL);
    CHECK(strstr(ask(client, "suspend here\n"), "error here: expected the absolute path") != NULL);
    CHECK(strstr(ask(client, "suspend /nowhere\n"), "error /nowhere: expected") != NULL);
    CHECK(strstr(ask(client, "resume\n"), "ok everything is back") != NULL);
    CHECK(strstr(ask(client, "status\n"), "\"suspended\": false") != NULL);
    ms_control_close();
}

MS_TEST_AFTER(start, a_client_that_says_nothing_is_dropped)
{
    const int silent = connect_client(), other = connect_client();
    serve_ready();
    ahead_s = 9;
    CHECK(strstr(ask(other, "status\n"), "ok ") != NULL);
    CHECK(!is_dropped(silent));
    ahead_s = 12;
    serve_ready();
    CHECK(is_dropped(silent));
    CHECK(!is_dropped(other));
    ms_control_close();
}

static void must_receive(int client, const char *expected)
{
    must_answer(client, "", expected);
}

static void say(int client, const char *request)
{
    CHECK_EQ(send(client, request, strlen(request), MSG_NOSIGNAL), strlen(request));
}

/* Longer than a client may be silent. */
MS_TEST_AFTER(start, a_slow_request_costs_no_client_its_answer)
{
    const int idle = connect_client(), slow = connect_client();
    serve_ready();
    is_faked = true;
    suspending_s = 60;
    ahead_s = 9;
    say(slow, "suspend\n");
    CHECK(ms_control_serve(-1, 0)); /* the request takes its time; meanwhile: */
    suspending_s = 0;
    const int late = connect_client();
    say(late, "resume\n");
    say(idle, "resume\n");
    must_receive(slow, "ok told\n");
    must_receive(idle, "ok everything is back\n");
    must_receive(late, "ok everything is back\n");
    must_answer(slow, "resume\n", "ok everything is back\n"); /* whoever asked may ask again */
    ahead_s += 12;
    serve_ready();
    CHECK(is_dropped(slow) && is_dropped(idle) && is_dropped(late));
    ms_control_close();
}

MS_TEST_AFTER(start, a_client_that_is_silent_during_a_slow_request_is_dropped_after_it)
{
    const int silent = connect_client(), slow = connect_client();
    serve_ready();
    is_faked = true;
    suspending_s = 60;
    must_answer(slow, "suspend\n", "ok told\n");
    CHECK(is_dropped(silent) && !is_dropped(slow));
    ms_control_close();
}

/* Those who came first, also where one that has gone left a place. */
MS_TEST_AFTER(start, clients_are_answered_in_the_order_in_which_they_came)
{
    int clients[4];
    for (int i = 0; i < 3; i++) {
        clients[i] = connect_client();
        serve_ready();
    }
    close(clients[0]);
    serve_ready();
    clients[3] = connect_client();
    serve_ready();
    is_faked = true;
    say(clients[3], "suspend /3\n");
    say(clients[2], "suspend /2\n");
    say(clients[1], "suspend /1\n");
    CHECK(ms_control_serve(-1, 0));
    CHECK(strcmp(begun_order, "/1/2/3") == 0);
    ms_control_close();
}

MS_TEST_AFTER(start, a_client_beyond_the_most_is_refused)
{
    int clients[MS_CONTROL_CLIENTS];
    for (int i = 0; i < MS_CONTROL_CLIENTS; i++) {
        clients[i] = connect_client();
        serve_ready();
    }
    const int refused = connect_client();
    CHECK(strstr(ask(refused, "status\n"), "error too many") != NULL);
    CHECK(recv(refused, answer, 1, MSG_DONTWAIT) < 0 && errno == ECONNRESET); /* it was closed */
    close(clients[3]);
    serve_ready();
    CHECK(strstr(ask(connect_client(), "status\n"), "ok ") != NULL);
    ms_control_close();
}

/* Also where the socket's mode was changed. */
MS_TEST(another_user_is_refused)
{
    int status;
    if (geteuid() != 0)
        ms_test_skip("only root can be another user");
    start();
    CHECK_EQ(chmod(folder, 0755), 0);
    CHECK_EQ(chmod(path, 0666), 0);
    const pid_t child = fork();
    if (child == 0) {
        CHECK_EQ(setuid(65534), 0);
        const int client = connect_client();
        _exit(recv(client, answer, sizeof(answer) - 1, 0) <= 0 ||
              strstr(answer, "error not the same user") == NULL);
    }
    CHECK(ms_control_serve(-1, 10000));
    ms_control_close();
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

/* --- the status, and plans */

static const char *status_with(const char *format, unsigned long long generation, unsigned rank,
                               const char *mode)
{
    static char expected[1024];
    snprintf(expected, sizeof(expected), format, (int)getpid(), generation, mode, rank,
             generation > 0 ? 2 : 0);
    return expected;
}

static void must_have_status(const char *expected)
{
    char text[1024];
    CHECK_EQ(ms_control_status(text, sizeof(text)), strlen(expected));
    if (strcmp(text, expected) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", text, expected);
    for (size_t bytes = 1; bytes <= strlen(expected) + 1; bytes++) {
        memset(text, 'x', sizeof(text));
        CHECK_EQ(ms_control_status(text, bytes), strlen(expected));
        CHECK_EQ(strlen(text), bytes - 1);
        CHECK_EQ(strncmp(text, expected, bytes - 1), 0);
    }
    CHECK_EQ(ms_control_status(NULL, 0), strlen(expected));
}

MS_TEST(the_status_has_the_plan_and_what_it_did)
{
    static const char format[] =
        "{\"pid\": %d, \"plans\": %llu, \"mode\": \"%s\", \"rank\": %u, "
        "\"world_size\": %d, \"tensors\": 0, \"planned_bytes\": 0, \"owned_bytes\": 0, "
        "\"remote_reads\": 3, "
        "\"remote_read_bytes\": 4, \"requested_bytes\": 5, \"backed_bytes\": 6, "
        "\"plan_freed_bytes\": 7, \"suspended\": false}";
    ms_counter_add(MS_COUNT_REMOTE_READS, 3);
    ms_counter_add(MS_COUNT_REMOTE_READ_BYTES, 4);
    ms_counter_add(MS_COUNT_REQUESTED_BYTES, 5);
    ms_counter_move(MS_GAUGE_BACKED, 6);
    ms_counter_add(MS_COUNT_PLAN_FREED_BYTES, 7);
    must_have_status(status_with(format, 0, 0, "advise"));
    use_plan(1, 1000);
    must_have_status(status_with(format, 1, 1, "advise"));
    ms_config.plan_mode = MS_ENFORCE;
    use_plan(0, 1000);
    must_have_status(status_with(format, 2, 0, "enforce"));
}

/* Each figure has its own place. */
MS_TEST(the_status_has_all_figures_of_a_plan)
{
    static struct ms_state_plan facts = {.generation = 11,
                                         .rank = 12,
                                         .world = 13,
                                         .tensors = 14,
                                         .planned_bytes = 15,
                                         .owned_bytes = 16};
    char text[1024];
    described = &facts;
    ms_control_status(text, sizeof(text));
    CHECK(strstr(text, "\"plans\": 11, \"mode\": \"advise\", \"rank\": 12, \"world_size\": 13, "
                       "\"tensors\": 14, \"planned_bytes\": 15, \"owned_bytes\": 16, ") != NULL);
    atomic_store(&ms_suspend_is_set, true);
    ms_control_status(text, sizeof(text));
    CHECK(strstr(text, "\"suspended\": true}") != NULL);
}

static const char a_plan[] =
    "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": 1, \"tensors\": [{"
    "\"name\": \"w\", \"dtype\": \"U8\", \"shape\": [1000], \"placements\": [{\"shard\": 0}]}]}";

static const char plan_of_any_rank[] =
    "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"tensors\": []}";

static uint64_t plans(void)
{
    struct ms_state_plan facts;
    ms_shard_describe(&facts);
    return facts.generation;
}

MS_TEST(a_plan_with_a_fault_leaves_the_old_one)
{
    struct ms_fault fault;
    make_folder();
    CHECK(ms_control_text(a_plan, strlen(a_plan), "a plan", &fault));
    CHECK_EQ(plans(), 1);
    CHECK(!ms_control_text(a_plan, strlen(a_plan) - 1, "a plan", &fault));
    CHECK(strncmp(fault.text, "a plan:", 7) == 0);
    CHECK(!ms_control_file(path, &fault));
    CHECK(strstr(fault.text, "No such file or directory") != NULL);
    CHECK_EQ(plans(), 1);
    FILE *file = fopen(path, "we");
    CHECK(file != NULL && fwrite(a_plan, 1, strlen(a_plan), file) == strlen(a_plan));
    CHECK_EQ(fclose(file), 0);
    CHECK(ms_control_file(path, &fault));
    CHECK_EQ(plans(), 2);
}

/* In pieces, as a socket may give it, and with the next request behind it. */
MS_TEST_AFTER(start, a_plan_may_come_in_pieces)
{
    char line[32];
    const int client = connect_client();
    snprintf(line, sizeof(line), "plan %zu\n", strlen(a_plan));
    CHECK_EQ(strcmp(ask(client, line), ""), 0);
    char first[32];
    memcpy(first, a_plan, sizeof(first));
    first[sizeof(first) - 1] = '\0';
    CHECK_EQ(strcmp(ask(client, first), ""), 0);
    CHECK_EQ(plans(), 0);
    CHECK_EQ(strncmp(ask(client, a_plan + sizeof(first) - 1), "ok ", 3), 0);
    CHECK_EQ(plans(), 1);
    CHECK(strstr(ask(client, "status\n"), "\"plans\": 1") != NULL);
    must_answer(client, "plan 4\n{", "");
    CHECK(strncmp(ask(client, "}  resume\n"), "error ", 6) == 0);
    CHECK(strstr(answer, "\nok everything is back\n") != NULL);
    CHECK(strstr(ask(client, "plan 2\n{}"), "error ") != NULL);
    CHECK_EQ(plans(), 1);
    ms_control_close();
}

MS_TEST_AFTER(start, bytes_behind_a_plan_are_the_next_request)
{
    char text[512];
    const int client = connect_client();
    watched_bytes = strlen(a_plan);
    snprintf(text, sizeof(text), "plan %zu\n%sresume\nplan %zu\n%s", strlen(a_plan), a_plan,
             strlen(a_plan), a_plan);
    must_answer(client, text,
                "ok the plan is active\nok everything is back\nok the plan is active\n");
    CHECK_EQ(plans(), 2);
    CHECK_EQ(plans_given_back, 2);
    watched_bytes = 2;
    CHECK(strncmp(ask(client, "plan 2\nxxresume\n"), "error the control socket:", 25) == 0);
    CHECK(strstr(answer, "\nok everything is back\n") != NULL);
    CHECK_EQ(plans_given_back, 3);
    watched_bytes = 20;
    must_answer(client, "plan 20\nx", "");
    close(client); /* within a plan */
    serve_ready();
    CHECK_EQ(plans_given_back, 4);
    pages_fail = true;
    const int other = connect_client();
    must_answer(other, "plan 1\n", "error out of memory\n");
    CHECK(is_dropped(other));
    ms_control_close();
}

MS_TEST(a_plan_that_arrives_is_fetched)
{
    struct ms_fault fault;
    CHECK(ms_control_text(a_plan, strlen(a_plan), "a plan", &fault));
    CHECK(arrived == 1 && arrived_first && arrived_fetches);
    atomic_store(&ms_suspend_is_set, true); /* nothing is fetched before the process resumes */
    CHECK(ms_control_text(a_plan, strlen(a_plan), "a plan", &fault));
    CHECK(arrived == 2 && !arrived_first && !arrived_fetches);
    atomic_store(&ms_suspend_is_set, false);
    CHECK_EQ(setenv("RANK", "7", 1), 0); /* which that plan has not */
    CHECK(!ms_control_text(plan_of_any_rank, strlen(plan_of_any_rank), "a plan", &fault));
    CHECK(strncmp(fault.text, "a plan: ", 8) == 0);
    CHECK_EQ(arrived, 2);
}

/* --- requests */

MS_TEST_AFTER(start, each_request_has_its_answer)
{
    const int client = connect_client();
    is_faked = true;
    must_answer(client, "materialise\n", "ok everything that can be materialised is in memory\n");
    CHECK_EQ(settled, 1);
    must_answer(client, "suspend\n", "ok told\n");
    CHECK(strcmp(begun_folder, "none") == 0);
    must_answer(client, "suspend /a folder\n", "ok told\n");
    CHECK(strcmp(begun_folder, "/a folder") == 0);
    must_answer(client, "resume\n", "ok everything is back\n");
    is_refused = true;
    must_answer(client, "suspend\nsuspend x\nresume\n",
                "error begin is refused\nerror begin is refused\nerror end is refused\n");
    must_answer(client, "res", "");
    must_answer(client, "ume\nre", "error end is refused\n");
    must_answer(client, "sume\n", "error end is refused\n");
    CHECK(begun == 4 && ended == 4);
    ms_control_close();
}

static const char NO_REQUEST[] =
    "error expected plan BYTES, materialise, suspend, resume or status\n";

/* A NUL ends a string in C, but no line. */
MS_TEST_AFTER(start, a_request_with_a_nul_is_refused_whatever_stands_before_it)
{
    static const char *const words[] = {"suspend", "resume", "status", "materialise", "plan 2", ""};
    is_faked = true;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char line[64];
        const int bytes = snprintf(line, sizeof(line), "%s%c/etc\n", words[i], '\0');
        const int client = connect_client();
        CHECK_EQ(send(client, line, (size_t)bytes, MSG_NOSIGNAL), bytes);
        must_answer(client, "", NO_REQUEST);
        CHECK(is_dropped(client));
        close(client);
    }
    CHECK(begun == 0 && ended == 0 && settled == 0);
    ms_control_close();
}

STORY_AFTER(start, a_folder_that_is_named_has_a_name, is_faked = true,
            must_answer(connect_client(), "suspend \n", NO_REQUEST), EQUALS(begun, 0),
            ms_control_close())

MS_TEST_AFTER(start, a_line_that_is_no_request_ends_the_connection)
{
    static const char *const bad[] = {"\n",         "plan\n",  "planx\n",    "materialise \n",
                                      "suspendx\n", "resum\n", "resume x\n", "statusx\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[64];
        const int client = connect_client();
        snprintf(text, sizeof(text), "%sresume\n", bad[i]); /* which nobody reads */
        must_answer(client, text,
                    "error expected plan BYTES, materialise, suspend, resume or status\n");
        CHECK(is_dropped(client));
        close(client);
    }
    CHECK(settled == 0 && begun == 0 && ended == 0);
    must_answer(connect_client(), "plan :\n",
                "error expected plan and a number of bytes, at most 268435456\n");
    must_answer(connect_client(), "plan /\n",
                "error expected plan and a number of bytes, at most 268435456\n");
    ms_control_close();
}

/* A folder with the longest name, and one that is longer. */
MS_TEST_AFTER(start, a_request_may_be_as_long_as_a_line)
{
    char line[MS_PATH_BYTES + 65] = "suspend ";
    is_faked = true;
    memset(line + 8, 'x', sizeof(line) - 8);
    line[MS_PATH_BYTES + 63] = '\n';
    line[MS_PATH_BYTES + 64] = '\0';
    const int client = connect_client();
    must_answer(client, line, "ok told\n");
    CHECK_EQ(strlen(begun_folder), MS_PATH_BYTES + 63 - 8);
    line[MS_PATH_BYTES + 63] = 'x';
    must_answer(client, line, NO_REQUEST);
    CHECK(begun == 1 && is_dropped(client)); /* the rest of the line is no request either */
    ms_control_close();
}

MS_TEST_AFTER(start, a_peer_that_takes_no_answer_loses_it)
{
    const int client = connect_client(), other = connect_client();
    CHECK_EQ(send(client, "resume\n", 7, 0), 7);
    close(client);
    serve_ready();
    must_say("the control socket's peer did not take its answer", "");
    CHECK_EQ(logged_level, MS_DEBUG);
    must_answer(other, "resume\n", "ok everything is back\n");
    CHECK_EQ(lines, 0);
    ms_control_close();
}

MS_TEST_AFTER(start, a_connection_that_fails_is_dropped)
{
    const int errors[] = {EAGAIN, EINTR, ECONNRESET};
    for (int i = 0; i < 3; i++) {
        const int client = connect_client();
        serve_ready();
        CHECK_EQ(send(client, "resume\n", 7, 0), 7);
        receive_error = errors[i];
        serve_ready();
        CHECK_EQ(receive_error, 0);
        if (errors[i] == ECONNRESET)
            CHECK(recv(client, answer, 1, MSG_DONTWAIT) <= 0);
        else
            CHECK(recv(client, answer, sizeof(answer), MSG_DONTWAIT) == 22);
        close(client);
    }
    ms_control_close();
}

MS_TEST_AFTER(start, a_connection_that_cannot_be_accepted_waits)
{
    const int errors[] = {EAGAIN, EINTR, ECONNABORTED, EMFILE, EMFILE};
    const int client = connect_client();
    for (int i = 0; i < 5; i++) {
        accept_error = errors[i];
        naps = lines = 0;
        CHECK(ms_control_serve(-1, 0));
        CHECK_EQ(naps, errors[i] == EMFILE);
        CHECK_EQ(lines, i == 3); /* it is told once */
    }
    CHECK(strstr(logged, strerror(EMFILE)) != NULL);
    accept_error = 0;
    must_answer(client, "resume\n", "ok everything is back\n");
    ms_control_close();
}

/* Descriptors of the program's that are closed are used like any other, and 0 is one. */
MS_TEST(a_descriptor_may_be_0)
{
    const int kept = fcntl(0, F_DUPFD, 100);
    make_folder();
    close(0);
    CHECK(ms_control_open(path));
    CHECK_EQ(lowest_descriptor() != 0, true);
    const int client = connect_client(), high = fcntl(client, F_DUPFD, 200);
    must_answer(client, "resume\n", "ok everything is back\n");
    ms_control_close();
    CHECK_EQ(inode_of(path), 0);
    const int file = open("/dev/null", O_RDONLY);
    CHECK_EQ(file, 0);
    CHECK(ms_control_open(path));
    const int next = connect_client(), next_high = fcntl(next, F_DUPFD, 200);
    close(0);
    must_answer(next_high, "resume\n", "ok everything is back\n");
    CHECK_EQ(lowest_descriptor() != 0, true);
    const int other = connect_client();
    must_answer(other, "resume\n", "ok everything is back\n");
    must_answer(next_high, "resume\n", "ok everything is back\n");
    ahead_s = 20;
    serve_ready();
    CHECK(is_dropped(next_high));
    CHECK_EQ(lowest_descriptor(), 0);
    ms_control_close();
    close(high);
    close(next_high);
    if (kept >= 0)
        CHECK(dup2(kept, 0) == 0 && close(kept) == 0);
}

MS_TEST_AFTER(start, the_program_s_input_is_no_client)
{
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    const int kept = fcntl(0, F_DUPFD, 100);
    CHECK_EQ(dup2(pair[0], 0), 0);
    CHECK_EQ(send(pair[1], "resume\n", 7, 0), 7);
    serve_ready();
    CHECK(recv(0, answer, 7, MSG_DONTWAIT) == 7 && ended == 0);
    CHECK(kept < 0 ? close(0) == 0 : dup2(kept, 0) == 0);
    ms_control_close();
}

/* --- how long it waits, and for what */

MS_TEST_AFTER(start, clients_are_looked_at_while_there_are_any)
{
    CHECK(ms_control_serve(-1, -1));
    CHECK(waited_ms == -1 && waited_count == 3);
    const int client = connect_client();
    serve_ready();
    CHECK(ms_control_serve(-1, -1));
    CHECK(waited_ms == 250 && waited_count == 4);
    CHECK(ms_control_serve(-1, 70));
    CHECK_EQ(waited_ms, 70);
    CHECK(ms_control_serve(-1, 0));
    CHECK_EQ(waited_ms, 0);
    close(client);
    serve_ready();
    CHECK(ms_control_serve(-1, -1));
    CHECK_EQ(waited_ms, -1);
    ms_control_close();
    CHECK(ms_control_serve(-1, -1));
    CHECK(waited_ms == -1 && waited_count == 2);
}

MS_TEST_AFTER(start, a_turn_serves_clients_that_are_ready_alone)
{
    const int client = connect_client(), other = connect_client();
    serve_ready();
    CHECK_EQ(send(client, "resume\n", 7, 0), 7);
    accepted = received = 0;
    CHECK(ms_control_serve(-1, 0));
    CHECK(ended == 1 && received == 1 && accepted == 0);
    CHECK(ms_control_serve(-1, 0));
    CHECK(received == 1 && accepted == 0);
    must_answer(other, "resume\n", "ok everything is back\n");
    ms_control_close();
}

MS_TEST_AFTER(start, a_process_that_ends_serves_nobody)
{
    const int wake = eventfd(1, 0), client = connect_client();
    serve_ready();
    CHECK_EQ(send(client, "resume\n", 7, 0), 7);
    CHECK(!ms_control_serve(wake, 0));
    CHECK_EQ(ended, 0);
    ms_control_close();
}

MS_TEST_AFTER(start, a_silent_client_has_ten_seconds)
{
    static struct timespec now = {.tv_sec = 100};
    stopped = &now;
    const int client = connect_client();
    serve_ready();
    now.tv_sec = 105;
    must_answer(client, "resume\n", "ok everything is back\n");
    now.tv_sec = 115;
    serve_ready();
    CHECK(!is_dropped(client));
    now.tv_nsec = 1;
    serve_ready();
    CHECK(is_dropped(client));
    ms_control_close();
}

/* --- the thread, which is run by the test */

static void *(*thread)(void *);
static void (*at_end)(void);
static bool catches_end, end_fails, wake_fails, is_stuck;
static int thread_error;

int __wrap_ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument)
{
    CHECK(argument == NULL);
    *thread_out = pthread_self();
    if (thread_error == 0)
        thread = run;
    return thread_error;
}

int __wrap_atexit(void (*function)(void))
{
    if (!catches_end)
        return __real_atexit(function);
    at_end = function;
    return end_fails;
}

int __wrap_eventfd(unsigned value, int flags)
{
    errno = EMFILE;
    return wake_fails ? -1 : __real_eventfd(value, flags);
}

int __wrap_pthread_timedjoin_np(pthread_t joined, void **result, const struct timespec *until)
{
    struct timespec now;
    CHECK(pthread_equal(joined, pthread_self()) && result == NULL);
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK(until->tv_sec - now.tv_sec == 5 && until->tv_nsec == now.tv_nsec);
    return is_stuck ? ETIMEDOUT : 0;
}

static const struct timespec noon = {.tv_sec = 1000000000, .tv_nsec = 5};

static void start_thread(bool has_plan, bool has_socket)
{
    catches_end = true;
    log_level = MS_WARN;
    stopped = &noon;
    if (has_plan)
        snprintf(ms_config.plan_path, sizeof(ms_config.plan_path), "%s", moved);
    if (has_socket)
        snprintf(ms_config.control_path, sizeof(ms_config.control_path), "%s", path);
    ms_control_start();
}

static void look(int looks)
{
    looks_left = looks;
    CHECK(thread(NULL) == NULL);
    looks_left = INT_MAX;
}

static void write_plan(const char *text, time_t s, long ns)
{
    const int file = open(moved, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const struct timespec times[2] = {{s, ns}, {s, ns}};
    CHECK_EQ(write(file, text, strlen(text)), strlen(text));
    CHECK_EQ(futimens(file, times), 0);
    close(file);
}

MS_TEST_AFTER(make_folder, nothing_is_started_that_nobody_asked_for)
{
    const int open_before = open_descriptors();
    start_thread(false, false);
    CHECK(thread == NULL && at_end == NULL && quiesced == 0 && lines == 0);
    CHECK_EQ(open_descriptors(), open_before);
}

STORY_AFTER(make_folder, a_plan_is_read_at_the_start, write_plan(a_plan, 1, 1),
            start_thread(true, false), IS(plans() == 1 && thread != NULL && quiesced == 0),
            look(30), IS(plans() == 1 && lines == 0 && let_cancel == 1),
            IS(waited_ms == 250 && waited_count == 2), at_end(), IS(lines == 0 && cancelled == 1))

/* When two looks find it the same. */
MS_TEST_AFTER(make_folder, a_plan_that_comes_later_is_read_when_it_is_whole)
{
    start_thread(true, false);
    look(3);
    CHECK(plans() == 0 && lines == 0);
    write_plan(a_plan, 1, 1);
    look(1);
    CHECK_EQ(plans(), 0);
    write_plan(a_plan, 1, 2); /* each difference counts */
    look(1);
    write_plan(a_plan, 2, 2);
    look(1);
    write_plan("", 2, 2);
    look(1);
    write_plan(a_plan, 2, 2);
    look(1);
    CHECK_EQ(rename(moved, path), 0); /* another inode while this one lives */
    write_plan(a_plan, 2, 2);
    look(1);
    CHECK(plans() == 0 && lines == 0 && reads == 0);
    look(1);
    CHECK_EQ(plans(), 1);
    look(30);
    CHECK(plans() == 1 && reads == 1);
    write_plan(a_plan, 3, 2); /* and once more */
    look(30);
    CHECK(plans() == 2 && lines == 0);
}

MS_TEST_AFTER(make_folder, a_plan_with_a_fault_is_refused_when_it_stays_so)
{
    start_thread(true, false);
    write_plan("{", 1, 1);
    look(20); /* the first one finds that it changed */
    CHECK(lines == 0 && plans() == 0 && reads == 1);
    look(1);
    CHECK_EQ(lines, 1);
    must_say("METASHARD_PLAN: ", moved);
    CHECK_EQ(logged_level, MS_ERROR);
    look(50);
    CHECK(lines == 0 && reads == 2);
    write_plan("{", 2, 1);
    look(15);
    write_plan(a_plan, 3, 1); /* its writer was held up */
    look(30);
    CHECK(lines == 0 && plans() == 1);
    at_end();
    CHECK_EQ(lines, 0);
}

/* A writer that goes on after the second look. */
STORY_AFTER(make_folder, a_plan_that_is_refused_at_the_start_is_told_of_once, write_plan("{", 1, 1),
            start_thread(true, false), EQUALS(lines, 1), must_say("METASHARD_PLAN: ", moved),
            look(50), at_end(), EQUALS(lines, 0))

STORY_AFTER(make_folder, a_plan_that_was_never_read_is_told_of, start_thread(true, false), at_end(),
            must_say("METASHARD_PLAN: no plan was read from",
                     "before the process ended: No such file"),
            write_plan(a_plan, 1, 1), at_end(),
            must_say("METASHARD_PLAN: no plan was read from",
                     "before the process ended: it came too late"),
            EQUALS(logged_level, MS_WARN))

STORY_AFTER(make_folder, a_relative_name_is_of_the_folder_at_the_start, EQUALS(chdir(folder), 0),
            strcpy(ms_config.plan_path, "moved"), start_thread(false, false), EQUALS(chdir("/"), 0),
            write_plan(a_plan, 1, 1), look(2), EQUALS(plans(), 1))

STORY_AFTER(make_folder, the_thread_is_made_ready_if_a_plan_may_hold_the_program_up,
            ms_config.plan_mode = MS_ENFORCE, start_thread(false, false),
            IS(quiesced == 0 && thread == NULL), start_thread(true, false),
            IS(quiesced == 1 && thread != NULL))

MS_TEST_AFTER(make_folder, a_socket_is_served_until_the_process_ends)
{
    start_thread(false, true);
    CHECK(quiesced == 1 && thread != NULL && at_end != NULL);
    const int client = connect_client();
    CHECK_EQ(send(client, "resume\n", 7, 0), 7);
    look(0);
    CHECK_EQ(ended, 0);
    look(3);
    CHECK_EQ(ended, 1);
    look(1);
    CHECK_EQ(waited_ms, 250);
    const pid_t child = fork();
    if (child == 0) {
        at_end(); /* which is not its own */
        _exit(cancelled != 0 || inode_of(path) == 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    at_end();
    CHECK(inode_of(path) == 0 && cancelled == 1 && lines == 0);
    CHECK(recv(client, answer, sizeof(answer), MSG_DONTWAIT) == 22 && is_dropped(client));
}

MS_TEST_AFTER(make_folder, a_thread_that_does_not_end_is_left_with_its_socket)
{
    is_stuck = true;
    const int wake = lowest_descriptor() + 1; /* behind the listener */
    start_thread(false, true);
    at_end();
    must_say("the thread for plans waits for another thread", "left behind");
    CHECK(inode_of(path) != 0);
    uint64_t count;
    CHECK(read(wake, &count, sizeof(count)) == sizeof(count) && count == 1);
}

MS_TEST_AFTER(make_folder, a_thread_that_cannot_be_started_leaves_nothing)
{
    const int lowest = lowest_descriptor(), open_before = open_descriptors();
    for (int i = 0; i < 3; i++) {
        thread_error = i == 0 ? EAGAIN : 0;
        wake_fails = i == 1;
        end_fails = i == 2;
        start_thread(false, true);
        must_say(i == 2 ? "the thread for later plans does not run" : "cannot start the thread",
                 i == 2 ? "" : strerror(i == 0 ? EAGAIN : EMFILE));
        CHECK_EQ(inode_of(path), 0);
        close(i == 2 ? lowest + 1 : -1); /* the thread's, which has ended */
        CHECK_EQ(open_descriptors(), open_before);
    }
}

/* --- the signal */

static void start_signal(uint64_t number)
{
    ms_config.suspend_signal = number;
    is_faked = true;
    start_thread(false, false);
}

MS_TEST_AFTER(make_folder, a_signal_suspends_and_the_next_one_resumes)
{
    start_signal(SIGUSR1);
    CHECK(thread != NULL && quiesced == 1 && lines == 0);
    struct sigaction now;
    CHECK(sigaction(SIGUSR1, NULL, &now) == 0 && (now.sa_flags & SA_RESTART) != 0);
    look(1);
    CHECK(begun == 0 && ended == 0);
    errno = EDOM;
    raise(SIGUSR1);
    raise(SIGUSR1); /* both are one */
    CHECK_EQ(errno, EDOM);
    look(3);
    CHECK(begun == 1 && ended == 0 && strcmp(begun_folder, "none") == 0);
    atomic_store(&ms_suspend_is_set, true);
    raise(SIGUSR1);
    look(3);
    CHECK(begun == 1 && ended == 1 && lines == 0);
    is_refused = true;
    raise(SIGUSR1);
    look(1);
    must_say("METASHARD_SUSPEND_SIGNAL: the process is not resumed: end is refused", "");
    atomic_store(&ms_suspend_is_set, false);
    raise(SIGUSR1);
    look(1);
    must_say("METASHARD_SUSPEND_SIGNAL: the process is not suspended: begin is refused", "");
    CHECK_EQ(logged_level, MS_WARN);
}

MS_TEST_AFTER(make_folder, a_signal_of_a_forked_child_is_not_the_parents)
{
    int status;
    start_signal(SIGUSR1);
    const pid_t child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGUSR1);
    look(1);
    CHECK_EQ(begun, 0);
    raise(SIGUSR1); /* the parent keeps its handler */
    look(1);
    CHECK_EQ(begun, 1);
}

MS_TEST_AFTER(make_folder, signals_that_fill_their_descriptor_count_as_one)
{
    const uint64_t full = UINT64_MAX - 1;
    const int descriptor = lowest_descriptor();
    start_signal(SIGUSR1);
    CHECK_EQ(write(descriptor, &full, sizeof(full)), sizeof(full));
    errno = EDOM;
    raise(SIGUSR1);
    CHECK_EQ(errno, EDOM);
    look(1);
    CHECK_EQ(begun, 1);
}

static int signal_descriptor;

static void take_it_first(int left)
{
    uint64_t count;
    (void)left;
    CHECK(read(signal_descriptor, &count, sizeof(count)) == sizeof(count));
    on_look = NULL;
}

MS_TEST_AFTER(make_folder, a_signal_that_is_gone_by_then_is_none)
{
    const int kept = fcntl(0, F_DUPFD, 100);
    close(0); /* and its descriptor may be 0 */
    start_signal(SIGUSR1);
    CHECK(thread != NULL && quiesced == 1);
    raise(SIGUSR1);
    on_look = take_it_first;
    look(1);
    CHECK(begun == 0 && on_look == NULL);
    raise(SIGUSR1);
    look(1);
    CHECK_EQ(begun, 1);
    CHECK(kept < 0 ? close(0) == 0 : dup2(kept, 0) == 0);
}

static void handle(int number)
{
    (void)number;
}

static void handle_with_more(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
}

MS_TEST(a_signal_that_is_not_free_is_told_of)
{
    static const struct {
        uint64_t number;
        struct sigaction action;
        const char *why;
    } cases[] = {
        {SIGUSR1, {.sa_handler = handle}, "10: the program handles it itself"},
        {SIGUSR1, {.sa_handler = SIG_IGN}, "10: the program handles it itself"},
        {SIGUSR1,
         {.sa_sigaction = handle_with_more, .sa_flags = SA_SIGINFO},
         "10: the program handles it itself"},
        {SIGUSR1,
         {.sa_handler = SIG_DFL, .sa_flags = SA_SIGINFO},
         "10: the program handles it itself"},
        {SIGKILL, {.sa_handler = SIG_DFL}, "9: no process can handle it; use another"},
        {SIGSTOP, {.sa_handler = SIG_DFL}, "19: no process can handle it"},
        {SIGSEGV, {.sa_handler = SIG_DFL}, "11: faults of the program raise it"},
        {SIGBUS, {.sa_handler = SIG_DFL}, "7: faults of the program raise it"},
        {SIGILL, {.sa_handler = SIG_DFL}, "4: faults of the program raise it"},
        {SIGFPE, {.sa_handler = SIG_DFL}, "8: faults of the program raise it"},
        {SIGTRAP, {.sa_handler = SIG_DFL}, "5: faults of the program raise it"},
        {SIGSYS, {.sa_handler = SIG_DFL}, "31: faults of the program raise it"},
        {SIGABRT, {.sa_handler = SIG_DFL}, "6: faults of the program raise it"},
        {SIGCHLD, {.sa_handler = SIG_DFL}, "17: the kernel sends it"},
        {SIGCONT, {.sa_handler = SIG_DFL}, "18: the kernel sends it"},
        {1000, {.sa_handler = SIG_DFL}, "1000: there is no such signal"},
        {UINT64_C(1) << 33, {.sa_handler = SIG_DFL}, "2147483647: there is no such signal"},
    };
    make_folder();
    const int open_before = open_descriptors();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sigaction((int)cases[i].number, &cases[i].action, NULL);
        ms_config.suspend_signal = cases[i].number;
        start_thread(false, false);
        must_say("METASHARD_SUSPEND_SIGNAL: ", cases[i].why);
        CHECK(thread == NULL && quiesced == 0);
        CHECK_EQ(open_descriptors(), open_before);
    }
    wake_fails = true;
    start_thread(false, false);
    must_say("METASHARD_SUSPEND_SIGNAL: ", strerror(EMFILE));
    CHECK(thread == NULL);
}
