/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };

const char *const ms_log_level_names[MS_LOG_LEVEL_COUNT] = {"error", "warn", "info", "debug",
                                                            "trace"};

static enum ms_log_level enabled = MS_WARN;
static int log_fd = STDERR_FILENO;
static char who[48] = "not started"; /* "rank R pid P", made once */

/* The rank as the common launchers give it; messages of many processes are told apart by it. */
static const char *launcher_rank(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = secure_getenv(names[i]);
        if (value != NULL && value[0] != '\0' && strlen(value) < 16)
            return value;
    }
    return NULL;
}

void ms_log_open(enum ms_log_level level, const char *path)
{
    const char *rank = launcher_rank();
    if (rank != NULL)
        snprintf(who, sizeof(who), "rank %s pid %d", rank, (int)getpid());
    else
        snprintf(who, sizeof(who), "pid %d", (int)getpid());

    enabled = level;
    if (path == NULL)
        return;
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        ms_log(MS_WARN, "METASHARD_LOG: cannot open %s: %s; messages go to stderr", path,
               strerror(errno));
    else
        log_fd = fd;
}

static void write_line(enum ms_log_level level, const char *format, va_list args)
{
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof(line), "metashard[%s] %s: ", who, ms_log_level_names[level]);
    used += vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
    if (used > (int)sizeof(line) - 2)
        used = (int)sizeof(line) - 2;
    line[used++] = '\n';
    /* Nobody can be told when the message cannot be written. */
    const ssize_t ignored = write(log_fd, line, (size_t)used);
    (void)ignored;
}

void ms_log(enum ms_log_level level, const char *format, ...)
{
    if (level > enabled)
        return;
    const int saved_errno = errno;
    va_list args;
    va_start(args, format);
    write_line(level, format, args);
    va_end(args);
    errno = saved_errno;
}

_Noreturn void ms_fatal(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line(MS_ERROR, format, args);
    va_end(args);
    abort();
}
