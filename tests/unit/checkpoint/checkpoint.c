/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/unit/between.h"
#include "tests/unit/checkpoint/checkpoint_folder.h"
#include "tests/unit/counted_pages.h"

static struct ms_fault fault;

static struct ms_checkpoint *open_path(const char *path)
{
    const int pieces = live, descriptors = open_descriptors();
    struct ms_checkpoint *checkpoint = NULL;
    fault.text[0] = '\0';
    const bool is_open = ms_checkpoint_open(path, &checkpoint, &fault);
    CHECK_EQ(is_open, checkpoint != NULL);
    CHECK_EQ(is_open, fault.text[0] == '\0');
    CHECK_EQ(open_descriptors(), descriptors);
    if (!is_open)
        CHECK_EQ(live, pieces);
    return checkpoint;
}

/* `why`: a part of the fault's text; NULL: the path has no fault. */
static void check_path(const char *path, const char *why)
{
    struct ms_checkpoint *checkpoint = open_path(path);
    if ((checkpoint != NULL) != (why == NULL) || (why != NULL && strstr(fault.text, why) == NULL))
        ms_test_fail(__FILE__, __LINE__, "%.80s: expected %s, found %s", path,
                     why != NULL ? why : "no fault", fault.text);
    ms_checkpoint_close(checkpoint);
    CHECK_EQ(live, 0);
}

static void check(const char *name, const char *why)
{
    check_path(in_folder(name), why);
}

/* "FILE:NAME@OFFSET+BYTES " of each tensor. */
static void check_tensors(const char *path, const char *wanted)
{
    static char text[4096];
    size_t length = 0;
    struct ms_checkpoint *checkpoint = open_path(path);
    if (checkpoint == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++) {
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, i);
        CHECK_EQ(tensor.dims, 1);
        CHECK_EQ(tensor.elements, tensor.shape[0]);
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s:%s@%zu+%zu ",
                                   strrchr(tensor.file, '/') + 1, tensor.name,
                                   (size_t)tensor.offset, (size_t)tensor.bytes);
    }
    if (strcmp(text, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", wanted, text);
    ms_checkpoint_close(checkpoint);
    CHECK_EQ(live, 0);
}

#define U8(name, count, offsets) \
    "'" name "':{'dtype':'U8','shape':[" count "],'data_offsets':[" offsets "]}"
#define ONE(name) "{" U8(name, "4", "0,4") "}" /* of 4 bytes of data */

/* --- a file of safetensors */

static const char disordered[] =
    "{" U8("Z", "2", "4,6") "," U8("b", "0", "4,4") ",'__metadata__':{'x':'y'}," U8(
        "a", "0", "4,4") "," U8("first", "4", "0,4") "}";

MS_TEST_AFTER(make_folder, tensors_are_in_the_order_of_their_bytes_and_names)
{
    char wanted[256];
    const int data = 8 + (int)strlen(disordered);
    save("x.safetensors", disordered, 6);
    snprintf(wanted, sizeof(wanted),
             "x.safetensors:first@%d+4 x.safetensors:a@%d+0 x.safetensors:b@%d+0 "
             "x.safetensors:Z@%d+2 ",
             data, data + 4, data + 4, data + 4);
    check_tensors(in_folder("x.safetensors"), wanted);
    save("x.safetensors", "{}", 0);
    check("x.safetensors", NULL);
}

STORY_AFTER(make_folder, a_header_says_how_long_it_is, put_file("x", "\2\0\0\0\0\0\0", 7),
            check("x", "expected at least the 8 bytes of the header's length"),
            put_file("x", "\0\0\0\0\0\0\0\0", 8), check("x", ":1:1: "),
            put_file("x", "\2\0\0\0\0\0\0\0{}", 10), check("x", NULL),
            put_file("x", "\3\0\0\0\0\0\0\0{}", 10),
            check("x", "a header of at most 2 bytes, found 3"),
            put_file("x", "\2\0\0\0\0\0\0\1{}", 10), check("x", "found 72057594037927938"),
            EQUALS(truncate(in_folder("x"), 8 + 99999990), 0),
            check("x", "a header of at most 99999990 bytes, found"),
            put_file("y", "\0\341\365\5\0\0\0\0", 8),
            EQUALS(truncate(in_folder("y"), 8 + 100000000), 0), check("y", ":1:1: "),
            put_file("y", "\1\341\365\5\0\0\0\0", 8),
            EQUALS(truncate(in_folder("y"), 8 + 100000001), 0),
            check("y", "a header of at most 100000000 bytes, found 100000001"))

MS_TEST_AFTER(make_folder, a_header_says_what_its_tensors_are)
{
    static const struct {
        const char *header, *why;
    } rows[] = {
        {"[]", "expected an object of tensors as header"},
        {"{'a':[]}", ": a: "},
        {"{'a':{'shape':[4],'data_offsets':[0,4]}}", ": a.dtype: "},
        {"{'a':{'dtype':'U8','data_offsets':[0,4]}}", ": a.shape: "},
        {"{'a':{'dtype':'U8','shape':[4]}}", ": a.data_offsets: expected [begin, end]"},
        {"{" U8("a", "4", "0") "}", ": a.data_offsets: expected [begin, end]"},
        {"{" U8("a", "4", "0,4,4") "}", ": a.data_offsets: expected [begin, end]"},
        {"{" U8("a", "0", "5,5") "," U8("b", "4", "0,4") "}",
         ": a.data_offsets: expected an integer from 0 to 4"},
        {"{'a':{'dtype':'U8','shape':[4],'data_offsets':{'x':0,'y':4}}}",
         ": a.data_offsets: expected [begin, end]"},
        {"{" U8("a", "4", "-1,4") "}", ": a.data_offsets: expected an integer from 0 to 4"},
        {"{" U8("a", "5", "0,5") "}", ": a.data_offsets: expected an integer from 0 to 4"},
        {"{" U8("a", "0", "4,3") "}", ": a.data_offsets: expected an integer from 4 to 4"},
        {"{" U8("a", "3", "0,4") "}",
         ": a.data_offsets: expected 3 bytes for dtype and shape, found 4"},
        {"{" U8("a", "2", "0,2") "," U8("b", "1", "2,4") "}",
         ": b.data_offsets: expected 1 bytes for dtype and shape, found 2"},
        {"{" U8("a", "4", "0,3") "}",
         ": a.data_offsets: expected 4 bytes for dtype and shape, found 3"},
        {"{" U8("a", "3", "1,4") "}",
         ": a: expected data_offsets to begin at 0, where the tensor before ends, found 1"},
        {"{" U8("a", "2", "0,2") "," U8("b", "1", "3,4") "}",
         ": b: expected data_offsets to begin at 2"},
        {"{" U8("a", "3", "0,3") "," U8("b", "2", "2,4") "}",
         ": b: expected data_offsets to begin at 3"},
        {"{" U8("a", "3", "0,3") "}", "expected 3 bytes of data, found 4"},
        {"{}", "expected 0 bytes of data, found 4"},
        {"{" U8("a", "0", "4,4") "," U8("b", "4", "0,4") "}", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        save("x.safetensors", rows[i].header, 4);
        check("x.safetensors", rows[i].why);
    }
}

MS_TEST_AFTER(make_folder, a_file_of_another_format_is_called_by_its_name)
{
    put_file("x", "version https://git-lfs.github.com/spec/v1\n", 43);
    check("x", "found a pointer of Git LFS");
    put_file("x", "GGUF\3\0\0\0\0", 9);
    check("x", "found one of GGUF");
    put_file("x", "{       \n}", 10);
    check("x", "found JSON: give the folder of the weights");
    put_file("x", " {      \n}", 10);
    check("x", "expected a safetensors file, with a header of at most 2 bytes");
}

/* --- paths */

MS_TEST_AFTER(make_folder, a_path_that_leads_to_nothing_may_be_the_name_of_a_model)
{
    static const struct {
        const char *path;
        bool is_model;
    } rows[] = {{"owner/name", true}, {"owner/a/b", false}, {"/name", false},
                {"owner/", false},    {"name", false},      {"./name", false},
                {"~owner/me", false}, {"o/x.json", false},  {"o/x.safetensors", false}};
    CHECK_EQ(chdir(test_folder), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_path(rows[i].path, "cannot be opened: No such file or directory");
        if ((strstr(fault.text, "; of a model of a hub, ") != NULL) != rows[i].is_model)
            ms_test_fail(__FILE__, __LINE__, "%s: %s", rows[i].path, fault.text);
    }
    put_file("file", "", 0);
    check_path("file/x", "cannot be opened: Not a directory");
    CHECK(strstr(fault.text, "hub") == NULL);
}

STORY_AFTER(make_folder, a_path_to_no_file_and_no_folder_is_not_opened,
            EQUALS(mkfifo(in_folder("x.safetensors"), 0600), 0),
            check("x.safetensors", "x.safetensors: expected a file"), put_file("x.distcp", "", 0),
            check("x.distcp", "torch.distributed.checkpoint"), EQUALS(chdir(test_folder), 0),
            EQUALS(rename("x.distcp", ".distcp"), 0),
            check_path(".distcp", "torch.distributed.checkpoint"),
            put_json("json", "{'weight_map':{}}"), check_path("json", "found JSON"),
            EQUALS(symlink("nowhere", in_folder("z.bin")), 0), unlink(in_folder("x.safetensors")),
            check("", "z.bin: cannot be opened: No such file"), ms_checkpoint_close(NULL))

/* --- folders */

STORY_AFTER(make_folder, a_folder_without_weights_says_what_it_has,
            check("", "expected safetensors files, or files of torch.save, in this folder"),
            put_file("config.json", "{}", 2), check("", "found config.json without them"),
            put_file("x.gguf", "", 0), check("", "found one of GGUF"), put_file(".metadata", "", 0),
            check("", "torch.distributed.checkpoint"), save(".hidden.safetensors", ONE("h"), 4),
            check("", "torch.distributed.checkpoint"), save("safetensors", ONE("h"), 4),
            check("", "torch.distributed.checkpoint"), save(".pt", ONE("h"), 4),
            check("", "torch.distributed.checkpoint"))

/* No more descriptors than these may be open. */
static void check_without_descriptors(rlim_t most, const char *why)
{
    struct ms_checkpoint *checkpoint;
    struct rlimit before, limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = most;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK(!ms_checkpoint_open(test_folder, &checkpoint, &fault));
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (strstr(fault.text, why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    CHECK_EQ(live, 0);
}

MS_TEST_AFTER(make_folder, a_folder_that_cannot_be_opened_is_said_to_be_so)
{
    const int lowest = dup(0);
    close(lowest);
    save("x.safetensors", ONE("x"), 4);
    char why[64];
    snprintf(why, sizeof(why), "%s: cannot be opened: Too many", test_folder);
    check_without_descriptors((rlim_t)lowest, why);
    put_json("model.safetensors.index.json", "{'weight_map':{'x':'x.safetensors'}}");
    check_without_descriptors((rlim_t)lowest, "index.json: cannot be opened: Too many");
}

static const struct part some_parts[] = {{"w", "0", "FloatStorage", 16, 4, 8},
                                         {"odd", "0", "ComplexDoubleStorage", 4, 0, 4}};

/* Files of one tensor each, made in another order than that of their names, and the text of that
 * as check_tensors has it. */
static const char *save_many(int count)
{
    static char wanted[4096];
    char name[32], header[128];
    wanted[0] = '\0';
    for (int i = 0; i < count; i++) {
        const int number = 10 + (i * 7 + 3) % count;
        snprintf(name, sizeof(name), "%d.safetensors", number);
        snprintf(header, sizeof(header), "{" U8("w%d", "4", "0,4") "}", number);
        save(name, header, 4);
        sprintf(wanted + strlen(wanted), "%d.safetensors:w%d@%zu+4 ", 10 + i, 10 + i,
                8 + strlen(header));
    }
    return wanted;
}

/* Their index, in that order as well. */
static void index_many(int count)
{
    char index[64 * 40] = "{'weight_map':{";
    for (int i = 0; i < count; i++) {
        const int number = 10 + (i * 7 + 3) % count;
        sprintf(index + strlen(index), "%s'w%d':'%d.safetensors'", i > 0 ? "," : "", number,
                number);
    }
    strcat(index, "}}");
    put_json("model.safetensors.index.json", index);
}

MS_TEST_AFTER(make_folder, files_are_read_in_the_order_of_their_names)
{
    const char *wanted = save_many(20);
    save_torch("a.bin", some_parts, 1); /* these are not */
    put_file("pytorch_model.bin.index.json", "", 0);
    check_tensors(test_folder, wanted);
    index_many(20);
    check_tensors(test_folder, wanted);
    unlink(in_folder("model.safetensors.index.json"));
    save("c.safetensors", ONE("w12"), 4);
    check("", "12.safetensors: tensor w12 is in c.safetensors too");
}

MS_TEST_AFTER(make_folder, files_of_torch_save_are_read_where_there_are_no_others)
{
    static const char *const names[] = {"x.bin", "x.pt", "x.pth"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        save_torch(names[i], some_parts, 2);
        struct ms_checkpoint *checkpoint = open_path(test_folder);
        CHECK(checkpoint != NULL);
        CHECK_EQ(ms_checkpoint_count(checkpoint), 1);
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, 0);
        CHECK(strcmp(tensor.file, in_folder(names[i])) == 0);
        CHECK_EQ(tensor.bytes, 32);
        CHECK_EQ(tensor.dtype, MS_DTYPE_F32);
        ms_checkpoint_close(checkpoint);
        CHECK_EQ(live, 0);
        unlink(in_folder(names[i]));
    }
}

MS_TEST_AFTER(make_folder, a_path_has_an_end)
{
    static char path[4200];
    memset(path, '/', sizeof(path) - 1);
    memcpy(path, test_folder, strlen(test_folder));
    path[4001] = '\0';
    check_path(path, "the path is too long");
    path[4000] = '\0';
    check_path(path, "in this folder");
    char name[128] = "";
    memset(name, 'n', 95 - strlen(".safetensors"));
    strcat(name, ".safetensors");
    save(name, ONE("x"), 4);
    check_path(path, ".safetensors is too long");
    unlink(in_folder(name));
    save(name + 1, ONE("x"), 4);
    check_path(path, NULL);
}

/* --- an index */

static void save_two(void)
{
    make_folder();
    save("one.safetensors", "{" U8("a", "1", "0,1") "," U8("b", "1", "1,2") "}", 2);
    save("two.safetensors", ONE("c"), 4);
}

MS_TEST_AFTER(save_two, an_index_has_the_tensors_of_its_files)
{
    static const struct {
        const char *map, *why;
    } rows[] = {
        {"'a':'one.safetensors','c':'two.safetensors','b':'one.safetensors'", NULL},
        {"'a':'one.safetensors','c':'two.safetensors'", "weight_map: expected tensor b of one.saf"},
        {"'c':'two.safetensors','a':'two.safetensors','b':'one.safetensors'",
         "expected tensor a of one"},
        {"'c':'two.safetensors','d':'two.safetensors'",
         "expected the 1 tensors of the files, found 2"},
        {"'a':'one.safetensors','b':'one.safetensors'", NULL},
        {"'c':'two.safetensors','d':'no.safetensors'", "no.safetensors: cannot be opened"},
        {"'c':''", "weight_map.c: expected the name of a file in this folder"},
        {"'c':3", "weight_map.c: expected the name of a file in this folder"},
        {"'c':'.two'", "weight_map.c: expected the name of a file in this folder"},
        {"'c':'x/two'", "weight_map.c: expected the name of a file in this folder"},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "{'metadata':{},'weight_map':{%s}}", rows[i].map);
        put_json("model.safetensors.index.json", text);
        check("model.safetensors.index.json", rows[i].why);
        check("", rows[i].why); /* the folder's */
    }
    put_json("model.safetensors.index.json", "{'weight_map':[]}");
    check("", "weight_map: expected an object of file names");
    put_json("model.safetensors.index.json", "{}");
    check("", "weight_map: expected an object of file names");
    put_json("model.safetensors.index.json", "{");
    check("", "index.json:1:2: ");
    CHECK_EQ(truncate(in_folder("model.safetensors.index.json"), 100000001), 0);
    check("", "expected at most 100000000 bytes, found 100000001");
    save("two.safetensors", ONE("a"), 4);
    put_json("model.safetensors.index.json",
             "{'weight_map':{'a':'one.safetensors','b':'two.safetensors'}}");
    check("", "one.safetensors: tensor a is in two.safetensors too");
}

MS_TEST_AFTER(save_two, an_index_names_files_of_its_own_folder)
{
    char name[257] = "", text[512];
    put_json("x.index.json", "{'weight_map':{'c':'two.safetensors'}}");
    CHECK_EQ(chdir(test_folder), 0);
    check_path("x.index.json", NULL);
    CHECK_EQ(chdir("/"), 0);
    memset(name, 'n', 256);
    snprintf(text, sizeof(text), "{'weight_map':{'c':'%s'}}", name);
    put_json("x.index.json", text);
    check("x.index.json", "expected the name of a file in this folder");
    name[255] = '\0';
    save(name, ONE("c"), 4);
    snprintf(text, sizeof(text), "{'weight_map':{'c':'%s'}}", name);
    put_json("x.index.json", text);
    check("x.index.json", NULL);
}

STORY_AFTER(make_folder, an_index_may_list_tensors_that_are_skipped,
            save_torch("x.bin", some_parts, 2), save_torch("y.bin", some_parts, 2),
            put_json("pytorch_model.bin.index.json", "{'weight_map':{'w':'x.bin','odd':'x.bin'}}"),
            check("", NULL),
            put_json("pytorch_model.bin.index.json",
                     "{'weight_map':{'w':'x.bin','odd':'x.bin','v':'x.bin'}}"),
            check("", "expected the 1 tensors of the files, found 3"))

/* --- memory */

static bool open_folder(void)
{
    struct ms_checkpoint *checkpoint = open_path(test_folder);
    CHECK(checkpoint != NULL || strstr(fault.text, "out of memory") != NULL);
    ms_checkpoint_close(checkpoint);
    return checkpoint != NULL;
}

/* Saves tensors of one byte with long names, in their order or the last ones first. */
static void save_long(bool is_sorted)
{
    enum { TENSORS = 3000 };
    static char header[1 << 20];
    static struct bytes bytes;
    char *end = header;
    *end++ = '{';
    for (int i = 0; i < TENSORS; i++) {
        const int at = is_sorted ? i : TENSORS - 1 - i;
        end += sprintf(end, "%s'%0120d':{'dtype':'U8','shape':[1],'data_offsets':[%d,%d]}",
                       i > 0 ? "," : "", at, at, at + 1);
    }
    strcpy(end, "}");
    bytes.count = 0;
    put_number(&bytes, strlen(header), 8);
    put_line(&bytes, quoted(header));
    put_number(&bytes, 0, TENSORS);
    put_file("2.safetensors", bytes.at, bytes.count);
}

MS_TEST_AFTER(make_folder, many_tensors_are_sorted_if_they_have_to_be)
{
    save("1.safetensors", disordered, 6);
    save_long(false);
    struct ms_checkpoint *checkpoint = open_path(test_folder);
    CHECK(checkpoint != NULL);
    CHECK_EQ(ms_checkpoint_count(checkpoint), 3004);
    const size_t data = (size_t)ms_checkpoint_tensor(checkpoint, 4).offset;
    for (size_t i = 0; i < 3000; i++) {
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, 4 + i);
        CHECK_EQ(tensor.offset, data + i);
        CHECK_EQ(atoi(tensor.name), i);
    }
    ms_checkpoint_close(checkpoint);
    const int pieces = without_each_piece(open_folder, 12);
    save_long(true);
    CHECK_EQ(without_each_piece(open_folder, 12), pieces - 1);
}

MS_TEST_AFTER(make_folder, a_header_may_fill_its_pages)
{
    static struct bytes bytes;
    bytes.count = 0;
    put_number(&bytes, PAGE_BYTES, 8);
    put_line(&bytes, quoted(ONE("x")));
    while (bytes.count < 8 + (PAGE_BYTES))
        put_line(&bytes, " ");
    put_number(&bytes, 0, 4);
    put_file("x", bytes.at, bytes.count);
    check("x", NULL);
}

MS_TEST_AFTER(make_folder, an_open_checkpoint_has_no_memory_but_for_its_tensors)
{
    save("x", ONE("x"), 4);
    struct ms_checkpoint *checkpoint = open_path(in_folder("x"));
    CHECK_EQ(live, 5); /* itself, names, forms, tensors, files */
    ms_checkpoint_close(checkpoint);
}

STORY_AFTER(make_folder, a_checkpoint_without_memory_is_refused_and_leaks_nothing,
            save_torch("x.pt", some_parts, 2), without_each_piece(open_folder, 14), save_many(20),
            without_each_piece(open_folder, 40), index_many(20),
            without_each_piece(open_folder, 50))

/* --- a tensor's size */

MS_TEST(a_tensor_has_whole_bytes_and_less_than_2_to_the_63)
{
    static const char much[] = "expected a shape of less than 2^63 bytes",
                      many[] = "expected a shape of less than 2^63 elements",
                      part[] = "expected a shape with a whole number of bytes in this dtype";
    const uint64_t limit = UINT64_C(1) << 63, half = UINT64_C(1) << 32;
    const struct {
        enum ms_dtype dtype;
        unsigned dims;
        uint64_t shape[3], elements, bytes;
        const char *fault;
    } rows[] = {
        {MS_DTYPE_U8, 0, {0}, 1, 1, NULL},
        {MS_DTYPE_I16, 2, {3, 5}, 15, 30, NULL},
        {MS_DTYPE_I16, 2, {3, 0}, 0, 0, NULL},
        {MS_DTYPE_F4, 1, {16}, 16, 8, NULL},
        {MS_DTYPE_F4, 1, {10}, 10, 5, NULL},
        {MS_DTYPE_F4, 1, {3}, 0, 0, part},
        {MS_DTYPE_F4, 0, {0}, 0, 0, part},
        {MS_DTYPE_F4, 2, {0, 3}, 0, 0, NULL},
        {MS_DTYPE_F6_E2M3, 1, {4}, 4, 3, NULL},
        {MS_DTYPE_F6_E2M3, 1, {12}, 12, 9, NULL},
        {MS_DTYPE_F6_E2M3, 1, {2}, 0, 0, part},
        {MS_DTYPE_U8, 1, {limit - 1}, limit - 1, limit - 1, NULL},
        {MS_DTYPE_U8, 1, {limit}, 0, 0, much},
        {MS_DTYPE_I16, 1, {limit / 2 - 1}, limit / 2 - 1, limit - 2, NULL},
        {MS_DTYPE_I16, 1, {limit / 2}, 0, 0, much},
        {MS_DTYPE_I16, 1, {limit}, 0, 0, much},
        {MS_DTYPE_F4, 1, {limit - 8}, limit - 8, limit / 2 - 4, NULL},
        {MS_DTYPE_F4, 1, {limit}, 0, 0, many},
        {MS_DTYPE_U8, 2, {half, half}, 0, 0, much},
        {MS_DTYPE_U8, 3, {0, half, half}, 0, 0, much},
        {MS_DTYPE_U8, 3, {half, half, 0}, 0, 0, much},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ms_tensor tensor = {.dtype = rows[i].dtype, .dims = rows[i].dims};
        memcpy(tensor.shape, rows[i].shape, sizeof(rows[i].shape));
        const char *seen = ms_tensor_measure(&tensor);
        if (tensor.elements != rows[i].elements || tensor.bytes != rows[i].bytes ||
            strcmp(seen != NULL ? seen : "", rows[i].fault != NULL ? rows[i].fault : "") != 0)
            ms_test_fail(__FILE__, __LINE__, "row %zu: %llu elements, %llu bytes, %s", i,
                         (unsigned long long)tensor.elements, (unsigned long long)tensor.bytes,
                         seen != NULL ? seen : "no fault");
    }
}
