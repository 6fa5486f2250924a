/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/torch_checks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/regular_file.h"
#include "runtime/config/config.h"
#include "runtime/kernel/rules.h"

enum { MAX_BYTES = 64 << 10 };

static const char format[] = "metashard-torch-checks/1\n";

/* False: no file to look for. */
static bool find_path(char path_out[MS_PATH_BYTES])
{
    int length = 0;
    if (strcmp(ms_config.torch_checks, "auto") != 0)
        length = snprintf(path_out, MS_PATH_BYTES, "%s", ms_config.torch_checks);
    else if (ms_config.cache_dir[0] != '\0')
        length =
            snprintf(path_out, MS_PATH_BYTES, "%s/metashard/torch-checks", ms_config.cache_dir);
    return length > 0 && length < MS_PATH_BYTES;
}

/* Returns a descriptor, or -1 if there is no file to be trusted. */
static int open_own(const char *path)
{
    struct stat stat;
    const int file = ms_regular_file_open(path, &stat);
    if (file < 0 || (stat.st_uid == geteuid() && (stat.st_mode & 022) == 0))
        return file;
    ms_log(MS_WARN,
           "%s is not used: it belongs to another user, or others may write it (chmod go-w)", path);
    close(file);
    return -1;
}

/* Returns a text on the shim's heap, ended by a zero; NULL: out of memory. */
static char *read_text(int file)
{
    char *text = ms_heap_alloc(MAX_BYTES + 1);
    size_t done = 0;
    ssize_t got = text != NULL ? 1 : 0;
    while (done < MAX_BYTES && got > 0) {
        got = read(file, text + done, MAX_BYTES - done);
        done += got > 0 ? (size_t)got : 0;
    }
    if (text != NULL)
        text[done] = '\0';
    return text;
}

/* FNV-1a. A check is valid only for the rules that it was made with. */
static uint64_t sum_of_rules(void)
{
    uint64_t sum = 0xcbf29ce484222325;
    for (const char *at = ms_builtin_rules; *at != '\0'; at++)
        sum = (sum ^ (unsigned char)*at) * 0x100000001b3;
    return sum;
}

static bool has_line(const char *text, const char *build_id)
{
    char wanted[96];
    if (strncmp(text, format, sizeof(format) - 1) != 0)
        return false;
    snprintf(wanted, sizeof(wanted), "\n%s %016" PRIx64 " ", build_id, sum_of_rules());
    return strstr(text, wanted) != NULL;
}

bool ms_torch_checks_have(const char *build_id)
{
    char path[MS_PATH_BYTES];
    const int file = build_id[0] != '\0' && find_path(path) ? open_own(path) : -1;
    if (file < 0)
        return false;
    char *text = read_text(file);
    close(file);
    const bool is_there = text != NULL && has_line(text, build_id);
    ms_heap_free(text);
    return is_there;
}
