/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the user's file of kernel rules: what it says is what a second reader, below, finds
 * in it. */
#include <fnmatch.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/kernel/rules.h"
#include "tests/robust/fuzz/fuzz.h"

enum { USERS_MOST = 256 };
static const char blanks[] = " \t\r";

/* Names as drivers know them; the last two are in no rule of ours. */
static const char *const names[] = {
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_"
     "T1_"),
    "_ZN2at6native54_GLOBAL__N__distribution_elementwise_grid_stride_kernelIfLi4EEvv",
    "ampere_sgemm_128x64_tn",
    "a",
};
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static const char *path_of(int file)
{
    static char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    return path;
}

/* The class that the line gives to the name; MS_RULE_COUNT: none. *counts_out: it is a rule. */
static enum ms_rule class_of_line(char *line, const char *name, bool *counts_out)
{
    char *rest;
    char *word = strtok_r(line, blanks, &rest);
    char *pattern = word != NULL ? strtok_r(NULL, blanks, &rest) : NULL;
    *counts_out = false;
    if (pattern == NULL || word[0] == '#' || strtok_r(NULL, blanks, &rest) != NULL)
        return MS_RULE_COUNT;
    for (int i = 0; i < MS_RULE_COUNT; i++) {
        if (strcmp(word, ms_rule_names[i]) != 0)
            continue;
        *counts_out = true;
        return fnmatch(pattern, name, 0) == 0 ? (enum ms_rule)i : MS_RULE_COUNT;
    }
    return MS_RULE_COUNT;
}

/* The rule of the first line that matches. Data with a zero byte is no text, and has no rules.
 * *full_out: there may be no room for the rules that come behind. */
static enum ms_rule class_of_text(const uint8_t *data, size_t size, const char *name,
                                  bool *full_out)
{
    int count = 0;
    enum ms_rule class_ = MS_RULE_COUNT;
    if (memchr(data, '\0', size) != NULL)
        size = 0;
    for (size_t at = 0; at < size && class_ == MS_RULE_COUNT && count < USERS_MOST;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        const size_t length = end != NULL ? (size_t)(end - data) - at : size - at;
        char *line = strndup((const char *)data + at, length);
        bool counts;
        require(line != NULL);
        class_ = class_of_line(line, name, &counts);
        count += counts;
        free(line);
        at += length + 1;
    }
    *full_out = count > 200;
    return class_;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static enum ms_rule built_in[NAMES];
    static bool is_open;
    if (!is_open) {
        ms_log_open(MS_TRACE, "/dev/null");
        ms_rules_read("");
        for (int i = 0; i < NAMES; i++)
            built_in[i] = ms_rules_match(names[i]);
        require(built_in[0] == MS_RULE_WRITE_ONLY && built_in[NAMES - 1] == MS_RULE_RUN);
        is_open = true;
    }
    const int file = memfd_create("rules", MFD_CLOEXEC);
    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    ms_rules_read(path_of(file));
    close(file);
    for (int i = 0; i < NAMES; i++) {
        bool is_full;
        const enum ms_rule seen = ms_rules_match(names[i]);
        const enum ms_rule wanted = class_of_text(data, size, names[i], &is_full);
        require(seen >= 0 && seen < MS_RULE_COUNT);
        require(seen == (wanted != MS_RULE_COUNT ? wanted : built_in[i]) || is_full);
    }
    return 0;
}
