/* SPDX-License-Identifier: Apache-2.0 */
/* What may be handed out, and to whom. The process asks itself here; its own thread answers. */
#include "runtime/base/handout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "tests/unit/descriptors.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

static _Atomic int found;          /* how often the finder was asked */
static _Atomic bool is_first_free; /* what it finds gets the number 0 */

/* Answers with what it was asked, backwards, and a file in memory that has it; nothing for zero. */
static bool find(const struct ms_handout_text *request, struct ms_handout_text *answer_out,
                 int *descriptor_out)
{
    atomic_fetch_add(&found, 1);
    if (request->bytes[0] == 0)
        return false;
    for (int i = 0; i < MS_HANDOUT_TEXT_BYTES; i++)
        answer_out->bytes[i] = request->bytes[MS_HANDOUT_TEXT_BYTES - 1 - i];
    if (is_first_free)
        close(0);
    *descriptor_out = memfd_create("handed-out", MFD_CLOEXEC);
    CHECK(!is_first_free || *descriptor_out == 0);
    return *descriptor_out >= 0 &&
           write(*descriptor_out, request, sizeof(*request)) == sizeof(*request);
}

static struct ms_handout_text text_of(unsigned char first)
{
    struct ms_handout_text text;
    for (int i = 0; i < MS_HANDOUT_TEXT_BYTES; i++)
        text.bytes[i] = (unsigned char)(first + 3 * i);
    return text;
}

/* The thread closes what it has sent after who asked has got it. */
static void check_open(int wanted)
{
    for (int tries = 0; tries < 1000 && open_descriptors() != wanted; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    CHECK_EQ(open_descriptors(), wanted);
}

static void check_answer(const struct ms_handout_key *key, unsigned char first)
{
    const struct ms_handout_text request = text_of(first);
    struct ms_handout_text answer, content;
    int descriptor = -1;
    const char *why = ms_handout_ask(key, &request, &answer, &descriptor);
    if (why != NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", why);
    for (int i = 0; i < MS_HANDOUT_TEXT_BYTES; i++)
        CHECK_EQ(answer.bytes[i], request.bytes[MS_HANDOUT_TEXT_BYTES - 1 - i]);
    CHECK_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(pread(descriptor, &content, sizeof(content), 0), sizeof(content));
    CHECK_BYTES(&content, &request, sizeof(request));
    close(descriptor);
}

/* A request that gets no answer. */
static void check_none(const struct ms_handout_key *key, unsigned char first, const char *wanted)
{
    const struct ms_handout_text request = text_of(first);
    struct ms_handout_text answer;
    int descriptor = -1;
    const char *why = ms_handout_ask(key, &request, &answer, &descriptor);
    if (why == NULL || strcmp(why, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", wanted,
                     why != NULL ? why : "an answer");
    CHECK_EQ(descriptor, -1);
}

MS_TEST(a_client_that_knows_the_key_gets_the_descriptor)
{
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    for (int i = 1; i <= 100; i++)
        check_answer(key, (unsigned char)i);
    CHECK_EQ(found, 100);
    check_open(before);
}

/* As in a program that has closed its input. */
MS_TEST(a_descriptor_that_is_handed_out_may_be_the_lowest)
{
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    is_first_free = true;
    check_answer(key, 1);
    check_open(before - 1);
    is_first_free = false;
    check_answer(key, 1);
}

static struct ms_handout_key last_key;

/* Runs after what ends the thread, which was to be called at the exit later. */
static void check_has_ended(void)
{
    const struct ms_handout_text request = text_of(1);
    struct ms_handout_text answer;
    int descriptor;
    const char *why = ms_handout_ask(&last_key, &request, &answer, &descriptor);
    if (why == NULL || strcmp(why, "it has ended") != 0)
        _exit(1);
}

MS_TEST(a_process_that_ends_answers_nobody)
{
    CHECK_EQ(atexit(check_has_ended), 0);
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    last_key = *key;
    check_answer(key, 1);
}

MS_TEST(a_descriptor_that_is_not_there_is_not_handed_out)
{
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    check_none(key, 0, "it does not have that memory any more");
    CHECK_EQ(found, 1);
    check_answer(key, 1);
    check_open(before);
}

MS_TEST(a_client_that_does_not_know_the_key_gets_nothing)
{
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    for (int i = 0; i < MS_HANDOUT_KEY_BYTES; i++) {
        struct ms_handout_key other = *key;
        other.secret[i] ^= 1;
        check_none(&other, 1, "it does not have that memory any more");
        other = *key;
        other.place[i] ^= 1;
        check_none(&other, 1, "it has ended"); /* nobody is there */
    }
    CHECK_EQ(found, 0);
    check_answer(key, 1);
    check_open(before);
}

MS_TEST(a_process_has_one_key_which_it_knows)
{
    struct ms_handout_key none = {{0}, {0}};
    CHECK(!ms_handout_is_own(&none));
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    CHECK(ms_handout_key(find) == key);
    CHECK_EQ(open_descriptors(), before);
    CHECK(memcmp(key->place, none.place, sizeof(none.place)) != 0);
    CHECK(memcmp(key->secret, none.secret, sizeof(none.secret)) != 0);
    CHECK(memcmp(key->place, key->secret, sizeof(none.place)) != 0);
    none = *key;
    CHECK(ms_handout_is_own(&none));
    none.place[MS_HANDOUT_KEY_BYTES - 1] ^= 1;
    CHECK(!ms_handout_is_own(&none));
    none = *key;
    none.secret[MS_HANDOUT_KEY_BYTES - 1] ^= 1;
    CHECK(!ms_handout_is_own(&none));
}

/* --- who says something else */

static int connect_to(const struct ms_handout_key *key)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *name = address.sun_path + 1;
    size_t length = (size_t)sprintf(name, "metashard-");
    for (int i = 0; i < MS_HANDOUT_KEY_BYTES; i++)
        length += (size_t)sprintf(name + length, "%02x", key->place[i]);
    const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(peer >= 0);
    CHECK_EQ(connect(peer, (const struct sockaddr *)&address,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)),
             0);
    return peer;
}

/* The secret, and some of the text or more than it has. */
static void check_bytes(const struct ms_handout_key *key, size_t bytes)
{
    enum { WHOLE = MS_HANDOUT_KEY_BYTES + MS_HANDOUT_TEXT_BYTES };
    unsigned char message[2 * WHOLE] = {0}, answer[WHOLE];
    memcpy(message, key->secret, sizeof(key->secret));
    memset(message + sizeof(key->secret), 1, WHOLE);
    const int peer = connect_to(key);
    CHECK_EQ(send(peer, message, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    const ssize_t got = recv(peer, answer, sizeof(answer), 0); /* until it is answered or left */
    CHECK_EQ(got > 0, bytes >= WHOLE);
    close(peer);
}

MS_TEST(a_request_that_is_too_short_is_none)
{
    enum { WHOLE = MS_HANDOUT_KEY_BYTES + MS_HANDOUT_TEXT_BYTES };
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    check_bytes(key, 1);
    check_bytes(key, MS_HANDOUT_KEY_BYTES);
    check_bytes(key, WHOLE - 1);
    CHECK_EQ(found, 0);
    check_bytes(key, WHOLE);
    CHECK_EQ(found, 1);
    close(connect_to(key)); /* who goes without a word */
    check_answer(key, 1);
    check_open(before);
}

/* --- other processes */

MS_TEST(another_process_of_the_user_is_answered_and_answers_nobody)
{
    int status;
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    const int before = open_descriptors();
    const pid_t child = fork();
    if (child == 0) {
        struct ms_handout_text answer;
        int descriptor = -1;
        const struct ms_handout_text request = text_of(5);
        const bool has_none = open_descriptors() == before - 1; /* of what listens */
        const char *why = ms_handout_ask(key, &request, &answer, &descriptor);
        _exit(why != NULL ? 1 : !has_none ? 2 : answer.bytes[0] != request.bytes[63] ? 3 : 0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(found, 1);
    check_answer(key, 1);
    check_open(before);
}

/* --- where no descriptor is free */

static struct rlimit limit_before;

/* Allows so many more. */
static void allow_more(int count)
{
    struct rlimit limit;
    const int next = dup(0);
    CHECK(next >= 0);
    close(next);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit_before), 0);
    limit = limit_before;
    limit.rlim_cur = (rlim_t)(next + count);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void allow_all(void)
{
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit_before), 0);
}

MS_TEST(a_client_without_a_free_descriptor_cannot_ask)
{
    const struct ms_handout_key *key = ms_handout_key(find);
    CHECK(key != NULL);
    allow_more(0);
    check_none(key, 1, strerror(EMFILE));
    allow_all();
    check_answer(key, 1);
}

static char log_path[] = "/tmp/metashard-log-XXXXXX";

static void remove_log(void)
{
    unlink(log_path);
}

/* Where so many more descriptors may be open; or no thread may start. */
static void check_not_started(int count, int error)
{
    char text[4096] = "";
    const int log = mkstemp(log_path);
    CHECK(log >= 0);
    atexit(remove_log);
    ms_log_open(MS_WARN, log_path);
    const int before = open_descriptors();
    allow_more(count);
    CHECK(ms_handout_key(find) == NULL);
    allow_all();
    CHECK_EQ(open_descriptors(), before);
    CHECK(ms_handout_key(find) == NULL); /* it is not tried again, nor said */
    CHECK(!ms_handout_is_own(&(struct ms_handout_key){{0}, {0}}));
    CHECK(pread(log, text, sizeof(text) - 1, 0) > 0);
    const char *said = strstr(text, "memory cannot be shared with other processes: ");
    CHECK(said != NULL && strstr(said, strerror(error)) != NULL);
    CHECK(strstr(said + 1, "memory cannot be shared") == NULL);
    close(log);
}

MS_TEST(a_process_without_a_socket_has_no_key)
{
    check_not_started(0, EMFILE);
}

MS_TEST(a_process_without_a_wakeup_descriptor_has_no_key)
{
    check_not_started(1, EMFILE);
}

static bool may_start = true;

WRAPS(ms_thread_create);
int __wrap_ms_thread_create(pthread_t *thread, void *(*run)(void *), void *argument)
{
    return may_start ? __real_ms_thread_create(thread, run, argument) : EAGAIN;
}

STORY_ALONE(a_process_without_a_thread_has_no_key, may_start = false, check_not_started(2, EAGAIN))
