/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/tensor_places.h"

#include "runtime/base/heap.h"
#include "runtime/files/file_thread.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/files/files.h"
#include "tests/unit/between.h"

enum { DATA = 100 };

static struct ms_file *source;
static struct ms_tensor_places header;

/* A file that begins with this number, and has the text and some data behind it. */
static void make_source(const char *text, uint64_t length)
{
    static struct test_file file;
    snprintf(file.path, sizeof(file.path), "/tmp/metashard-header-XXXXXX");
    const int descriptor = mkstemp(file.path);
    CHECK(descriptor >= 0);
    static const unsigned char data[DATA];
    CHECK_EQ(write(descriptor, &length, 8), 8);
    CHECK_EQ(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    CHECK_EQ(write(descriptor, data, DATA), DATA);
    const struct timespec then[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct stat stat;
    CHECK_EQ(futimens(descriptor, then), 0);
    CHECK_EQ(fstat(descriptor, &stat), 0);
    close(descriptor);
    struct ms_mapping mapping = {.device = stat.st_dev, .inode = stat.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", file.path);
    source = ms_trust_open(&mapping, (uint64_t)stat.st_size);
    test_files[0] = file;
    CHECK(source != NULL);
}

static void read_there(void *argument)
{
    (void)argument;
    ms_tensor_places_read(source, &header);
}

/* Reads it once more. */
static void read_header(void)
{
    header = (struct ms_tensor_places){0};
    CHECK(ms_file_thread_call(read_there, NULL));
}

static void drop_source(void)
{
    ms_file_drop(source);
    unlink(test_files[0].path);
}

/* "OFFSET+BYTES " of each tensor, from the begin of the data on. */
static void check_header(const char *text, const char *wanted)
{
    char seen[512] = "";
    make_source(text, strlen(text));
    const int before = live;
    read_header();
    for (size_t i = 0; i < header.count; i++)
        sprintf(seen + strlen(seen), "%d+%d ", (int)(header.tensors[i].offset - 8 - strlen(text)),
                (int)header.tensors[i].bytes);
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "%.200s: expected %s, found %s", text, wanted, seen);
    ms_tensor_places_cleanup(&header);
    CHECK(header.tensors == NULL && header.count == 0 && header.capacity == 0);
    CHECK_EQ(live, before);
    drop_source();
}

static bool is_start(uint64_t length, char first)
{
    unsigned char start[MS_TENSOR_PLACES_START];
    uint64_t seen = 0;
    memcpy(start, &length, 8);
    start[8] = (unsigned char)first;
    const bool is_one = ms_tensor_places_is_start(start, &seen);
    CHECK_EQ(seen, length);
    return is_one;
}

MS_TEST(a_file_begins_with_a_length_and_an_object)
{
    CHECK(is_start(2, '{'));
    CHECK(!is_start(1, '{'));
    CHECK(!is_start(2, '['));
    CHECK(is_start(100000000, '{'));
    CHECK(!is_start(100000001, '{'));
    CHECK(!is_start(UINT64_C(2) << 32, '{'));
}

STORY_ALONE(
    places_of_tensors_are_read_wherever_they_stand,
    check_header("{\"a\":{\"data_offsets\":[0,10]},\"b\":{\"data_offsets\" : [ 10 , 100 ] }}",
                 "0+10 10+90 "),
    check_header("{\"a\":{\"data_offsets\":\n[99,100]}}", "99+1 "),
    check_header("{\"data_offsets\":{\"data_offsets\":[1,2]}}", "1+1 "), check_header("{}", ""),
    check_header("[\"data_offsets\":[1,2]]", ""))

MS_TEST(places_that_cannot_be_are_left_out)
{
    check_header("{\"a\":{\"data_offsets\":[0,101]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[4,4]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[5,4]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\"[1,4]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":1,4]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[1 4]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[1,4}},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[1,4,5]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offset\":[1,4]},\"b\":{\"data_offsets\":[3,4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[3,4]},\"b\":{\"data_offsets\":[1 4]}}", "3+1 ");
    check_header("{\"a\":{\"data_offsets\":[3,9]},\"b\":{\"data_offsets\":4,9]}}", "3+6 ");
    check_header("{\"data_offsets\":[3,4],\"data_offsets\":5", "3+1 ");
    check_header("{\"data_offsets\":[3,4],\"data_offsets\":[5", "3+1 ");
    check_header("{\"data_offsets\":[3,4]", "3+1 "); /* at its very end */
}

MS_TEST(a_header_ends_in_its_file_and_may_fill_its_pages)
{
    static char text[2 * PAGE_BYTES + 1];
    static const char one[] = "{\"a\":{\"data_offsets\":[3,4]}}";
    memset(text, ' ', sizeof(text) - 1);
    memcpy(text, one, sizeof(one) - 1);
    check_header(text, "3+1 ");
    make_source(one, sizeof(one) - 1 + DATA + 1);
    read_header();
    CHECK(header.tensors == NULL);
    drop_source();
    make_source("", 2);
    read_header();
    CHECK(header.tensors == NULL);
    drop_source();
}

/* Its length is any number in a file that is no such one: no memory is had for it. */
MS_TEST(a_header_longer_than_its_file_takes_no_memory)
{
    static const char one[] = "{\"a\":{\"data_offsets\":[3,4]}}";
    make_source(one, sizeof(one) - 1 + DATA + 1);
    may_make = 1;
    read_header();
    CHECK_EQ(may_make, 1);
    drop_source();
    make_source(one, sizeof(one) - 1 + DATA);
    may_make = 2;
    read_header();
    CHECK_EQ(may_make, 1); /* there it may have one */
    drop_source();
}

MS_TEST(text_behind_the_header_is_none_of_it)
{
    static const char two[] = "{\"a\":{\"data_offsets\":[3,4]}} \"data_offsets\":[5,6]";
    make_source(two, strlen("{\"a\":{\"data_offsets\":[3,4]}}"));
    read_header();
    CHECK_EQ(header.count, 1);
    CHECK_EQ(header.tensors[0].bytes, 1);
    ms_tensor_places_cleanup(&header);
    drop_source();
}

MS_TEST(a_file_that_has_become_shorter_has_none)
{
    static const char one[] = "{\"a\":{\"data_offsets\":[3,4]}}";
    make_source(one, sizeof(one) - 1);
    const int before = live;
    for (off_t bytes = 20; bytes >= 0; bytes -= 20) {
        CHECK_EQ(truncate(test_files[0].path, bytes), 0);
        read_header();
        CHECK(header.tensors == NULL);
        CHECK_EQ(live, before);
    }
    drop_source();
}

static bool read_all_tensors(void)
{
    read_header();
    const size_t count = header.count;
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(header.tensors[i].bytes, i + 1);
    ms_tensor_places_cleanup(&header);
    return count == 20;
}

MS_TEST(a_header_has_fewer_tensors_without_memory)
{
    char text[1024] = "{";
    for (int i = 0; i < 20; i++)
        sprintf(text + strlen(text), "\"data_offsets\":[0,%d] ", i + 1);
    make_source(text, strlen(text));
    read_header();
    ms_tensor_places_cleanup(&header);
    without_each_piece(read_all_tensors, 3);
    drop_source();
}
