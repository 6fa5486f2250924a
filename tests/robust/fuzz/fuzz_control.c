/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as what a client says at the control socket, in pieces that end with PIECE_END: each
 * answer is a line of "ok" or "error" that a terminal can show, and the server lets go of the
 * client at the end. The functions that change the process are those below. */
#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/control/control_internal.h"
#include "runtime/control/suspension.h"
#include "runtime/fill/prefetch.h"
#include "runtime/fill/settle.h"
#include "runtime/plan/plan.h"
#include "runtime/shard/shard.h"
#include "tools/simcuda/harness/wraps.h"
#include "tests/robust/fuzz/fuzz.h"

enum { PIECE_END = 0x01, ANSWER_BYTES = 2048, ROUNDS = 64, LINE_BYTES = MS_PATH_BYTES + 64 };

static char path[] = "/tmp/metashard-fuzz-XXXXXX/socket";
static int wake;

/* --- what requests do (meson.build) */

WRAPS(ms_shard_set, ms_prefetch_arrive, ms_settle_now, ms_suspension_begin, ms_suspension_end);
bool __wrap_ms_shard_set(struct ms_plan *plan, const char *name, struct ms_fault *fault)
{
    (void)fault;
    require(plan != NULL && name[0] != '\0');
    ms_plan_destroy(plan);
    return true;
}

void __wrap_ms_prefetch_arrive(bool is_first, bool may_start)
{
    (void)is_first, (void)may_start;
}

void __wrap_ms_settle_now(const char *why)
{
    require(why[0] != '\0');
}

/* A folder is a text of one line. */
bool __wrap_ms_suspension_begin(const char *folder, char *told, size_t bytes,
                                struct ms_fault *fault)
{
    (void)fault;
    require(folder == NULL || (folder[0] != '\0' && strchr(folder, '\n') == NULL));
    snprintf(told, bytes, "{}");
    return true;
}

bool __wrap_ms_suspension_end(struct ms_fault *fault)
{
    (void)fault;
    return true;
}

/* --- the client */

static void remove_folder(void)
{
    ms_control_close();
    *strrchr(path, '/') = '\0';
    rmdir(path);
}

static void open_once(void)
{
    static bool is_open;
    if (is_open)
        return;
    char *end = strrchr(path, '/');
    *end = '\0';
    require(mkdtemp(path) != NULL);
    *end = '/';
    ms_log_open(MS_ERROR, "/dev/null");
    wake = eventfd(0, EFD_CLOEXEC);
    require(wake >= 0 && ms_control_open(path));
    atexit(remove_folder);
    is_open = true;
}

static int connect_client(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(client >= 0 && connect(client, (struct sockaddr *)&address, sizeof(address)) == 0);
    require(ms_control_serve(wake, 0));
    return client;
}

struct answers {
    char line[ANSWER_BYTES];
    size_t length, count;
    bool begins_wrong; /* the first request is no text */
};

/* A NUL in the first line, or more letters than a request has. */
static bool is_wrong(const uint8_t *data, size_t size)
{
    size_t letters = 0;
    for (size_t i = 0; i < size && data[i] != '\n'; i++) {
        letters += data[i] != PIECE_END;
        if (data[i] == '\0' || letters >= LINE_BYTES)
            return memchr(data + i, '\n', size - i) != NULL;
    }
    return false;
}

static void check_line(struct answers *answers)
{
    const char *line = answers->line;
    const bool is_error = strncmp(line, "error ", 6) == 0;
    require(is_error || strncmp(line, "ok ", 3) == 0);
    require(is_error || !answers->begins_wrong || answers->count > 0);
    answers->count++;
    for (; *line != '\0'; line++)
        require((unsigned char)*line >= ' ' && *line != 0x7f);
}

/* False: the server has closed the connection. */
static bool take_answers(int client, struct answers *answers)
{
    char letters[4096];
    ssize_t got;
    while ((got = recv(client, letters, sizeof(letters), MSG_DONTWAIT)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            require(letters[i] != '\0' && answers->length < sizeof(answers->line) - 1);
            answers->line[answers->length++] = letters[i];
            if (letters[i] != '\n')
                continue;
            answers->line[answers->length - 1] = '\0';
            check_line(answers);
            answers->length = 0;
        }
    }
    return got < 0 && errno == EAGAIN;
}

/* False: the server has closed the connection, which it may do before it has read all. */
static bool say(int client, const uint8_t *data, size_t size, struct answers *answers)
{
    for (size_t done = 0; done < size;) {
        const ssize_t sent = send(client, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        done += sent > 0 ? (size_t)sent : 0;
        require(ms_control_serve(wake, 0));
        if (!take_answers(client, answers))
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct answers answers = {.begins_wrong = is_wrong(data, size)};
    open_once();
    const int client = connect_client();
    bool is_open = true;
    while (size > 0 && is_open) {
        const uint8_t *end = memchr(data, PIECE_END, size);
        const size_t length = end != NULL ? (size_t)(end - data) : size;
        is_open = say(client, data, length, &answers);
        data += length + (end != NULL);
        size -= length + (end != NULL);
    }
    shutdown(client, SHUT_WR);
    for (int i = 0; is_open && i < ROUNDS; i++) {
        require(ms_control_serve(wake, 0));
        is_open = take_answers(client, &answers);
    }
    require(!is_open && answers.length == 0 && (answers.count > 0 || !answers.begins_wrong));
    close(client);
    return 0;
}
