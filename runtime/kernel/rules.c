/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/rules.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"

const char *const ms_rule_names[MS_RULE_COUNT] = {"run", "write-only", "in-place", "from-other",
                                                  "concatenate"};

enum { MAX_RULES = 256, MAX_LINE = 1024 };

struct rule {
    enum ms_rule class_;
    char *pattern;
};

/* Immutable after ms_rules_read. */
static struct rule rules[MAX_RULES];
static int rule_count;

extern const char ms_builtin_rules[]; /* kernel-rules.txt, ended by a zero */

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
        return "expected write-only, in-place, from-other, concatenate or run, then a name pattern";
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

static void add_user_rules(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        ms_log(MS_WARN, "METASHARD_KERNEL_RULES: cannot read %s: %s", path, strerror(errno));
        return;
    }
    char *line = NULL;
    size_t capacity = 0;
    for (int number = 1; getline(&line, &capacity, file) >= 0; number++) {
        line[strcspn(line, "\n")] = '\0';
        const char *fault = add_line(line);
        if (fault != NULL)
            ms_log(MS_WARN, "%s:%d: %s; the line is ignored", path, number, fault);
    }
    if (ferror(file))
        ms_log(MS_WARN, "METASHARD_KERNEL_RULES: cannot read all of %s", path);
    free(line); /* libc's, as getline allocates */
    fclose(file);
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
            return rules[i].class_;
    }
    return MS_RULE_RUN;
}
