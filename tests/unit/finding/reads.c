/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program has read a file into is the file's, if its bytes are. */
#include "runtime/files/file.h"
#include "runtime/finding/reads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "runtime/base/checksum.h"
#include "runtime/driver/flags.h"
#include "runtime/files/source.h"
#include "runtime/finding/find.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tools/simcuda/harness/deny.h"

enum { BYTES = 3 << 20, PART = 1 << 20, HEAD = 100 };

static struct test_file file;
static unsigned char *memory;

static void set_up(void)
{
    atomic_store(&ms_hot.started, 1); /* before, only what could be a checkpoint is noted */
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
    struct ms_file *source = ms_find_file(at, bytes, &found_at);
    if (source == NULL)
        return false;
    CHECK_EQ(found_at, offset);
    CHECK(strcmp(ms_file_path(source), file.path) == 0);
    ms_file_drop(source);
    return true;
}

static bool is_noted(const void *at, size_t bytes, struct ms_mapping *place)
{
    size_t first = 0;
    return ms_reads_next(at, bytes, &first, place);
}

MS_TEST_AFTER(set_up, a_read_is_known_to_be_of_its_file)
{
    CHECK(!is_of_file(memory, BYTES - HEAD, HEAD));
    read_to(memory, BYTES - HEAD, HEAD);
    CHECK(is_of_file(memory, BYTES - HEAD, HEAD));
    CHECK(is_of_file(memory + PART + 1, PART, HEAD + PART + 1));
    CHECK(is_of_file(memory, PART, HEAD));
}

MS_TEST_AFTER(set_up, a_read_is_noted_where_its_descriptor_stood)
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
STORY_AFTER(set_up, ends_without_a_note, memcpy(memory, file.data + HEAD, BYTES - HEAD),
            read_to(memory + PART, PART, HEAD + PART), IS(is_of_file(memory, BYTES - HEAD, HEAD)))

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
    free(other);
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
    ms_file_drop(file.opened);
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
    ms_file_drop(file.opened);
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

STORY_AFTER(set_up, memory_that_may_not_be_read_where_the_call_is_denied,
            deny(SYS_process_vm_readv, EPERM), check_memory_that_may_not_be_read())

STORY_AFTER(set_up, bytes_past_a_read_are_not_of_the_file, read_to(memory, BYTES, 0),
            memory = realloc(memory, BYTES + 1), IS(!is_of_file(memory, BYTES + 1, 0)))

MS_TEST_AFTER(set_up, a_comparison_reads_nothing_that_is_not_in_the_page_cache)
{
    read_to(memory, BYTES, 0);
    if (!make_cold(&file))
        ms_test_skip("the file stays in the page cache");
    CHECK(!is_of_file(memory, BYTES, 0));
    CHECK(count_cached(&file) < BYTES / 4096 / 2);
}

MS_TEST(a_read_of_no_regular_file_is_not_noted)
{
    struct ms_mapping place;
    int pipes[2];
    memory = malloc(PART);
    CHECK_EQ(pipe(pipes), 0);
    ms_reads_note(pipes[0], memory, PART, 0, 0);
    ms_reads_note(-1, memory, PART, 0, 0);
    CHECK(!is_noted(memory, PART, &place));
}

STORY_AFTER(set_up, errno_stays, errno = ENOTTY, ms_reads_note(-1, memory, PART, -1, 0),
            ms_reads_note(file.descriptor, memory, PART, 0, 0), EQUALS(errno, ENOTTY))

/* More than the table has. */
MS_TEST_AFTER(set_up, the_last_of_more_reads_than_the_table_has_is_noted)
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

/* Half as many again as there is room for, almost: the first half is gone, and nothing else. */
MS_TEST_AFTER(set_up, the_oldest_reads_are_forgotten_first)
{
    enum { KEPT = 512 << 10, ALMOST = 1 << 10, COUNT = KEPT + KEPT / 2 };
    const uintptr_t base = UINT64_C(1) << 40, step = (uintptr_t)2 * MS_READS_LEAST;
    struct ms_mapping place;
    for (size_t i = 0; i < COUNT; i++)
        ms_reads_note(file.descriptor, (void *)(base + i * step), MS_READS_LEAST, 0, 0);
    for (size_t i = 0; i < COUNT - KEPT; i++)
        CHECK(!is_noted((void *)(base + i * step), 1, &place));
    for (size_t i = COUNT - KEPT + ALMOST; i < COUNT; i++)
        CHECK(is_noted((void *)(base + i * step), 1, &place));
}

/* Each reads files of its own to memory of its own, and all to the same. */
enum { THREADS = 4, THREAD_READS = 20000 };
static void *read_beside(void *argument)
{
    const uintptr_t number = (uintptr_t)argument, shared = UINT64_C(1) << 42;
    const uintptr_t base = (UINT64_C(1) << 40) + number * THREAD_READS * PART;
    for (uintptr_t i = 0; i < THREAD_READS; i++) {
        const int other = memfd_create("beside", 0);
        ms_reads_note(i % 128 == 0 ? other : file.descriptor, (void *)(base + i * PART), PART,
                      (off_t)i, 0);
        ms_reads_note(file.descriptor, (void *)(shared + i % 64 * PART / 2), PART, 0, 0);
        close(other);
    }
    return NULL;
}

MS_TEST_AFTER(set_up, threads_that_read_side_by_side)
{
    pthread_t threads[THREADS];
    struct ms_mapping place;
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, read_beside, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    size_t found = 0;
    for (uintptr_t i = 0; i < THREADS * THREAD_READS; i++) {
        const bool is_there = is_noted((void *)((UINT64_C(1) << 40) + i * PART), 1, &place);
        if (is_there && strcmp(place.path, file.path) == 0)
            CHECK_EQ(place.file_offset, i % THREAD_READS);
        found += is_there;
    }
    CHECK(found >
          THREADS * THREAD_READS / 2); /* files of long ago are forgotten, and some left out */
}

/* Under a limit of addresses the table is small, and takes none of them. */
MS_TEST_AFTER(set_up, the_table_is_small_where_addresses_are_limited)
{
    enum { KEPT = 32 << 10, ALMOST = 1 << 10, COUNT = KEPT + KEPT / 2 };
    const uintptr_t base = UINT64_C(1) << 40, step = (uintptr_t)2 * MS_READS_LEAST;
    const struct rlimit limit = {.rlim_cur = UINT64_C(1) << 50, .rlim_max = RLIM_INFINITY};
    struct rlimit set;
    struct ms_mapping place;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &set) == 0);
    if (set.rlim_cur != limit.rlim_cur)
        ms_test_skip("an emulator ignores limits of addresses");
    for (size_t i = 0; i < COUNT; i++)
        ms_reads_note(file.descriptor, (void *)(base + i * step), MS_READS_LEAST, 0, 0);
    for (size_t i = 0; i < COUNT - KEPT; i++)
        CHECK(!is_noted((void *)(base + i * step), 1, &place));
    for (size_t i = COUNT - KEPT + ALMOST; i < COUNT; i++)
        CHECK(is_noted((void *)(base + i * step), 1, &place));
}

/* Reads to the same memory, again and again, take no place from other notes. */
MS_TEST_AFTER(set_up, reads_over_a_read_take_no_place_from_other_notes)
{
    enum { COUNT = 1 << 20 };
    const uintptr_t base = UINT64_C(1) << 40;
    struct ms_mapping place;
    ms_reads_note(file.descriptor, (void *)base, MS_READS_LEAST, 0, 0);
    for (size_t i = 0; i < COUNT; i++)
        ms_reads_note(file.descriptor, (void *)(base + PART / 2), MS_READS_LEAST, (off_t)i, 0);
    CHECK(is_noted((void *)base, 1, &place));
}

/* Memory that is cut into windows is one place for a loader. */
MS_TEST_AFTER(set_up, a_read_over_many_windows)
{
    enum { WINDOW = 1 << 20, MANY = 40 * WINDOW };
    const uintptr_t base = (UINT64_C(1) << 40) - 100;
    struct ms_mapping place;
    ms_reads_note(file.descriptor, (void *)base, MANY, 7, 0);
    for (uintptr_t at = 0; at < MANY; at += WINDOW / 4) {
        CHECK(is_noted((void *)(base + at), MANY - at, &place));
        CHECK_EQ(place.file_offset, 7 + at);
    }
    CHECK(!is_noted((void *)(base - 1), 1, &place));
    CHECK(!is_noted((void *)(base + MANY), 1, &place));
    ms_reads_note(file.descriptor, (void *)(base + WINDOW), MANY - 2 * WINDOW, 100, 0);
    CHECK(is_noted((void *)base, 1, &place));
    CHECK_EQ(place.file_offset, 7);
    CHECK(is_noted((void *)(base + MANY / 2), 1, &place));
    CHECK_EQ(place.file_offset, 100 + MANY / 2 - WINDOW);
}

MS_TEST_AFTER(set_up, the_last_of_more_files_than_the_table_has_is_noted)
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

/* --- the notes themselves: neither a byte of the memory nor of a file is looked at */

enum { FILES = 4 };

/* Several files, with their names and sizes. */
static struct {
    char path[64];
    int descriptor;
    struct stat stat;
} files[FILES];

static void remove_noted(void)
{
    for (int i = 0; i < FILES; i++)
        unlink(files[i].path);
}

static void make_noted(void)
{
    static const off_t sizes[FILES] = {BYTES, BYTES, MS_READS_LEAST, MS_READS_LEAST - 1};
    atexit(remove_noted);
    atomic_store(&ms_hot.started, 1);
    for (int i = 0; i < FILES; i++) {
        snprintf(files[i].path, sizeof(files[i].path), "/tmp/metashard-noted-XXXXXX");
        files[i].descriptor = mkstemp(files[i].path);
        CHECK(files[i].descriptor >= 0);
        CHECK_EQ(ftruncate(files[i].descriptor, sizes[i]), 0);
        CHECK_EQ(fstat(files[i].descriptor, &files[i].stat), 0);
    }
}

/* Which of the files it is. */
static int number_of(const struct ms_mapping *place)
{
    int number = 0;
    CHECK(place->is_read);
    while (number < FILES && strcmp(files[number].path, place->path) != 0)
        number++;
    CHECK(number < FILES);
    CHECK_EQ(place->inode, files[number].stat.st_ino);
    CHECK_EQ(place->device, files[number].stat.st_dev);
    return number;
}

/* "FILE@OFFSET " of each place. */
static void check_places(const void *address, size_t bytes, const char *wanted)
{
    char seen[512] = "";
    struct ms_mapping place;
    for (size_t at = 0; ms_reads_next(address, bytes, &at, &place);)
        sprintf(seen + strlen(seen), "%d@%d ", number_of(&place), (int)place.file_offset);
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "%zu bytes: expected %s, found %s", bytes, wanted, seen);
}

static void note_at(uintptr_t address, size_t bytes, int number, off_t offset)
{
    ms_reads_note(files[number].descriptor, (void *)address, bytes, offset, 0);
}

MS_TEST_AFTER(make_noted, so_many_bytes_may_be_where_as_many_or_almost_were_read)
{
    enum { MUCH = 2 * MS_READS_LEAST, ALMOST = MS_READS_LEAST - 1 };
    void *const elsewhere = (void *)0x10000;
    const uintptr_t base = UINT64_C(1) << 40;
    note_at(base, MUCH, 0, 1000);
    note_at(base + BYTES, MUCH, 1, 100000);
    note_at(base + BYTES, MUCH + 1, 1, 0); /* the range of the one before is forgotten */
    check_places(elsewhere, MUCH - 1, "");
    check_places(elsewhere, MUCH, "1@100000 0@1000 ");
    check_places(elsewhere, MUCH + 1, "1@0 1@99999 0@999 ");
    check_places(elsewhere, MUCH + 1000, "1@99000 0@0 ");
    check_places(elsewhere, MUCH + 1001, "1@98999 "); /* it would begin before its file */
    check_places(elsewhere, MUCH + ALMOST, "1@34465 ");
    check_places(elsewhere, MUCH + ALMOST + 1, "");
    check_places((void *)base, MUCH, "0@1000 1@100000 0@1000 ");
    /* As its middle was read. */
    check_places((void *)(base + 1), MUCH - 1, "0@1001 ");
    check_places((void *)(base - 500), 1001, "0@500 ");
    check_places((void *)(base - 1000), 2000, "0@0 ");
    check_places((void *)(base - 1001), 2002, "");
    check_places((void *)(base - 501), 1001, "");
    check_places((void *)(base + MUCH - 1), 1, "0@132071 ");
    check_places((void *)(base + MUCH), 1, "");
}

MS_TEST_AFTER(make_noted, the_last_reads_are_known)
{
    enum { KEPT = 64 };
    struct ms_mapping place;
    for (int i = 0; i <= KEPT; i++) {
        int count = 0;
        for (size_t at = 0; ms_reads_next((void *)0x10000, PART, &at, &place); count++)
            CHECK_EQ(place.file_offset, i - 1 - count);
        CHECK_EQ(count, i);
        note_at((UINT64_C(1) << 40) + (uintptr_t)i * 2 * PART, PART, 0, i);
    }
    size_t at = 0;
    for (int i = KEPT; i > 0; i--) {
        CHECK(ms_reads_next((void *)0x10000, PART, &at, &place));
        CHECK_EQ(place.file_offset, i);
    }
    CHECK(!ms_reads_next((void *)0x10000, PART, &at, &place));
}

/* The expected note of each unit of some memory, as a list of units. */
enum { UNITS = 40, UNIT = 4096 };
static struct unit {
    int file;
    off_t offset;
    unsigned note; /* 0: none */
} units[UNITS];

static void note_units(unsigned note, int first, int count, int number, off_t offset)
{
    const int end = first + count;
    const struct unit before = first > 0 ? units[first - 1] : (struct unit){0};
    /* Behind what is read over in the middle of a note nothing of that is known. */
    for (int i = end; before.note != 0 && i < UNITS && units[i].note == before.note; i++)
        units[i].note = 0;
    if (before.note != 0 && before.file == number && before.offset + UNIT == offset)
        note = before.note; /* it goes on */
    for (int i = first; i < end; i++)
        units[i] = (struct unit){number, offset + (off_t)(i - first) * UNIT, note};
}

static void check_unit(uintptr_t base, int number)
{
    static const int places[] = {0, UNIT / 2, UNIT - 1};
    for (int i = 0; i < 3; i++) {
        size_t at = 0;
        struct ms_mapping place;
        const uintptr_t address = base + (uintptr_t)(number * UNIT + places[i]);
        CHECK_EQ(ms_reads_next((void *)address, 1, &at, &place), units[number].note != 0);
        if (units[number].note == 0)
            continue;
        CHECK_EQ(number_of(&place), units[number].file);
        CHECK_EQ(place.file_offset, units[number].offset + places[i]);
    }
}

MS_TEST_AFTER(make_noted, notes_over_notes_match_the_model)
{
    enum { STEPS = 3000 };
    uint64_t random = 20261127;
    const uintptr_t base = UINT64_C(1) << 40;
    for (unsigned step = 1; step <= STEPS; step++) {
        const int first = (int)(next_random(&random) % UNITS);
        const int most = step % 8 == 0 ? UNITS : 6;
        int count = 1 + (int)(next_random(&random) % (uint64_t)most);
        if (first + count > UNITS)
            count = UNITS - first;
        int number = (int)(next_random(&random) % 2);
        off_t offset = (off_t)(next_random(&random) % 16) * UNIT;
        if (first > 0 && units[first - 1].note != 0 && step % 3 == 0) { /* goes on, or almost */
            number = units[first - 1].file;
            offset = units[first - 1].offset + UNIT + (step % 5 == 0 ? UNIT : 0);
        }
        note_at(base + (uintptr_t)first * UNIT, (size_t)count * UNIT, number, offset);
        note_units(step, first, count, number, offset);
        for (int i = 0; i < UNITS; i++)
            check_unit(base, i);
    }
}

/* --- checksums */

static void check_part(const unsigned char *at, const unsigned char *begin, size_t bytes,
                       uint64_t file_offset, uint32_t held)
{
    struct ms_reads_part part;
    CHECK(ms_reads_find_part(at, &part));
    CHECK_EQ(part.begin, (uintptr_t)begin);
    CHECK_EQ(part.bytes, bytes);
    CHECK_EQ(part.file_offset, file_offset);
    CHECK_EQ(part.held, held);
    CHECK(part.checksum == ms_checksum(begin, bytes));
}

MS_TEST_AFTER(make_noted, each_64_kib_of_a_read_has_a_checksum)
{
    enum { SUM = 64 << 10, REST = 100, ALL = 3 * SUM + REST };
    static unsigned char bytes[2 * ALL];
    struct ms_reads_part part;
    fill_randomly(bytes, sizeof(bytes), 1);
    ms_reads_note(files[0].descriptor, bytes + ALL, ALL, 7, 0);
    CHECK(!ms_reads_find_part(bytes + ALL, &part)); /* nobody held it */
    ms_reads_note(files[0].descriptor, bytes, ALL, 1000, 5);
    CHECK(!ms_reads_find_part(bytes + ALL, &part));
    for (size_t i = 0; i < 4; i++) {
        const size_t begin = i * SUM, length = i < 3 ? SUM : REST;
        check_part(bytes + begin, bytes + begin, length, 1000 + begin, 5);
        check_part(bytes + begin + length - 1, bytes + begin, length, 1000 + begin, 5);
    }
    /* Bytes that were read over have the new note; the rest keep theirs, from where it began. */
    ms_reads_note(files[1].descriptor, bytes, SUM + 10, 0, 6);
    check_part(bytes, bytes, SUM, 0, 6);
    check_part(bytes + SUM + 9, bytes + SUM, 10, SUM, 6);
    check_part(bytes + SUM + 10, bytes + SUM, SUM, 1000 + SUM, 5);
    check_part(bytes + ALL - 1, bytes + 3 * SUM, REST, 1000 + 3 * SUM, 5);
    /* Reads that go on where another ended have their own, too. */
    ms_reads_note(files[0].descriptor, bytes + ALL, SUM, 1000 + ALL, 5);
    check_part(bytes + ALL, bytes + ALL, SUM, 1000 + ALL, 5);
    check_part(bytes + ALL - 1, bytes + 3 * SUM, REST, 1000 + 3 * SUM, 5);
}

/* Only within a note that has them, though another one was there before. */
MS_TEST_AFTER(make_noted, bytes_beside_a_read_have_no_checksum)
{
    enum { SUM = 64 << 10 };
    static unsigned char room[6 * SUM], *const bytes = room;
    struct ms_reads_part part;
    CHECK(!ms_reads_find_part(bytes, &part));
    ms_reads_note(files[0].descriptor, bytes + SUM, SUM, 0, 5);
    ms_reads_note(files[0].descriptor, bytes + 3 * SUM, SUM, 0, 6);
    CHECK(!ms_reads_find_part(bytes, &part));
    CHECK(!ms_reads_find_part(bytes + SUM - 1, &part));
    CHECK(!ms_reads_find_part(bytes + 2 * SUM, &part));
    check_part(bytes + SUM, bytes + SUM, SUM, 0, 5);
    check_part(bytes + 3 * SUM, bytes + 3 * SUM, SUM, 0, 6);
    ms_reads_note(files[0].descriptor, bytes, 3 * SUM + 1, 0, 7);
    ms_reads_note(files[0].descriptor, bytes, 4 * SUM, 0, 0);
    CHECK(!ms_reads_find_part(bytes + SUM, &part));
    ms_reads_note(files[0].descriptor, bytes, SUM, 0, 8);
    ms_reads_note(files[0].descriptor, bytes, SUM, 0, 9);
    CHECK(!ms_reads_find_part(bytes + 4 * SUM, &part));
    CHECK(!ms_reads_find_part(bytes + 5 * SUM, &part));
    check_part(bytes, bytes, SUM, 0, 9);
}

/* --- a lock that another one has */

/* The numbers of the unseen files, the last first. */
static void check_unseen(const char *wanted)
{
    char seen[64] = "";
    struct ms_mapping place;
    for (size_t at = 0; ms_reads_next_unseen(&at, &place);)
        sprintf(seen + strlen(seen), "%d ", number_of(&place));
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", wanted, seen);
}

static _Atomic int yields;
static void (*in_copy)(void); /* instead of a handler: the path of a new file is copied */

WRAPS(sched_yield, memcpy);
int __wrap_sched_yield(void)
{
    yields++;
    return 0;
}

void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    void (*const interrupt_it)(void) = in_copy;
    in_copy = NULL;
    if (interrupt_it != NULL)
        interrupt_it();
    return __real_memcpy(to, from, bytes);
}

static unsigned char noted[2000];

/* Which of all that can be asked is answered. */
static unsigned ask_all(const unsigned char *at)
{
    struct ms_mapping place;
    struct ms_reads_part part;
    size_t first = 0, unseen = 0;
    unsigned answers = 0;
    answers |= ms_reads_find_part(at, &part) ? 1 : 0;
    answers |= ms_reads_next(at, 1, &first, &place) ? 2 : 0;
    answers |= ms_reads_next_unseen(&unseen, &place) ? 4 : 0;
    return answers;
}

static void ask_while_files_are_busy(void)
{
    enum { TRIES = 100 };
    struct ms_mapping place;
    size_t at = 0;
    const uint32_t changes = atomic_load(&ms_reads_unseen);
    CHECK_EQ(ask_all(noted), 1); /* no path is to be had */
    yields = 0;
    CHECK(!ms_reads_next_unseen(&at, &place));
    CHECK_EQ(yields, TRIES);
    ms_reads_note_open(files[2].descriptor);
    ms_reads_note_map(files[1].descriptor);
    CHECK_EQ(yields, 3 * TRIES);
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes);
    ms_reads_note(files[3].descriptor, noted + 1000, 1000, 0, 5); /* nobody knows it yet */
    CHECK_EQ(yields, 4 * TRIES);
    ms_reads_note(files[0].descriptor, noted, 500, 0, 5); /* needs no path */
    CHECK_EQ(yields, 4 * TRIES);
}

/* Somebody may be busy for ever. */
MS_TEST_AFTER(make_noted, a_busy_table_is_asked_a_hundred_times)
{
    struct ms_reads_part part;
    ms_reads_note(files[0].descriptor, noted, 1000, 7, 5);
    ms_reads_note_open(files[1].descriptor);
    CHECK_EQ(ask_all(noted), 7);
    in_copy = ask_while_files_are_busy;
    note_at(UINT64_C(1) << 40, PART, 2, 0);
    CHECK(in_copy == NULL);
    check_unseen("1 ");
    CHECK_EQ(ask_all(noted + 1000), 4); /* nothing is known of that place */
    CHECK(ms_reads_find_part(noted, &part));
    CHECK_EQ(part.bytes, 500);
    check_places((void *)(UINT64_C(1) << 40), 1, "2@0 ");
}

/* --- files that nobody has seen read */

MS_TEST_AFTER(make_noted, a_file_is_unseen_until_it_is_mapped_or_read)
{
    const uint32_t changes = atomic_load(&ms_reads_unseen);
    ms_reads_note_map(files[2].descriptor);
    check_unseen("");
    ms_reads_note_open(files[2].descriptor);
    check_unseen("2 ");
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 1);
    ms_reads_note_open(files[2].descriptor);
    ms_reads_note_open(files[3].descriptor); /* too small */
    ms_reads_note_open(-1);
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 1);
    ms_reads_note_open(files[0].descriptor);
    ms_reads_note_open(files[1].descriptor);
    check_unseen("1 0 2 ");
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 3);
    ms_reads_note_map(files[0].descriptor);
    check_unseen("1 2 ");
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 4);
    ms_reads_note_map(files[0].descriptor);
    ms_reads_note_map(-1);
    ms_reads_note_open(files[0].descriptor); /* it was mapped */
    check_unseen("1 2 ");
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 4);
    note_at(UINT64_C(1) << 40, BYTES / 16 - 1, 1, 0); /* as its header */
    check_unseen("1 2 ");
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 4);
    note_at(UINT64_C(1) << 40, 1, 1, 0);
    check_unseen("2 ");
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 5);
    note_at(UINT64_C(1) << 40, 1, 1, 0);
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes + 5);
}

/* It is another file, or has another path, by its change time. */
MS_TEST_AFTER(make_noted, a_file_that_changes_is_unseen_again)
{
    ms_reads_note_open(files[0].descriptor);
    ms_reads_note_map(files[0].descriptor);
    check_unseen("");
    for (int tries = 0; tries < 100; tries++) { /* until its file system's clock ticks */
        CHECK_EQ(fchmod(files[0].descriptor, 0600), 0);
        ms_reads_note_open(files[0].descriptor);
        struct ms_mapping place;
        size_t at = 0;
        if (ms_reads_next_unseen(&at, &place))
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    check_unseen("0 ");
}

STORY_AFTER(make_noted, a_note_of_a_file_leaves_errno, errno = ENOTTY, ms_reads_note_open(-1),
            ms_reads_note_open(files[0].descriptor), EQUALS(errno, ENOTTY), ms_reads_note_map(-1),
            ms_reads_note_map(files[0].descriptor), EQUALS(errno, ENOTTY))

/* --- what is noted where no device is used */

/* A file of so many bytes, that begins so, is noted. */
static bool is_noted_before(const char *start, size_t start_bytes, off_t bytes)
{
    struct ms_mapping place;
    const void *const address = (void *)(UINT64_C(1) << 40);
    CHECK_EQ(ftruncate(files[0].descriptor, 0), 0);
    CHECK_EQ(ftruncate(files[0].descriptor, bytes), 0);
    CHECK_EQ(pwrite(files[0].descriptor, start, start_bytes, 0), (ssize_t)start_bytes);
    ms_reads_note(files[0].descriptor, address, MS_READS_LEAST, 0, 0);
    return is_noted(address, 1, &place);
}

#define CHECK_START(start, wanted)                                               \
    do {                                                                         \
        make_noted();                                                            \
        atomic_store(&ms_hot.started, 0);                                        \
        CHECK_EQ(is_noted_before(start, sizeof(start) - 1, 64 << 10), (wanted)); \
        remove_noted();                                                          \
    } while (0)

MS_TEST(reads_of_no_checkpoint_are_not_noted_before_a_device_is_used)
{
    CHECK_START("", false);
    CHECK_START("\xff\xd8\xff\xe0 a picture", false);
    CHECK_START("\x01\0\0\0\0\0\0\0{", false);
    CHECK_START("\x03\0\0\0\0\0\0\0{", true);
}

MS_TEST(the_start_of_a_checkpoint_is_known)
{
    CHECK_START("PK\5\6", false);
    CHECK_START("PK\3\4", true);
}

MS_TEST(the_start_of_a_model_of_ggml_is_known)
{
    CHECK_START("GGUF", true);
}

MS_TEST(the_start_of_a_file_of_hdf5_is_known)
{
    CHECK_START("\x89HDF\r\n\x1a\n", true);
}

MS_TEST(the_start_of_an_array_of_numpy_is_known)
{
    CHECK_START("\x93NUMPY\1", true);
}

MS_TEST(the_start_of_a_pickle_is_known)
{
    CHECK_START("\x80\6", false);
    CHECK_START("\x80\5", true);
}

MS_TEST_AFTER(make_noted, a_large_file_could_be_any_checkpoint)
{
    enum { LARGE = 64 << 20 };
    atomic_store(&ms_hot.started, 0);
    CHECK(!is_noted_before("", 0, LARGE - 1));
    CHECK(is_noted_before("", 0, LARGE));
    CHECK(is_noted_before("", 0, MS_READS_LEAST)); /* it is known by now */
}

/* A file without so many bytes has no such beginning. */
MS_TEST_AFTER(make_noted, a_file_that_is_shorter_than_a_beginning)
{
    atomic_store(&ms_hot.started, 0);
    CHECK(!is_noted_before("PK\3\4....", 8, 8));
    CHECK(is_noted_before("PK\3\4.....", 9, 9));
}

/* The child of a process that uses a device: its page of flags is zero. */
MS_TEST_AFTER(make_noted, a_child_notes_no_reads)
{
    struct ms_mapping place;
    note_at(UINT64_C(1) << 41, PART, 1, 0);
    atomic_store(&ms_hot.started, 0);
    CHECK(!is_noted_before("PK\3\4.....", 9, PART));
    const uint32_t changes = atomic_load(&ms_reads_unseen);
    ms_reads_note_open(files[1].descriptor);
    CHECK_EQ(atomic_load(&ms_reads_unseen), changes);
    CHECK(is_noted((void *)(UINT64_C(1) << 41), 1, &place)); /* the parent's stays */
}

/* --- paths */

MS_TEST_AFTER(make_noted, a_descriptor_has_the_path_of_its_file)
{
    static char path[MS_PATH_BYTES];
    memset(path, 'x', sizeof(path));
    CHECK(ms_reads_path(files[1].descriptor, path));
    CHECK(strcmp(path, files[1].path) == 0);
    memset(path, 'x', sizeof(path));
    CHECK(!ms_reads_path(-1, path));
    CHECK(strcmp(path, "") == 0);
}

/* A path of so many bytes, whose file is in a folder of a folder. */
static void check_long_path(int length, bool is_path)
{
    enum { NAME = 200 };
    char top[] = "/tmp/metashard-long-XXXXXX", folder[256], lower[512], path[1024];
    char found[MS_PATH_BYTES];
    CHECK(mkdtemp(top) != NULL);
    snprintf(folder, sizeof(folder), "%s/%0*d", top, NAME, 0);
    snprintf(lower, sizeof(lower), "%s/%0*d", folder, NAME, 0);
    CHECK(mkdir(folder, 0700) == 0 && mkdir(lower, 0700) == 0);
    const int rest = length - (int)strlen(lower) - 1;
    snprintf(path, sizeof(path), "%s/%0*d", lower, rest, 0);
    CHECK_EQ(strlen(path), length);
    const int opened = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(opened >= 0);
    memset(found, 'x', sizeof(found));
    CHECK_EQ(ms_reads_path(opened, found), is_path);
    CHECK(strcmp(found, is_path ? path : "") == 0);
    close(opened);
    CHECK(unlink(path) == 0 && rmdir(lower) == 0 && rmdir(folder) == 0 && rmdir(top) == 0);
}

STORY_ALONE(a_path_that_is_too_long_is_none, check_long_path(MS_PATH_BYTES - 1, true),
            check_long_path(MS_PATH_BYTES, false), check_long_path(MS_PATH_BYTES + 1, false))

MS_TEST_AFTER(make_noted, reads_without_an_offset_are_noted_where_the_descriptor_stood)
{
    const uintptr_t base = UINT64_C(1) << 40;
    CHECK_EQ(lseek(files[0].descriptor, PART, SEEK_SET), PART);
    note_at(base, PART, 0, -1);
    check_places((void *)base, 1, "0@0 ");
    note_at(base, PART + 1, 0, -1); /* more than was before it: somebody has moved it since */
    check_places((void *)(base + 1), 1, "0@1 ");
    check_places((void *)(base + PART), 1, "");
}
