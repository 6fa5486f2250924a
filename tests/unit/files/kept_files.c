/* SPDX-License-Identifier: Apache-2.0 */
/* A file from which nothing comes is let go within a second, with its lease, however it was found;
 * the next copy finds it again. */
#include "runtime/files/kept_files.h"

#include <sys/inotify.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/files/lease.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/source.h"
#include "runtime/finding/find.h"
#include "runtime/finding/held_files.h"
#include "runtime/finding/reads.h"
#include "tests/unit/between.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"

enum { TENSOR = 1 << 20, HEAD = 4096, BYTES = HEAD + 2 * TENSOR };

static struct test_file file;
static unsigned char *memory;

static void answer(__attribute__((unused)) dev_t device, __attribute__((unused)) ino_t inode)
{
}

/* Two tensors. Nothing has the file open. */
static void set_up(void)
{
    make_test_file(&file, "/var/tmp", BYTES);
    memset(file.data, ' ', HEAD);
    const uint64_t length = HEAD - 8;
    memcpy(file.data, &length, sizeof(length));
    const int used = snprintf((char *)file.data + 8, HEAD - 8,
                              "{\"a\":{\"data_offsets\":[0,%d]},\"b\":{\"data_offsets\":[%d,%d]}}",
                              TENSOR, TENSOR, 2 * TENSOR);
    file.data[8 + used] = ' ';
    ms_file_drop(file.opened);
    const int writer = open(file.path, O_WRONLY);
    CHECK_EQ(pwrite(writer, file.data, BYTES, 0), BYTES);
    close(writer);
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    memory = malloc(BYTES);
    memcpy(memory, file.data, BYTES);
    ms_config.unseen_reads = ms_config.leases = true;
    ms_lease_thread_start(answer, answer);
}

static void look_for(void *is_open_out)
{
    char link[64], to[256];
    for (int number = 0; number < 256; number++) {
        snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", number);
        const ssize_t length = readlink(link, to, sizeof(to) - 1);
        to[length > 0 ? length : 0] = '\0';
        *(bool *)is_open_out |= strcmp(to, file.path) == 0;
    }
}

static bool is_open(void)
{
    bool is_open = false;
    CHECK(ms_file_thread_call(look_for, &is_open));
    return is_open;
}

static void check_let_go(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 900 * 1000 * 1000}, NULL);
    CHECK(!is_open());
    CHECK(!ms_lease_any());
}

static struct ms_file *find(size_t at)
{
    uint64_t found_at = 0;
    struct ms_file *source = ms_find_file(memory + at, TENSOR, &found_at);
    CHECK(source == NULL || found_at == at);
    return source;
}

/* Once, it is not the file's: the file was opened for that. */
static void check_miss(void)
{
    memory[HEAD + TENSOR / 2] ^= 1;
    CHECK(find(HEAD) == NULL);
    CHECK(is_open());
    check_let_go();
    memory[HEAD + TENSOR / 2] ^= 1;
}

/* While deferred bytes come from it, it stays. */
static void check_found(void)
{
    struct ms_file *source = find(HEAD);
    CHECK(source != NULL);
    nanosleep(&(struct timespec){.tv_nsec = 900 * 1000 * 1000}, NULL);
    CHECK(is_open());
    ms_file_drop(source);
    CHECK(!is_open());
    CHECK(!ms_lease_any());
}

static void check_both(void)
{
    check_miss();
    check_found();
    check_found();
}

STORY_AFTER(set_up, a_copy_finds_a_file_that_was_read,
            ms_reads_note(file.descriptor, memory, BYTES, 0, 0), check_both())

STORY_AFTER(set_up, a_copy_finds_a_file_that_was_read_unseen, ms_reads_note_open(file.descriptor),
            check_both())

STORY_AFTER(set_up, a_copy_finds_a_file_that_is_mapped,
            IS(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file.descriptor, 0) != MAP_FAILED),
            atomic_fetch_add(&ms_hot.mapped, 1), check_both())

MS_TEST_AFTER(set_up, a_copy_finds_a_mapped_file_that_has_changed_since)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator does not answer queries of mappings");
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file.descriptor, 0) != MAP_FAILED);
    atomic_fetch_add(&ms_hot.mapped, 1);
    check_miss();
    unsigned char *other = malloc(TENSOR);
    fill_randomly(other, TENSOR, 99);
    const int writer = open(file.path, O_WRONLY);
    CHECK_EQ(pwrite(writer, other, TENSOR, HEAD), TENSOR);
    close(writer);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100 * 1000 * 1000}, NULL);
    CHECK(find(HEAD) == NULL);
    memcpy(memory + HEAD, other, TENSOR);
    check_found();
}

/* Counts the opens of the file since the last call. The first call begins to count. */
static int count_opens(void)
{
    static int events = -1;
    struct inotify_event told;
    int count = 0;
    if (events < 0) {
        events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        CHECK(inotify_add_watch(events, file.path, IN_OPEN) >= 0);
    }
    while (read(events, &told, sizeof(told)) == (ssize_t)sizeof(told))
        count++;
    return count;
}

/* Who reads past the page cache is in nobody's way, and what was read is the file's. */
MS_TEST_AFTER(set_up, a_copy_finds_a_file_read_past_the_page_cache)
{
    const int direct = open(file.path, O_RDONLY | O_DIRECT);
    if (direct < 0)
        ms_test_skip("nothing is read past the page cache here");
    const uint32_t number = ms_held_files_hold(direct);
    CHECK(number != 0);
    CHECK(is_open());
    CHECK(!ms_lease_any());
    const int writer = open(file.path, O_WRONLY | O_NONBLOCK);
    CHECK(writer >= 0);
    close(writer);
    CHECK_EQ(ms_held_files_hold(direct), number);
    ms_reads_note(direct, memory, BYTES, 0, number);
    make_cold(&file);
    check_found();
}

/* A read asks for the file as a copy does. The copy that follows opens nothing. */
MS_TEST_AFTER(set_up, a_file_stays_open_while_it_is_read_past_the_page_cache)
{
    const int direct = open(file.path, O_RDONLY | O_DIRECT);
    if (direct < 0)
        ms_test_skip("nothing is read past the page cache here");
    uint32_t number = 0;
    for (int i = 0; i < 8; i++) {
        number = ms_held_files_hold(direct);
        nanosleep(&(struct timespec){.tv_nsec = 150 * 1000 * 1000}, NULL);
        CHECK(is_open());
    }
    CHECK(number != 0);
    ms_reads_note(direct, memory, BYTES, 0, number);
    make_cold(&file);
    CHECK_EQ(count_opens(), 0);
    struct ms_file *source = find(HEAD);
    CHECK(source != NULL);
    CHECK_EQ(count_opens(), 0);
    CHECK_EQ(ms_lease_any(), are_there_leases(file.path));
    count_opens(); /* the question was one */
    ms_file_drop(source);
    check_let_go();
    CHECK(find(HEAD) != NULL);
    CHECK_EQ(count_opens(), 1);
}

MS_TEST_AFTER(set_up, a_file_that_is_read_past_the_page_cache_and_not_copied_is_let_go)
{
    const int direct = open(file.path, O_RDONLY | O_DIRECT);
    if (direct < 0)
        ms_test_skip("nothing is read past the page cache here");
    CHECK(ms_held_files_hold(direct) != 0);
    check_let_go();
    CHECK(ms_held_files_hold(direct) != 0);
    CHECK(!is_open());
}

/* The last half second counts. */
MS_TEST_AFTER(set_up, a_file_stays_open_while_copies_ask_for_it)
{
    ms_reads_note(file.descriptor, memory, BYTES, 0, 0);
    memory[HEAD + TENSOR / 2] ^= 1;
    for (int i = 0; i < 8; i++) {
        CHECK(find(HEAD) == NULL);
        nanosleep(&(struct timespec){.tv_nsec = 150 * 1000 * 1000}, NULL);
        CHECK(is_open());
    }
    check_let_go();
}
