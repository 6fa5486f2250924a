/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/nccl/internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FAULTS_MAX = 64, LINE_BYTES = 1024 };

struct fault {
    int comm; /* -1: any */
    int rank;
    uint64_t nth;
    enum nc_fault kind;
    unsigned value;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nc_settings settings;
static struct fault faults[FAULTS_MAX];
static int faults_count;
/* SIMNCCL_FAULTS=*:<nth>=error<n>; 0: none. */
static uint64_t any_nth;
static unsigned any_value;
static atomic_ullong any_seen;
static _Thread_local char last_words[LINE_BYTES];

static size_t end_line(char *line, size_t room, size_t begin, int length)
{
    size_t end = begin + (length > 0 ? (size_t)length : 0);
    if (end > room - 2)
        end = room - 2;
    line[end] = '\n';
    line[end + 1] = '\0';
    return end + 1;
}

void nc_say(const char *format, ...)
{
    char line[LINE_BYTES] = "simnccl: ";
    const size_t begin = strlen(line);
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(line + begin, sizeof(line) - begin - 1, format, args);
    va_end(args);
    const size_t end = end_line(line, sizeof(line), begin, length);
    snprintf(last_words, sizeof(last_words), "%.*s", (int)(end - begin - 1), line + begin);
    /* One write: lines of several ranks do not mix. */
    if (write(STDERR_FILENO, line, end) < 0)
        return;
}

const char *nc_last_words(void)
{
    return last_words;
}

void *nc_zalloc(size_t bytes)
{
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        nc_say("out of host memory (%zu bytes)", bytes);
        abort();
    }
    return memory;
}

uint64_t nc_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* splitmix64, https://prng.di.unimi.it/splitmix64.c */
uint64_t nc_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* --- the environment */

static unsigned number(const char *name, unsigned long lowest, unsigned long highest,
                       unsigned otherwise)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0')
        return otherwise;
    char *end;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno == 0 && *end == '\0' && text[0] != '-' && value >= lowest && value <= highest)
        return (unsigned)value;
    nc_say("%s is \"%s\", expected a number from %lu to %lu; %u is used", name, text, lowest,
           highest, otherwise);
    return otherwise;
}

static bool is_strict(void)
{
    const char *text = getenv("SIMNCCL_CHECK");
    if (text == NULL || text[0] == '\0' || strcmp(text, "strict") == 0)
        return true;
    if (strcmp(text, "real") == 0)
        return false;
    nc_say("SIMNCCL_CHECK is \"%s\", expected strict or real; strict is used", text);
    return true;
}

static bool read_what(const char *text, struct fault *fault_out)
{
    static const struct {
        const char *word;
        enum nc_fault kind;
        unsigned long highest;
    } rows[] = {
        {"delay", NC_FAULT_DELAY, 60 * 1000 * 1000},
        {"async", NC_FAULT_ASYNC, ncclNumResults - 1},
        {"error", NC_FAULT_ERROR, ncclNumResults - 1},
    };
    fault_out->kind = NC_FAULT_KILL;
    if (strcmp(text, "kill") == 0)
        return true;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const size_t length = strlen(rows[i].word);
        char *end;
        if (strncmp(text, rows[i].word, length) != 0)
            continue;
        const unsigned long value = strtoul(text + length, &end, 10);
        fault_out->kind = rows[i].kind;
        fault_out->value = (unsigned)value;
        return end > text + length && *end == '\0' && value > 0 && value <= rows[i].highest;
    }
    return false;
}

/* *:<nth>=error<n>: the nth call, from 1, that comes from a library with SIMCUDA_FAULT_CALLER in
 * its name. */
static bool read_any_fault(const char *text)
{
    char *end;
    struct fault fault;
    const unsigned long long nth = strtoull(text, &end, 10);
    if (end == text || *end != '=' || nth == 0 || !read_what(end + 1, &fault) ||
        fault.kind != NC_FAULT_ERROR)
        return false;
    any_nth = nth;
    any_value = fault.value;
    return true;
}

/* One of [<comm>.]<rank>:<nth>=<what>. */
static bool read_fault(const char *text)
{
    char *end;
    struct fault fault = {.comm = -1};
    if (strncmp(text, "*:", 2) == 0)
        return read_any_fault(text + 2);
    long first = strtol(text, &end, 10);
    if (end == text || faults_count == FAULTS_MAX)
        return false;
    if (*end == '.') {
        text = end + 1;
        fault.comm = (int)first;
        first = strtol(text, &end, 10);
    }
    if (end == text || *end != ':')
        return false;
    fault.rank = (int)first;
    text = end + 1;
    fault.nth = strtoull(text, &end, 10);
    if (end == text || *end != '=' || !read_what(end + 1, &fault))
        return false;
    faults[faults_count++] = fault;
    return true;
}

static void read_faults(void)
{
    const char *text = getenv("SIMNCCL_FAULTS");
    while (text != NULL && text[0] != '\0') {
        char one[LINE_BYTES];
        const size_t length = strcspn(text, ",");
        snprintf(one, sizeof(one), "%.*s", (int)length, text);
        if (!read_fault(one))
            nc_say("SIMNCCL_FAULTS: \"%s\" is not understood and not used (expected "
                   "[<comm>.]<rank>:<nth>=<what>)",
                   one);
        text += length + (text[length] == ',');
    }
}

static void read_environment(void)
{
    settings.version = (int)number("SIMNCCL_VERSION", 2000, 1000000, 22809);
    settings.strict = is_strict();
    settings.graph_register = number("NCCL_GRAPH_REGISTER", 0, 1, 1) == 1;
    settings.check_pointers = number("NCCL_CHECK_POINTERS", 0, 1, 0) == 1;
    settings.shuffle = number("SIMNCCL_SHUFFLE", 0, UINT32_MAX, 1);
    settings.delay_us = number("SIMNCCL_DELAY_US", 0, 10 * 1000 * 1000, 0);
    settings.timeout_ms = number("SIMNCCL_TIMEOUT_MS", 1, 24 * 3600 * 1000, 60000);
    settings.mirror = number("SIMNCCL_MIRROR", 0, 1, 0) == 1;
    settings.mirror_mib = number("SIMNCCL_MIRROR_MIB", 0, 1 << 20, 0);
    settings.moved_mib = number("SIMNCCL_MOVED_MIB", 0, 1 << 20, 0);
    read_faults();
}

const struct nc_settings *nc_settings(void)
{
    pthread_once(&once, read_environment);
    return &settings;
}

enum nc_fault nc_fault_find(const struct ncclComm *comm, uint64_t nth, bool is_call,
                            unsigned *value_out)
{
    for (int i = 0; i < faults_count; i++) {
        const struct fault *fault = &faults[i];
        if ((fault->comm < 0 || fault->comm == comm->number) && fault->rank == comm->rank &&
            fault->nth == nth && (fault->kind == NC_FAULT_ERROR) == is_call) {
            *value_out = fault->value;
            return fault->kind;
        }
    }
    return NC_FAULT_NONE;
}

static bool is_chosen(const void *return_address)
{
    Dl_info info;
    const char *wanted = getenv("SIMCUDA_FAULT_CALLER");
    if (wanted == NULL || dladdr(return_address, &info) == 0 || info.dli_fname == NULL)
        return false;
    const char *name = strrchr(info.dli_fname, '/');
    return strstr(name != NULL ? name + 1 : info.dli_fname, wanted) != NULL;
}

ncclResult_t nc_enter(const char *name, const void *return_address)
{
    nc_settings();
    if (any_nth == 0 || !is_chosen(return_address) || atomic_fetch_add(&any_seen, 1) + 1 != any_nth)
        return ncclSuccess;
    nc_log("SIMCUDA_FAULT_REPORT", "%s", name);
    return (ncclResult_t)any_value;
}

/* --- files */

static bool expand_path(const char *text, char *path_out, size_t room)
{
    size_t at = 0;
    for (; *text != '\0' && at + 1 < room; text++) {
        if (text[0] == '%' && text[1] == 'p') {
            at += (size_t)snprintf(path_out + at, room - at, "%ld", (long)getpid());
            text++;
        } else {
            path_out[at++] = *text;
        }
    }
    if (*text != '\0' || at >= room)
        return false;
    path_out[at] = '\0';
    return true;
}

void nc_log(const char *variable, const char *format, ...)
{
    const char *text = getenv(variable);
    char path[LINE_BYTES];
    if (text == NULL || text[0] == '\0' || !expand_path(text, path, sizeof(path)))
        return;
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(line, sizeof(line) - 1, format, args);
    va_end(args);
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const size_t end = end_line(line, sizeof(line), 0, length);
    if (file < 0 || write(file, line, end) < 0)
        nc_say("%s: %s cannot be written: %s", variable, path, strerror(errno));
    if (file >= 0)
        close(file);
}
