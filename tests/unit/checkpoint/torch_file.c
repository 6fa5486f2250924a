/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/torch_file.h"

#include <stdio.h>

#include "runtime/base/heap.h"
#include "tests/unit/checkpoint/torch_bytes.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/between.h"

/* The content of a file; each test changes some of it. Data is zeros. */
static struct given {
    const char *folder, *order, *constants; /* NULL: there is no such record */
    const char *pickle;                     /* the name of its record */
    struct part parts[40];
    size_t count, data_bytes[2]; /* of data/0 and data/1; SIZE_MAX: there is none */
} given;
static struct zip zip;
static struct ms_torch_tensors found;
static struct ms_fault fault;

static void give(const struct part *parts, size_t count)
{
    given = (struct given){.folder = "archive", .order = "little", .pickle = "data.pkl"};
    given.data_bytes[0] = given.data_bytes[1] = 16;
    given.count = count;
    memcpy(given.parts, parts, count * sizeof(*parts));
}

static void give_one(void)
{
    give((const struct part[]){{"w", "0", "FloatStorage", 4, 0, 4}}, 1);
}

static void add_given(const char *name, const void *data, size_t bytes)
{
    static char names[ZIP_RECORDS][2048];
    char *path = names[zip.count];
    snprintf(path, sizeof(names[0]), "%s%s%s", given.folder, given.folder[0] != '\0' ? "/" : "",
             name);
    add_record(&zip, path, data, bytes);
}

static void make_zip(void)
{
    static const unsigned char zeros[64];
    static struct bytes text;
    memset(&zip, 0, sizeof(zip));
    text.count = 0;
    put_state(&text, given.parts, given.count);
    add_given(given.pickle, text.at, text.count);
    if (given.order != NULL)
        add_given("byteorder", given.order, strlen(given.order));
    if (given.constants != NULL)
        add_given(given.constants, "", 0);
    for (size_t i = 0; i < 2; i++) {
        if (given.data_bytes[i] != SIZE_MAX)
            add_given(i == 0 ? "data/0" : "data/1", zeros, given.data_bytes[i]);
    }
    end_zip(&zip);
}

/* Reads the file, and gives all back but the list. */
static bool read_list(int file, uint64_t bytes, struct ms_arena *names)
{
    const struct ms_fault_context reading = {"some.pt", &fault};
    found = (struct ms_torch_tensors){0};
    fault.text[0] = '\0';
    const bool is_read = ms_torch_file_read(&reading, file, bytes, names, &found);
    CHECK_EQ(fault.text[0] == '\0', is_read);
    if (!is_read) {
        CHECK(found.tensors == NULL && found.count == 0);
        CHECK(strncmp(fault.text, "some.pt: ", 9) == 0);
        ms_arena_cleanup(names);
        CHECK_EQ(live, 0);
    }
    return is_read;
}

/* That the given file is read, or why not: a part of the fault. */
static void check_given(const char *why)
{
    struct ms_arena names = {0};
    make_zip();
    const int file = file_of(&zip.bytes);
    const bool is_read = read_list(file, zip.bytes.count, &names);
    close(file);
    if (is_read != (why == NULL) || (why != NULL && strstr(fault.text, why) == NULL))
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", why != NULL ? why : "no fault",
                     fault.text);
    ms_heap_free(found.tensors);
    ms_arena_cleanup(&names);
    CHECK_EQ(live, 0);
}

/* --- which files it is */

MS_TEST(a_file_of_torch_save_begins_with_a_mark)
{
    static const struct {
        const char *begin;
        size_t bytes;
        bool is_torch;
    } rows[] = {{"PK\3\4", 4, true},
                {"PK\3\4", 3, false},
                {"PK\3\5", 4, false},
                {"\x80\2\x8a\n", 4, true},
                {"\x80\2\x8a\t", 4, false},
                {"PK\3\4\0\0\0\0{", 9, false},
                {"PK\3\4\0\0\0\0{", 8, true},
                {"PK\3\4\0\0\0\0\0", 9, true},
                {"PK\3\4\0\0\0\0\0{", 10, true}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK_EQ(ms_torch_file_is((const unsigned char *)rows[i].begin, rows[i].bytes),
                 rows[i].is_torch);
}

MS_TEST(a_file_without_the_mark_of_a_zip_file_is_none)
{
    struct ms_arena names = {0};
    give_one();
    make_zip();
    int file = file_of(&zip.bytes);
    CHECK(!read_list(file, 3, &names));
    CHECK(strstr(fault.text, "expected a zip file, such as torch.save writes") != NULL);
    CHECK(!read_list(file, 4, &names)); /* it is, and has no end */
    CHECK(strstr(fault.text, "expected the end of a zip file") != NULL);
    CHECK_EQ(ftruncate(file, 3), 0); /* since its size was asked for */
    CHECK(!read_list(file, zip.bytes.count, &names));
    CHECK(strstr(fault.text, "expected a zip file, such as torch.save writes") != NULL);
    close(file);
    zip.bytes.at[3] = 5;
    file = file_of(&zip.bytes);
    CHECK(!read_list(file, zip.bytes.count, &names));
    CHECK(strstr(fault.text, "expected a zip file, such as torch.save writes") != NULL);
    close(file);
}

/* --- what is read */

static const struct part several[] = {
    {"b", "1", "FloatStorage", 4, 0, 4},     {"a.view", "0", "FloatStorage", 4, 1, 2},
    {"tied", "0", "FloatStorage", 4, 0, 4},  {"complex", "0", "ComplexDoubleStorage", 1, 0, 1},
    {"again", "0", "FloatStorage", 4, 0, 4}, {"none", "0", "FloatStorage", 4, 2, 0},
    {"begin", "0", "FloatStorage", 4, 0, 1},
};

MS_TEST(tensors_are_in_the_order_of_their_bytes_and_names)
{
    static const struct {
        const char *name;
        size_t record, offset, bytes;
    } wanted[] = {{"none", 2, 0, 0},  {"begin", 2, 0, 4},  {"again", 2, 0, 16},
                  {"tied", 2, 0, 16}, {"a.view", 2, 4, 8}, {"b", 3, 0, 16}};
    struct ms_arena names = {0};
    give(several, sizeof(several) / sizeof(several[0]));
    make_zip();
    const int file = file_of(&zip.bytes);
    CHECK(read_list(file, zip.bytes.count, &names));
    close(file);
    CHECK_EQ(found.count, sizeof(wanted) / sizeof(wanted[0]));
    CHECK_EQ(found.skipped, 1);
    for (size_t i = 0; i < found.count; i++) {
        const struct ms_tensor *tensor = &found.tensors[i];
        if (strcmp(tensor->name, wanted[i].name) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s at %zu", tensor->name, i);
        CHECK(strcmp(tensor->file, "some.pt") == 0);
        CHECK_EQ(tensor->offset, zip.data[wanted[i].record] + wanted[i].offset);
        CHECK_EQ(tensor->bytes, wanted[i].bytes);
        CHECK_EQ(tensor->dtype, MS_DTYPE_F32);
        CHECK_EQ(tensor->dims, 1);
    }
    ms_heap_free(found.tensors);
    ms_arena_cleanup(&names);
    CHECK_EQ(live, 0);
}

STORY_ALONE(a_file_may_have_no_tensors, give(several, 0), check_given(NULL), EQUALS(found.count, 0))

MS_TEST(the_records_are_in_one_folder)
{
    static char folder[1100];
    give_one();
    given.folder = "";
    check_given("expected the records of torch.save");
    memset(folder, 'f', sizeof(folder) - 1);
    given.folder = folder;
    check_given("expected the records of torch.save");
    folder[1025] = '\0';
    check_given("expected the records of torch.save");
    folder[1024] = '\0';
    check_given("expected a record data.pkl");
    folder[1023 - sizeof("data.pkl") + 1] = '\0';
    check_given("expected a record data.pkl");
    given.pickle = "data.pk"; /* that is no name cut off */
    check_given("expected a record data.pkl");
    given.pickle = "data.pkl";
    folder[1023 - sizeof("data.pkl")] = '\0';
    check_given(NULL);
    given.folder = "größe";
    check_given(NULL);
}

STORY_ALONE(a_file_of_torch_script_is_refused, give_one(), given.constants = "constants.pk",
            check_given(NULL), given.constants = "constants.pkl",
            check_given("expected a file of torch.save, found one of TorchScript"))

MS_TEST(the_bytes_are_little_endian)
{
    static const char *const others[] = {"big", "littlE", "little ", "Xittle", ""};
    give_one();
    given.order = NULL;
    check_given(NULL);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        given.order = others[i];
        check_given("byteorder: expected little");
    }
}

STORY_ALONE(a_tensor_s_storage_is_a_record_that_is_as_long, give_one(), given.data_bytes[0] = 17,
            check_given(NULL), given.data_bytes[0] = 15,
            check_given("w: expected 16 bytes in data/0, found 15"), given.data_bytes[0] = SIZE_MAX,
            check_given("w: expected a record data/0"))

MS_TEST(names_are_those_of_one_tensor_each)
{
    static const char *const names[][3] = {{"a", "a", "z"}, {"a", "z", "z"}, {"a", "b", "a"}};
    struct part parts[3];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t at = 0; at < 3; at++)
            parts[at] = (struct part){names[i][at], "0", "FloatStorage", 4, at, 1};
        give(parts, 3);
        check_given(i == 1 ? ": z: expected one tensor of this name"
                           : ": a: expected one tensor of this name");
    }
}

/* --- the pickle */

/* A file with a pickle of so many zeros, which takes no space. */
static void check_long_pickle(size_t bytes, const char *why)
{
    struct ms_arena names = {0};
    memset(&zip, 0, sizeof(zip));
    add_record(&zip, "archive/data.pkl", "", 0);
    const size_t head = zip.bytes.count;
    zip.size[0] = bytes;
    end_zip(&zip);
    unsigned char *end = zip.bytes.at + zip.end;
    const uint64_t directory = head + bytes;
    memcpy(end + 16, &directory, 4);
    const int file = memfd_create("metashard-unit", MFD_CLOEXEC);
    CHECK_EQ(pwrite(file, zip.bytes.at, head, 0), (ssize_t)head);
    const size_t rest = zip.bytes.count - head;
    CHECK_EQ(pwrite(file, zip.bytes.at + head, rest, (off_t)directory), (ssize_t)rest);
    CHECK(!read_list(file, directory + rest, &names));
    close(file);
    if (strstr(fault.text, why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
}

STORY_ALONE(a_pickle_is_there_and_has_at_most_100_mb, give_one(), given.pickle = "data.pk",
            check_given("expected a record data.pkl of at most 100 MB"),
            check_long_pickle(100000000, "expected an opcode of torch.save, found 0x00"),
            check_long_pickle(100000001, "expected a record data.pkl of at most 100 MB"))

STORY_ALONE(a_fault_in_the_pickle_gives_all_back, give_one(), given.parts[0].first = 1,
            check_given("w: expected a tensor that ends in its storage"), give(several, 7),
            given.parts[6].held = 0,
            check_given("begin: expected a tensor that ends in its storage"))

/* --- memory */

static int file_without_memory;

static bool read_given(void)
{
    struct ms_arena names = {0};
    const bool is_read = read_list(file_without_memory, zip.bytes.count, &names);
    CHECK(is_read || strstr(fault.text, "out of memory") != NULL);
    CHECK_EQ(found.count, is_read ? given.count : 0);
    ms_heap_free(found.tensors);
    ms_arena_cleanup(&names);
    return is_read;
}

MS_TEST(a_torch_file_without_memory_is_refused_and_leaks_nothing)
{
    static char texts[40][8];
    struct part parts[40];
    for (size_t i = 0; i < 40; i++) {
        snprintf(texts[i], sizeof(texts[i]), "p%zu", i);
        parts[i] = (struct part){texts[i], "0", "FloatStorage", 4, 0, 4};
    }
    for (size_t count = 0; count <= 40; count += 40) {
        give(parts, count);
        make_zip();
        file_without_memory = file_of(&zip.bytes);
        without_each_piece(read_given, count == 0 ? 8 : 16);
        close(file_without_memory);
    }
}
