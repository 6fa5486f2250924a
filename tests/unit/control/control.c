/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"
#include "runtime/control/control.h"
#include "runtime/control/control_internal.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/between.h"
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

/* --- the name */

MS_TEST_AFTER(start, its_own_name_goes_at_the_end)
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

static int lowest_descriptor(void)
{
    const int lowest = dup(0);
    close(lowest);
    return lowest;
}

MS_TEST(what_is_no_socket_keeps_its_name)
{
    make_folder();
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    const ino_t inode = inode_of(path);
    const int lowest = lowest_descriptor();
    CHECK(!ms_control_open(path));
    CHECK_EQ(inode_of(path), inode);
    CHECK_EQ(lowest_descriptor(), lowest); /* nothing stays open */
    close(file);
}

MS_TEST(a_socket_that_somebody_serves_keeps_its_name)
{
    make_folder();
    const int listener = serve(path);
    const ino_t inode = inode_of(path);
    CHECK(!ms_control_open(path));
    CHECK_EQ(inode_of(path), inode);
    close(listener);
    CHECK(ms_control_open(path)); /* nobody does any more */
    ms_control_close();
}

/* --- clients */

static time_t ahead_s; /* of the clock that the shim sees */
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = __real_clock_gettime(clock, now);
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

static const char *ask(int client, const char *request)
{
    static char answer[4096];
    CHECK_EQ(send(client, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    serve_ready();
    const ssize_t got = recv(client, answer, sizeof(answer) - 1, MSG_DONTWAIT);
    answer[got > 0 ? got : 0] = '\0';
    return answer;
}

/* The shim has closed the connection. */
static bool is_dropped(int client)
{
    char byte;
    return recv(client, &byte, 1, MSG_DONTWAIT) == 0;
}

MS_TEST(a_plan_has_a_size_at_most)
{
    static const char *const bad[] = {
        "plan 268435457\n",           "plan 0\n", "plan -1\n", "plan 1x\n", "plan \n", "plan  1\n",
        "plan 99999999999999999999\n"};
    start();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const int client = connect_client();
        CHECK(strstr(ask(client, bad[i]), "error expected plan and a number") != NULL);
        CHECK(is_dropped(client));
        close(client);
    }
    const int client = connect_client();
    CHECK_EQ(strcmp(ask(client, "plan 268435456\n"), ""), 0); /* its bytes are waited for */
    CHECK(!is_dropped(client));
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

MS_TEST_AFTER(start, who_has_nothing_is_suspended_at_once)
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

MS_TEST_AFTER(start, there_are_so_many_clients_at_most)
{
    int clients[MS_CONTROL_CLIENTS];
    for (int i = 0; i < MS_CONTROL_CLIENTS; i++) {
        clients[i] = connect_client();
        serve_ready();
    }
    const int refused = connect_client();
    CHECK(strstr(ask(refused, "status\n"), "error too many") != NULL);
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
        char answer[100] = "";
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

static const char a_plan[] =
    "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": 1, \"tensors\": [{"
    "\"name\": \"w\", \"dtype\": \"U8\", \"shape\": [1000], \"placements\": [{\"shard\": 0}]}]}";

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
    CHECK(strstr(ask(client, "plan 2\n{}"), "error ") != NULL);
    CHECK_EQ(plans(), 1);
    ms_control_close();
}
