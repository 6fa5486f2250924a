/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/zip.h"

#include <stdio.h>

#include "tests/unit/checkpoint/torch_bytes.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/between.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static struct zip zip;
static struct ms_zip found;
static struct ms_fault fault;
static size_t end64, locator; /* places of the wide end */

static bool read_bytes(const struct bytes *bytes)
{
    const struct ms_fault_context reading = {"some.zip", &fault};
    const int file = file_of(bytes);
    fault.text[0] = '\0';
    found = (struct ms_zip){0};
    const bool is_read = ms_zip_read(&reading, file, bytes->count, &found);
    close(file);
    CHECK_EQ(is_read, fault.text[0] == '\0');
    CHECK_EQ(live, is_read ? 1 : 0); /* its arena */
    return is_read;
}

/* That it is read, or why not. */
static void check(size_t row, const char *why)
{
    const bool is_read = read_bytes(&zip.bytes);
    if (is_read != (why == NULL) || (why != NULL && strstr(fault.text, why) == NULL))
        ms_test_fail(__FILE__, __LINE__, "row %zu: expected %s, found %s", row,
                     why != NULL ? why : "no fault", fault.text);
    ms_arena_cleanup(&found.arena);
    CHECK_EQ(live, 0);
}

static void set(size_t at, uint64_t value, size_t bytes)
{
    CHECK(at + bytes <= zip.bytes.count);
    memcpy(zip.bytes.at + at, &value, bytes);
}

static void make(void)
{
    memset(&zip, 0, sizeof(zip));
    add_record(&zip, "b/two", "0123456789", 10);
    add_record(&zip, "b/one", "01234567890123456789", 20);
    add_record(&zip, "a/last", "0123", 4);
    end_zip(&zip);
}

/* The same, with wide numbers, and none in the narrow end. */
static void make_wide(void)
{
    make();
    const size_t directory_bytes = zip.end - zip.directory;
    zip.bytes.count = end64 = zip.end;
    put(&zip.bytes, "PK\6\6", 4);
    put_number(&zip.bytes, 44, 8);
    put_number(&zip.bytes, 0, 12);
    put_number(&zip.bytes, zip.count, 8);
    put_number(&zip.bytes, zip.count, 8);
    put_number(&zip.bytes, directory_bytes, 8);
    put_number(&zip.bytes, zip.directory, 8);
    locator = zip.bytes.count;
    put(&zip.bytes, "PK\6\7", 4);
    put_number(&zip.bytes, 0, 4);
    put_number(&zip.bytes, end64, 8);
    put_number(&zip.bytes, 1, 4);
    zip.end = zip.bytes.count;
    put(&zip.bytes, "PK\5\6\0\0\0\0", 8);
    put_number(&zip.bytes, UINT64_MAX, 4);
    put_number(&zip.bytes, UINT64_MAX, 8);
    put_number(&zip.bytes, 0, 2);
}

static void check_records(void)
{
    static const char *const names[] = {"a/last", "b/one", "b/two"};
    static const size_t order[] = {2, 1, 0};
    CHECK(read_bytes(&zip.bytes));
    CHECK_EQ(found.count, 3);
    CHECK(strcmp(found.first, "b/two") == 0);
    for (size_t i = 0; i < 3; i++) {
        const struct ms_zip_record *record = ms_zip_find(&found, names[i]);
        CHECK(record == &found.records[i] && strcmp(record->name, names[i]) == 0);
        CHECK_EQ(record->header, zip.header[order[i]]);
        CHECK_EQ(record->offset, zip.data[order[i]]);
        CHECK_EQ(record->bytes, zip.size[order[i]]);
    }
    CHECK(ms_zip_find(&found, "a/las") == NULL && ms_zip_find(&found, "c") == NULL);
    ms_arena_cleanup(&found.arena);
}

STORY_ALONE(records_are_ranges_of_the_file_by_their_names, make(), check_records(), make_wide(),
            check_records())

MS_TEST(a_file_may_have_no_records)
{
    memset(&zip, 0, sizeof(zip));
    end_zip(&zip);
    CHECK(read_bytes(&zip.bytes));
    CHECK(found.count == 0 && found.first == NULL && ms_zip_find(&found, "a") == NULL);
    ms_arena_cleanup(&found.arena);
    zip.bytes.count--;
    check(0, "expected the end of a zip file");
    zip.bytes.count = 0;
    check(0, "expected the end of a zip file");
}

/* --- a number that is another one */

enum place { HEADER, ENTRY, LAST_HEADER, LAST_ENTRY, END, END64, LOCATOR }; /* of b/one, a/last */

static size_t place_of(enum place place)
{
    const size_t places[] = {zip.header[1], zip.entry[1], zip.header[2], zip.entry[2],
                             zip.end,       end64,        locator};
    return places[place];
}

static const struct row {
    enum place place;
    size_t at, value, bytes;
    const char *why;
} narrow[] =
    {
        {ENTRY, 2, 5, 1, "expected 3 entries in the zip directory"},
        {ENTRY, 8, 1, 2, "b/one: expected a record that is not compressed"},
        {ENTRY, 8, 0x806, 2, NULL},
        {ENTRY, 10, 8, 2, "b/one: expected a record that is not compressed"},
        {ENTRY, 20, 19, 4, "b/one: expected a record that is not compressed"},
        {ENTRY, 24, 21, 4, "b/one: expected a record that is not compressed"},
        {ENTRY, 34, 1, 2, "b/one: expected a record that is not compressed"},
        {ENTRY, 28, 0, 2, "expected a name in UTF-8 for each zip record"},
        {ENTRY, 48, 0xff, 1, "expected a name in UTF-8 for each zip record"},
        {ENTRY, 30, 1, 2, "b/one: expected whole extra fields"},
        {LAST_ENTRY, 32, 1, 2, "expected a name in UTF-8 for each zip record"},
        {LAST_ENTRY, 28, 5, 2, "expected the record's header at"},
        {ENTRY, 42, 0, 4, "b/one: expected the record's header at 0"},
        {HEADER, 2, 5, 1, "b/one: expected the record's header at"},
        {HEADER, 8, 8, 2, "b/one: expected the record's header at"},
        {HEADER, 26, 4, 2, "b/one: expected the record's header at"},
        {HEADER, 34, 'x', 1, "b/one: expected the record's header at"},
        {HEADER, 28, 1, 2, "a/last: expected a record after the end of the one before"},
        {LAST_HEADER, 28, 1, 2, "a/last: expected a record that ends before the directory"},
        {LAST_HEADER, 28, 5, 2, "a/last: expected a record that ends before the directory"},
        {END, 4, 1, 2, "expected a zip file of one part"},
        {END, 6, 1, 2, "expected a zip file of one part"},
        {END, 8, 2, 2, "expected a zip file of one part"},
        {END, 8, 2 << 16 | 2, 4, "expected 2 entries in the zip directory"},
        {END, 8, 4 << 16 | 4, 4, "expected a directory of at most"},
        {END, 12, 100, 4, "expected a directory of at most"},
        {END, 12, UINT32_MAX, 4, "expected a directory of at most"},
        {END, 16, 1, 4, "expected a directory of at most"},
        {END, 20, 1, 2, "expected the end of a zip file"},
},
  wide[] = {
      {END64, 2, 5, 1, "expected a zip64 end of one file"},
      {END64, 4, 45, 8, "expected a zip64 end of one file"},
      {END64, 16, 1, 4, "expected a zip64 end of one file"},
      {END64, 20, 1, 4, "expected a zip64 end of one file"},
      {END64, 24, 2, 8, "expected a zip64 end of one file"},
      {END64, 40, 1, 8, "expected a directory of at most"},
      {END64, 48, 1, 8, "expected a directory of at most"},
      {LOCATOR, 2, 5, 1, "expected a directory of at most"},
      {LOCATOR, 4, 1, 4, "expected a zip64 end of one file"},
      {LOCATOR, 8, 7, 8, "expected a zip64 end of one file at 7"},
      {LOCATOR, 16, 7, 4, NULL}, /* how many files there are: not looked at */
      {END, 8, 3 << 16 | 3, 4, NULL},
      {END, 8, 2 << 16 | 2, 4, "expected the two ends of the zip file to agree"},
      {END, 12, 1, 4, "expected the two ends of the zip file to agree"},
      {END, 16, 1, 4, "expected the two ends of the zip file to agree"},
      {END, 16, UINT16_MAX, 4, "expected the two ends of the zip file to agree"},
};

MS_TEST(each_number_is_what_the_format_says)
{
    for (size_t i = 0; i < COUNT(narrow); i++) {
        make();
        set(place_of(narrow[i].place) + narrow[i].at, narrow[i].value, narrow[i].bytes);
        check(i, narrow[i].why);
    }
    for (size_t i = 0; i < COUNT(wide); i++) {
        make_wide();
        set(place_of(wide[i].place) + wide[i].at, wide[i].value, wide[i].bytes);
        check(i, wide[i].why);
    }
}

MS_TEST(places_are_exact)
{
    make();
    set(zip.entry[1] + 42, zip.directory - 35, 4); /* a header of 30 bytes, and its name */
    check(0, "b/one: expected the record's header at");
    make();
    set(zip.entry[1] + 42, zip.directory - 34, 4);
    check(1, "b/one: expected the record before the directory");
    make_wide();
    set(locator + 8, locator - 56, 8);
    check(2, NULL);
    set(locator + 8, locator - 55, 8);
    check(3, "expected the zip64 end before its locator");
    /* A wide end of fewer bytes than it must have is none. */
    memset(&zip, 0, sizeof(zip));
    end_zip(&zip);
    memmove(zip.bytes.at + 75, zip.bytes.at, 22);
    memcpy(zip.bytes.at + 75 - 20, "PK\6\7", 4);
    zip.bytes.count = 75 + 22;
    set(75 + 16, 75, 4);
    check(4, NULL);
}

MS_TEST(a_directory_ends_where_the_end_begins)
{
    char wanted[160];
    make();
    set(zip.end + 8, 4 << 16 | 4, 4);
    snprintf(wanted, sizeof(wanted),
             "expected a directory of at most 100000000 bytes that ends at %zu, found 4 entries in "
             "%zu bytes at %zu",
             zip.end, zip.end - zip.directory, zip.directory);
    check(0, wanted);
    make_wide();
    set(end64 + 40, end64 + 1, 8); /* from before the file's begin */
    set(end64 + 48, UINT64_MAX, 8);
    check(1, "expected a directory of at most");
}

/* A file of so many zeros, which takes no space, and its end, which calls them the directory. */
static void check_long(size_t bytes, const char *why)
{
    const struct ms_fault_context reading = {"some.zip", &fault};
    memset(&zip, 0, sizeof(zip));
    end_zip(&zip);
    set(8, 1 << 16 | 1, 4);
    set(12, bytes, 4);
    const int file = memfd_create("metashard-unit", MFD_CLOEXEC);
    CHECK_EQ(pwrite(file, zip.bytes.at, zip.bytes.count, (off_t)bytes), (ssize_t)zip.bytes.count);
    CHECK(!ms_zip_read(&reading, file, bytes + zip.bytes.count, &found));
    close(file);
    if (strstr(fault.text, why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "%zu: %s", bytes, fault.text);
    CHECK_EQ(live, 0);
}

STORY_ALONE(a_directory_has_100_mb_at_most,
            check_long(100000000, "expected 1 entries in the zip directory"),
            check_long(100000001, "expected a directory of at most 100000000 bytes"))

MS_TEST(names_are_those_of_one_record_each)
{
    static const char *const names[][3] = {{"a", "a", "b"}, {"b", "a", "a"}, {"a", "b", "a"}};
    for (size_t i = 0; i < COUNT(names); i++) {
        memset(&zip, 0, sizeof(zip));
        for (size_t at = 0; at < 3; at++)
            add_record(&zip, names[i][at], "", 0);
        end_zip(&zip);
        check(i, "a: expected one record of this name");
    }
}

MS_TEST(records_share_no_bytes)
{
    memset(&zip, 0, sizeof(zip));
    add_record(&zip, "a", "0123", 4);
    add_record(&zip, "b", "0123", 4);
    end_zip(&zip);
    check(0, NULL);
    set(zip.entry[0] + 20, UINT64_C(5) << 32 | 5, 8); /* a ends in b's header */
    check(1, "b: expected a record after the end of the one before");
    /* In another order in the directory. */
    unsigned char entry[47];
    memcpy(entry, zip.bytes.at + zip.entry[0], sizeof(entry));
    memmove(zip.bytes.at + zip.entry[0], zip.bytes.at + zip.entry[1], sizeof(entry));
    memcpy(zip.bytes.at + zip.entry[1], entry, sizeof(entry));
    check(2, "b: expected a record after the end of the one before");
    set(zip.entry[1] + 20, UINT64_C(4) << 32 | 4, 8);
    check(3, NULL);
}

/* --- what follows the end */

static void put_comment(const char *begin, size_t bytes)
{
    make();
    set(zip.end + 20, bytes, 2);
    put(&zip.bytes, begin, strlen(begin));
    while (zip.bytes.count < zip.end + 22 + bytes)
        put(&zip.bytes, "\1", 1);
}

MS_TEST(the_end_has_a_comment_up_to_the_file_s_end)
{
    put_comment("", 1);
    check(0, NULL);
    put_comment("", 65535);
    check(1, NULL);
    put_number(&zip.bytes, 0, 1);
    check(2, "expected the end of a zip file");
    put_comment("PK\5\6", 40); /* no end, as it says no rest */
    check(3, NULL);
    put_comment("PK\5\6", 22); /* one with 257 bytes of comment, which are not there */
    check(4, NULL);
    put_comment("PK\5\6", 22 + 257);
    check(5, "expected a zip file of one part");
}

/* --- wide numbers of a record */

/* One record of four bytes whose entry has these numbers, and this extra field. */
static void make_extra(uint64_t packed, uint64_t bytes, uint64_t header, const void *extra,
                       size_t count)
{
    memset(&zip, 0, sizeof(zip));
    add_record(&zip, "n", "0123", 4);
    end_zip(&zip);
    zip.bytes.count = zip.end;
    set(zip.entry[0] + 20, packed, 4);
    set(zip.entry[0] + 24, bytes, 4);
    set(zip.entry[0] + 42, header, 4);
    set(zip.entry[0] + 30, count, 2);
    put(&zip.bytes, extra, count);
    const size_t length = zip.bytes.count - zip.directory;
    put(&zip.bytes, "PK\5\6\0\0\0\0\1\0\1\0", 12);
    put_number(&zip.bytes, length, 4);
    put_number(&zip.bytes, zip.directory, 4);
    put_number(&zip.bytes, 0, 2);
}

#define WIDE_4 "\4\0\0\0\0\0\0\0"
#define WIDE_0 "\0\0\0\0\0\0\0\0"

MS_TEST(an_extra_field_has_the_wide_ones_in_their_order)
{
    enum { ONES = UINT32_MAX };
    static const struct {
        uint64_t packed, bytes, header;
        const char *extra;
        size_t count;
        const char *why;
    } rows[] = {
        {4, 4, 0, "", 0, NULL},
        {4, ONES, 0, "\1\0\10\0" WIDE_4, 12, NULL},
        {ONES, 4, 0, "\1\0\10\0" WIDE_4, 12, NULL},
        {4, 4, ONES, "\1\0\10\0" WIDE_0, 12, NULL},
        {ONES, ONES, 0, "\1\0\20\0" WIDE_4 WIDE_4, 20, NULL},
        {4, ONES, ONES, "\1\0\20\0" WIDE_4 WIDE_0, 20, NULL},
        {ONES, ONES, ONES, "\1\0\30\0" WIDE_4 WIDE_4 WIDE_0, 28, NULL},
        {ONES, ONES, 0, "\1\0\30\0" WIDE_4 WIDE_4 WIDE_4, 28, NULL}, /* one more than is asked */
        {4, ONES, 0, "\7\0\1\0!\1\0\10\0" WIDE_4, 17, NULL},
        {4, ONES, 0, "\1\0\10\0" WIDE_4 "\7\0\0\0", 16, NULL},
        {4, ONES, 0, "\2\0\10\0" WIDE_4, 12, "n: expected a record that is not compressed"},
        {4, ONES, 0, "\1\0\7\0" WIDE_4, 11, "n: expected whole extra fields"},
        {ONES, ONES, 0, "\1\0\17\0" WIDE_4 WIDE_4, 19, "n: expected whole extra fields"},
        {4, 4, 0, "\7\0\1\0", 4, "n: expected whole extra fields"},
        {4, 4, 0, "\7\0\0\0", 4, NULL},
        {4, 4, 0, "\7\0\0", 3, "n: expected whole extra fields"},
        {ONES, ONES, 0, "\1\0\20\0\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377",
         20, "n: expected a record that ends before the directory"},
        {4, 4, ONES, "\1\0\10\0\377\377\377\377\377\377\377\377", 12,
         "n: expected the record before the directory"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        make_extra(rows[i].packed, rows[i].bytes, rows[i].header, rows[i].extra, rows[i].count);
        check(i, rows[i].why);
    }
}

/* --- memory and the file */

static bool read_three(void)
{
    const struct ms_fault_context reading = {"some.zip", &fault};
    const int file = file_of(&zip.bytes);
    const bool is_read = ms_zip_read(&reading, file, zip.bytes.count, &found);
    close(file);
    if (is_read)
        ms_arena_cleanup(&found.arena);
    else
        CHECK(strstr(fault.text, "out of memory") != NULL);
    return is_read;
}

STORY_ALONE(an_archive_without_memory_is_refused_and_leaks_nothing, make(),
            without_each_piece(read_three, 3))

MS_TEST(a_file_that_has_become_shorter_is_a_fault)
{
    const struct ms_fault_context reading = {"some.zip", &fault};
    make();
    const int file = file_of(&zip.bytes);
    CHECK_EQ(ftruncate(file, (off_t)zip.bytes.count - 1), 0);
    CHECK(!ms_zip_read(&reading, file, zip.bytes.count, &found));
    CHECK(strstr(fault.text, "bytes of the zip file at 0, found fewer") != NULL);
    close(file);
    CHECK_EQ(live, 0);
}

static int reads, failing_read; /* the nth read gets a byte less */

WRAPS(pread64);
ssize_t __wrap_pread64(int file, void *to, size_t bytes, off_t offset)
{
    return ++reads == failing_read ? (ssize_t)bytes - 1 : __real_pread64(file, to, bytes, offset);
}

MS_TEST(each_read_that_gets_less_is_a_fault)
{
    enum { LEAST = 5 }; /* the end, the wide one, the directory, headers */
    bool is_read = false;
    make_wide();
    for (failing_read = 1; !is_read; failing_read++) {
        reads = 0;
        is_read = read_bytes(&zip.bytes);
        CHECK_EQ(is_read, reads < failing_read);
        CHECK(is_read || strstr(fault.text, ", found fewer") != NULL);
    }
    CHECK(failing_read > LEAST);
    ms_arena_cleanup(&found.arena);
}
