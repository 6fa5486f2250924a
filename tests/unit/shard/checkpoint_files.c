/* SPDX-License-Identifier: Apache-2.0 */
/* The line that explains a copy which waits while headers are read. Nothing here measures time. */
#include "runtime/files/file_internal.h"
#include "runtime/files/trust.h"
#include "runtime/shard/checkpoint_files.h"

#include "tests/unit/between.h"
#include "tests/unit/checkpoint/torch_bytes.h"
#include "tests/unit/files/files.h"

static struct ms_file *make_checkpoint(char path_out[64])
{
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    const uint64_t length = sizeof(header) - 1;
    strcpy(path_out, "/tmp/metashard-unit-XXXXXX.safetensors");
    const int file = mkstemps(path_out, (int)strlen(".safetensors"));
    CHECK(file >= 0);
    CHECK_EQ(write(file, &length, sizeof(length)), sizeof(length));
    CHECK_EQ(write(file, header, length), (ssize_t)length);
    CHECK_EQ(write(file, "data", 4), 4);
    close(file);
    struct stat stat_;
    CHECK_EQ(stat(path_out, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path_out);
    struct ms_file *source = ms_trust_open(&mapping, sizeof(length) + length + 4);
    CHECK(source != NULL);
    return source;
}

static bool take_index(void *context, size_t index, const struct ms_tensor *tensor)
{
    CHECK_EQ(tensor->bytes, 4);
    *(size_t *)context = index;
    return true;
}

/* The index of its only tensor; SIZE_MAX: it is no checkpoint that is known. */
static size_t index_of(const struct ms_file *source)
{
    size_t index = SIZE_MAX;
    ms_checkpoint_files_visit(source, 0, UINT64_MAX, take_index, &index);
    return index;
}

/* How many lines say that headers took long, when so many nanoseconds are too long. */
static int count_slow_lines(uint64_t slow_ns)
{
    char path[64];
    open_log(MS_WARN);
    ms_checkpoint_files_slow_ns = slow_ns;
    struct ms_file *source = make_checkpoint(path);
    CHECK_EQ(index_of(source), 0);
    unlink(path);
    ms_file_drop(source);
    return count_log_lines("s to read the names and places of its tensors");
}

MS_TEST(headers_that_take_longer_than_a_second_are_a_line)
{
    CHECK_EQ(ms_checkpoint_files_slow_ns, 1000000000);
    CHECK_EQ(count_slow_lines(0), 1);
}

MS_TEST(quick_headers_are_no_line)
{
    CHECK_EQ(count_slow_lines(UINT64_MAX), 0);
}

/* --- a checkpoint that is saved again */

/* Writes a checkpoint with that header, and returns it as a source. */
static struct ms_file *save_header(const char *path, const char *header, size_t data_bytes,
                                   int version)
{
    const uint64_t length = strlen(header);
    const struct timespec times[2] = {{1000 + version, 0}, {1000 + version, 0}};
    unlink(path);
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(write(file, &length, sizeof(length)), sizeof(length));
    CHECK_EQ(write(file, header, length), (ssize_t)length);
    CHECK_EQ(ftruncate(file, (off_t)(sizeof(length) + length + data_bytes)), 0);
    CHECK_EQ(futimens(file, times), 0);
    close(file);
    struct stat stat_;
    CHECK_EQ(stat(path, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path);
    struct ms_file *source = ms_trust_open(&mapping, sizeof(length) + length + data_bytes);
    CHECK(source != NULL);
    return source;
}

/* Saves one tensor of 4 bytes. */
static struct ms_file *save(const char *path, const char *tensor, int version)
{
    char header[128];
    snprintf(header, sizeof(header),
             "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", tensor);
    return save_header(path, header, 4, version);
}

static char saved[64], beside[64];

static void make_names(void)
{
    open_log(MS_WARN);
    snprintf(saved, sizeof(saved), "/tmp/metashard-unit-%d.safetensors", (int)getpid());
    snprintf(beside, sizeof(beside), "/tmp/metashard-unit-%d-b.safetensors", (int)getpid());
}

static void remove_names(void)
{
    unlink(saved);
    unlink(beside);
}

MS_TEST_AFTER(make_names, a_file_saved_again_under_its_name_is_known_once)
{
    struct ms_file *first = save(saved, "x", 0);
    CHECK_EQ(index_of(first), 0);
    for (int version = 1; version <= 5; version++) {
        struct ms_file *again = save(saved, "x", version);
        CHECK_EQ(index_of(again), 0);
        ms_file_drop(again);
    }
    CHECK_EQ(index_of(first), 0);
    CHECK_EQ(ms_checkpoint_files_count(), 1);
    ms_file_drop(first);
    remove_names();
}

MS_TEST_AFTER(make_names, a_file_in_the_place_of_one_that_is_gone_is_known_once)
{
    struct ms_file *first = save(saved, "x", 0);
    CHECK_EQ(index_of(first), 0);
    unlink(saved);
    struct ms_file *next = save(beside, "x", 1);
    CHECK_EQ(index_of(next), 0);
    CHECK_EQ(ms_checkpoint_files_count(), 1);
    ms_file_drop(first);
    ms_file_drop(next);
    remove_names();
}

MS_TEST_AFTER(make_names, a_file_beside_it_or_with_other_tensors_is_another)
{
    struct ms_file *first = save(saved, "x", 0);
    CHECK_EQ(index_of(first), 0);
    struct ms_file *copy = save(beside, "x", 1);
    CHECK_EQ(index_of(copy), 1);
    struct ms_file *other = save(saved, "y", 2);
    CHECK_EQ(index_of(other), 2);
    CHECK_EQ(ms_checkpoint_files_count(), 3);
    ms_file_drop(first);
    ms_file_drop(copy);
    ms_file_drop(other);
    remove_names();
}

/* A file is forgotten only when there are many others, and then read again. */
MS_TEST_AFTER(make_names, files_that_were_forgotten_are_read_again)
{
    enum { FILES = 12 };
    ms_checkpoint_files_most = FILES - 2;
    struct ms_file *kept = save(beside, "z", 0);
    CHECK_EQ(index_of(kept), 0);
    for (int version = 1; version <= FILES; version++) {
        struct ms_file *source = save(saved, "x", version);
        CHECK_EQ(index_of(source), 1);
        ms_file_drop(source);
    }
    CHECK_EQ(index_of(kept), 0);
    CHECK_EQ(ms_checkpoint_files_count(), 2);
    ms_file_drop(kept);
    remove_names();
}

/* The file that is at the path by now is compared with the recorded file of the source. */
MS_TEST_AFTER(make_names, a_file_is_known_by_what_it_was)
{
    struct ms_file *source = save(saved, "x", 0);
    const struct stat then = source->recorded;
    struct stat now[8];
    for (int i = 0; i < 8; i++)
        now[i] = then;
    now[0].st_dev++;
    now[1].st_ino++;
    now[2].st_size++;
    now[3].st_mtim.tv_sec++;
    now[4].st_mtim.tv_nsec++;
    now[5].st_ctim.tv_sec++;
    now[6].st_nlink++;
    CHECK_EQ(index_of(source), 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            source->recorded = now[i];
            CHECK_EQ(index_of(source), i < 5 ? SIZE_MAX : 0);
        }
    }
    source->recorded = then;
    CHECK_EQ(index_of(source), 0);
    CHECK_EQ(ms_checkpoint_files_count(), 1);
    ms_file_drop(source);
    remove_names();
}

/* --- the index of several files */

static char folder[] = "/tmp/metashard-unit-XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[2][64 + 64];
    static int turn;
    char *to = paths[turn ^= 1];
    snprintf(to, sizeof(paths[0]), "%s/%s", folder, name);
    return to;
}

/* Writes the index of two tensors in two files, one of them of that name. */
static void write_index(const char *index, const char *name, int number)
{
    FILE *file = fopen(in_folder(index), "w");
    CHECK(file != NULL);
    fprintf(file, "{\"weight_map\": {\"x%d\": \"%s\", \"y%d\": \"other.safetensors\"}}", number,
            name, number);
    fclose(file);
}

MS_TEST(files_of_one_index_are_known_together)
{
    static const struct {
        const char *name, *index;
        bool is_found;
    } rows[] = {
        {"m-00001-of-00002.safetensors", "m.safetensors.index.json", true},
        {"m-1-of-2.bin.safetensors", "m.safetensors.index.json", true},
        {"m-a-10-of-2.safetensors", "m-a.safetensors.index.json", true},
        {"m.safetensors", "m.safetensors.index.json", false},
        {"m-of-2.safetensors", "m.safetensors.index.json", false},
        {"m1-of-2.safetensors", "m.safetensors.index.json", false},
        {"1-of-2.safetensors", ".safetensors.index.json", false},
        {"m-x-of-2.safetensors", "m.safetensors.index.json", false},
        {"m-1x-of-2.safetensors", "m.safetensors.index.json", false},
        {"m-1-0f-2.safetensors", "m.safetensors.index.json", false},
        {"m-1-of-2.safetensors", "m.other.index.json", false},
        {"m-1-of-2", "m.index.json", false},
    };
    open_log(MS_ERROR);
    CHECK(mkdtemp(folder) != NULL);
    for (int i = 0; i < (int)(sizeof(rows) / sizeof(rows[0])); i++) {
        char x[16], y[16];
        snprintf(x, sizeof(x), "x%d", i);
        snprintf(y, sizeof(y), "y%d", i);
        const size_t before = ms_checkpoint_files_count();
        struct ms_file *other = save(in_folder("other.safetensors"), y, 2 * i);
        struct ms_file *one = save(in_folder(rows[i].name), x, 2 * i + 1);
        write_index(rows[i].index, rows[i].name, i);
        const size_t index = index_of(one);
        CHECK(index == before || index == before + 1 || strchr(rows[i].name, '.') == NULL);
        const size_t added = ms_checkpoint_files_count() - before;
        if (rows[i].is_found ? added != 2 : added > 1)
            ms_test_fail(__FILE__, __LINE__, "%s: %zu tensors", rows[i].name, added);
        if (added == 2) {
            CHECK_EQ(index_of(other), 2 * before + 1 - index);
            CHECK_EQ(ms_checkpoint_files_count(), before + 2);
        }
        ms_file_drop(one);
        ms_file_drop(other);
        unlink(in_folder(rows[i].index));
        unlink(in_folder(rows[i].name));
        unlink(in_folder("other.safetensors"));
    }
    CHECK_EQ(rmdir(folder), 0);
}

/* An index that lies beside a file, and is of others, is none of its own. */
MS_TEST(a_file_that_its_index_does_not_name_is_read_alone)
{
    static const char *const wrong[] = {"other.safetensors", NULL};
    open_log(MS_ERROR);
    CHECK(mkdtemp(folder) != NULL);
    for (int i = 0; i < 2; i++) {
        char x[16], y[16];
        snprintf(x, sizeof(x), "a%d", i);
        snprintf(y, sizeof(y), "y%d", i);
        const size_t before = ms_checkpoint_files_count();
        struct ms_file *other = save(in_folder("other.safetensors"), y, 2 * i);
        struct ms_file *one = save(in_folder("m-1-of-2.safetensors"), x, 2 * i + 1);
        FILE *file = fopen(in_folder("m.safetensors.index.json"), "w");
        CHECK(file != NULL);
        if (wrong[i] != NULL)
            fprintf(file, "{\"weight_map\": {\"y%d\": \"%s\"}}", i, wrong[i]);
        fclose(file);
        CHECK_EQ(index_of(one), before);
        CHECK_EQ(ms_checkpoint_files_count(), before + 1);
        ms_file_drop(one);
        ms_file_drop(other);
        unlink(in_folder("m.safetensors.index.json"));
        unlink(in_folder("m-1-of-2.safetensors"));
        unlink(in_folder("other.safetensors"));
    }
    CHECK_EQ(rmdir(folder), 0);
}

static unsigned stats;
WRAPS(stat64);
int __wrap_stat64(const char *path, struct stat64 *stat_out)
{
    stats++;
    return __real_stat64(path, stat_out);
}

/* How often files are asked about when an index names so many tensors of another file first. */
static unsigned stats_for(int tensors)
{
    char header[4096] = "{", index[4096] = "{\"weight_map\": {";
    for (int i = 0; i < tensors; i++) {
        snprintf(header + strlen(header), 128,
                 "\"a%d\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]}%s", i, 4 * i,
                 4 * i + 4, i < tensors - 1 ? "," : "}");
        snprintf(index + strlen(index), 128, "\"a%d\": \"a.safetensors\", ", i);
    }
    FILE *file = fopen(in_folder("m.safetensors.index.json"), "w");
    CHECK(file != NULL);
    fprintf(file, "%s\"z\": \"m-1-of-2.safetensors\"}}", index);
    fclose(file);
    struct ms_file *other =
        save_header(in_folder("a.safetensors"), header, 4 * (size_t)tensors, tensors);
    struct ms_file *one = save(in_folder("m-1-of-2.safetensors"), "z", tensors);
    const size_t before = ms_checkpoint_files_count();
    stats = 0;
    CHECK(index_of(one) != SIZE_MAX);
    const unsigned found = stats;
    CHECK_EQ(ms_checkpoint_files_count(), before + (size_t)tensors + 1);
    ms_file_drop(other);
    ms_file_drop(one);
    unlink(in_folder("m.safetensors.index.json"));
    unlink(in_folder("m-1-of-2.safetensors"));
    unlink(in_folder("a.safetensors"));
    return found;
}

MS_TEST(a_file_is_asked_about_as_often_whatever_it_holds)
{
    open_log(MS_ERROR);
    CHECK(mkdtemp(folder) != NULL);
    const unsigned few = stats_for(2), many = stats_for(30);
    CHECK_EQ(rmdir(folder), 0);
    CHECK(few > 0);
    CHECK_EQ(few, many);
}

/* --- tensors of torch.save, which may have the same bytes */

/* The names of the tensors that are visited, and a space behind each. */
struct visited {
    char names[128];
    int most;
};

static bool take_name(void *context, size_t index, const struct ms_tensor *tensor)
{
    struct visited *visited = context;
    CHECK(ms_checkpoint_files_at(index).offset == tensor->offset);
    strcat(strcat(visited->names, tensor->name), " ");
    return --visited->most > 0;
}

static void check_visited(const struct ms_file *source, uint64_t begin, uint64_t end, int most,
                          const char *wanted)
{
    struct visited visited = {.most = most};
    ms_checkpoint_files_visit(source, begin, end, take_name, &visited);
    if (strcmp(visited.names, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "[%d, %d): expected %s, found %s", (int)begin, (int)end,
                     wanted, visited.names);
}

/* Saves floats in one storage, whose bytes begin at *begin_out. */
static struct ms_file *save_views(const struct part *parts, size_t count, uint64_t *begin_out)
{
    static struct bytes text;
    static struct zip zip;
    static const char zeros[64];
    struct stat stat_;
    put_state(&text, parts, count);
    add_record(&zip, "archive/data.pkl", text.at, text.count);
    add_record(&zip, "archive/data/0", zeros, sizeof(zeros));
    end_zip(&zip);
    const int file = open(saved, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK_EQ(write(file, zip.bytes.at, zip.bytes.count), (ssize_t)zip.bytes.count);
    close(file);
    CHECK_EQ(stat(saved, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", saved);
    *begin_out = zip.data[1];
    return ms_trust_open(&mapping, zip.bytes.count);
}

MS_TEST_AFTER(make_names, the_last_view_may_lie_within_the_tensor_before_it)
{
    static const struct part views[] = {{"whole", "0", "FloatStorage", 16, 0, 16},
                                        {"part", "0", "FloatStorage", 16, 4, 4}};
    uint64_t begin;
    struct ms_file *source = save_views(views, 2, &begin);
    check_visited(source, begin, begin + 64, 9, "whole part ");
    check_visited(source, begin + 32, begin + 33, 9, "whole ");
    check_visited(source, begin + 63, begin + 64, 9, "whole ");
    check_visited(source, begin + 64, begin + 65, 9, "");
    ms_file_drop(source);
    remove_names();
}

MS_TEST_AFTER(make_names, a_view_may_lie_within_a_tensor_that_is_not_the_one_before)
{
    static const struct part views[] = {{"a", "0", "FloatStorage", 16, 0, 12},
                                        {"b", "0", "FloatStorage", 16, 2, 2},
                                        {"c", "0", "FloatStorage", 16, 5, 2},
                                        {"d", "0", "FloatStorage", 16, 14, 2}};
    uint64_t begin;
    struct ms_file *source = save_views(views, 4, &begin);
    check_visited(source, begin, begin + 64, 9, "a b c d ");
    check_visited(source, begin, begin + 64, 2, "a b ");
    check_visited(source, begin + 16, begin + 20, 9, "a ");
    check_visited(source, begin + 15, begin + 21, 9, "a b c ");
    check_visited(source, begin + 47, begin + 57, 9, "a d ");
    check_visited(source, begin + 48, begin + 56, 9, "");
    check_visited(source, begin + 63, begin + 64, 9, "d ");
    ms_file_drop(source);
    remove_names();
}
