/* SPDX-License-Identifier: Apache-2.0 */
/* Any texts as /proc/meminfo, as those of this process about its control groups, and as the limits
 * of a group: the headroom is never more than the machine has available. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/headroom.h"
#include "tests/robust/fuzz/fuzz.h"

enum { LINE_BYTES = 1024 };
static const char next_file[] = "\n--\n";
static const char *const folders[] = {"/proc", "/proc/self", "/g", "/g/a"};
static const char *const files[] = {
    "/proc/meminfo",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/g/a/memory.max",
    "/g/a/memory.current",
    "/g/a/memory.stat",
    "/g/a/memory.limit_in_bytes",
    "/g/a/memory.usage_in_bytes",
    "/g/memory.max",
    "/g/memory.current",
};
enum { FOLDERS = sizeof(folders) / sizeof(folders[0]), FILES = sizeof(files) / sizeof(files[0]) };

static char root[] = "/dev/shm/metashard-fuzz-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s%s", root, name);
    return path;
}

static void remove_root(void)
{
    for (size_t i = 0; i < FILES; i++)
        unlink(path_of(files[i]));
    for (size_t i = FOLDERS; i-- > 0;)
        rmdir(path_of(folders[i]));
    rmdir(root);
}

static void make_root(void)
{
    if (access(root, F_OK) == 0)
        return;
    if (access("/dev/shm", W_OK) != 0)
        memcpy(root, "/././tmp", strlen("/dev/shm"));
    require(mkdtemp(root) != NULL);
    atexit(remove_root);
    for (size_t i = 0; i < FOLDERS; i++)
        require(mkdir(path_of(folders[i]), 0700) == 0);
}

/* An empty file is not written again. */
static void write_file(size_t number, const uint8_t *data, size_t size)
{
    static size_t sizes[FILES];
    const char *name = files[number];
    if (size == 0 && sizes[number] == 0 && access(path_of(name), F_OK) == 0)
        return;
    sizes[number] = size;
    const int file = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    close(file);
}

/* The value of a plain line of few digits, if that line is the first one; else UINT64_MAX. */
static uint64_t available(const uint8_t *data, size_t size)
{
    static const char key[] = "MemAvailable:";
    char line[LINE_BYTES];
    const uint8_t *end = memchr(data, '\n', size);
    const size_t length = end != NULL ? (size_t)(end - data) : sizeof(line);
    if (length >= sizeof(line) || length < sizeof(key) || memcmp(data, key, sizeof(key) - 1) != 0)
        return UINT64_MAX;
    memcpy(line, data, length);
    line[length] = '\0';
    const char *number = line + sizeof(key) - 1 + strspn(line + sizeof(key) - 1, " ");
    const size_t digits = strspn(number, "0123456789");
    return digits > 0 && digits < 16 ? strtoull(number, NULL, 10) << 10 : UINT64_MAX;
}

/* Parts of the input, between lines "--", are the files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t most = UINT64_MAX;
    make_root();
    for (size_t i = 0; i < FILES; i++) {
        const uint8_t *end = memmem(data, size, next_file, strlen(next_file));
        const size_t length = end != NULL ? (size_t)(end - data) + 1 : size;
        write_file(i, data, length);
        if (i == 0)
            most = available(data, length);
        data = end != NULL ? end + strlen(next_file) : data + length;
        size -= end != NULL ? length - 1 + strlen(next_file) : length;
    }
    const struct ms_headroom headroom = ms_headroom_memory_under(root);
    require(headroom.bound != NULL && headroom.bytes <= most);
    require((headroom.bytes == UINT64_MAX) == (strcmp(headroom.bound, "nothing") == 0));
    return 0;
}
