/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program has read a file into unseen is the file's, if its bytes are: those in the
 * page cache are compared, of others a sample, and all when they are needed. */
#include "runtime/files/file.h"
#include "runtime/finding/uring.h"

#include "runtime/config/config.h"
#include "runtime/finding/find.h"
#include "runtime/finding/reads.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tools/simcuda/harness/deny.h"

enum { PART = 64 << 10, TENSORS = 4, TENSOR = 4 * PART + 1000, CHUNK = 1 << 20 };

static char path[] = "/var/tmp/metashard-opened-XXXXXX";
static unsigned char *data; /* of the whole file */
static size_t bytes, head;
static int file;
static unsigned char *memory;

static void remove_file(void)
{
    unlink(path);
}

static size_t write_header(char *text, size_t room)
{
    size_t used = 8;
    for (int i = 0; i < TENSORS; i++)
        used += (size_t)snprintf(text + used, room - used, "%c\"%d\":{\"data_offsets\":[%d,%d]}",
                                 i == 0 ? '{' : ',', i, i * TENSOR, (i + 1) * TENSOR);
    used += (size_t)snprintf(text + used, room - used, "}");
    const uint64_t length = used - 8;
    memcpy(text, &length, sizeof(length));
    return used;
}

static void write_all(void)
{
    const int made = open(path, O_WRONLY);
    CHECK_EQ(pwrite(made, data, bytes, 0), (ssize_t)bytes);
    close(made);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
}

/* Four tensors, and 8 MiB behind them that are none. */
static void make_file(void)
{
    char text[512];
    head = write_header(text, sizeof(text));
    bytes = head + TENSORS * (size_t)TENSOR + 8 * (size_t)CHUNK;
    data = malloc(bytes);
    memory = malloc(bytes);
    fill_randomly(data, bytes, 7);
    memcpy(data, text, head);
    const int made = mkstemp(path);
    CHECK(made >= 0);
    close(made);
    atexit(remove_file);
    write_all();
    ms_config.unseen_reads = true;
    file = open(path, O_RDONLY);
    ms_reads_note_open(file);
}

static bool is_cold(void)
{
    const struct test_file cold = {.descriptor = file, .bytes = bytes};
    return make_cold(&cold) && can_tell_cold(&cold);
}

static size_t cached_bytes(void)
{
    const struct test_file cold = {.descriptor = file, .bytes = bytes};
    return count_cached(&cold) * 4096;
}

static void make_cold_file(void)
{
    make_file();
    if (!is_cold())
        ms_test_skip("the page cache cannot be emptied here");
}

/* Reads it as io_uring does: nobody sees it. */
static unsigned char *read_unseen(size_t offset, size_t count)
{
    memcpy(memory, data + offset, count);
    return memory;
}

static size_t tensor_at(int tensor)
{
    return head + (size_t)tensor * TENSOR;
}

static struct ms_file *find(size_t count, size_t offset)
{
    uint64_t found_at = 0;
    struct ms_file *source = ms_find_file(memory, count, &found_at);
    CHECK(source == NULL || found_at == offset);
    return source;
}

static bool is_of_file(size_t count, size_t offset)
{
    struct ms_file *source = find(count, offset);
    if (source != NULL)
        ms_file_drop(source);
    return source != NULL;
}

static CUresult use(struct ms_file *source, size_t offset, size_t count)
{
    unsigned char *to = malloc(count);
    const void *read;
    const CUresult result = ms_source_read(ms_file_source(source), offset, to, count, &read);
    if (result == CUDA_SUCCESS)
        CHECK_BYTES(read, data + offset, count);
    free(to);
    return result;
}

static void check_tensors(void)
{
    static const int order[TENSORS] = {2, 0, 3, 1};
    for (int i = 0; i < TENSORS; i++) {
        const size_t at = tensor_at(order[i]);
        read_unseen(at, TENSOR);
        struct ms_file *source = find(TENSOR, at);
        CHECK(source != NULL);
        CHECK_EQ(use(source, at + 5, 70000), CUDA_SUCCESS);
        CHECK_EQ(use(source, at, TENSOR), CUDA_SUCCESS);
        CHECK_EQ(use(source, at, TENSOR), CUDA_SUCCESS);
        ms_file_drop(source);
    }
}

MS_TEST_AFTER(make_file, tensors_that_are_in_the_page_cache)
{
    check_tensors();
}

MS_TEST_AFTER(make_cold_file, tensors_that_are_not)
{
    check_tensors();
}

/* Behind the first chunk. */
static void check_samples(void)
{
    const size_t before = cached_bytes();
    for (size_t at = CHUNK; at + CHUNK <= bytes; at += CHUNK) {
        read_unseen(at, CHUNK);
        CHECK(is_of_file(CHUNK, at));
    }
    CHECK(cached_bytes() - before <= bytes / 64);
}

MS_TEST_AFTER(make_cold_file, little_is_read_from_the_disk)
{
    const size_t begin = bytes / PART * PART - 7 * CHUNK;
    read_unseen(begin + 1, CHUNK);
    CHECK(!is_of_file(CHUNK, begin + 1)); /* nothing leads there */
    read_unseen(0, CHUNK);
    CHECK(is_of_file(CHUNK, 0));
    check_samples();
}

/* A rank of four that reads every fourth. */
MS_TEST_AFTER(make_cold_file, chunks_that_others_read_are_left_out)
{
    for (size_t at = CHUNK; at + CHUNK <= bytes; at += 4 * CHUNK) {
        read_unseen(at, CHUNK);
        CHECK(is_of_file(CHUNK, at));
    }
}

static void check_changed(size_t place, bool is_seen_now)
{
    const size_t at = tensor_at(1);
    read_unseen(at, TENSOR);
    memory[place] ^= 1;
    struct ms_file *source = find(TENSOR, at);
    CHECK_EQ(source == NULL, is_seen_now);
    if (source == NULL)
        return;
    const size_t part = (at + place) / PART * PART;
    CHECK_EQ(use(source, at, part - at), CUDA_SUCCESS);
    CHECK_EQ(use(source, at + place, 1), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(use(source, part + PART, at + TENSOR - part - PART), CUDA_SUCCESS);
    CHECK_EQ(use(source, at, TENSOR), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, a_changed_byte_of_what_is_in_the_page_cache)
{
    static const size_t places[] = {0, 1000, PART, 2 * PART + 17, TENSOR - 1};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        check_changed(places[i], true);
}

MS_TEST_AFTER(make_cold_file, a_changed_byte_of_what_is_sampled)
{
    const size_t at = tensor_at(1), whole = (at + PART) / PART * PART - at;
    check_changed(0, true);
    check_changed(whole + 100, true);
    check_changed(TENSOR - 1, true);
}

MS_TEST_AFTER(make_cold_file, a_changed_byte_that_no_sample_has_fails_when_it_is_needed)
{
    const size_t at = tensor_at(1), whole = (at + PART) / PART * PART - at;
    open_log(MS_ERROR);
    check_changed(whole + PART + 100, false);
    CHECK(count_log_lines("METASHARD_UNSEEN_READS=off") > 0);
}

/* The sum of other bytes is not the file's sum either. */
MS_TEST_AFTER(make_cold_file, two_tensors_that_differ_are_not_both_the_files)
{
    const size_t at = tensor_at(1), whole = (at + PART) / PART * PART - at;
    read_unseen(at, TENSOR);
    struct ms_file *source = find(TENSOR, at);
    CHECK(source != NULL);
    memory[whole + PART + 100] ^= 1;
    CHECK(!is_of_file(TENSOR, at));
    CHECK_EQ(use(source, at, TENSOR), CUDA_SUCCESS);
    ms_file_drop(source);
}

static void open_again(void)
{
    close(file);
    file = open(path, O_RDONLY);
    ms_reads_note_open(file);
    if (!is_cold())
        ms_test_skip("the page cache cannot be emptied here");
}

/* The part in which that byte was changed cannot be read for anybody: right bytes of it, which are
 * compared as they are in the page cache by now, are not taken for the file's either. */
MS_TEST_AFTER(make_cold_file, right_bytes_do_not_fail_for_others_that_were_changed)
{
    const size_t at = tensor_at(1), whole = (at + PART) / PART * PART - at;
    read_unseen(at, TENSOR);
    memory[whole + PART + 100] ^= 1;
    struct ms_file *changed = find(TENSOR, at), *right;
    CHECK(changed != NULL);
    CHECK_EQ(pread(file, memory, TENSOR, (off_t)at), TENSOR); /* now it is cached */
    right = find(TENSOR, at);
    CHECK(right == NULL || use(right, at, TENSOR) == CUDA_SUCCESS);
    if (right != NULL)
        ms_file_drop(right);
    ms_file_drop(changed);
}

/* --- several places with the same sample */

/* `to` gets what is at `from`, but for a byte that no sample has; the page cache is emptied. */
static void make_twin(size_t from, size_t to, size_t count)
{
    memcpy(data + to, data + from, count);
    data[to + count / PART / 2 * PART + PART / 2] ^= 1;
}

static void write_twins(void)
{
    write_all();
    open_again();
}

/* Checks that the copied bytes are the file's, or a snapshot's. False: no source was found. */
static bool check_copied(const unsigned char *from, const char *whose, size_t at, size_t count)
{
    memcpy(memory, from + at, count);
    uint64_t found_at = 0;
    struct ms_file *source = ms_find_file(memory, count, &found_at);
    if (source == NULL)
        return false;
    CHECK_EQ(found_at, at);
    CHECK(strcmp(ms_file_path(source), whose) == 0);
    unsigned char *to = malloc(count);
    const void *read;
    CHECK_EQ(ms_source_read(ms_file_source(source), at, to, count, &read), CUDA_SUCCESS);
    CHECK_BYTES(read, from + at, count);
    free(to);
    ms_file_drop(source);
    return true;
}

static bool check_found(size_t at)
{
    read_unseen(at, TENSOR);
    return is_of_file(TENSOR, at);
}

MS_TEST_AFTER(make_file, tensors_with_the_same_sample_are_told_apart)
{
    static const int orders[][2] = {{0, 1}, {1, 0}, {3, 2}, {2, 3}};
    for (int i = 0; i < 2; i++)
        make_twin(tensor_at(2 * i), tensor_at(2 * i + 1), TENSOR);
    write_twins();
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 2; k++) {
            CHECK(check_copied(data, path, tensor_at(orders[i][k]), TENSOR));
            is_cold();
        }
    }
}

/* The first one has the sample of the third, and is where reads in order go on. */
STORY_AFTER(make_file, parts_of_tensors_with_the_same_sample_are_told_apart,
            make_twin(tensor_at(1), tensor_at(3), TENSOR), write_twins(),
            IS(check_copied(data, path, tensor_at(0), TENSOR)), is_cold(),
            check_copied(data, path, tensor_at(3), TENSOR - 1000))

MS_TEST_AFTER(make_file, chunks_with_the_same_sample_are_told_apart)
{
    for (int back = 0; back < 2; back++) {
        make_twin(5 * CHUNK, 3 * CHUNK, CHUNK);
        write_twins();
        CHECK(check_copied(data, path, 0, CHUNK));
        CHECK(check_copied(data, path, 2 * CHUNK, CHUNK));
        CHECK(check_copied(data, path, (back ? 4 : 1) * CHUNK, CHUNK) == back);
        check_copied(data, path, (back ? 3 : 5) * CHUNK, CHUNK);
    }
}

/* Those of one size that begin otherwise cost a page each, once. */
MS_TEST_AFTER(make_cold_file, a_tensor_of_its_own_sample_is_not_read_whole)
{
    for (int i = 0; i < TENSORS; i++) {
        const size_t before = cached_bytes(), more = i == 0 ? (TENSORS + 1) * 2 * 4096 : 0;
        CHECK(check_found(tensor_at(i)));
        CHECK(cached_bytes() - before < TENSOR * 3 / 4 + more);
    }
}

/* A sample of zeros would say nothing. */
MS_TEST_AFTER(make_file, bytes_that_are_nearly_all_the_same_are_compared)
{
    const size_t at = tensor_at(1), whole = (at + PART) / PART * PART - at;
    memset(data + at, 0, TENSOR);
    write_all();
    open_again();
    read_unseen(at, TENSOR);
    memory[whole + PART + 100] = 1;
    CHECK(!is_of_file(TENSOR, at));
    memory[whole + PART + 100] = 0;
    is_cold();
    CHECK(is_of_file(TENSOR, at));
}

MS_TEST_AFTER(make_file, bytes_of_which_a_quarter_is_the_same_are_sampled)
{
    enum { WORD = 8 };
    for (size_t at = CHUNK; at + 2 * WORD <= bytes; at += 4 * WORD)
        memcpy(data + at + WORD, data + at, WORD);
    write_all();
    open_again();
    read_unseen(0, CHUNK);
    CHECK(is_of_file(CHUNK, 0));
    check_samples();
}

MS_TEST_AFTER(make_cold_file, nothing_is_sampled_with_the_setting)
{
    ms_config.unseen_reads = false;
    read_unseen(tensor_at(0), TENSOR);
    CHECK(!is_of_file(TENSOR, tensor_at(0)));
    CHECK_EQ(pread(file, memory, TENSOR, (off_t)tensor_at(0)), TENSOR);
    CHECK(is_of_file(TENSOR, tensor_at(0)));
}

STORY_AFTER(make_cold_file, a_file_that_is_seen_is_left_alone, read_unseen(tensor_at(0), TENSOR),
            IS(is_of_file(TENSOR, tensor_at(0))), ms_reads_note_map(file),
            IS(!is_of_file(TENSOR, tensor_at(0))))

MS_TEST_AFTER(make_cold_file, a_file_of_which_more_than_a_header_is_read_is_left_alone)
{
    unsigned char *other = malloc(bytes);
    ms_reads_note(file, other, bytes / 16 - 1, 0, 0);
    read_unseen(tensor_at(0), TENSOR);
    CHECK(is_of_file(TENSOR, tensor_at(0)));
    ms_reads_note(file, other, 1, 0, 0);
    CHECK(!is_of_file(TENSOR, tensor_at(0)));
}

/* The read to this memory is known, so the memory was changed since. */
STORY_AFTER(make_cold_file, memory_that_was_read_to_is_left_alone,
            read_unseen(tensor_at(0), TENSOR),
            ms_reads_note(file, memory, PART * 4, (off_t)tensor_at(0), 0),
            IS(!is_of_file(TENSOR, tensor_at(0))))

MS_TEST_AFTER(make_cold_file, a_file_that_has_changed_is_read_anew)
{
    read_unseen(tensor_at(1), TENSOR);
    struct ms_file *source = find(TENSOR, tensor_at(1));
    CHECK(source != NULL);
    data[tensor_at(1) + 5] ^= 1;
    write_all();
    CHECK_EQ(use(source, tensor_at(1), TENSOR), CUDA_ERROR_OPERATING_SYSTEM);
    ms_file_drop(source);
    ms_reads_note_open(file);
    read_unseen(tensor_at(1), TENSOR);
    is_cold();
    CHECK(is_of_file(TENSOR, tensor_at(1)));
}

/* --- where it is looked for */

MS_TEST_AFTER(make_file, a_copy_that_begins_as_a_file_may_be_its_beginning)
{
    read_unseen(tensor_at(2), TENSOR);
    CHECK(is_of_file(TENSOR, tensor_at(2)));
    read_unseen(1, CHUNK);
    CHECK(!is_of_file(CHUNK, 1)); /* it begins as none */
    read_unseen(0, CHUNK);
    memory[CHUNK - 1] ^= 1;
    CHECK(!is_of_file(CHUNK, 0));
    memory[CHUNK - 1] ^= 1;
    CHECK(is_of_file(CHUNK, 0));
    read_unseen(CHUNK, CHUNK);
    CHECK(is_of_file(CHUNK, CHUNK));
}

MS_TEST_AFTER(make_file, large_copies_are_looked_for_further_on_until_many_were_not_there)
{
    enum { MISSES = 16 };
    read_unseen(0, CHUNK);
    CHECK(is_of_file(CHUNK, 0));
    read_unseen(2 * CHUNK, CHUNK);
    CHECK(is_of_file(CHUNK, 2 * CHUNK));
    read_unseen(4 * CHUNK - 1, CHUNK - 1);
    CHECK(!is_of_file(CHUNK - 1, 4 * CHUNK - 1)); /* it is too small for that */
    read_unseen(3 * CHUNK, CHUNK - 1);
    CHECK(is_of_file(CHUNK - 1, 3 * CHUNK));
    for (int misses = MISSES - 1; misses <= MISSES; misses++) {
        const size_t at = (size_t)(4 + 2 * (misses - MISSES + 1)) * CHUNK - 1;
        fill_randomly(memory, CHUNK, 99);
        for (int i = 0; i < misses; i++)
            CHECK(!is_of_file(CHUNK, 0));
        read_unseen(at + CHUNK, CHUNK);
        CHECK_EQ(is_of_file(CHUNK, at + CHUNK), misses < MISSES);
    }
    read_unseen(6 * CHUNK - 1, CHUNK);
    CHECK(is_of_file(CHUNK, 6 * CHUNK - 1)); /* where reads in order go on */
    read_unseen(8 * CHUNK - 1, CHUNK);
    CHECK(is_of_file(CHUNK, 8 * CHUNK - 1));
}

static char other_path[] = "/var/tmp/metashard-opened-XXXXXX";
static unsigned char *other_data;

static void remove_other(void)
{
    unlink(other_path);
}

/* Another one, alike but for the bytes of its tensors, and newer. */
static int make_other(void)
{
    const int made = mkstemp(other_path);
    CHECK(made >= 0);
    atexit(remove_other);
    other_data = malloc(bytes);
    fill_randomly(other_data, bytes, 8);
    memcpy(other_data, data, head);
    CHECK_EQ(pwrite(made, other_data, bytes, 0), (ssize_t)bytes);
    close(made);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    const int opened = open(other_path, O_RDONLY);
    ms_reads_note_open(opened);
    return opened;
}

static void check_whose(const unsigned char *from, size_t at, const char *wanted)
{
    memcpy(memory, from + at, TENSOR);
    struct ms_file *source = find(TENSOR, at);
    CHECK_EQ(source != NULL, wanted != NULL);
    if (source == NULL)
        return;
    CHECK(strcmp(ms_file_path(source), wanted) == 0);
    ms_file_drop(source);
}

/* A checkpoint that was edited from another one. */
static void make_edited(size_t at, size_t count)
{
    make_other();
    memcpy(other_data, data, bytes);
    other_data[at + count / PART / 2 * PART + PART / 2] ^= 1;
    const int made = open(other_path, O_RDWR);
    CHECK_EQ(pwrite(made, other_data, bytes, 0), (ssize_t)bytes);
    CHECK_EQ(fdatasync(made), 0);
    CHECK_EQ(posix_fadvise(made, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(made);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    open_again();
}

static bool check_edited(bool is_other, size_t at, size_t count)
{
    is_cold();
    return check_copied(is_other ? other_data : data, is_other ? other_path : path, at, count);
}

/* Whichever the program reads first. */
static void check_tensors_of_files(bool is_other_first)
{
    make_file();
    make_edited(tensor_at(1), TENSOR);
    for (int i = 0; i < 3; i++)
        CHECK(check_edited((i % 2 == 0) == is_other_first, tensor_at(1), TENSOR));
}

MS_TEST(tensors_of_files_with_the_same_sample_are_told_apart)
{
    check_tensors_of_files(false);
}

MS_TEST(tensors_of_files_with_the_same_sample_are_told_apart_the_other_first)
{
    check_tensors_of_files(true);
}

static void check_starts_of_files(bool is_other_first, bool has_header)
{
    make_file();
    if (!has_header) {
        fill_randomly(data, head, 3);
        write_all();
    }
    make_edited(0, CHUNK);
    for (int i = 0; i < 2; i++)
        check_edited((i == 0) == is_other_first, 0, CHUNK);
}

MS_TEST(starts_of_files_with_the_same_sample_are_told_apart)
{
    check_starts_of_files(false, true);
}

MS_TEST(starts_of_files_with_the_same_sample_are_told_apart_the_other_first)
{
    check_starts_of_files(true, true);
}

MS_TEST(starts_of_files_without_a_header_are_told_apart)
{
    check_starts_of_files(false, false);
}

MS_TEST(starts_of_files_without_a_header_are_told_apart_the_other_first)
{
    check_starts_of_files(true, false);
}

/* Descriptors of the first file in the file thread's table. */
static void count_open(void *count_out)
{
    char link[64], to[256];
    for (int number = 0; number < 1024; number++) {
        snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", number);
        const ssize_t length = readlink(link, to, sizeof(to) - 1);
        to[length > 0 ? length : 0] = '\0';
        *(int *)count_out += strcmp(to, path) == 0;
    }
}

static int open_count(void)
{
    int count = 0;
    CHECK(ms_file_thread_call(count_open, &count));
    return count;
}

MS_TEST_AFTER(make_file, each_of_several_files_is_looked_in_until_it_is_seen)
{
    const int before = open_count();
    const int other = make_other();
    for (int i = 0; i < 2 * TENSORS; i++)
        check_whose(i % 3 != 0 ? data : other_data, tensor_at(i % TENSORS),
                    i % 3 != 0 ? path : other_path);
    CHECK_EQ(open_count(), before + 1);
    ms_reads_note_map(file);
    check_whose(data, tensor_at(2), NULL);
    CHECK_EQ(open_count(), before);
    check_whose(other_data, tensor_at(2), other_path);
    ms_reads_note_map(other);
    check_whose(other_data, tensor_at(2), NULL);
    close(other);
}

/* In what a file differs from what it was before: its header has changed. */
enum changed { IN_NOTHING, IN_BYTES, IN_SECONDS, IN_NANOSECONDS };

/* The first tensor begins a byte later. */
static void change_header(enum changed changed)
{
    struct stat stat;
    const int made = open(path, O_WRONLY);
    char *first = memmem(data, head, "[0,", 3);
    CHECK(first != NULL && fstat(made, &stat) == 0);
    first[1] = '1';
    CHECK_EQ(pwrite(made, data, head, 0), (ssize_t)head);
    if (changed == IN_BYTES)
        CHECK_EQ(pwrite(made, "x", 1, (off_t)bytes), 1);
    struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, stat.st_mtim};
    times[1].tv_sec -= changed == IN_SECONDS;
    times[1].tv_nsec ^= changed == IN_NANOSECONDS;
    CHECK_EQ(futimens(made, times), 0);
    close(made);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    ms_reads_note_open(file);
}

static void check_header_is_read(enum changed changed)
{
    make_file();
    read_unseen(tensor_at(1), TENSOR);
    CHECK(is_of_file(TENSOR, tensor_at(1)));
    change_header(changed);
    read_unseen(head + 1, TENSOR - 1);
    CHECK_EQ(is_of_file(TENSOR - 1, head + 1), changed != IN_NOTHING);
    read_unseen(tensor_at(3), TENSOR);
    CHECK(is_of_file(TENSOR, tensor_at(3)));
}

/* Links, rights and names change nothing in it. */
MS_TEST(a_header_is_read_once)
{
    check_header_is_read(IN_NOTHING);
}

MS_TEST(a_header_is_read_again_when_the_file_has_another_size)
{
    check_header_is_read(IN_BYTES);
}

MS_TEST(a_header_is_read_again_after_seconds)
{
    check_header_is_read(IN_SECONDS);
}

MS_TEST(a_header_is_read_again_after_nanoseconds)
{
    check_header_is_read(IN_NANOSECONDS);
}
