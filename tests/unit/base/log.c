/* SPDX-License-Identifier: Apache-2.0 */
/* The log: its line, its levels, and that no place in the code fills it. */
#include "runtime/base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

static char path[64];

static void remove_log(void)
{
    unlink(path);
}

static void open_log(enum ms_log_level level)
{
    strcpy(path, "/tmp/metashard-log-XXXXXX");
    const int file = mkstemp(path);
    CHECK(file >= 0);
    close(file);
    atexit(remove_log);
    ms_log_open(level, path);
}

/* How many lines hold the text; the last of them. */
static int count(const char *text, char last_out[2048])
{
    char line[2048];
    int found = 0;
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    last_out[0] = '\0';
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strstr(line, text) == NULL)
            continue;
        strcpy(last_out, line);
        found++;
    }
    fclose(file);
    return found;
}

MS_TEST(a_line_says_who_and_how_bad)
{
    char line[2048], wanted[128];
    setenv("RANK", "7", 1);
    open_log(MS_INFO);
    ms_log(MS_WARN, "the number %d", 5);
    ms_log(MS_DEBUG, "the number %d", 6);
    CHECK_EQ(count("number", line), 1);
    snprintf(wanted, sizeof(wanted), "metashard[rank 7 pid %d] warn: the number 5\n",
             (int)getpid());
    CHECK(strcmp(line, wanted) == 0);
}

MS_TEST(a_message_stays_in_one_line)
{
    char line[2048], text[4000];
    unsetenv("RANK");
    open_log(MS_INFO);
    ms_log(MS_WARN, "a name: %s", "x\n\033[31my\x7f");
    CHECK_EQ(count("a name: x??[31my?\n", line), 1);
    ms_log(MS_WARN, "a name: %s",
           "c1 \xc2\x9b"
           "31m, bidi \xe2\x80\xaex\xe2\x81\xa6, \x9b, \xc3\xa9");
    CHECK_EQ(count("a name: c1 ??31m, bidi ???x???, ?, \xc3\xa9\n", line), 1);
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ms_log(MS_WARN, "long: %s", text);
    CHECK_EQ(count("long: ", line), 1);
    CHECK(strlen(line) == 1023 && line[1022] == '\n');
}

MS_TEST(a_new_file_is_the_users_alone)
{
    struct stat stat_of;
    open_log(MS_INFO);
    unlink(path);
    umask(0);
    ms_log_open(MS_INFO, path);
    CHECK_EQ(stat(path, &stat_of), 0);
    CHECK_EQ(stat_of.st_mode & 07777, 0600);
}

/* As the log counts them. */
static time_t second(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec;
}

static void say_often(int times)
{
    for (int i = 0; i < times; i++)
        ms_log(MS_WARN, "again and again: %d", i);
}

MS_TEST(a_message_that_repeats_does_not_fill_the_log)
{
    char line[2048];
    open_log(MS_INFO);
    time_t begin = second();
    say_often(1000);
    ms_log(MS_WARN, "something else");
    const int seen = count("again and again", line);
    CHECK(seen >= 100 &&
          seen <= 100 * (second() - begin + 1)); /* seconds may have ended meanwhile */
    if (seen > 100)
        return; /* on a machine so slow the rest cannot be told */
    CHECK_EQ(count("something else", line), 1);
    sleep(2);
    say_often(1);
    CHECK_EQ(count("more lines like the next one were left out", line), 1);
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "info: %d more lines", 1000 - seen);
    CHECK(strstr(line, wanted) != NULL);
    begin = second();
    say_often(150);
    ms_log_finish();
    if (second() == begin)
        CHECK_EQ(count("lines were left out, because there were too many of their kind", line), 1);
}

MS_TEST(the_debug_level_leaves_no_message_out)
{
    char line[2048];
    open_log(MS_DEBUG);
    for (int i = 0; i < 1000; i++)
        ms_log(MS_DEBUG, "step %d", i);
    CHECK_EQ(count("step ", line), 1000);
}

MS_TEST(a_line_that_was_asked_for_is_written_at_any_level)
{
    char line[2048];
    open_log(MS_ERROR);
    for (int i = 0; i < 300; i++)
        ms_log_say("explain", "sentence %d", i);
    CHECK_EQ(count("] explain: sentence ", line), 300);
}

/* The program is not held up by what reads its log, or does not. */
MS_TEST(a_pipe_that_nobody_reads)
{
    enum { LINES = 5000 };
    static char text[1 << 20];
    snprintf(path, sizeof(path), "/tmp/metashard-log-%d", (int)getpid());
    alarm(10);
    CHECK_EQ(mkfifo(path, 0600), 0);
    atexit(remove_log);
    ms_log_open(MS_INFO, path); /* to stderr then */
    const int reader = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(reader >= 0);
    CHECK_EQ(read(reader, text, sizeof(text)), 0);
    ms_log_open(MS_INFO, path);
    for (int i = 0; i < LINES; i++)
        ms_log_say("info", "line %d of a log that is longer than a pipe", i);
    CHECK(read(reader, text, sizeof(text)) > 0);
    CHECK(strstr(text, "line 7 of") != NULL);
    memset(text, 0, sizeof(text));
    ms_log_finish();
    CHECK(read(reader, text, sizeof(text) - 1) > 0);
    CHECK(strstr(text, "because nobody read them") != NULL);
    close(reader);
}
