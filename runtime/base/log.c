/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/launcher.h"
#include "runtime/base/quiet.h"
#include "runtime/base/utf8.h"

enum { LINE_BYTES = 1024 };

const char *const ms_log_level_names[MS_LOG_LEVEL_COUNT] = {"error", "warn", "info", "debug",
                                                            "trace"};

static enum ms_log_level enabled = MS_WARN;
static int log_fd = STDERR_FILENO;
static _Atomic uint32_t did_not_fit; /* lines that were lost in a full pipe */
static _Atomic bool has_left_out;    /* some place in `places` has left out lines */
static struct {
    bool has_rank;
    unsigned rank;
    bool is_started;
} who; /* set once */

static bool is_pipe(int descriptor)
{
    struct stat stat;
    return fstat(descriptor, &stat) == 0 && S_ISFIFO(stat.st_mode);
}

void ms_log_open(enum ms_log_level level, const char *path)
{
    const struct ms_launched launched = ms_launcher_read(false);
    who.has_rank = launched.has_rank;
    who.rank = launched.rank;
    who.is_started = true;
    enabled = level;
    if (path == NULL)
        return;
    /* A pipe keeps O_NONBLOCK, so that a slow reader never holds the program up. */
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        ms_log(MS_WARN, "METASHARD_LOG: cannot open %s: %s; messages go to stderr", path,
               errno == ENXIO ? "it is a pipe that nobody reads" : strerror(errno));
    else
        log_fd = fd;
    if (fd >= 0 && !is_pipe(fd))
        fcntl(fd, F_SETFL, O_APPEND);
}

/* --- lines */

/* "metashard[rank R pid P] warn: " */
static int write_beginning(char *line, size_t bytes, const char *word)
{
    if (!who.is_started)
        return snprintf(line, bytes, "metashard[not started] %s: ", word);
    if (who.has_rank)
        return snprintf(line, bytes, "metashard[rank %u pid %d] %s: ", who.rank, (int)getpid(),
                        word);
    return snprintf(line, bytes, "metashard[pid %d] %s: ", (int)getpid(), word);
}

static void write_line(const char *word, const char *format, va_list args)
{
    char line[LINE_BYTES];
    int used = write_beginning(line, sizeof(line), word);
    /* LLVM 14's analyzer loses track of a va_list that is passed on.
     * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    used += vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
    if (used > (int)sizeof(line) - 2)
        used = (int)sizeof(line) - 2;
    line[used] = '\0';
    ms_utf8_make_printable(line);
    line[used++] = '\n';
    /* A failed write cannot be reported; lines that do not fit into a pipe are counted. */
    if (ms_quiet_write(log_fd, line, (size_t)used) < 0 && errno == EAGAIN)
        atomic_fetch_add(&did_not_fit, 1);
}

/* --- the limit per second */

/* The format string identifies a place in the code. Two places in one slot share the limit. */
enum { PLACES = 256, MOST_A_SECOND = 100 };
static struct {
    _Atomic uint64_t second_and_count; /* the count in the lowest 32 bits */
    _Atomic uint32_t left_out;
} places[PLACES];

static uint32_t now_s(void)
{
    return (uint32_t)(ms_clock_ns(CLOCK_MONOTONIC_COARSE) / MS_NS_PER_S);
}

static unsigned place_of(const char *format)
{
    return (unsigned)(((uint64_t)(uintptr_t)format * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

static bool may_write(unsigned place)
{
    const uint64_t second = (uint64_t)now_s() << 32;
    uint64_t seen = atomic_load(&places[place].second_and_count);
    uint64_t wanted;
    do
        wanted = (seen >> 32 << 32) == second ? seen + 1 : second + 1;
    while (!atomic_compare_exchange_weak(&places[place].second_and_count, &seen, wanted));
    return (uint32_t)wanted <= MOST_A_SECOND;
}

static void log_left_out(unsigned place)
{
    const uint32_t count = atomic_exchange(&places[place].left_out, 0);
    if (count > 0)
        ms_log_say("info", "%u more lines like the next one were left out", (unsigned)count);
}

void ms_log(enum ms_log_level level, const char *format, ...)
{
    if (level > enabled)
        return;
    const int saved_errno = errno;
    const unsigned place = place_of(format);
    if (level <= MS_INFO && !may_write(place)) {
        atomic_fetch_add(&places[place].left_out, 1);
        atomic_store(&has_left_out, true);
        errno = saved_errno;
        return;
    }
    log_left_out(place);
    va_list args;
    va_start(args, format);
    write_line(ms_log_level_names[level], format, args);
    va_end(args);
    errno = saved_errno;
}

void ms_log_finish(void)
{
    uint32_t count = 0;
    const uint32_t unread = atomic_exchange(&did_not_fit, 0);
    for (int i = 0; i < PLACES && atomic_load(&has_left_out); i++)
        count += atomic_exchange(&places[i].left_out, 0);
    if (count > 0)
        ms_log_say("info", "%u lines were left out, because there were too many of their kind",
                   (unsigned)count);
    if (unread > 0)
        ms_log_say("info", "%u lines were left out, because nobody read them from the pipe in time",
                   (unsigned)unread);
}

void ms_log_say(const char *word, const char *format, ...)
{
    const int saved_errno = errno;
    va_list args;
    va_start(args, format);
    write_line(word, format, args);
    va_end(args);
    errno = saved_errno;
}

_Noreturn void ms_fatal(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line("error", format, args);
    va_end(args);
    abort();
}
