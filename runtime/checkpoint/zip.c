/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/utf8.h"

/*
 * The format of PKWARE's APPNOTE.TXT 6.3.10, in the order of the file:
 *
 *   local header, name, extra, data [descriptor]   each record, anywhere
 *   directory                                      an entry for each record
 *   [end64, locator]                               zip64: the end with wide numbers
 *   end, comment
 */
enum {
    HEADER_BYTES = 30,
    ENTRY_BYTES = 46,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    END_BYTES = 22,
    COMMENT_MAX_BYTES = 65535,
    NAME_MAX_BYTES = 65535,
    DIRECTORY_MAX_BYTES = 100000000
};

static const unsigned char header_mark[4] = {'P', 'K', 3, 4}, entry_mark[4] = {'P', 'K', 1, 2},
                           end64_mark[4] = {'P', 'K', 6, 6}, locator_mark[4] = {'P', 'K', 6, 7},
                           end_mark[4] = {'P', 'K', 5, 6};

struct source {
    const struct ms_fault_context *reading;
    int file;
    uint64_t bytes;
};

/* The directory, as the end says: `count` entries in [offset, offset + bytes). */
struct directory {
    uint64_t count, bytes, offset;
};

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

static bool is_marked(const unsigned char *at, const unsigned char *mark)
{
    return memcmp(at, mark, 4) == 0;
}

static bool read_at(const struct source *source, uint64_t offset, void *to, size_t bytes)
{
    return (bytes <= source->bytes && offset <= source->bytes - bytes &&
            pread(source->file, to, bytes, (off_t)offset) == (ssize_t)bytes) ||
           ms_fault_at(source->reading, NULL,
                       "expected %zu bytes of the zip file at %" PRIu64 ", found fewer", bytes,
                       offset);
}

/* Finds the last end record whose comment reaches the end of the file. */
static bool find_end(const struct source *source, uint64_t *at_out, unsigned char end[END_BYTES])
{
    const size_t most = END_BYTES + COMMENT_MAX_BYTES;
    const size_t bytes = source->bytes < most ? (size_t)source->bytes : most;
    unsigned char *tail = ms_heap_alloc(bytes + 1);
    if (tail == NULL)
        return ms_fault_at(source->reading, NULL, "out of memory");
    bool is_good = read_at(source, source->bytes - bytes, tail, bytes), is_found = false;
    for (size_t comment = 0; is_good && !is_found && comment + END_BYTES <= bytes; comment++) {
        const unsigned char *at = tail + bytes - END_BYTES - comment;
        if (is_marked(at, end_mark) && number(at + 20, 2) == comment) {
            is_found = true;
            memcpy(end, at, END_BYTES);
            *at_out = source->bytes - END_BYTES - comment;
        }
    }
    if (is_good && !is_found)
        is_good = ms_fault_at(source->reading, NULL, "expected the end of a zip file");
    ms_heap_free(tail);
    return is_good;
}

/* True if the narrow number is equal to the wide one, or all ones, which refers to the wide one. */
static bool is_same(uint64_t narrow, int bytes, uint64_t wide)
{
    return narrow == wide || narrow == (bytes == 2 ? UINT16_MAX : UINT32_MAX);
}

/* Reads the zip64 end whose locator ends at `at`, if any. The directory must end at *at_out. */
static bool read_end64(const struct source *source, uint64_t at, struct directory *directory,
                       uint64_t *at_out)
{
    unsigned char locator[LOCATOR_BYTES], end[END64_BYTES];
    *at_out = at;
    if (at < LOCATOR_BYTES + END64_BYTES)
        return true;
    if (!read_at(source, at - LOCATOR_BYTES, locator, LOCATOR_BYTES))
        return false;
    if (!is_marked(locator, locator_mark))
        return true;
    const uint64_t offset = number(locator + 8, 8);
    if (offset > at - LOCATOR_BYTES - END64_BYTES)
        return ms_fault_at(source->reading, NULL,
                           "expected the zip64 end before its locator, found %" PRIu64, offset);
    if (!read_at(source, offset, end, END64_BYTES))
        return false;
    const struct directory wide = {number(end + 32, 8), number(end + 40, 8), number(end + 48, 8)};
    if (!is_marked(end, end64_mark) || number(end + 4, 8) != at - LOCATOR_BYTES - offset - 12 ||
        number(locator + 4, 4) != 0 || number(end + 16, 4) != 0 || number(end + 20, 4) != 0 ||
        number(end + 24, 8) != wide.count)
        return ms_fault_at(source->reading, NULL, "expected a zip64 end of one file at %" PRIu64,
                           offset);
    if (!is_same(directory->count, 2, wide.count) || !is_same(directory->bytes, 4, wide.bytes) ||
        !is_same(directory->offset, 4, wide.offset))
        return ms_fault_at(source->reading, NULL, "expected the two ends of the zip file to agree");
    *directory = wide;
    *at_out = offset;
    return true;
}

static bool find_directory(const struct source *source, struct directory *directory_out)
{
    unsigned char end[END_BYTES];
    uint64_t at = 0;
    if (!find_end(source, &at, end))
        return false;
    struct directory directory = {number(end + 10, 2), number(end + 12, 4), number(end + 16, 4)};
    if (number(end + 4, 2) != 0 || number(end + 6, 2) != 0 || number(end + 8, 2) != directory.count)
        return ms_fault_at(source->reading, NULL, "expected a zip file of one part");
    if (!read_end64(source, at, &directory, &at))
        return false;
    if (directory.bytes > DIRECTORY_MAX_BYTES || directory.bytes > at ||
        directory.offset != at - directory.bytes || directory.count > directory.bytes / ENTRY_BYTES)
        return ms_fault_at(source->reading, NULL,
                           "expected a directory of at most %d bytes that ends at %" PRIu64
                           ", found %" PRIu64 " entries in %" PRIu64 " bytes at %" PRIu64,
                           DIRECTORY_MAX_BYTES, at, directory.count, directory.bytes,
                           directory.offset);
    *directory_out = directory;
    return true;
}

/* Replaces each of the three values that is all ones by its wide value, which the extra field has
 * in the same order. */
static bool read_wide(const unsigned char *extra, size_t bytes, uint64_t *values[3])
{
    while (bytes >= 4) {
        const size_t id = number(extra, 2), length = number(extra + 2, 2);
        if (length > bytes - 4)
            return false;
        const unsigned char *at = extra + 4, *end = at + length;
        for (int i = 0; id == 1 && i < 3; i++) {
            if (*values[i] != UINT32_MAX)
                continue;
            if (end - at < 8)
                return false;
            *values[i] = number(at, 8);
            at += 8;
        }
        extra = end;
        bytes -= 4 + length;
    }
    return bytes == 0;
}

/* Reads the entry at *at, and moves *at behind the entry. */
static bool read_entry(const struct source *source, const unsigned char **at,
                       const unsigned char *end, struct ms_zip *zip, struct ms_zip_record *record)
{
    const unsigned char *entry = *at;
    if (end - entry < ENTRY_BYTES || !is_marked(entry, entry_mark))
        return ms_fault_at(source->reading, NULL, "expected %zu entries in the zip directory",
                           zip->count);
    const size_t name = number(entry + 28, 2), extra = number(entry + 30, 2);
    const size_t bytes = ENTRY_BYTES + name + extra + number(entry + 32, 2);
    const char *text = (const char *)entry + ENTRY_BYTES;
    if (bytes > (size_t)(end - entry) || name == 0 || !ms_utf8_is_valid(text, name))
        return ms_fault_at(source->reading, NULL, "expected a name in UTF-8 for each zip record");
    record->name = ms_arena_string(&zip->arena, text, name);
    if (record->name == NULL)
        return ms_fault_at(source->reading, NULL, "out of memory");
    const struct ms_place place = {NULL, record->name, 0};
    uint64_t packed = number(entry + 20, 4);
    record->bytes = number(entry + 24, 4);
    record->header = number(entry + 42, 4);
    uint64_t *wide[3] = {&record->bytes, &packed, &record->header};
    if (!read_wide(entry + ENTRY_BYTES + name, extra, wide))
        return ms_fault_at(source->reading, &place, "expected whole extra fields");
    if ((number(entry + 8, 2) & 1) != 0 || number(entry + 10, 2) != 0 || packed != record->bytes ||
        number(entry + 34, 2) != 0)
        return ms_fault_at(source->reading, &place, "expected a record that is not compressed");
    *at = entry + bytes;
    return true;
}

/* Only the local header says where the data begins. */
static bool read_header(const struct source *source, const struct directory *directory,
                        struct ms_zip_record *record)
{
    unsigned char header[HEADER_BYTES + NAME_MAX_BYTES];
    const struct ms_place place = {NULL, record->name, 0};
    const size_t name = strlen(record->name), bytes = HEADER_BYTES + name;
    if (bytes > directory->offset || record->header > directory->offset - bytes)
        return ms_fault_at(source->reading, &place,
                           "expected the record before the directory, found %" PRIu64,
                           record->header);
    if (!read_at(source, record->header, header, bytes))
        return false;
    if (!is_marked(header, header_mark) || number(header + 8, 2) != 0 ||
        number(header + 26, 2) != name || memcmp(header + HEADER_BYTES, record->name, name) != 0)
        return ms_fault_at(source->reading, &place, "expected the record's header at %" PRIu64,
                           record->header);
    record->offset = record->header + bytes + number(header + 28, 2);
    return (record->offset <= directory->offset &&
            record->bytes <= directory->offset - record->offset) ||
           ms_fault_at(source->reading, &place,
                       "expected a record that ends before the directory, found %" PRIu64
                       " bytes at %" PRIu64,
                       record->bytes, record->offset);
}

static int by_header(const void *a, const void *b)
{
    const struct ms_zip_record *left = a, *right = b;
    return left->header < right->header ? -1 : left->header > right->header;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ms_zip_record *)a)->name, ((const struct ms_zip_record *)b)->name);
}

/* Sorts the records by name. */
static bool check_records(const struct source *source, struct ms_zip *zip)
{
    struct ms_zip_record *records = zip->records;
    qsort(records, zip->count, sizeof(*records), by_header);
    for (size_t i = 1; i < zip->count; i++) {
        const struct ms_place place = {NULL, records[i].name, 0};
        if (records[i - 1].offset + records[i - 1].bytes > records[i].header)
            return ms_fault_at(source->reading, &place,
                               "expected a record after the end of the one before");
    }
    qsort(records, zip->count, sizeof(*records), by_name);
    for (size_t i = 1; i < zip->count; i++) {
        const struct ms_place place = {NULL, records[i].name, 0};
        if (strcmp(records[i - 1].name, records[i].name) == 0)
            return ms_fault_at(source->reading, &place, "expected one record of this name");
    }
    return true;
}

static bool read_entries(const struct source *source, const struct directory *directory,
                         const unsigned char *text, struct ms_zip *zip)
{
    const unsigned char *at = text, *end = text + directory->bytes;
    for (size_t i = 0; i < zip->count; i++) {
        if (!read_entry(source, &at, end, zip, &zip->records[i]) ||
            !read_header(source, directory, &zip->records[i]))
            return false;
    }
    if (at != end)
        return ms_fault_at(source->reading, NULL, "expected %zu entries in the zip directory",
                           zip->count);
    zip->first = zip->count > 0 ? zip->records[0].name : NULL;
    return zip->count == 0 || check_records(source, zip);
}

bool ms_zip_read(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                 struct ms_zip *zip_out)
{
    const struct source source = {reading, file, file_bytes};
    struct directory directory = {0};
    if (!find_directory(&source, &directory))
        return false;
    struct ms_zip zip = {.count = (size_t)directory.count};
    unsigned char *text = ms_heap_alloc(directory.bytes + 1);
    zip.records = ms_arena_take(&zip.arena, zip.count, sizeof(*zip.records));
    bool is_good =
        (text != NULL && zip.records != NULL) || ms_fault_at(reading, NULL, "out of memory");
    is_good = is_good && read_at(&source, directory.offset, text, directory.bytes) &&
              read_entries(&source, &directory, text, &zip);
    ms_heap_free(text);
    if (is_good)
        *zip_out = zip;
    else
        ms_arena_cleanup(&zip.arena);
    return is_good;
}

const struct ms_zip_record *ms_zip_find(const struct ms_zip *zip, const char *name)
{
    const struct ms_zip_record key = {.name = name};
    return zip->count == 0
               ? NULL
               : bsearch(&key, zip->records, zip->count, sizeof(*zip->records), by_name);
}
