/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/reference.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"

/* The whole file with a NUL behind it, and how far its marks were asked for; under the lock of a
 * report. */
static const char *text = "";
static const char *asked = "";

void ms_reference_open(const char *name)
{
    char path[2 * MS_PATH_BYTES];
    struct stat facts;
    if (ms_config.hashes_like[0] == '\0')
        return;
    snprintf(path, sizeof(path), "%s/%s", ms_config.hashes_like, name);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || fstat(descriptor, &facts) != 0) {
        ms_log(MS_WARN, "METASHARD_HASHES_LIKE: %s: %s", path, strerror(errno));
    } else {
        char *bytes = ms_heap_alloc((size_t)facts.st_size + 1);
        size_t done = 0;
        ssize_t now = 1;
        while (bytes != NULL && now > 0 && done < (size_t)facts.st_size) {
            now = read(descriptor, bytes + done, (size_t)facts.st_size - done);
            done += now > 0 ? (size_t)now : 0;
        }
        if (bytes != NULL) {
            bytes[done] = '\0';
            text = asked = bytes;
        }
    }
    if (descriptor >= 0)
        close(descriptor);
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL ? end + 1 : "";
}

/* Returns what is behind the word and a tab, or NULL. */
static const char *behind(const char *line, const char *word)
{
    const size_t length = strlen(word);
    return strncmp(line, word, length) == 0 && line[length] == '\t' ? line + length + 1 : NULL;
}

void ms_reference_begin(struct ms_reference *reference, const char *mark)
{
    const size_t length = strlen(mark);
    for (const char *line = asked; *line != '\0'; line = next_line(line)) {
        const char *name = behind(line, "mark");
        if (name != NULL && strncmp(name, mark, length) == 0 && name[length] == '\n') {
            reference->at = asked = next_line(line);
            return;
        }
    }
    reference->at = "";
}

/* What a line says of a block. */
struct entry {
    struct ms_live_block block;
    const char *ranges;
};

static bool read_entry(const char *line, struct entry *entry_out)
{
    char *at;
    const char *kind = behind(line, "block");
    if (kind == NULL)
        return false;
    const char *number = strchr(kind, '\t');
    entry_out->block.kind = strncmp(kind, "part\t", 5) == 0 ? MS_LIVE_PART : MS_LIVE_WHOLE;
    if (number == NULL)
        return false;
    entry_out->block.thread = (uint32_t)strtoul(number, &at, 10);
    entry_out->block.bytes = strtoull(at, &at, 10);
    entry_out->block.number = (uint32_t)strtoul(at, &at, 10);
    for (int fields = 0; fields < 4; fields++) { /* address, error, hash */
        at = strchr(at, '\t');
        if (at == NULL)
            return false;
        at++;
    }
    entry_out->ranges = at;
    return true;
}

static void read_ranges(const char *at, struct ms_ranges *ranges_out)
{
    while (*at >= '0' && *at <= '9') {
        char *end;
        const uint64_t first = strtoull(at, &end, 10);
        const uint64_t behind_last = *end == '-' ? strtoull(end + 1, &end, 10) : first;
        ms_ranges_add(ranges_out, first, behind_last);
        at = *end == ',' ? end + 1 : end;
    }
}

void ms_reference_find(struct ms_reference *reference, const struct ms_live_block *block,
                       struct ms_ranges *ranges_out)
{
    struct entry entry;
    for (; *reference->at != '\0'; reference->at = next_line(reference->at)) {
        if (behind(reference->at, "done") != NULL)
            return;
        if (!read_entry(reference->at, &entry))
            continue;
        const int order = ms_live_compare(&entry.block, block);
        if (order == 0)
            read_ranges(entry.ranges, ranges_out);
        if (order >= 0)
            return;
    }
}
