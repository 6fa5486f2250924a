/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/handout.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/base/peer.h"
#include "runtime/base/thread.h"

/* An asker writes at once; the answer may have to wait for other requests. */
enum { REQUEST_MS = 5000, ANSWER_MS = 30000, STEP_MS = 5, JOIN_S = 5 };

struct request {
    unsigned char secret[MS_HANDOUT_KEY_BYTES];
    struct ms_handout_text text;
};

/* Written under the lock before `state` becomes IS_UP, constant afterwards. */
static struct {
    struct ms_lock lock;
    _Atomic enum { NOT_STARTED, IS_UP, CANNOT } state;
    struct ms_handout_key key;
    ms_handout_finder *find;
    pthread_t thread;
    pid_t pid;          /* the process that runs the thread; a forked child has none */
    int listener, wake; /* wake: an eventfd, set when the process ends */
    ino_t inode;        /* of the listener */
} server = {.lock = MS_LOCK_INIT(handout), .listener = -1, .wake = -1};

static socklen_t name_socket(const unsigned char *place, struct sockaddr_un *address_out)
{
    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    char *name = address_out->sun_path + 1; /* abstract: begins with a zero */
    const size_t room = sizeof(address_out->sun_path) - 1;
    size_t length = (size_t)snprintf(name, room, "metashard-");
    for (int i = 0; i < MS_HANDOUT_KEY_BYTES; i++)
        length += (size_t)snprintf(name + length, room - length, "%02x", place[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static uint64_t now_ms(void)
{
    return ms_clock_ns(CLOCK_MONOTONIC) / MS_NS_PER_MS;
}

/* Waits until the descriptor is ready, a signal comes or end_ms passes. */
static bool wait_for(int descriptor, short events, uint64_t end_ms)
{
    struct pollfd polled = {.fd = descriptor, .events = events};
    const uint64_t now = now_ms();
    if (now >= end_ms)
        return false;
    return poll(&polled, 1, (int)(end_ms - now)) >= 0 || errno == EINTR;
}

static bool is_to_be_repeated(ssize_t done)
{
    return done < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Receives one whole message, with a descriptor unless descriptor_out is NULL. */
static bool receive(int peer, void *message, size_t bytes, int *descriptor_out, uint64_t end_ms)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec text = {message, bytes};
    struct msghdr whole;
    ssize_t got;
    do {
        whole = (struct msghdr){.msg_iov = &text,
                                .msg_iovlen = 1,
                                .msg_control = descriptor_out != NULL ? &control : NULL,
                                .msg_controllen = descriptor_out != NULL ? sizeof(control) : 0};
        got = recvmsg(peer, &whole, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (is_to_be_repeated(got) && wait_for(peer, POLLIN, end_ms));
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&whole) : NULL;
    const bool has_descriptor = header != NULL && header->cmsg_level == SOL_SOCKET &&
                                header->cmsg_type == SCM_RIGHTS &&
                                header->cmsg_len == CMSG_LEN(sizeof(int));
    int descriptor = -1;
    if (has_descriptor)
        memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
    if (got == (ssize_t)bytes && (descriptor_out == NULL || has_descriptor)) {
        if (descriptor_out != NULL)
            *descriptor_out = descriptor;
        return true;
    }
    if (has_descriptor)
        close(descriptor);
    return false;
}

/* Does not wait: a message is short, so without room for it the peer is not reading. */
static bool send_message(int peer, const void *message, size_t bytes, int descriptor)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    struct iovec text = {(void *)(uintptr_t)message, bytes};
    struct msghdr whole = {.msg_iov = &text, .msg_iovlen = 1};
    if (descriptor >= 0) {
        whole.msg_control = &control;
        whole.msg_controllen = sizeof(control);
        memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(descriptor));
    }
    ssize_t sent;
    do
        sent = sendmsg(peer, &whole, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes;
}

/* --- who answers */

static void answer(int peer)
{
    struct request request = {0};
    struct ms_handout_text text = {0};
    int descriptor = -1;
    if (!ms_peer_is_own_user(peer) ||
        !receive(peer, &request, sizeof(request), NULL, now_ms() + REQUEST_MS) ||
        memcmp(request.secret, server.key.secret, sizeof(request.secret)) != 0 ||
        !server.find(&request.text, &text, &descriptor))
        return;
    if (!send_message(peer, &text, sizeof(text), descriptor))
        ms_log(MS_DEBUG, "a process that asked for memory did not take the answer: %s",
               strerror(errno));
    close(descriptor);
}

/* A program may close descriptors that it does not know, and reuse their numbers. */
static bool is_listening(void)
{
    struct stat now;
    return fstat(server.listener, &now) == 0 && now.st_ino == server.inode;
}

static void *serve(__attribute__((unused)) void *unused)
{
    static const struct timespec moment = {.tv_nsec = 50L * MS_NS_PER_MS};
    struct pollfd polled[] = {{.fd = server.wake, .events = POLLIN},
                              {.fd = server.listener, .events = POLLIN}};
    for (;;) {
        poll(polled, 2, -1);
        if (polled[0].revents != 0 || !is_listening())
            return NULL;
        if (polled[1].revents == 0)
            continue;
        const int peer = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (peer >= 0) {
            answer(peer);
            close(peer);
        } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            nanosleep(&moment, NULL); /* the connection stays pending */
        }
    }
}

/* With a listener left open in a child, askers would wait after this process has ended. */
static void close_in_child(void)
{
    if (server.listener >= 0)
        close(server.listener);
    server.listener = -1;
}

/* Undoes a start() that failed. */
static void close_all(void)
{
    close_in_child();
    if (server.wake >= 0)
        close(server.wake);
}

/* Registered later than libcuda's exit handlers, so it runs before them. */
static void finish(void)
{
    const uint64_t one = 1;
    struct timespec until;
    if (getpid() != server.pid)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += JOIN_S;
    if (write(server.wake, &one, sizeof(one)) != sizeof(one) ||
        pthread_timedjoin_np(server.thread, NULL, &until) != 0)
        ms_log(MS_WARN, "the thread that shares memory does not end, and is left behind");
    else if (is_listening())
        close(server.listener);
}

static bool open_listener(void)
{
    struct sockaddr_un address;
    struct stat there;
    const socklen_t length = name_socket(server.key.place, &address);
    server.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server.listener < 0 || fstat(server.listener, &there) != 0 ||
        bind(server.listener, (const struct sockaddr *)&address, length) != 0 ||
        listen(server.listener, SOMAXCONN) != 0)
        return false;
    server.inode = there.st_ino;
    return true;
}

static bool start(void)
{
    if (getrandom(&server.key, sizeof(server.key), 0) != sizeof(server.key) || !open_listener())
        return false;
    server.pid = getpid();
    server.wake = eventfd(0, EFD_CLOEXEC);
    if (server.wake < 0)
        return false;
    errno = ms_thread_create(&server.thread, serve, NULL);
    if (errno != 0)
        return false;
    pthread_atfork(NULL, NULL, close_in_child);
    atexit(finish);
    return true;
}

const struct ms_handout_key *ms_handout_key(ms_handout_finder *find)
{
    if (atomic_load_explicit(&server.state, memory_order_acquire) == NOT_STARTED) {
        ms_lock_take(&server.lock);
        if (atomic_load(&server.state) == NOT_STARTED) {
            server.find = find;
            const bool is_up = start();
            if (!is_up) {
                ms_log(MS_ERROR, "memory cannot be shared with other processes: %s",
                       strerror(errno));
                close_all();
            }
            atomic_store(&server.state, is_up ? IS_UP : CANNOT);
        }
        ms_lock_drop(&server.lock);
    }
    return atomic_load(&server.state) == IS_UP ? &server.key : NULL;
}

bool ms_handout_is_own(const struct ms_handout_key *key)
{
    return atomic_load(&server.state) == IS_UP && memcmp(key, &server.key, sizeof(*key)) == 0;
}

/* --- who asks */

/* Connects, and retries while the other process's queue is full. */
static bool reach(int peer, const struct ms_handout_key *key, uint64_t end_ms)
{
    static const struct timespec moment = {.tv_nsec = (long)STEP_MS * MS_NS_PER_MS};
    struct sockaddr_un address;
    const socklen_t length = name_socket(key->place, &address);
    while (connect(peer, (const struct sockaddr *)&address, length) != 0) {
        if ((errno != EAGAIN && errno != EINTR) || now_ms() >= end_ms)
            return false;
        nanosleep(&moment, NULL);
    }
    return true;
}

static const char *talk(int peer, const struct ms_handout_key *key,
                        const struct ms_handout_text *text, struct ms_handout_text *answer_out,
                        int *descriptor_out)
{
    const uint64_t end_ms = now_ms() + ANSWER_MS;
    struct request request = {.text = *text};
    memcpy(request.secret, key->secret, sizeof(request.secret));
    if (!reach(peer, key, end_ms))
        return errno == EAGAIN ? "it does not answer" : "it has ended";
    if (!ms_peer_is_own_user(peer))
        return "it is another user's";
    if (send_message(peer, &request, sizeof(request), -1) &&
        receive(peer, answer_out, sizeof(*answer_out), descriptor_out, end_ms))
        return NULL;
    return now_ms() >= end_ms ? "it does not answer" : "it does not have that memory any more";
}

const char *ms_handout_ask(const struct ms_handout_key *key, const struct ms_handout_text *request,
                           struct ms_handout_text *answer_out, int *descriptor_out)
{
    const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer < 0)
        return strerror(errno);
    const char *why = talk(peer, key, request, answer_out, descriptor_out);
    close(peer);
    return why;
}
