/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"
#include "runtime/control/control_internal.h"

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

MS_TEST(what_is_no_socket_keeps_its_name)
{
    make_folder();
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    const ino_t inode = inode_of(path);
    CHECK(!ms_control_open(path));
    CHECK_EQ(inode_of(path), inode);
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
