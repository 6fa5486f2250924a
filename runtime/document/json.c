/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/document/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/heap.h"

bool ms_json_count(const struct ms_fault_context *reading, const struct ms_place *place,
                   json_t *value, uint64_t least, uint64_t most, uint64_t *count_out)
{
    if (!json_is_integer(value))
        return ms_fault_at(reading, place, "expected an integer");
    const json_int_t number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < least || (uint64_t)number > most)
        return ms_fault_at(reading, place,
                           "expected an integer from %" PRIu64 " to %" PRIu64 ", found %lld", least,
                           most, (long long)number);
    *count_out = (uint64_t)number;
    return true;
}

bool ms_json_keys(const struct ms_fault_context *reading, const struct ms_place *place,
                  json_t *object, const char *const *keys, const char *expected)
{
    if (!json_is_object(object))
        return ms_fault_at(reading, place, "expected an object with %s", expected);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const char *const *known = keys;
        while (*known != NULL && strcmp(*known, key) != 0)
            known++;
        const struct ms_place at = {place, key, 0};
        if (*known == NULL)
            return ms_fault_at(reading, &at, "unknown key; expected %s", expected);
    }
    return true;
}

static bool read_all(int file, char *text, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(file, text + done, bytes - done, (off_t)done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

bool ms_file_read(const char *path, size_t most, char **text_out, size_t *bytes_out,
                  struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    struct stat stat;
    /* Opening a pipe must not block. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return ms_fault_at(&reading, NULL, "cannot be opened: %s", strerror(errno));
    bool is_read = false;
    char *text = NULL;
    if (fstat(file, &stat) != 0 || !S_ISREG(stat.st_mode))
        ms_fault_at(&reading, NULL, "expected a file");
    else if ((uint64_t)stat.st_size > most)
        ms_fault_at(&reading, NULL, "expected at most %zu bytes, found %lld", most,
                    (long long)stat.st_size);
    else if ((text = ms_heap_alloc((size_t)stat.st_size + 1)) == NULL)
        ms_fault_at(&reading, NULL, "out of memory");
    else if (!(is_read = read_all(file, text, (size_t)stat.st_size)))
        ms_fault_at(&reading, NULL, "cannot be read to its end");
    close(file);
    if (!is_read) {
        ms_heap_free(text);
        return false;
    }
    *text_out = text;
    *bytes_out = (size_t)stat.st_size;
    return true;
}

/* Replaces libc's stdin in our copy of jansson (private-jansson.sh). */
extern void *ms_json_stdin;
void *ms_json_stdin;
