/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/harness/test.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77, TEST_SECONDS = 600 }; /* also under a sanitizer, on a busy machine */

static struct ms_test *first;
static struct ms_test **last = &first;

void ms_test_register(struct ms_test *test)
{
    *last = test;
    last = &test->next;
}

bool ms_test_is_watched(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return IS_EMULATED || (preload != NULL && strstr(preload, "vgpreload") != NULL);
}

void ms_test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "# %s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void ms_test_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "# skipped: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_SKIPPED);
}

void ms_test_check_bytes(const char *file, int line, const char *what, const void *seen,
                         const void *wanted, size_t length)
{
    const unsigned char *a = seen;
    const unsigned char *b = wanted;
    if (memcmp(a, b, length) == 0)
        return;
    size_t i = 0;
    while (a[i] == b[i])
        i++;
    ms_test_fail(file, line, "%s differs at byte %zu of %zu: 0x%02x, expected 0x%02x", what, i,
                 length, a[i], b[i]);
}

/* Runs the test in a child; returns its exit status, or 128 + signal. */
static int run_in_child(const struct ms_test *test)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(TEST_SECONDS);
        test->body();
        exit(0);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_named(const char *name)
{
    for (const struct ms_test *test = first; test != NULL; test = test->next) {
        if (strcmp(test->name, name) == 0) {
            test->body();
            return 0;
        }
    }
    fprintf(stderr, "no test is named %s\n", name);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return run_named(argv[1]);

    int number = 0;
    int failed = 0;
    for (const struct ms_test *test = first; test != NULL; test = test->next) {
        const int status = run_in_child(test);
        number++;
        if (status == 0)
            printf("ok %d %s\n", number, test->name);
        else if (status == EXIT_SKIPPED)
            printf("ok %d %s # SKIP\n", number, test->name);
        else
            printf("not ok %d %s # exit status %d\n", number, test->name, status);
        failed += status != 0 && status != EXIT_SKIPPED;
    }
    printf("1..%d\n", number);
    return failed > 0 || number == 0;
}
