/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program has read a file into is the file's, if its bytes are. */
#include "runtime/source/reads.h"

#include <signal.h>
#include <sys/time.h>

#include "runtime/source/source.h"
#include "tests/unit/between.h"
#include "tests/unit/source/files.h"
#include "tools/simcuda/harness/deny.h"

enum { BYTES = 3 << 20, PART = 1 << 20, HEAD = 100 };

static struct test_file file;
static unsigned char *memory;

static void set_up(void)
{
    make_test_file(&file, "/var/tmp", BYTES);
    memory = malloc(BYTES);
}

static void read_to(unsigned char *at, size_t bytes, off_t offset)
{
    CHECK_EQ(pread(file.descriptor, at, bytes, offset), (ssize_t)bytes);
    ms_reads_note(file.descriptor, at, bytes, offset, 0);
}

static bool is_of_file(const unsigned char *at, size_t bytes, uint64_t offset)
{
    uint64_t found_at = 0;
    struct ms_source *source = ms_source_find(at, bytes, &found_at);
    if (source == NULL)
        return false;
    CHECK_EQ(found_at, offset);
    CHECK(strcmp(ms_source_path(source), file.path) == 0);
    ms_source_drop(source);
    return true;
}

static bool is_noted(const void *at, size_t bytes, struct ms_mapping *place)
{
    size_t first = 0;
    return ms_reads_next(at, bytes, &first, place);
}

MS_TEST_AFTER(set_up, what_was_read_is_of_the_file)
{
    CHECK(!is_of_file(memory, BYTES - HEAD, HEAD));
    read_to(memory, BYTES - HEAD, HEAD);
    CHECK(is_of_file(memory, BYTES - HEAD, HEAD));
    CHECK(is_of_file(memory + PART + 1, PART, HEAD + PART + 1));
    CHECK(is_of_file(memory, PART, HEAD));
}

MS_TEST_AFTER(set_up, what_was_read_where_the_descriptor_stood)
{
    CHECK_EQ(lseek(file.descriptor, PART, SEEK_SET), PART);
    CHECK_EQ(read(file.descriptor, memory, PART), PART);
    ms_reads_note(file.descriptor, memory, PART, -1, 0);
    CHECK(is_of_file(memory, PART, PART));
    CHECK_EQ(lseek(file.descriptor, 0, SEEK_CUR), 2 * PART);
}

MS_TEST_AFTER(set_up, parts_make_a_whole)
{
    for (off_t at = 0; at < BYTES; at += PART / 4)
        read_to(memory + at, PART / 4, at);
    CHECK(is_of_file(memory, BYTES, 0));
}

/* As through a buffer, whose reads are small. */
MS_TEST_AFTER(set_up, ends_without_a_note)
{
    memcpy(memory, file.data + HEAD, BYTES - HEAD);
    read_to(memory + PART, PART, HEAD + PART);
    CHECK(is_of_file(memory, BYTES - HEAD, HEAD));
}

/* As PyTorch pins, or makes contiguous, what it has got. */
MS_TEST_AFTER(set_up, bytes_that_were_copied_on)
{
    unsigned char *other = malloc(PART + HEAD);
    for (off_t at = 0; at < 8 * HEAD; at += HEAD)
        read_to(memory, PART, at);
    for (off_t at = 0; at < 8 * HEAD; at += HEAD) {
        memcpy(other, file.data + at, PART);
        CHECK(is_of_file(other, PART, (uint64_t)at));
        CHECK(!is_of_file(other, PART - 1, (uint64_t)at));
    }
    memcpy(other, file.data + PART - HEAD, PART + HEAD); /* HEAD through a buffer */
    read_to(memory, PART, PART);
    CHECK(is_of_file(other, PART + HEAD, PART - HEAD));
    other[PART - 1] ^= 1;
    CHECK(!is_of_file(other, PART, 0));
}

MS_TEST_AFTER(set_up, a_changed_byte_is_not_of_the_file)
{
    read_to(memory, BYTES, 0);
    memory[2 * PART] ^= 1;
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(is_of_file(memory, 2 * PART, 0));
    CHECK(is_of_file(memory + 2 * PART + 1, PART - 1, 2 * PART + 1));
}

MS_TEST_AFTER(set_up, the_last_read_to_memory_counts)
{
    read_to(memory, BYTES, 0);
    read_to(memory + PART / 2, PART, 2 * PART);
    CHECK(is_of_file(memory + PART / 2, PART, 2 * PART));
    CHECK(is_of_file(memory, PART / 2, 0));
    CHECK(!is_of_file(memory, PART, 0));
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
    read_to(memory, PART, PART);
    CHECK(is_of_file(memory, PART, PART));
    CHECK(is_of_file(memory + PART, 2 * PART, PART));
}

MS_TEST_AFTER(set_up, a_file_that_is_another_by_now)
{
    char other[sizeof(file.path) + 1];
    snprintf(other, sizeof(other), "%s2", file.path);
    read_to(memory, BYTES, 0);
    ms_source_drop(file.source);
    CHECK_EQ(rename(file.path, other), 0);
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK_EQ(rename(other, file.path), 0);
    CHECK(is_of_file(memory, BYTES, 0));
}

/* The inode of a deleted file may be the next one's. */
MS_TEST_AFTER(set_up, a_path_that_changes)
{
    char before[sizeof(file.path)];
    memcpy(before, file.path, sizeof(before));
    read_to(memory, BYTES, 0);
    ms_source_drop(file.source);
    file.path[strlen(file.path) - 1]++;
    CHECK_EQ(rename(before, file.path), 0);
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, a_file_that_was_written_since)
{
    read_to(memory, BYTES, 0);
    const int writer = open(file.path, O_WRONLY);
    CHECK(writer >= 0);
    CHECK_EQ(pwrite(writer, "x", 1, BYTES - 1), 1);
    close(writer);
    CHECK(!is_of_file(memory, BYTES, 0));
}

/* The bytes are equal, but the next write might not show. */
MS_TEST_AFTER(set_up, a_file_that_was_just_written)
{
    read_to(memory, BYTES, 0);
    const int writer = open(file.path, O_WRONLY);
    CHECK(writer >= 0);
    CHECK_EQ(pwrite(writer, file.data, 1, 0), 1);
    close(writer);
    CHECK(!is_of_file(memory, BYTES, 0));
}

/* A handler of the program might answer, on the thread that copies. */
static void check_memory_that_may_not_be_read(void)
{
    unsigned char *pages =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    read_to(pages, BYTES, 0);
    CHECK_EQ(mprotect(pages + PART, PART, PROT_NONE), 0);
    CHECK(!is_of_file(pages, BYTES, 0));
    CHECK_EQ(mprotect(pages + PART, PART, PROT_READ), 0);
    CHECK(is_of_file(pages, BYTES, 0));
}

MS_TEST_AFTER(set_up, memory_that_may_not_be_read)
{
    check_memory_that_may_not_be_read();
}

MS_TEST_AFTER(set_up, memory_that_may_not_be_read_where_the_call_is_denied)
{
    deny(SYS_process_vm_readv, EPERM);
    check_memory_that_may_not_be_read();
}

MS_TEST_AFTER(set_up, what_is_past_its_end)
{
    read_to(memory, BYTES, 0);
    memory = realloc(memory, BYTES + 1);
    CHECK(!is_of_file(memory, BYTES + 1, 0));
}

MS_TEST_AFTER(set_up, what_is_not_in_the_page_cache_is_not_read_again)
{
    read_to(memory, BYTES, 0);
    if (!make_cold(&file))
        ms_test_skip("the file stays in the page cache");
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(count_cached(&file) < BYTES / 4096 / 2);
}

MS_TEST(what_is_no_regular_file_has_no_note)
{
    struct ms_mapping place;
    int pipes[2];
    memory = malloc(PART);
    CHECK_EQ(pipe(pipes), 0);
    ms_reads_note(pipes[0], memory, PART, 0, 0);
    ms_reads_note(-1, memory, PART, 0, 0);
    CHECK(!is_noted(memory, PART, &place));
}

MS_TEST_AFTER(set_up, errno_stays)
{
    errno = ENOTTY;
    ms_reads_note(-1, memory, PART, -1, 0);
    ms_reads_note(file.descriptor, memory, PART, 0, 0);
    CHECK_EQ(errno, ENOTTY);
}

/* More than the table has. */
MS_TEST_AFTER(set_up, many_reads)
{
    enum { COUNT = 70000, STEP = 2 * MS_READS_LEAST };
    struct ms_mapping place;
    const uintptr_t base = UINT64_C(1) << 40;
    for (size_t i = 0; i < COUNT; i++)
        ms_reads_note(file.descriptor, (void *)(base + i * STEP), MS_READS_LEAST, 0, 0);
    CHECK(is_noted((void *)(base + (COUNT - 1) * (uintptr_t)STEP), MS_READS_LEAST, &place));
    CHECK(strcmp(place.path, file.path) == 0);
    CHECK(!is_noted((void *)(base + (COUNT - 1) * (uintptr_t)STEP + MS_READS_LEAST),
                    MS_READS_LEAST - 2, &place));
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, many_files)
{
    enum { COUNT = 1100 };
    struct ms_mapping place;
    char path[96];
    read_to(memory, BYTES, 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof(path), "%s.%d", file.path, i);
        const int other = open(path, O_RDWR | O_CREAT, 0600);
        CHECK(other >= 0);
        ms_reads_note(other, memory + PART, PART, 0, 0);
        close(other);
    }
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof(path), "%s.%d", file.path, i);
        unlink(path);
    }
    CHECK(!is_noted(memory, PART + 2, &place)); /* its file is forgotten */
    CHECK(is_noted(memory + PART, PART, &place));
    CHECK(strcmp(place.path, path) == 0);
}

static void interrupt(int number)
{
    (void)number;
    ms_reads_note(file.descriptor, memory + PART, PART, PART, 0);
}

/* Nobody waits for ever. Each note moves all that are behind it, which a handler interrupts. */
MS_TEST_AFTER(set_up, a_handler_may_read)
{
    enum { COUNT = 30000, MORE = 1000 };
    const uintptr_t base = UINT64_C(1) << 40, step = (uintptr_t)2 * MS_READS_LEAST;
    for (size_t i = 0; i < COUNT; i++)
        ms_reads_note(file.descriptor, (void *)(base + i * step), MS_READS_LEAST, 0, 0);
    signal(SIGALRM, interrupt);
    for (size_t i = 1; i < MORE; i++) {
        const struct itimerval once = {.it_value.tv_usec = (suseconds_t)(1 + i % 64)};
        CHECK_EQ(setitimer(ITIMER_REAL, &once, NULL), 0);
        ms_reads_note(file.descriptor, (void *)(base - i * step), MS_READS_LEAST, 0, 0);
    }
    signal(SIGALRM, SIG_IGN);
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
}
