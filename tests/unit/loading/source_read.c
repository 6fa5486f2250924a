/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/source_read.h"

#include "runtime/files/descriptor.h"
#include "runtime/files/file_read.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/sums.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

enum { PART = MS_SUMS_PART, BYTES = 3 * PART + 100 };

static struct test_file file;
static unsigned char buffer[BYTES + PART];

static void start(void)
{
    open_log(MS_WARN);
    make_test_file(&file, "/tmp", BYTES);
}

/* A read in the file thread. */
static struct {
    uint64_t offset;
    size_t bytes;
    bool is_checked; /* against the sums: what `buffer` has at this offset */
    bool is_good;
    struct ms_file_failure failure;
} asked;

static void ask_there(void *argument)
{
    (void)argument;
    unsigned char *at = buffer + (asked.is_checked ? asked.offset : 0);
    asked.is_good =
        asked.is_checked
            ? ms_source_read_check(file.opened, asked.offset, at, asked.bytes, &asked.failure)
            : ms_file_read_now(file.opened, asked.offset, at, asked.bytes, &asked.failure);
}

static bool ask(bool is_checked, uint64_t offset, size_t bytes)
{
    asked.offset = offset;
    asked.bytes = bytes;
    asked.is_checked = is_checked;
    asked.failure = (struct ms_file_failure){0};
    const int before = live;
    CHECK(ms_file_thread_call(ask_there, NULL));
    CHECK_EQ(live, before);
    CHECK_EQ(atomic_load(&file.opened->under_read), 0);
    return asked.is_good;
}

static bool check(uint64_t offset, size_t bytes)
{
    return ask(true, offset, bytes);
}

static void check_failure(int kind, uint64_t offset, size_t bytes, int error)
{
    CHECK(asked.failure.file == file.opened);
    CHECK_EQ(asked.failure.kind, kind);
    CHECK_EQ(asked.failure.offset, offset);
    CHECK_EQ(asked.failure.bytes, bytes);
    CHECK_EQ(asked.failure.error, error);
}

/* --- reading */

MS_TEST(the_bytes_of_a_snapshot_are_in_memory)
{
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(8, MS_SNAPSHOT_ANY);
    struct ms_source *source = ms_host_snapshot_source(snapshot);
    const void *read = NULL;
    memcpy(ms_host_snapshot_data(snapshot), "snapshot", 8);
    memset(buffer, 1, 8);
    CHECK_EQ(ms_source_read(source, 4, buffer, 4, &read), CUDA_SUCCESS);
    CHECK(read == (unsigned char *)ms_host_snapshot_data(snapshot) + 4);
    CHECK_BYTES(read, "shot", 4);
    CHECK_EQ(buffer[0], 1);
    CHECK(ms_source_read_is_current(source));
    CHECK_EQ(ms_counter_get(MS_COUNT_FILE_READ_BYTES), 0);
    ms_host_snapshot_drop(snapshot);
    CHECK_EQ(live, 0);
}

MS_TEST_AFTER(start, the_bytes_of_a_file_are_read)
{
    static const size_t ranges[][2] = {
        {0, BYTES}, {1, 1}, {PART, 2 * PART}, {BYTES - 1, 1}, {7, 0}};
    uint64_t all = 0;
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        const void *read = NULL;
        memset(buffer, 0, sizeof(buffer));
        CHECK_EQ(ms_source_read(file.source, ranges[i][0], buffer, ranges[i][1], &read),
                 CUDA_SUCCESS);
        CHECK(read == buffer);
        CHECK_BYTES(buffer, file.data + ranges[i][0], ranges[i][1]);
        CHECK_EQ(buffer[ranges[i][1]], 0);
        all += ranges[i][1];
        CHECK_EQ(ms_counter_get(MS_COUNT_FILE_READ_BYTES), all);
    }
    CHECK_EQ(ms_source_read(file.source, 5, buffer, 5, NULL), CUDA_SUCCESS);
    CHECK_BYTES(buffer, file.data + 5, 5);
    CHECK(ms_source_read_is_current(file.source));
    CHECK_EQ(count_log_lines(""), 0);
}

/* Offsets and sizes are drawn. A tensor comes in pieces, one behind the other, which the kernel
 * would take for a program that goes on. */
MS_TEST(a_read_brings_nothing_else_into_the_page_cache)
{
    enum { READS = 3, PAGE = 4096, MOST = 3 << 20 };
    static unsigned char read[MOST];
    uint64_t draw = (uint64_t)time(NULL);
    struct test_file cold;
    printf("# drawn with %llu\n", (unsigned long long)draw);
    make_test_file(&cold, "/var/tmp", 16 << 20);
    for (int i = 0; i < READS; i++) {
        const size_t bytes = PAGE + next_random(&draw) % (MOST - PAGE);
        const size_t first = 1 + next_random(&draw) % (bytes - 1);
        const uint64_t offset = next_random(&draw) % (cold.bytes - bytes);
        if (!make_cold(&cold))
            ms_test_skip("the page cache cannot be emptied here");
        CHECK_EQ(ms_source_read(cold.source, offset, read, first, NULL), CUDA_SUCCESS);
        CHECK_EQ(ms_source_read(cold.source, offset + first, read + first, bytes - first, NULL),
                 CUDA_SUCCESS);
        CHECK_BYTES(read, cold.data + offset, bytes);
        CHECK_EQ(count_cached(&cold), (offset + bytes - 1) / PAGE - offset / PAGE + 1);
    }
}

MS_TEST_AFTER(start, a_read_past_the_end_says_which_bytes_are_missing)
{
    const void *read;
    CHECK_EQ(ms_source_read(file.source, BYTES - 10, buffer, 20, NULL),
             CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines(""), 0); /* who guesses */
    CHECK_EQ(ms_source_read(file.source, BYTES - 10, buffer, 20, &read),
             CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines(": cannot read 10 bytes at 196708: the file ends before them\n"), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_FILE_READ_BYTES), 0);
    CHECK(!ask(false, BYTES - 3, 5));
    check_failure(MS_FAILURE_UNREADABLE, BYTES, 2, 0);
    CHECK(ask(false, BYTES - 3, 3));
}

MS_TEST_AFTER(start, a_file_that_has_changed_is_not_read)
{
    const void *read;
    CHECK_EQ(truncate(file.path, BYTES - 10), 0);
    CHECK(!ask(false, BYTES - 20, 20));
    CHECK_EQ(asked.failure.kind, MS_FAILURE_CHANGED);
    CHECK(ask(false, BYTES - 20, 10)); /* as it is now */
    CHECK(!ms_source_read_is_current(file.source));
    CHECK_EQ(ms_source_read(file.source, 0, buffer, 20, &read), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("(size 196698, was 196708, mtime "), 1);
    CHECK_EQ(count_log_lines("the copied bytes are lost: write another file and rename"), 1);
}

static int open_there;

static void open_null(void *argument)
{
    (void)argument;
    open_there = ms_descriptor_open("/dev/null", O_WRONLY);
}

STORY_AFTER(start, the_copy_is_read_once_there_is_one, IS(ms_file_thread_call(open_null, NULL)),
            atomic_store(&file.opened->copy, open_there), IS(!ask(false, 3, 5)),
            check_failure(MS_FAILURE_UNREADABLE, 3, 5, EBADF), atomic_store(&file.opened->copy, -1),
            IS(ask(false, 3, 5)))

MS_TEST_AFTER(start, a_read_is_a_use_of_the_file_and_ends_it)
{
    const void *read;
    file.opened->stays_open = false; /* and there is one user, as at first */
    CHECK_EQ(ms_source_read(file.source, 3, buffer, 5, &read), CUDA_SUCCESS);
    CHECK_EQ(file.opened->users, 1);
    CHECK(ask(false, 3, 5));
    CHECK(!ask(false, BYTES, 5));
    CHECK_EQ(file.opened->users, 1);
}

static void end_use(void *source)
{
    ms_file_end_use(source);
}

MS_TEST_AFTER(start, a_file_that_cannot_be_opened_again_is_not_read)
{
    const void *read;
    file.opened->stays_open = false;
    CHECK(ms_file_thread_call(end_use, file.opened));
    unlink(file.path);
    CHECK(!ask(false, 3, 5));
    check_failure(MS_FAILURE_LOST, 0, 0, ENOENT);
    CHECK_EQ(ms_source_read(file.source, 3, buffer, 5, &read), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines(": cannot be opened again (No such file or directory), but"), 1);
    CHECK_EQ(file.opened->users, 0);
}

static bool is_stored_to;

static void look_for_stores(void *argument)
{
    (void)argument;
    is_stored_to = ms_mapping_is_stored_to(file.opened->mapped_device, file.opened->mapped_inode,
                                           &asked.is_good);
}

MS_TEST_AFTER(start, a_file_mapped_to_be_stored_to_is_not_read)
{
    const void *read;
    const int writer = open(file.path, O_RDWR | O_CLOEXEC);
    deny_with(SYS_fcntl, 1, F_SETLEASE, EPERM); /* nobody can be asked for writers */
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0) != MAP_FAILED);
    CHECK(ms_file_thread_call(look_for_stores, NULL));
    needs_mappings(is_stored_to, file.path);
    CHECK_EQ(ms_source_read(file.source, 3, buffer, 5, &read), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines(": mapped shared and writable in this process after it was"), 1);
    CHECK(ms_source_read_is_current(file.source)); /* so far */
}

MS_TEST_AFTER(start, a_file_that_was_given_up_says_so)
{
    const void *read;
    atomic_store(&file.opened->state, MS_FILE_IS_LOST);
    CHECK(!ms_source_read_is_current(file.source));
    CHECK(!ask(false, BYTES, 1));
    check_failure(MS_FAILURE_GIVEN_UP, BYTES, 1, 0);
    CHECK_EQ(ms_source_read(file.source, 0, buffer, 20, &read), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("it was opened for writing, or deleted, after the program"), 1);
}

/* --- what was taken for the file's */

static bool is_seen(uint64_t part)
{
    bool seen;
    ms_sums_get(file.opened, part, &seen);
    return seen;
}

/* Sums of all three parts, of which that of the middle one may be another, and no others. */
static void add_sums(uint64_t change)
{
    uint64_t sums[3];
    ms_sums_cleanup(file.opened);
    atomic_store(&file.opened->sums, NULL);
    for (int i = 0; i < 3; i++)
        sums[i] = ms_sums_make(file.data + i * PART) ^ (i == 1 ? change : 0);
    CHECK(ms_sums_add(file.opened, 0, sums, 3));
    memcpy(buffer, file.data, BYTES);
}

MS_TEST_AFTER(start, a_file_without_sums_has_nothing_to_check)
{
    CHECK(check(0, BYTES));
}

MS_TEST_AFTER(start, whole_parts_are_checked_by_what_was_read)
{
    add_sums(0);
    buffer[2 * PART - 1] ^= 1;
    CHECK(!check(0, BYTES));
    check_failure(MS_FAILURE_DIFFERS, PART, PART, 0);
    CHECK(is_seen(0) && !is_seen(1) && !is_seen(2));
    buffer[2 * PART - 1] ^= 1;
    CHECK(check(0, BYTES));
    CHECK(asked.failure.file == NULL);
    CHECK(is_seen(0) && is_seen(1) && is_seen(2) && !is_seen(3));
    memset(buffer, 0, BYTES);
    CHECK(check(0, BYTES)); /* once is enough */
}

MS_TEST_AFTER(start, a_check_of_a_piece_reads_the_rest_of_its_part)
{
    static const size_t pieces[][2] = {{1, PART}, {0, PART - 1}, {PART - 1, 1}, {0, 1}};
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        const size_t begin = PART + pieces[i][0], count = pieces[i][1];
        add_sums(0);
        memset(buffer, 0, BYTES); /* not looked at, since the file itself is read */
        CHECK(check(begin, count));
        CHECK(asked.failure.file == NULL);
        CHECK(!is_seen(0) && is_seen(1));
        CHECK_EQ(is_seen(2), begin + count > 2 * PART);
        add_sums(2);
        CHECK(!check(begin, count));
        check_failure(MS_FAILURE_DIFFERS, PART, PART, 0);
    }
}

MS_TEST_AFTER(start, other_parts_are_not_looked_at)
{
    add_sums(2);
    CHECK(check(0, PART));
    CHECK(check(2 * PART, PART));
    CHECK(check(3 * PART, 100)); /* no whole part */
    CHECK(check(PART, 0));
    CHECK(is_seen(0) && !is_seen(1) && is_seen(2));
}

MS_TEST_AFTER(start, a_part_is_whole_up_to_its_last_byte)
{
    add_sums(0);
    memset(buffer, 0, BYTES);
    CHECK(!check(PART, PART));
    check_failure(MS_FAILURE_DIFFERS, PART, PART, 0);
    memcpy(buffer + PART, file.data + PART, PART);
    CHECK(check(PART - 10, PART + 10)); /* and a piece of the first, read again */
    CHECK(is_seen(0) && is_seen(1));
}

MS_TEST_AFTER(start, a_piece_cannot_be_checked_without_memory)
{
    add_sums(0);
    may_make = 0;
    CHECK(!check(PART + 1, 5));
    check_failure(MS_FAILURE_UNREADABLE, PART, PART, ENOMEM);
    CHECK(!is_seen(1));
    CHECK_EQ(truncate(file.path, PART), 0);
    CHECK(!check(PART + 1, 5)); /* and nobody has seen that */
    check_failure(MS_FAILURE_UNREADABLE, PART, PART, ENOMEM);
}

MS_TEST_AFTER(start, a_change_says_more_than_a_difference)
{
    add_sums(2);
    CHECK_EQ(truncate(file.path, 2 * PART), 0);
    CHECK(!check(PART, PART));
    CHECK_EQ(asked.failure.kind, MS_FAILURE_CHANGED);
    CHECK_EQ(truncate(file.path, PART), 0);
    CHECK(!check(PART + 1, 5));
    CHECK_EQ(asked.failure.kind, MS_FAILURE_CHANGED);
}

MS_TEST_AFTER(start, bytes_that_were_not_those_that_were_copied_are_a_failure)
{
    const void *read;
    add_sums(2);
    CHECK_EQ(ms_source_read(file.source, PART + 5, buffer, 5, &read), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(count_log_lines("was not the same within the 65536 bytes at 65536: it had changed"),
             1);
    CHECK_EQ(ms_source_read(file.source, PART - 5, buffer, 5, &read), CUDA_SUCCESS);
    CHECK_EQ(ms_source_read(file.source, PART - 5, buffer, 6, &read), CUDA_ERROR_OPERATING_SYSTEM);
    CHECK_EQ(ms_source_read(file.source, 2 * PART, buffer, 5, &read), CUDA_SUCCESS);
    CHECK_EQ(ms_source_read(file.source, 2 * PART - 1, buffer, 5, NULL),
             CUDA_ERROR_OPERATING_SYSTEM);
}

/* --- what is said of a failure */

static void check_line(struct ms_file_failure failure, const char *line)
{
    const int before = count_log_lines(line), all = count_log_lines("");
    failure.file = file.opened;
    ms_source_read_log_failure(&failure);
    if (count_log_lines(line) != before + 1 || count_log_lines("") != all + 1)
        ms_test_fail(__FILE__, __LINE__, "no line: %s", line);
}

MS_TEST_AFTER(start, each_failure_has_its_line)
{
    check_line((struct ms_file_failure){.kind = MS_FAILURE_WRITTEN},
               ": open for writing somewhere");
    check_line((struct ms_file_failure){.kind = MS_FAILURE_STORED_TO},
               ": mapped shared and writable");
    check_line((struct ms_file_failure){.kind = MS_FAILURE_LOST, .error = EBADF},
               "the shim's descriptor of it is gone (Bad file descriptor)");
    check_line((struct ms_file_failure){.kind = MS_FAILURE_LOST, .error = ESTALE},
               "its file system does not have it any more (");
    file.opened->stays_open = false;
    check_line((struct ms_file_failure){.kind = MS_FAILURE_LOST, .error = ENOENT},
               "cannot be opened again (No such file or directory), but");
    struct ms_file_failure failure = {
        .kind = MS_FAILURE_UNREADABLE, .offset = 7, .bytes = 9, .error = EIO};
    check_line(failure, ": cannot read 9 bytes at 7: Input/output error\n");
    failure.error = ESTALE;
    check_line(failure, "; it was deleted where it comes from, and the copied bytes are lost\n");
    failure.error = ENOENT;
    check_line(failure, "; it was deleted where it comes from, and the copied bytes are lost\n");
}

MS_TEST_AFTER(start, a_change_is_said_by_what_has_changed)
{
    struct stat *now, *then = &file.opened->recorded;
    struct ms_file_failure failure = {.kind = MS_FAILURE_CHANGED};
    now = &failure.now;
    then->st_mtim = then->st_ctim = (struct timespec){5, 50};
    *now = *then;
    check_line(failure, "before it was needed (another file); the");
    now->st_nlink = 7;
    check_line(failure, "(links 7, was 1); the");
    now->st_size = 3;
    now->st_mtim.tv_nsec = 51;
    now->st_ctim.tv_sec = 6;
    check_line(failure, "(size 3, was 196708, links 7, was 1, mtime 5.000000051, was 5.000000050, "
                        "ctime 6.000000050, was 5.000000050); the");
    failure.kind = MS_FAILURE_UNANSWERED;
    check_line(failure, ": changed by another process (size 3, was");
}
