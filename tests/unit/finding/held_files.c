/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program has read a file into past the page cache is the file's, if the file was
 * held before that, and the bytes are as they were. */
#include "runtime/finding/held_files.h"

#include <pthread.h>

#include "runtime/files/source.h"
#include "runtime/files/lease.h"
#include "runtime/files/trust.h"
#include "runtime/finding/find.h"
#include "runtime/finding/reads.h"
#include "runtime/state/caller.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tools/simcuda/harness/deny.h"

enum { BYTES = 2 << 20, PART = 64 << 10, BLOCK = 4096 };

static struct test_file file;
static int direct;
static unsigned char *memory;

static unsigned char *map_pages(void)
{
    unsigned char *pages =
        mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    return pages;
}

/* Nothing holds the file yet, and nothing of it is in the page cache. */
static void set_up(void)
{
    make_test_file(&file, "/var/tmp", BYTES);
    ms_file_drop(file.opened);
    memory = map_pages();
    direct = open(file.path, O_RDONLY | O_DIRECT);
    if (direct < 0 || !make_cold(&file) || !can_tell_cold(&file))
        ms_test_skip("nothing is read past the page cache here");
}

static void read_by(int descriptor, unsigned char *at, size_t bytes, off_t offset, uint32_t number)
{
    const ssize_t got = pread(descriptor, at, bytes, offset);
    CHECK(got > 0);
    ms_reads_note(descriptor, at, (size_t)got, offset, number);
}

static void read_to(unsigned char *at, size_t bytes, off_t offset)
{
    const uint32_t number = ms_held_files_hold(direct);
    CHECK(number != 0);
    read_by(direct, at, bytes, offset, number);
}

static bool is_of_file(const unsigned char *at, size_t bytes, uint64_t offset)
{
    uint64_t found_at = 0;
    struct ms_file *source = ms_find_file(at, bytes, &found_at);
    if (source == NULL)
        return false;
    CHECK_EQ(found_at, offset);
    CHECK(strcmp(ms_file_path(source), file.path) == 0);
    ms_file_drop(source);
    return true;
}

MS_TEST_AFTER(set_up, a_read_is_known_to_be_of_its_file)
{
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
    CHECK(is_of_file(memory + 1, BYTES - 2, 1));
    CHECK(is_of_file(memory + PART + 1, PART, PART + 1));
    CHECK(is_of_file(memory + BYTES - 100, 100, BYTES - 100));
    CHECK_EQ(count_cached(&file), 0); /* and nothing of it is read again */
}

MS_TEST_AFTER(set_up, a_read_before_the_file_was_held_is_not_of_the_file)
{
    read_by(direct, memory, BYTES, 0, 0);
    CHECK(!is_of_file(memory, BYTES, 0));
    const uint32_t number = ms_held_files_hold(direct);
    CHECK(number != 0);
    CHECK(!is_of_file(memory, BYTES, 0));
    read_by(direct, memory, BYTES, 0, number + 1);
    CHECK(!is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, a_changed_byte_is_not_of_the_file)
{
    static const size_t places[] = {0, 1, PART - 1, PART, BYTES / 2, BYTES - PART, BYTES - 1};
    read_to(memory, BYTES, 0);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const size_t place = places[i], before = place / PART * PART, behind = before + PART;
        memory[place] ^= 1;
        CHECK(!is_of_file(memory, BYTES, 0));
        CHECK(before == 0 || is_of_file(memory, before, 0));
        CHECK(behind == BYTES || is_of_file(memory + behind, BYTES - behind, behind));
        memory[place] ^= 1;
        CHECK(is_of_file(memory, BYTES, 0));
    }
}

/* A change beside the copied bytes does not make them others. */
MS_TEST_AFTER(set_up, bytes_that_were_moved_are_not_where_they_were)
{
    read_to(memory, BYTES, 0);
    memmove(memory + PART, memory, PART);
    CHECK(!is_of_file(memory + PART, PART, PART));
    CHECK(!is_of_file(memory + PART, PART, 0));
    CHECK(is_of_file(memory, PART, 0));
}

/* The note says one place, and bytes of another are there. */
MS_TEST_AFTER(set_up, a_later_read_replaces_the_note_of_an_earlier_one)
{
    read_to(memory, BYTES, 0);
    read_to(memory + 4 * PART, 4 * PART, 16 * PART);
    CHECK(is_of_file(memory + 4 * PART, 4 * PART, 16 * PART));
    CHECK(is_of_file(memory, 4 * PART, 0));
    CHECK(!is_of_file(memory, 8 * PART, 0));
    CHECK(!is_of_file(memory + 4 * PART + BLOCK, 6 * PART, 16 * PART + BLOCK));
}

MS_TEST_AFTER(set_up, parts_make_a_whole)
{
    for (off_t at = 0; at < BYTES; at += 3 * PART + BLOCK)
        read_to(memory + at, 3 * PART + BLOCK, at);
    CHECK(is_of_file(memory, BYTES, 0));
}

/* Each reads more than its part, as blocks want it. */
MS_TEST_AFTER(set_up, reads_of_overlapping_parts_are_of_the_file)
{
    enum { STEP = 8 * PART };
    for (off_t at = 0; at + STEP <= BYTES; at += STEP)
        read_to(memory + at, STEP + BLOCK, at);
    CHECK(is_of_file(memory + 100, BYTES - 100, 100));
}

static void *read_half(void *half)
{
    for (size_t at = (size_t)(half != NULL) * PART; at < BYTES; at += 2 * PART)
        read_to(memory + at, PART, (off_t)at);
    return NULL;
}

MS_TEST_AFTER(set_up, parts_that_threads_read_are_of_the_file)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, read_half, memory), 0);
    read_half(NULL);
    pthread_join(thread, NULL);
    CHECK(is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, another_descriptor_of_the_file)
{
    const uint32_t number = ms_held_files_hold(direct);
    const int same = dup(direct), again = open(file.path, O_RDONLY | O_DIRECT);
    CHECK_EQ(ms_held_files_hold(same), number);
    CHECK_EQ(ms_held_files_hold(again), number);
    read_by(same, memory, BYTES, 0, number);
    close(same);
    CHECK(is_of_file(memory, BYTES, 0));
}

/* The end, which came by a small read, is compared on the disk. */
MS_TEST_AFTER(set_up, a_small_end_without_a_note)
{
    read_to(memory, BYTES - BLOCK, 0);
    CHECK_EQ(pread(direct, memory + BYTES - BLOCK, BLOCK, BYTES - BLOCK), BLOCK);
    CHECK(is_of_file(memory, BYTES, 0));
    CHECK(count_cached(&file) < 64);
    CHECK(make_cold(&file));
    memory[BYTES - 1] ^= 1;
    CHECK(!is_of_file(memory, BYTES, 0));
    memory[BYTES - 1] ^= 1;
    CHECK(is_of_file(memory + BYTES - 2 * BLOCK, 2 * BLOCK, BYTES - 2 * BLOCK) == false);
}

MS_TEST_AFTER(set_up, a_short_read_is_of_the_file_up_to_its_end)
{
    CHECK_EQ(truncate(file.path, BYTES - 1000), 0);
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    read_to(memory, 2 * BYTES, 0);
    CHECK(is_of_file(memory, BYTES - 1000, 0));
    CHECK(!is_of_file(memory, BYTES - 999, 0));
}

MS_TEST_AFTER(set_up, memory_that_is_another)
{
    read_to(memory, BYTES, 0);
    CHECK_EQ(munmap(memory, BYTES), 0);
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(mmap(memory, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == memory);
    CHECK(!is_of_file(memory, BYTES, 0));
    memcpy(memory, file.data, BYTES); /* the same bytes again */
    CHECK(is_of_file(memory, BYTES, 0));
}

static void check_memory_that_may_not_be_read(void)
{
    read_to(memory, BYTES, 0);
    CHECK_EQ(mprotect(memory + PART, BLOCK, PROT_NONE), 0);
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(is_of_file(memory, PART, 0));
    CHECK_EQ(mprotect(memory + PART, BLOCK, PROT_READ), 0);
    CHECK(is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, memory_that_may_not_be_read)
{
    check_memory_that_may_not_be_read();
}

STORY_AFTER(set_up, memory_that_may_not_be_read_where_the_call_is_denied,
            deny(SYS_process_vm_readv, EPERM), check_memory_that_may_not_be_read())

/* --- the file */

static void write_to(off_t offset)
{
    const int writer = open(file.path, O_WRONLY);
    CHECK(writer >= 0);
    CHECK_EQ(pwrite(writer, "x", 1, offset), 1);
    CHECK_EQ(fdatasync(writer), 0);
    close(writer);
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
}

MS_TEST_AFTER(set_up, a_file_that_was_written_since)
{
    const uint32_t number = ms_held_files_hold(direct);
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
    write_to(BYTES - 1);
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(ms_held_files_hold(direct) > number);
    CHECK(!is_of_file(memory, BYTES, 0));
    read_to(memory, BYTES, 0);
    CHECK(make_cold(&file));
    CHECK(is_of_file(memory, BYTES, 0));
}

/* Between the first question and the read: the number is of what the file was. */
MS_TEST_AFTER(set_up, a_file_that_is_written_before_it_is_read)
{
    const uint32_t number = ms_held_files_hold(direct);
    CHECK(number != 0);
    CHECK_EQ(ms_held_files_has(number, NULL), false);
    write_to(0);
    read_by(direct, memory, BYTES, 0, number);
    CHECK(make_cold(&file));
    CHECK(!is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, times_that_change_alone)
{
    const uint32_t number = ms_held_files_hold(direct);
    read_to(memory, BYTES, 0);
    CHECK_EQ(chmod(file.path, 0400), 0);
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    const uint32_t now = ms_held_files_hold(direct);
    CHECK(now == number || !is_of_file(memory, BYTES, 0)); /* as the lease is held, or not */
    CHECK(now != 0);
}

MS_TEST_AFTER(set_up, a_file_that_somebody_writes_is_not_held)
{
    const int writer = open(file.path, O_WRONLY);
    CHECK_EQ(ms_held_files_hold(direct), 0);
    close(writer);
    CHECK_EQ(ms_held_files_hold(direct), 0); /* it is asked for later again */
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100 * 1000 * 1000}, NULL);
    CHECK(ms_held_files_hold(direct) != 0);
}

MS_TEST_AFTER(set_up, other_opens_of_a_file_than_for_reading_hold_nothing)
{
    const int pipe_or_not = open("/dev/null", O_RDONLY | O_DIRECT);
    const int writer = open(file.path, O_RDWR | O_DIRECT);
    CHECK(writer >= 0);
    CHECK_EQ(ms_held_files_hold(file.descriptor), 0);
    CHECK_EQ(ms_held_files_hold(writer), 0);
    CHECK_EQ(ms_held_files_hold(pipe_or_not), 0);
    CHECK_EQ(ms_held_files_hold(-1), 0);
}

MS_TEST_AFTER(set_up, a_file_without_a_name)
{
    CHECK_EQ(unlink(file.path), 0);
    CHECK_EQ(ms_held_files_hold(direct), 0);
}

MS_TEST_AFTER(set_up, a_name_that_is_of_another_file)
{
    char other[sizeof(file.path) + 1];
    snprintf(other, sizeof(other), "%s2", file.path);
    close(open(other, O_RDWR | O_CREAT, 0600));
    CHECK_EQ(rename(other, file.path), 0);
    CHECK_EQ(ms_held_files_hold(direct), 0);
}

MS_TEST_AFTER(set_up, errno_stays)
{
    errno = ENOTTY;
    CHECK_EQ(ms_held_files_hold(-1), 0);
    CHECK(ms_held_files_hold(direct) != 0);
    CHECK_EQ(errno, ENOTTY);
}

STORY_AFTER(set_up, a_handler_that_has_interrupted_the_shim, ms_calls_inside = 1,
            EQUALS(ms_held_files_hold(direct), 0), ms_calls_inside = 0,
            IS(ms_held_files_hold(direct) != 0))

/* --- how often a file that cannot be held is asked for */

static _Atomic time_t later_s; /* by so much the clock is ahead */

WRAPS(clock_gettime);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = __real_clock_gettime(clock, now);
    if (clock == CLOCK_MONOTONIC)
        now->tv_sec += later_s;
    return result;
}

/* Refused so often, it is asked for after so many seconds again. */
static void check_next_question(int refusals, time_t seconds)
{
    const int writer = open(file.path, O_WRONLY);
    CHECK(writer >= 0);
    for (int i = 0; i < refusals; i++) {
        CHECK_EQ(ms_held_files_hold(direct), 0);
        later_s += 100; /* more than any pause */
    }
    CHECK_EQ(ms_held_files_hold(direct), 0);
    close(writer);
    later_s += seconds / 2;
    CHECK_EQ(ms_held_files_hold(direct), 0); /* nobody writes it any more, and nobody has asked */
    later_s += seconds - seconds / 2;
    CHECK(ms_held_files_hold(direct) != 0);
}

MS_TEST_AFTER(set_up, a_file_that_is_refused_twice_is_left_alone_for_longer)
{
    check_next_question(1, 2);
    write_to(0); /* it is none of those any more, and begins anew */
    check_next_question(2, 4);
}

MS_TEST_AFTER(set_up, a_file_that_was_held_in_between_is_asked_for_soon)
{
    check_next_question(5, 32);
    write_to(0);
    const int writer = open(file.path, O_WRONLY);
    CHECK_EQ(ms_held_files_hold(direct), 0);
    close(writer);
    later_s += 1;
    CHECK(ms_held_files_hold(direct) != 0);
}

MS_TEST_AFTER(set_up, a_file_that_is_refused_often_is_asked_for_each_minute)
{
    check_next_question(6, 64);
}

MS_TEST_AFTER(set_up, a_file_that_is_always_refused_is_asked_for_each_minute)
{
    check_next_question(9, 64);
}

MS_TEST_AFTER(set_up, a_file_is_held_by_its_number_alone)
{
    const uint32_t number = ms_held_files_hold(direct);
    struct ms_file *source =
        ms_trust_open(&(struct ms_mapping){.device = 1, .inode = 1}, 0); /* there is none such */
    CHECK(source == NULL);
    uint64_t found_at;
    read_by(direct, memory, BYTES, 0, number);
    source = ms_find_file(memory, BYTES, &found_at);
    CHECK(source != NULL);
    CHECK(ms_held_files_has(number, source));
    CHECK(!ms_held_files_has(number + 1, source));
    CHECK(!ms_held_files_has(0, source));
    CHECK(!ms_held_files_has(0, NULL));
    CHECK(!ms_held_files_has(number, NULL));
    ms_file_drop(source);
}

/* In between anybody may open it. */
MS_TEST_AFTER(set_up, a_file_that_could_have_been_written_is_as_its_times_say)
{
    const uint32_t number = ms_held_files_hold(direct);
    read_to(memory, BYTES, 0);
    CHECK(!ms_lease_any());
    const int writer = open(file.path, O_WRONLY | O_NONBLOCK);
    CHECK(writer >= 0);
    CHECK(!is_of_file(memory, BYTES, 0)); /* somebody may write it now */
    close(writer);
    CHECK(is_of_file(memory, BYTES, 0));
    CHECK_EQ(ms_held_files_hold(direct), number);
    write_to(BYTES / 2);
    CHECK(make_cold(&file));
    CHECK(!is_of_file(memory, BYTES, 0));
}

/* There a store would not show. */
MS_TEST(a_file_in_memory_has_no_number)
{
    make_test_file(&file, "/dev/shm", BYTES);
    ms_file_drop(file.opened);
    direct = open(file.path, O_RDONLY | O_DIRECT);
    if (direct < 0)
        ms_test_skip("files there have no such reads");
    CHECK_EQ(ms_held_files_hold(direct), 0);
}

/* --- how many */

/* None of its bytes is looked at, since there are too many for their checksums. */
MS_TEST_AFTER(set_up, checksums_are_forgotten)
{
    const uint32_t number = ms_held_files_hold(direct);
    read_to(memory, BYTES, 0);
    ms_reads_note(direct, memory + BYTES, ((size_t)64 << 30) - BYTES, 0, 0);
    CHECK(is_of_file(memory, BYTES, 0));
    ms_reads_note(direct, (void *)(UINT64_C(1) << 40), ((size_t)64 << 30) + PART, 0, number);
    CHECK(!is_of_file(memory, BYTES, 0));
    read_to(memory, BYTES, 0);
    CHECK(is_of_file(memory, BYTES, 0));
}

MS_TEST_AFTER(set_up, the_last_files_are_held)
{
    enum { COUNT = 64 };
    char path[96];
    read_to(memory, BYTES, 0);
    const uint32_t number = ms_held_files_hold(direct);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQ(ms_held_files_hold(direct), number);
        CHECK(is_of_file(memory, BYTES, 0));
        snprintf(path, sizeof(path), "%s.%d", file.path, i);
        close(open(path, O_RDWR | O_CREAT, 0600));
        const int other = open(path, O_RDONLY | O_DIRECT);
        CHECK(ms_held_files_hold(other) != 0);
        unlink(path); /* open, so that no other gets its inode */
    }
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(ms_held_files_hold(direct) > number);
    CHECK(!is_of_file(memory, BYTES, 0));
}
