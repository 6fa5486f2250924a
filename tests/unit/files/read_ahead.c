/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/read_ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/files/lease.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/source.h"
#include "runtime/finding/find.h"
#include "runtime/state/caller.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"

enum { BYTES = 8 << 20, COPIED = 1 << 20, MANY = 100, PAGE = 4096 };

static char path[64] = "/tmp/metashard-ahead-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

/* Begins as a safetensors file does, of another length. */
static void make_file(void)
{
    static const char start[] = "\x10\0\0\0\0\0\0\0{";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    ms_config.leases = true;
    CHECK_EQ(ftruncate(file, BYTES), 0);
    CHECK_EQ(pwrite(file, start, sizeof(start) - 1, 0), sizeof(start) - 1);
    close(file);
}

static void *map_at(void *wanted, int flags)
{
    const int file = open(path, O_RDONLY);
    void *address = mmap(wanted, BYTES, PROT_READ, MAP_PRIVATE | flags, file, 0);
    CHECK(address != MAP_FAILED);
    ms_read_ahead_note_map(file, address, BYTES);
    close(file);
    return address;
}

static void *map(void)
{
    return map_at(NULL, 0);
}

static void use(const void *address)
{
    const volatile char *bytes = address;
    for (size_t at = COPIED; at < BYTES; at += PAGE)
        (void)bytes[at];
}

/* As smaps(5) says: a fault reads one page. */
static bool is_random(const void *address)
{
    char line[512], begin[32];
    bool is_there = false, is_so = false;
    snprintf(begin, sizeof(begin), "%lx-", (unsigned long)address);
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (strstr(line, "-") != NULL && strstr(line, ":\t") == NULL && strchr(line, ' ') != NULL &&
            strncmp(line, "VmFlags", 7) != 0 && strspn(line, "0123456789abcdef") > 6)
            is_there = strncmp(line, begin, strlen(begin)) == 0;
        if (is_there && strncmp(line, "VmFlags:", 8) == 0)
            is_so = strstr(line, " rr") != NULL;
    }
    fclose(maps);
    return is_so;
}

/* An emulator may take no advice. */
static bool is_advice_shown(void)
{
    void *address = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQ(madvise(address, PAGE, MADV_RANDOM), 0);
    const bool is_shown = is_random(address);
    CHECK_EQ(munmap(address, PAGE), 0);
    return is_shown;
}

static struct ms_file *copy_from(const void *address)
{
    uint64_t offset;
    const char *preload = getenv("LD_PRELOAD");
    if (preload != NULL && strstr(preload, "vgpreload") != NULL)
        ms_test_skip("smaps has no mapping of its own for the file under valgrind");
    if (!is_advice_shown())
        ms_test_skip("an emulator takes no advice");
    struct ms_file *source = ms_find_file((const char *)address + COPIED, COPIED, &offset);
    needs_mappings(source != NULL, path);
    needs_lease(ms_lease_any(), path);
    return source;
}

MS_TEST_AFTER(make_file, a_copy_stops_read_ahead_of_its_mapping)
{
    const void *address = map(), *other = map();
    CHECK(!is_random(address));
    struct ms_file *source = copy_from(address);
    CHECK(is_random(address));
    CHECK(!is_random(other));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, a_checkpoint_that_is_mapped_then_is_not_read_ahead_either)
{
    struct ms_file *source = copy_from(map());
    const void *address = map();
    CHECK(is_random(address));
    ms_read_ahead_look(false);
    CHECK(!is_random(map()));
    ms_file_drop(source);
}

/* Before the first copy there is no advice, and who reads a header touches it. */
MS_TEST_AFTER(make_file, a_header_read_reads_the_header_alone_of_the_first_mapping)
{
    enum { HEADER_PAGES = 5, LENGTH = (HEADER_PAGES - 1) * PAGE };
    const uint64_t length = LENGTH;
    const int file = open(path, O_RDWR);
    const struct test_file cold = {.descriptor = file, .bytes = BYTES};
    CHECK_EQ(pwrite(file, &length, sizeof(length), 0), sizeof(length));
    if (!make_cold(&cold))
        ms_test_skip("the page cache cannot be emptied here");
    const volatile char *address = map();
    for (size_t at = 0; at < LENGTH; at += PAGE)
        (void)address[at];
    CHECK_EQ(count_cached(&cold), HEADER_PAGES);
    CHECK_EQ(close(file), 0);
}

/* Reading a device has side effects. */
MS_TEST(a_device_that_is_mapped_is_not_read)
{
    const int file = open("/dev/zero", O_RDONLY);
    void *address = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(address != MAP_FAILED);
    const uint64_t first = count_io("syscr"), second = count_io("syscr");
    ms_read_ahead_note_map(file, address, BYTES);
    CHECK_EQ(count_io("syscr") - second, second - first);
    close(file);
}

MS_TEST_AFTER(make_file, a_mapping_where_another_was_gets_advice_of_its_own)
{
    void *address = map();
    struct ms_file *source = copy_from(address);
    map_at(address, MAP_FIXED);
    CHECK(is_random(address));
    CHECK_EQ(munmap(address, BYTES), 0);
    rename(path, "/tmp/metashard-ahead-before");
    int other = open(path, O_RDWR | O_CREAT, 0600);
    CHECK_EQ(ftruncate(other, BYTES), 0);
    close(other);
    other = open(path, O_RDONLY); /* nobody writes */
    CHECK(mmap(address, BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, other, 0) == address);
    close(other);
    CHECK(!is_random(address));
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL); /* its times are old */
    ms_file_drop(copy_from(address));
    CHECK(is_random(address));
    unlink("/tmp/metashard-ahead-before");
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, a_file_that_begins_otherwise_is_read_ahead)
{
    struct ms_file *source = copy_from(map());
    char other[] = "/tmp/metashard-other-XXXXXX";
    const int file = mkstemp(other);
    unlink(other);
    CHECK_EQ(ftruncate(file, BYTES), 0);
    void *address = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    ms_read_ahead_note_map(file, address, BYTES);
    CHECK(!is_random(address));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, more_faults_than_copies_take_the_advice_back)
{
    const void *address = map();
    ms_read_ahead_look_at(5 * MANY);
    struct ms_file *source = copy_from(address);
    ms_read_ahead_look_at(6 * MANY); /* nobody knows when these were */
    CHECK(is_random(address));
    ms_read_ahead_look_at(6 * MANY + 10);
    CHECK(is_random(address));
    use(address);
    ms_read_ahead_look_at(7 * MANY + 10);
    CHECK(!is_random(address));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, copies_explain_faults)
{
    const void *address = map();
    struct ms_file *source = copy_from(address);
    ms_read_ahead_look_at(0);
    use(address);
    for (int i = 1; i <= MANY; i++)
        ms_file_drop(copy_from(address));
    ms_read_ahead_look_at(MANY);
    CHECK(is_random(address));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, faults_of_other_memory_take_nothing_back)
{
    const void *address = map();
    struct ms_file *source = copy_from(address);
    ms_read_ahead_look_at(0);
    ms_read_ahead_look_at(MANY);
    CHECK(is_random(address));
    ms_file_drop(source);
}

/* On slow storage few faults take long. */
MS_TEST_AFTER(make_file, few_faults_add_up)
{
    const void *address = map();
    struct ms_file *source = copy_from(address);
    ms_read_ahead_look_at(0);
    use(address);
    for (uint64_t i = 1; i <= MANY; i++)
        ms_read_ahead_look_at(2 * i);
    CHECK(!is_random(address));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, advice_is_given_three_times_at_most)
{
    const void *address = map();
    struct ms_file *source = copy_from(address);
    uint64_t faults = 0;
    use(address);
    for (int i = 0; i < 3; i++) {
        ms_file_drop(copy_from(address));
        CHECK(is_random(address));
        ms_read_ahead_look_at(faults);
        ms_read_ahead_look_at(faults += MANY);
        CHECK(!is_random(address));
    }
    ms_file_drop(copy_from(address));
    CHECK(!is_random(address));
    ms_file_drop(source);
}

/* One lies on each side, and its owner has advised it. */
MS_TEST_AFTER(make_file, advice_of_neighbours_stays)
{
    unsigned char *begin =
        mmap(NULL, BYTES + 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(begin != MAP_FAILED);
    unsigned char *address = map_at(begin + PAGE, MAP_FIXED);
    struct ms_file *source = copy_from(address);
    CHECK_EQ(madvise(begin, PAGE, MADV_RANDOM), 0);
    CHECK_EQ(madvise(address + BYTES, PAGE, MADV_RANDOM), 0);
    CHECK(is_random(address));
    ms_read_ahead_look(false);
    CHECK(!is_random(address));
    CHECK(is_random(begin) && is_random(address + BYTES));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, another_mapping_in_its_place_keeps_its_advice)
{
    void *address = map();
    struct ms_file *source = copy_from(address);
    CHECK(mmap(address, BYTES / 2, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          address);
    CHECK_EQ(madvise(address, BYTES / 2, MADV_RANDOM), 0);
    ms_read_ahead_look(false);
    CHECK(is_random(address));
    ms_file_drop(source);
}

/* The mapping that came in its place differs in one thing alone, and its owner has advised it. */
static void check_other(const char *folder, size_t bytes)
{
    char other[80];
    void *address = map();
    struct ms_file *source = copy_from(address);
    CHECK(is_random(address));
    snprintf(other, sizeof(other), "%s/metashard-ahead-%d", folder != NULL ? folder : "",
             (int)getpid());
    const int file = folder != NULL ? open(other, O_RDWR | O_CREAT, 0600) : open(path, O_RDONLY);
    if (file < 0)
        ms_test_skip("no such folder here");
    if (folder != NULL) {
        CHECK_EQ(ftruncate(file, BYTES), 0);
        unlink(other);
    }
    CHECK_EQ(munmap(address, BYTES), 0);
    CHECK(mmap(address, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == address);
    CHECK_EQ(madvise(address, bytes, MADV_RANDOM), 0);
    ms_read_ahead_look(false);
    CHECK(is_random(address));
    close(file);
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, another_file_in_its_place_keeps_its_advice)
{
    check_other("/tmp", BYTES);
}

MS_TEST_AFTER(make_file, a_file_of_another_device_in_its_place_keeps_its_advice)
{
    check_other("/dev/shm", BYTES);
}

MS_TEST_AFTER(make_file, less_of_the_file_in_its_place_keeps_its_advice)
{
    check_other(NULL, BYTES / 2);
}

static void answer(dev_t device, ino_t inode)
{
    (void)device, (void)inode;
}

MS_TEST_AFTER(make_file, a_let_go_file_without_leases_loses_its_advice)
{
    enum { TRIES = 500 };
    const void *address = map();
    ms_lease_thread_start(answer, answer);
    struct ms_file *source = copy_from(address);
    CHECK(is_random(address));
    ms_file_drop(source);
    for (int i = 0; i < TRIES && is_random(address); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    CHECK(!is_random(address));
}

static void use_header(const void *address)
{
    const volatile char *bytes = address;
    for (size_t at = 0; at < COPIED; at += PAGE)
        (void)bytes[at];
}

/* Who reads a header reads no tensor. */
MS_TEST_AFTER(make_file, a_header_that_is_used_takes_nothing_back)
{
    const void *address = map();
    struct ms_file *source = copy_from(address);
    ms_read_ahead_look_at(0);
    use_header(address);
    ms_read_ahead_look_at(MANY);
    CHECK(is_random(address));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, the_shim_leaves_its_own_mappings_and_errno_alone)
{
    struct ms_file *source = copy_from(map());
    ms_calls_inside = 1;
    CHECK(!is_random(map()));
    CHECK_EQ(ms_calls_inside, 1);
    ms_calls_inside = 0;
    errno = ENOTTY;
    const void *address = map();
    CHECK_EQ(errno, ENOTTY);
    CHECK_EQ(ms_calls_inside, 0);
    CHECK(is_random(address));
    const int file = open(path, O_RDONLY);
    ms_read_ahead_note_map(file, MAP_FAILED, BYTES);
    close(file);
    ms_file_drop(source);
}

/* Mappings that are gone make room. */
MS_TEST_AFTER(make_file, so_many_mappings_are_known)
{
    enum { KNOWN = 1024 };
    static void *known[KNOWN];
    known[0] = map();
    struct ms_file *source = copy_from(known[0]);
    for (int i = 1; i < KNOWN; i++)
        known[i] = map();
    CHECK(is_random(known[KNOWN - 1]));
    CHECK(!is_random(map()));
    CHECK_EQ(munmap(known[KNOWN / 2], BYTES), 0);
    known[KNOWN / 2] = map();
    CHECK(is_random(known[KNOWN / 2]));
    CHECK(is_random(known[KNOWN - 1]));
    CHECK(!is_random(map()));
    ms_read_ahead_look(false);
    for (int i = 0; i < KNOWN; i += KNOWN - 1)
        CHECK(!is_random(known[i]));
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, faults_are_looked_at_while_there_is_advice)
{
    CHECK(!ms_read_ahead_look(true));
    struct ms_file *source = copy_from(map());
    CHECK(ms_read_ahead_look(true));
    CHECK(!ms_read_ahead_look(false));
    CHECK(!ms_read_ahead_look(true));
    ms_file_drop(source);
}

/* --- what is noted for who looks for checkpoints */

/* Where what was just mapped lies; NULL: nowhere that matters. */
static const void *take_noted(void)
{
    uintptr_t places[MS_MAPPING_NEW];
    size_t count;
    CHECK_EQ(ms_mapping_take_new(places, &count), 1);
    CHECK(count <= 1);
    return count == 1 ? (const void *)places[0] : NULL;
}

static void begin_with(const char start[9])
{
    const int file = open(path, O_WRONLY);
    CHECK_EQ(pwrite(file, start, 9, 0), 9);
    close(file);
}

MS_TEST_AFTER(make_file, a_mapping_is_noted_unless_it_begins_as_no_checkpoint)
{
    const int file = open(path, O_RDONLY);
    const void *address = map();
    CHECK(take_noted() == address);
    begin_with("\x10\0\0\0\0\0\0\0[");
    map();
    CHECK(take_noted() == NULL);
    ms_read_ahead_note_map(file, (void *)address, 4096); /* nobody has looked */
    CHECK(take_noted() == address);
    ms_read_ahead_note_map(file, MAP_FAILED, BYTES);
    CHECK(take_noted() == NULL);
    begin_with("\0\0\0\3\0\0\0\0{"); /* a header of 48 MiB */
    address = map();
    CHECK(take_noted() == address);
    ms_calls_inside = 1;
    address = map();
    CHECK(take_noted() == address);
    ms_calls_inside = 0;
    close(file);
}
