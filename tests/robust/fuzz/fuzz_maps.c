/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as the kernel's list of mappings: what it says is what a second reader, below, finds in
 * it, also in lines of any length. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "runtime/files/mapping.h"
#include "tests/robust/fuzz/fuzz.h"

enum { CUT_BYTES = 8192, FIELDS = 6 };

/* The lines that are left to be visited. */
struct list {
    char *at;
    bool is_compared;
};

/* The next word without blanks before it; NULL: none. */
static char *take_word(char **at)
{
    *at += strspn(*at, " \t\v\f\r");
    char *word = *at;
    *at += strcspn(*at, " \t\v\f\r");
    if (**at != '\0')
        *(*at)++ = '\0';
    return *word != '\0' ? word : NULL;
}

/* A number of digits alone, and few of them. */
static bool is_number(const char *text, int base, uint64_t *number_out)
{
    char *end;
    *number_out = strtoull(text, &end, base);
    return strspn(text, "0123456789abcdef") == strlen(text) && *end == '\0' && end > text &&
           strlen(text) <= 16 && (base == 16 || strlen(text) <= 18);
}

enum verdict { NO_MAPPING, IS_MAPPING, ODD };

/* BEGIN-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH. A line that is not plain is odd: sscanf may
 * take it or not. */
static enum verdict read_line(char *line, struct ms_mapping *mapping_out)
{
    uint64_t numbers[7], major_number, minor_number;
    char *words[FIELDS - 1];
    for (size_t i = 0; i < FIELDS - 1; i++) {
        words[i] = take_word(&line);
        if (words[i] == NULL) /* without blanks there may be a mapping all the same */
            return i > 0 && strchr(words[0], '-') != NULL ? ODD : NO_MAPPING;
    }
    char *dash = strchr(words[0], '-'), *colon = strchr(words[3], ':');
    if (dash == NULL || colon == NULL)
        return ODD;
    *dash = *colon = '\0';
    if (!is_number(words[0], 16, &numbers[0]) || !is_number(dash + 1, 16, &numbers[1]) ||
        strlen(words[1]) != 4 || !is_number(words[2], 16, &numbers[2]) ||
        !is_number(words[3], 16, &major_number) || !is_number(colon + 1, 16, &minor_number) ||
        !is_number(words[4], 10, &numbers[3]) || major_number > UINT32_MAX ||
        minor_number > UINT32_MAX)
        return ODD;
    if (numbers[3] == 0 || numbers[2] != 0)
        return NO_MAPPING;
    line += strspn(line, " \t\v\f\r");
    *mapping_out = (struct ms_mapping){
        .begin = numbers[0],
        .end = numbers[1],
        .device = makedev((unsigned)major_number, (unsigned)minor_number),
        .inode = numbers[3],
        .shared = words[1][3] == 's',
    };
    if (strlen(line) < sizeof(mapping_out->path))
        strcpy(mapping_out->path, line);
    return IS_MAPPING;
}

/* Compares the next mapping; odd lines end the comparison. */
static void compare_next(struct list *list, const struct ms_mapping *seen)
{
    struct ms_mapping wanted;
    enum verdict verdict = NO_MAPPING;
    while (list->is_compared && verdict == NO_MAPPING) {
        require(seen != NULL ? *list->at != '\0' : true);
        if (*list->at == '\0')
            return;
        char *line = list->at, *end = strchr(line, '\n');
        if (end == NULL) { /* no line without its end */
            require(seen == NULL || strlen(line) >= CUT_BYTES);
            list->is_compared = false;
            return;
        }
        *end = '\0';
        list->at = end + 1;
        if (strlen(line) >= CUT_BYTES)
            line[CUT_BYTES] = '\0';
        verdict = read_line(line, &wanted);
    }
    list->is_compared &= verdict != ODD;
    if (list->is_compared)
        require(seen != NULL && seen->begin == wanted.begin && seen->end == wanted.end &&
                seen->device == wanted.device && seen->inode == wanted.inode &&
                seen->shared == wanted.shared && seen->file_offset == 0 &&
                strcmp(seen->path, wanted.path) == 0);
}

static void visit(void *context, const struct ms_mapping *mapping)
{
    require(mapping->inode != 0 && mapping->file_offset == 0 && mapping->lines_read > 0);
    require(memchr(mapping->path, '\0', sizeof(mapping->path)) != NULL);
    compare_next(context, mapping);
}

static int maps; /* stands for /proc/self/maps, and answers no queries */

int __wrap_ms_descriptor_open(const char *path, int flags);
int __wrap_ms_descriptor_open(const char *path, int flags)
{
    char name[40];
    require(strcmp(path, "/proc/self/maps") == 0);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", maps);
    return open(name, flags | O_CLOEXEC);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    maps = memfd_create("maps", MFD_CLOEXEC);
    require(text != NULL && maps >= 0 && pwrite(maps, data, size, 0) == (ssize_t)size);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    struct list list = {text, memchr(data, '\0', size) == NULL};
    require(ms_mapping_visit(visit, &list));
    compare_next(&list, NULL);
    close(maps);
    free(text);
    return 0;
}
