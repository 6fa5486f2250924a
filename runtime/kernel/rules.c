/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/rules.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/regular_file.h"

const char *const ms_rule_names[MS_RULE_COUNT] = {"run",        "write-only", "in-place",
                                                  "from-other", "from-first", "concatenate",
                                                  "each"};

enum { MAX_RULES = 256, MAX_LINE = 1024, MAX_BYTES = 1 << 20 };

struct rule {
    enum ms_rule class_;
    char *pattern;
};

/* Immutable after ms_rules_read. */
static struct rule rules[MAX_RULES];
static int rule_count, user_rule_count; /* the user's come first */

static bool always(void)
{
    return true;
}

bool (*ms_rules_hold)(void) = always;

static bool find_class(const char *word, size_t length, enum ms_rule *class_out)
{
    for (int i = 0; i < MS_RULE_COUNT; i++) {
        if (strlen(ms_rule_names[i]) == length && strncmp(ms_rule_names[i], word, length) == 0) {
            *class_out = (enum ms_rule)i;
            return true;
        }
    }
    return false;
}

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t\r");
}

/* Returns NULL, or what is wrong with the line. */
static const char *add_line(const char *line)
{
    const char *word = skip_blanks(line);
    if (*word == '\0' || *word == '#')
        return NULL;
    const size_t length = strcspn(word, " \t\r");
    enum ms_rule class_;
    if (!find_class(word, length, &class_))
        return "expected write-only, in-place, from-other, from-first, concatenate, each or run, "
               "then a name pattern";
    const char *pattern = skip_blanks(word + length);
    const size_t pattern_length = strcspn(pattern, " \t\r");
    if (pattern_length == 0)
        return "expected a name pattern after the class";
    if (*skip_blanks(pattern + pattern_length) != '\0')
        return "expected the end of the line after the pattern";
    if (rule_count == MAX_RULES)
        return "expected at most 256 rules";
    char *copy = ms_heap_alloc(pattern_length + 1);
    if (copy == NULL)
        return "out of memory";
    memcpy(copy, pattern, pattern_length);
    copy[pattern_length] = '\0';
    rules[rule_count++] = (struct rule){.class_ = class_, .pattern = copy};
    return NULL;
}

static void complain(const char *path, const char *what)
{
    ms_log(MS_WARN, "METASHARD_KERNEL_RULES: cannot read %s: %s", path, what);
}

/* Reads to the end, or one byte more than MAX_BYTES. */
static size_t read_all(int file, char *text)
{
    size_t done = 0;
    ssize_t got = 1;
    while (done <= MAX_BYTES && got > 0) {
        got = read(file, text + done, MAX_BYTES + 1 - done);
        done += got > 0 ? (size_t)got : 0;
    }
    return done;
}

/* Returns the text, ended by a zero, on the shim's heap; NULL if it cannot be read, which is
 * logged. */
static char *read_user_rules(const char *path)
{
    struct stat stat;
    const int file = ms_regular_file_open(path, &stat);
    if (file < 0) {
        complain(path, errno != 0 ? strerror(errno) : "expected a regular file");
        return NULL;
    }
    char *text = ms_heap_alloc(MAX_BYTES + 2);
    const size_t bytes = text != NULL ? read_all(file, text) : 0;
    close(file);
    if (text == NULL) {
        complain(path, "out of memory");
    } else if (bytes > MAX_BYTES || memchr(text, '\0', bytes) != NULL) {
        complain(path, bytes > MAX_BYTES ? "expected at most 1 MiB" : "expected a text");
        ms_heap_free(text);
        return NULL;
    } else {
        text[bytes] = '\0';
    }
    return text;
}

static void add_user_rules(const char *path)
{
    char *text = read_user_rules(path);
    char *line = text;
    for (int number = 1; line != NULL && *line != '\0'; number++) {
        char *end = line + strcspn(line, "\n");
        char *next = *end != '\0' ? end + 1 : end;
        *end = '\0';
        const char *fault = add_line(line);
        if (fault != NULL)
            ms_log(MS_WARN, "%s:%d: %s; the line is ignored", path, number, fault);
        line = next;
    }
    ms_heap_free(text);
}

static void add_builtin_rules(void)
{
    char line[MAX_LINE];
    for (const char *at = ms_builtin_rules; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        snprintf(line, sizeof(line), "%.*s", (int)length, at);
        const char *fault = add_line(line);
        if (fault != NULL)
            ms_log(MS_WARN, "built-in kernel rule '%s': %s", line, fault);
        at += length + (at[length] == '\n');
    }
}

void ms_rules_read(const char *user_path)
{
    for (; rule_count > 0; rule_count--)
        ms_heap_free(rules[rule_count - 1].pattern);
    if (user_path[0] != '\0')
        add_user_rules(user_path);
    user_rule_count = rule_count;
    add_builtin_rules();
}

static void read_builtin_rules(void)
{
    if (rule_count == 0)
        ms_rules_read("");
}

enum ms_rule ms_rules_match(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_builtin_rules);
    for (int i = 0; i < rule_count; i++) {
        if (fnmatch(rules[i].pattern, name, 0) == 0)
            return i < user_rule_count || ms_rules_hold() ? rules[i].class_ : MS_RULE_RUN;
    }
    return MS_RULE_RUN;
}
