/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/headroom.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/number.h"

/* Longer lines, and files with longer names, count as absent. */
enum { LINE_BYTES = 1024, NAME_BYTES = 512 };

/* --- texts of the kernel */

struct lines {
    int descriptor;
    size_t begin, end; /* of the bytes that were read and not returned */
    bool is_cut;       /* the current line does not fit */
    char text[LINE_BYTES];
};

/* Not by libc: the shim watches its functions for the program's files. */
static bool open_lines(struct lines *lines, const char *root, const char *folder, const char *file)
{
    char path[3 * NAME_BYTES];
    snprintf(path, sizeof(path), "%s%s/%s", root, folder, file);
    lines->descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    lines->begin = lines->end = 0;
    lines->is_cut = false;
    return lines->descriptor >= 0;
}

static bool read_more(struct lines *lines)
{
    ssize_t got;
    lines->end -= lines->begin;
    memmove(lines->text, lines->text + lines->begin, lines->end);
    lines->begin = 0;
    if (lines->end == sizeof(lines->text)) {
        lines->is_cut = true;
        lines->end = 0;
    }
    do
        got = syscall(SYS_read, lines->descriptor, lines->text + lines->end,
                      sizeof(lines->text) - lines->end);
    while (got < 0 && errno == EINTR);
    lines->end += got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* NULL behind the last line. */
static char *next_line(struct lines *lines)
{
    do {
        char *line = lines->text + lines->begin, *end;
        while ((end = memchr(line, '\n', lines->end - lines->begin)) != NULL) {
            const bool is_whole = !lines->is_cut;
            *end = '\0';
            lines->begin = (size_t)(end + 1 - lines->text);
            lines->is_cut = false;
            if (is_whole)
                return line;
            line = end + 1;
        }
    } while (read_more(lines));
    return NULL;
}

/* Reads the number of the first line that begins with the key. False: none has, or no number. */
static bool find_number(const char *root, const char *folder, const char *file, const char *key,
                        uint64_t *number_out)
{
    struct lines lines;
    char *line;
    if (!open_lines(&lines, root, folder, file))
        return false;
    while ((line = next_line(&lines)) != NULL && strncmp(line, key, strlen(key)) != 0)
        ;
    close(lines.descriptor);
    if (line == NULL)
        return false;
    line += strlen(key);
    line += strspn(line, " \t");
    if (line[0] < '0' || line[0] > '9')
        return false;
    *number_out = strtoull(line, NULL, 10);
    return true;
}

static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* --- control groups */

/* A number in a file of a group: the first, or the number behind a key. */
struct number {
    char file[24], key[28];
};

static const struct version {
    char type[8];       /* of its file system */
    char controller[8]; /* "": one hierarchy has all controllers */
    struct number limits[2], used, unused_cache;
} versions[] = {
    /* The second limit is the least of the groups above, also of groups that a container does not
     * see. */
    {"cgroup",
     "memory",
     {{"memory.limit_in_bytes", ""}, {"memory.stat", "hierarchical_memory_limit "}},
     {"memory.usage_in_bytes", ""},
     {"memory.stat", "total_inactive_file "}},
    /* Beyond the second limit the kernel slows the processes of the group down. */
    {"cgroup2",
     "",
     {{"memory.max", ""}, {"memory.high", ""}},
     {"memory.current", ""},
     {"memory.stat", "inactive_file "}},
};

static uint64_t group_bytes(const char *root, const char *folder, const struct version *version)
{
    uint64_t limit = UINT64_MAX, number, used, cache = 0;
    for (size_t i = 0; i < 2; i++) {
        const struct number *row = &version->limits[i];
        if (find_number(root, folder, row->file, row->key, &number))
            limit = ms_least(limit, number);
    }
    if (limit == UINT64_MAX ||
        !find_number(root, folder, version->used.file, version->used.key, &used))
        return UINT64_MAX;
    find_number(root, folder, version->unused_cache.file, version->unused_cache.key, &cache);
    used -= ms_least(used, cache);
    return limit - ms_least(limit, used);
}

/* Finds the group of this process, from the root of its hierarchy on. */
static bool find_group(const char *root, const struct version *version, char group[NAME_BYTES])
{
    struct lines lines;
    char *line;
    bool is_found = false;
    if (!open_lines(&lines, root, "/proc/self", "cgroup"))
        return false;
    while (!is_found && (line = next_line(&lines)) != NULL) {
        char *words = strchr(line, ':'), *path = words != NULL ? strchr(words + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *path++ = '\0';
        is_found = version->controller[0] != '\0' ? has_word(words + 1, version->controller)
                                                  : words[1] == '\0';
        if (is_found)
            is_found = snprintf(group, NAME_BYTES, "%s", path) < NAME_BYTES;
    }
    close(lines.descriptor);
    return is_found;
}

/* Finds the folder of a group, if the mount is of this hierarchy and shows the group. *top_out: the
 * length of the mount's own folder. */
static bool find_folder(char *mount, const struct version *version, const char *group,
                        char folder[2 * NAME_BYTES], size_t *top_out)
{
    char begin[NAME_BYTES], point[NAME_BYTES], type[32], options[NAME_BYTES];
    const char *behind = strstr(mount, " - ");
    if (behind == NULL || sscanf(mount, "%*s %*s %*s %511s %511s", begin, point) != 2 ||
        sscanf(behind, " - %31s %*s %511s", type, options) != 2 ||
        strcmp(type, version->type) != 0 ||
        (version->controller[0] != '\0' && !has_word(options, version->controller)))
        return false;
    const size_t shared = strcmp(begin, "/") != 0 ? strlen(begin) : 0;
    const char *rest = group + shared;
    if (strncmp(group, begin, shared) != 0 || (rest[0] != '/' && rest[0] != '\0'))
        return false;
    *top_out = strlen(point);
    snprintf(folder, 2 * (size_t)NAME_BYTES, "%s%s", point, strcmp(rest, "/") != 0 ? rest : "");
    return true;
}

/* The least room of the group and of all groups above. */
static uint64_t path_bytes(const char *root, const struct version *version, char *folder,
                           size_t top)
{
    uint64_t bytes = group_bytes(root, folder, version);
    while (strlen(folder) > top) {
        *strrchr(folder, '/') = '\0';
        bytes = ms_least(bytes, group_bytes(root, folder, version));
    }
    return bytes;
}

static uint64_t version_bytes(const char *root, const struct version *version)
{
    struct lines lines;
    char group[NAME_BYTES], folder[2 * NAME_BYTES], *line;
    uint64_t bytes = UINT64_MAX;
    size_t top;
    if (!find_group(root, version, group) || !open_lines(&lines, root, "/proc/self", "mountinfo"))
        return bytes;
    while ((line = next_line(&lines)) != NULL) {
        if (find_folder(line, version, group, folder, &top))
            bytes = ms_least(bytes, path_bytes(root, version, folder, top));
    }
    close(lines.descriptor);
    return bytes;
}

/* --- all bounds */

static void bound_by(struct ms_headroom *headroom, uint64_t bytes, const char *bound)
{
    if (bytes < headroom->bytes)
        *headroom = (struct ms_headroom){bytes, bound};
}

struct ms_headroom ms_headroom_memory_under(const char *root)
{
    struct ms_headroom headroom = {UINT64_MAX, "nothing"};
    uint64_t kib;
    if (find_number(root, "/proc", "meminfo", "MemAvailable:", &kib))
        bound_by(&headroom, kib << 10, "the memory of the machine");
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
        bound_by(&headroom, version_bytes(root, &versions[i]), "the memory limit of its cgroup");
    return headroom;
}

static uint64_t bytes_below(int resource, const char *used)
{
    struct rlimit limit;
    uint64_t kib;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        !find_number("", "/proc/self", "status", used, &kib))
        return UINT64_MAX;
    return limit.rlim_cur - ms_least(limit.rlim_cur, kib << 10);
}

struct ms_headroom ms_headroom_find(enum ms_headroom_kind kind)
{
    struct ms_headroom headroom = {UINT64_MAX, "nothing"};
    if (kind == MS_HEADROOM_MEMORY)
        return ms_headroom_memory_under("");
    bound_by(&headroom, bytes_below(RLIMIT_AS, "VmSize:"), "RLIMIT_AS");
    if (kind == MS_HEADROOM_PRIVATE)
        bound_by(&headroom, bytes_below(RLIMIT_DATA, "VmData:"), "RLIMIT_DATA");
    return headroom;
}
