/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/conformance.h"

#include <cuda.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77, LINE_BYTES = 2048 };

static struct ms_test *first;
static struct ms_test **last = &first;
static int log_file = -1;
_Thread_local struct observe_point *observe_innermost;

void ms_test_register(struct ms_test *test)
{
    *last = test;
    last = &test->next;
}

/* One write for a line: threads and forked children share the file. */
static void write_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void write_line(const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof(line) - 1, format, args);
    va_end(args);
    if (length > LINE_BYTES - 2)
        length = LINE_BYTES - 2;
    line[length++] = '\n';
    if (write(log_file, line, (size_t)length) != length)
        _exit(1);
}

static void write_check(const struct observe_place *place, const char *seen)
{
    write_line("check\t%s:%d\t%s\t%s\t%s", basename(place->file), place->line, place->text,
               place->wanted, seen);
}

void observe_value(const struct observe_place *place, long long seen, long long wanted)
{
    char text[64];
    const char *name = NULL;
    if (seen == wanted) {
        write_check(place, "ok");
        return;
    }
    if (strstr(place->wanted, "CUDA_ERROR_") != NULL ||
        strstr(place->wanted, "CUDA_SUCCESS") != NULL)
        cuGetErrorName((CUresult)seen, &name);
    if (strcmp(place->wanted, "true") == 0)
        name = "false";
    if (seen < 0 || seen > 9999)
        snprintf(text, sizeof(text), "%lld (0x%llx)", seen, (unsigned long long)seen);
    else
        snprintf(text, sizeof(text), "%lld", seen);
    write_check(place, name != NULL ? name : text);
}

void observe_bytes(const struct observe_place *place, const void *seen, const void *wanted,
                   size_t length)
{
    const unsigned char *a = seen, *b = wanted;
    char text[64];
    size_t i = 0;
    while (i < length && a[i] == b[i])
        i++;
    if (i == length) {
        write_check(place, "ok");
        return;
    }
    snprintf(text, sizeof(text), "0x%02x in place of 0x%02x at byte %zu", a[i], b[i], i);
    write_check(place, text);
}

void observe_signal(const struct observe_place *place, const struct observe_point *point)
{
    char text[32];
    snprintf(text, sizeof(text), "signal %d", (int)point->number);
    write_check(place, text);
}

void observe_note(const char *file, int line, const char *format, ...)
{
    char text[LINE_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    write_line("note\t%s:%d\t%s", basename(file), line, text);
}

void ms_test_skip(const char *format, ...)
{
    char text[LINE_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    write_line("skip\t%s", text);
    exit(EXIT_SKIPPED);
}

static void on_signal(int number)
{
    if (observe_innermost != NULL) {
        observe_innermost->number = number;
        siglongjmp(observe_innermost->jump, 1);
    }
    write_line("note\t-\tsignal %d outside of a check", number);
    _exit(128 + number);
}

static void catch_signals(void)
{
    const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

/* Which libraries answer: they must not be the simulated ones where the real ones are meant. Looked
 * up among what is loaded, because the shim has the same names. */
static int write_library(struct dl_phdr_info *info, __attribute__((unused)) size_t size,
                         __attribute__((unused)) void *data)
{
    char path[4096];
    const char *const name = basename(info->dlpi_name);
    const bool is_driver = strncmp(name, "libcuda.so", 10) == 0;
    const bool is_nccl = strncmp(name, "libnccl.so", 10) == 0;
    if ((is_driver || is_nccl) && realpath(info->dlpi_name, path) != NULL)
        write_line("%s\t%s", is_driver ? "library" : "nccl", path);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct ms_test *test = first; test != NULL; test = test->next)
            puts(test->name);
        return 0;
    }
    const struct ms_test *test = first;
    while (argc == 3 && test != NULL && strcmp(test->name, argv[1]) != 0)
        test = test->next;
    if (argc != 3 || test == NULL) {
        fprintf(stderr, "usage: %s --list | TEST LOG\n", argv[0]);
        return 2;
    }
    log_file = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_file < 0) {
        perror(argv[2]);
        return 2;
    }
    catch_signals();
    dl_iterate_phdr(write_library, NULL);
    test->body();
    write_line("end");
    return 0;
}
